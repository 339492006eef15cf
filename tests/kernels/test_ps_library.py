"""What tables as a library do in one process, and refuse."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

import hpcdist.ps as ps
from hpcdist.errors import HpcdistError, PlanError, TableError
from hpcdist.ps.table import RowInitializer, RowOptimizer
from hpcdist.serving import Lookup
from tests.support.table_model import Model

pytestmark = pytest.mark.usefixtures("none_connected")


def test_rows_move_by_the_formula():
    table = ps.connect("t", 2, lr=0.5, initial=ps.Initial("constant", 1.0))
    ids = np.array([[7, -7], [7, 2**62]])
    assert (table.pull(ids) == 1).all()
    table.push(ids, np.ones((2, 2, 2), np.float32)).wait()
    assert table.pull([7, -7, 9], create=False).tolist() == [[0, 0], [0.5, 0.5], [1, 1]]
    table.lr = 1
    table.push(np.int32(9), np.array([1.0, 0.0])).wait()
    assert table.pull(9).tolist() == [0, 1]


def test_first_values_follow_from_seed_name_and_id():
    def first(name, seed):
        with ps.connect(name, 3, initial=ps.Initial("normal", 0, 1, seed=seed)) as table:
            return table.pull([5, 6, 5])

    rows = first("t", 3)
    assert (rows[0] == rows[2]).all()
    assert (rows[0] != rows[1]).all()
    assert (first("t", 3) == rows).all()
    assert (first("t", 4) != rows).all()
    assert (first("u", 3) != rows).all()


def test_a_step_pushes_every_table_once():
    one, two = ps.connect("one", 1), ps.connect("two", 1)
    grad = np.ones((1, 1), np.float32)
    handle = one.push([1], grad)
    for wrong in (handle.wait, lambda: one.push([1], grad), lambda: one.pull([1])):
        with pytest.raises(TableError, match="'two'"):
            wrong()
    before = two.pull([1])
    two.push([], np.empty((0, 1), np.float32))
    handle.wait()
    assert (two.pull([1]) == before).all()
    two.close()
    one.push([1], grad).wait()  # of all that are open


def test_tables_are_saved_and_restored(tmp_path):
    table = ps.connect("t", 2, optimizer="adam", lr=0.1)
    assert table.restore(tmp_path) is None
    grad = np.ones((3, 2), np.float32)
    for _ in range(2):
        table.push([1, 2, 3], grad)
    table.save(tmp_path)
    rows = table.pull([1, 2, 3])
    table.push([1, 2, 3], grad)
    after = table.pull([1, 2, 3])
    assert table.restore(tmp_path) == 2
    assert (table.pull([1, 2, 3]) == rows).all()
    table.push([1, 2, 3], grad)
    assert (table.pull([1, 2, 3]) == after).all()


def test_rows_come_and_go_as_a_policy_says(tmp_path):
    policy = ps.RowPolicy(admit_after=2, until_admitted="zeros", expire_days=1)
    facts = {"lr": 1.0, "initial": ps.Initial("constant", 5.0), "row_policy": policy}
    table = ps.connect("t", 1, publish=tmp_path, **facts)
    every, ones = [1, 2, 3], np.ones((2, 1), np.float32)
    for ids in ([1, 2], [2, 3], [3, 1]):
        table.push(ids, ones)
    assert table.pull(every).ravel().tolist() == [4, 4, 4]
    assert table.shrink() == {"t": 0}
    for _ in range(2):
        table.push([1, 4], ones)
    assert table.shrink() == {"t": 0}
    assert table.shrink() == {"t": 2}  # not seen on the last day
    table.publish()
    with Lookup(tmp_path, watch=False) as lookup:
        assert lookup.pull("t", [*every, 4]).ravel().tolist() == [2, 0, 0, 4]
    assert table.pull([*every, 4]).ravel().tolist() == [2, 0, 0, 4]


def test_a_day_ends_between_steps_of_tables_with_a_policy():
    one, two = ps.connect("one", 1), ps.connect("two", 1)
    with pytest.raises(HpcdistError, match="no table has a policy"):
        one.shrink()
    one.push([1], np.ones((1, 1), np.float32))
    with pytest.raises(TableError, match="shrink: 'one' was pushed in this step"):
        two.shrink()


@pytest.mark.parametrize(
    ("said", "meant", "policy"),
    [
        (
            {"optimizer": "adagrad", "epsilon": 0.1},
            {"kind": "adagrad", "epsilon": 0.1, "row_wise": True, "clip_norm": 1.5},
            ps.RowPolicy(row_wise=True, clip_norm=1.5),
        ),
        (
            {"optimizer": "adamax", "beta1": 0.7},
            {"kind": "adamax", "beta1": 0.7, "epsilon": 1e-8, "weight_bounds": (-0.1, 0.05)},
            ps.RowPolicy(weight_bounds=(-0.1, 0.05)),
        ),
        (
            {"optimizer": "rmsprop", "rho": 0.8, "momentum": 0.3, "l2_decay": 0.1},
            {"kind": "rmsprop", "decay": 0.8, "momentum": 0.3, "l2_decay": 0.1},
            None,
        ),
        (
            {"optimizer": "rmsprop", "centered": True},
            {"kind": "rmsprop", "centered": True, "decay": 0.95},
            ps.RowPolicy(),
        ),
        (
            {"optimizer": "adamw", "weight_decay": 0.2},
            {"kind": "adam", "epsilon": 1e-8, "rate_decay": 0.2},
            None,
        ),
        (
            {"optimizer": "lamb", "lamb_weight_decay": 0.2},
            {"kind": "lamb", "weight_decay": 0.2},
            None,
        ),
    ],
    ids=lambda words: words.get("optimizer", "") if isinstance(words, dict) else "",
)
def test_rows_move_by_the_formulas_of_optimizers(said, meant, policy):
    """As numpy moves them: what is said in words of Fluid's reaches the table."""
    initial = ps.Initial("uniform", -0.1, 0.1, seed=5)
    table = ps.connect("t", 3, lr=0.5, initial=initial, row_policy=policy, **said)
    seed = zlib.crc32(b"5/t")
    model = Model(3, RowOptimizer(**meant), RowInitializer("uniform", -0.1, 0.1), seed)
    random = np.random.default_rng(1)
    for _ in range(4):
        ids, grads = random.integers(0, 9, 12), random.normal(size=(12, 3)).astype(np.float32)
        table.push(ids, grads)
        model.push(ids, grads, 0.5)
    every = np.arange(10)
    rows = table.pull(every, create=False)
    np.testing.assert_array_equal(rows, model.pull(every, create=False))


