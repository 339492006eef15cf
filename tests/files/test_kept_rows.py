"""Versions that hold only rows that are worth it: which rows, and when, also after a failure."""

import numpy as np
import pytest

import hpcdist as fluid
import hpcdist.ps as ps
from hpcdist.checkpoint import published_rows
from hpcdist.checkpoint.published_rows import PublishedRows, PublishOrder
from hpcdist.checkpoint.publisher import TablePublisher
from hpcdist.checkpoint.rows import Choice
from hpcdist.errors import CheckpointError, HpcdistError, PublicationError, TableError
from hpcdist.ps.policy_table import PolicyTable
from hpcdist.ps.published.sorted_rows import ids_of
from hpcdist.ps.row_policy import ClickScore, RowPolicy
from hpcdist.ps.table import RowInitializer, RowOptimizer
from hpcdist.runtime.kept.declared import KeptValues
from hpcdist.serving import Lookup

pytestmark = pytest.mark.usefixtures("none_connected")
POLICY = RowPolicy(score=ClickScore(nonclk_coeff=1.0, delete_threshold=0.5))
KEEP = {"t": vars(Choice(least_score=2.0, days=3.0, least_delta=2.0))}


class Published:
    """What owner 0 of 1 writes of a table: by member, ids and deleted ids."""

    def __init__(self, directory, monkeypatch):
        self.directory, self.real = str(directory), published_rows.write_rows
        facts = RowOptimizer("sgd"), RowInitializer("constant", 0.0), 0
        self.table = PolicyTable("t", 1, *facts, policy=POLICY)
        self.owner, self.written = PublishedRows(0, 1), []
        monkeypatch.setattr(published_rows, "write_rows", self.write)

    def write(self, path, tables, sizes, *, packed):
        table = tables["t"]
        self.written.append(tuple(ids_of(k).tolist() for k in (table.keys, table.deleted)))
        return self.real(path, tables, sizes, packed=packed)

    def push(self, *ids):
        self.table.push(np.array(ids), np.ones((len(ids), 1), np.float32), 0.1)

    def publish(self, number, *, base=False, committed=None):
        committed = number - 1 if committed is None else committed
        order = PublishOrder(self.directory, number, "", committed, base, None, KEEP)
        assert not self.owner.begin([self.table], order)
        self.owner.close()
        ids, deleted = self.written[-1]
        return sorted(ids), sorted(deleted)


@pytest.fixture
def made(tmp_path, monkeypatch):
    return Published(tmp_path, monkeypatch)


def test_a_version_holds_the_rows_whose_scores_are_high_enough(made):
    made.push(1, 2, 3)
    made.push(1, 2)
    assert made.publish(1, base=True) == ([1, 2], [])  # 3 has been shown once
    made.push(1, 3)
    assert made.publish(2) == ([3], [])  # 1 once since it was published
    made.push(1)
    assert made.publish(3) == ([1], [])  # which was not forgotten
    assert made.publish(4) == ([], [])
    for _ in range(40):
        made.table.shrink()
    deleted = made.publish(5)[1]
    assert deleted == [1, 2, 3]
    made.push(1)
    assert made.publish(6, base=True) == ([], [])


def test_what_a_version_had_that_never_was_is_due(made):
    made.push(1, 2)
    made.push(1)
    assert made.publish(1, base=True) == ([1], [])
    made.push(1, 2)
    made.push(1, 3)
    assert made.publish(2) == ([1, 2], [])
    made.push(3)
    assert made.publish(3, committed=1) == ([1, 2, 3], [])  # 1 and 2 are worth nothing anew
    assert made.publish(4, base=True, committed=3) == ([1, 2, 3], [])
    made.push(1)
    assert made.publish(5, committed=3) == ([1], [])  # the base was not complete


def test_a_connected_table_publishes_what_it_is_told_to(tmp_path):
    table = ps.connect("t", 1, row_policy=POLICY, publish=tmp_path, publish_keep=Choice(2.0, 3.0))
    for ids in ([1, 2, 3], [1, 3]):
        table.push(ids, np.ones((len(ids), 1), np.float32)).wait()
    table.close()
    with Lookup(tmp_path, watch=False) as lookup:
        assert lookup.pull("t", [1, 2, 3], missing="zeros").astype(bool).tolist() == [
            [True],
            [False],
            [True],
        ]


def program_of(policy):
    """Make the default Program one that looks a table up."""
    ids = fluid.layers.data("ids", [1], dtype="int64")
    attr = fluid.ParamAttr("t", row_policy=policy)
    rows = fluid.embedding(ids, [-1, 2], True, True, None, attr)
    fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(rows))