def test_one_moment_for_a_row_is_for_adagrad():
    told = "'t': RowPolicy.row_wise=True.*is for Adagrad, and adam is to move it"
    with pytest.raises(PlanError, match=told):
        ps.connect("t", 2, optimizer="adam", row_policy=ps.RowPolicy(row_wise=True))


def refusals(table):
    grad = np.ones((2, 3), np.float32)
    bad = grad.copy()
    bad[1, 2] = np.nan
    return {
        "ids: expected integers .* float64": lambda: table.pull([0.5]),
        r"ids: expected integers .* uint64 \[1\]": lambda: table.pull(np.array([1], np.uint64)),
        "ids: expected integers .* <U1": lambda: table.pull(["a"]),
        r"expected float32 \[2, 3\] for ids \[2\], got float32 \[2, 2\]": lambda: table.push(
            [1, 2], grad[:, :2]
        ),
        "expected float32 .*, got int64": lambda: table.push([1, 2], np.ones((2, 3), np.int64)),
        "gradient of id 2 has nan at column 2": lambda: table.push([1, 2], bad),
        "gradient of id 1 has inf": lambda: table.push([1], np.full((1, 3), 1e300)),
        "lr: expected a finite number": lambda: setattr(table, "lr", -1),
        "'t' is full: it has 0 of at most 2 ids": lambda: table.pull([1, 2, 3]),
    }


def test_wrong_ids_gradients_and_rates_are_refused():
    table = ps.connect("t", 3, rows=2)
    for message, call in refusals(table).items():
        with pytest.raises(TableError, match=message):
            call()
    assert (table.pull([1, 2]) == table.pull([1, 2])).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "name of a table"),
        ({"width": 0}, "width: expected a positive number"),
        ({"rows": 1.5}, "rows: expected a positive number or None"),
        ({"optimizer": "adagard"}, "one of sgd.*did you mean 'adagrad'"),
        ({"lr": float("nan")}, "lr: expected"),
        ({"mode": "geo"}, "mode: expected one of sync, async"),
        ({"max_staleness": 3}, 'max_staleness is for mode="async"'),
        ({"epsilom": 1.0}, "does not take epsilom"),
        ({"initial": 0.1}, "expected hpcdist.ps.Initial"),
        ({"row_policy": 3}, r"row_policy: expected hpcdist.ps.RowPolicy\(...\), got 3"),
        (
            {"row_policy": ps.RowPolicy(score=ps.ClickScore(), shows=("show", "click"))},
            "shows= takes numbers of shows and clicks from a Program",
        ),
    ],
)
def test_tables_that_cannot_be_are_refused(arguments, message):
    with pytest.raises((TableError, PlanError), match=message):
        ps.connect(**{"name": "t", "width": 2, **arguments})


def test_a_name_is_one_table_and_closed_ones_are_refused():
    table = ps.connect("t", 2)
    assert ps.connect("t", 2)._tables is table._tables  # private: two handles of one table
    with pytest.raises(TableError, match="is connected already, with other facts"):
        ps.connect("t", 3)
    table.pull([1])
    with pytest.raises(TableError, match="connect all tables before the first pull"):
        ps.connect("u", 2)
    table.close()
    with pytest.raises(TableError, match="'t', pull: it was closed"):
        table.pull([1])
    ps.connect("u", 2).pull([1])


def test_asynchronous_tables_need_servers():
    with pytest.raises(HpcdistError, match="needs parameter servers"):
        ps.connect("t", 2, mode="async").pull([1])


def test_names_that_do_not_exist_are_answered_with_near_ones():
    with pytest.raises(AttributeError, match="did you mean 'connect'"):
        ps.conect  # noqa: B018
    assert "connect" in dir(ps)