def test_what_cannot_be_chosen_is_refused_before_the_first_step(tmp_path):
    """By whatever publishes: each has the same words for it."""
    main, choice = fluid.Program(), Choice(1.0, 3.0)
    with fluid.program_guard(main):
        program_of(POLICY)
    made = {"main_program": main}
    for wrong, message in (
        ({"t": 3}, r"'t': rows to publish: expected a hpcdist.checkpoint.Choice, got 3"),
        ({"u": choice}, r"'u': rows to publish are chosen .* of which there are t"),
        ([choice], r"rows to publish: expected Choices by names of tables, got \["),
    ):
        with pytest.raises(TableError, match=message):
            fluid.checkpoint.Publisher(tmp_path, keep=wrong, **made)
        with pytest.raises(TableError, match=message):
            fluid.checkpoint.Saver(None, tmp_path, publish=tmp_path, publish_keep=wrong, **made)
        with pytest.raises(TableError, match=message):
            declared = KeptValues(None, (), policies={"t": POLICY})
            TablePublisher(lambda kept=declared: kept, tmp_path, keep=wrong)
    with pytest.raises(CheckpointError, match="publish_keep: say where to"):
        fluid.checkpoint.Saver(None, tmp_path, publish_keep={"t": choice}, **made)
    for facts, message in (
        ({"publish_keep": choice}, "'t': publish_keep: say where to"),
        ({"publish": tmp_path, "publish_keep": choice}, "of which there are none"),
        (
            {"publish": tmp_path, "publish_keep": 1, "row_policy": POLICY},
            "a hpcdist.*Choice, got 1",
        ),
    ):
        with pytest.raises(TableError, match=message):
            ps.connect("t", 1, **facts)
    for call, message in (
        (lambda: Choice(1.0, "x"), "Choice: days: expected a number, 0 or more, got 'x'"),
        (lambda: Choice(float("nan"), 3), "Choice: least_score: expected a number, got nan"),
        (lambda: Choice(1.0, -1), "Choice: days: expected a number, 0 or more, got -1"),
        (lambda: Choice(1.0, 3, -1.0), "Choice: least_show: .* 0 or more, got -1.0"),
        *(
            (lambda name=name: Choice(**{"least_score": 1, "days": 3, name: True}), f"{name}: .*ue")
            for name in ("least_score", "days", "least_show", "least_delta")
        ),
        (lambda: ClickScore(delete_after_unseen_days=-1), "days: expected 0 or more, got -1"),
        (lambda: fluid.checkpoint.Publisher(3), "Publisher: expected a directory, got 3"),
        (lambda: fluid.checkpoint.Publisher("x", dense="m"), "dense: expected an OnnxModel"),
        (lambda: fluid.checkpoint.Publisher("x", tables="t"), "tables: expected a list of names"),
        (lambda: fluid.checkpoint.Publisher("x", tables=["u"], **made), "has no table 'u'"),
        (lambda: Lookup(None), "Lookup: expected a directory, got None"),
        (lambda: ps.connect("t", 1, publish_every=0), "publish_every: expected at least 1"),
        (lambda: ps.connect("t", 1, mode="async", max_staleness=-1), "max_staleness: expected at"),
    ):
        with pytest.raises(HpcdistError, match=message):
            call()


def test_where_nothing_can_be_published_is_refused_before_the_first_step(tmp_path):
    (tmp_path / "file").write_text("")
    declared = KeptValues(None, (), policies={"t": POLICY})
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(PublicationError, match=f"a directory, got {path}: .*file is a file"):
            TablePublisher(lambda: declared, path)
    TablePublisher(lambda: declared, tmp_path / "made" / "later")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", ["publish_every", "publish_keep", "dense"])
def test_facts_of_publishing_without_a_directory_are_refused(tmp_path, name):
    with pytest.raises(CheckpointError, match=f"{name}: say where to"):
        fluid.checkpoint.Saver(None, tmp_path, **{name: 1})
    if name != "dense":
        with pytest.raises(TableError, match=f"'t': {name}: say where to"):
            ps.connect("t", 1, **{name: 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [("every", "6"), ("every", 2.5), ("every", True), ("keep", 1.5), ("every_s", "60")],
)
def test_savers_take_whole_numbers_and_times(tmp_path, name, value):
    with pytest.raises(CheckpointError, match=f"{name}: expected .*, got {value!r}"):
        fluid.checkpoint.Saver(None, tmp_path, **{name: value})
