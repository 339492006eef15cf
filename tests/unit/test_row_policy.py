"""Policies of rows: what they refuse, and the formulas of Paddle's CtrCommonAccessor."""

import json
import math

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.errors import HpcdistError
from hpcdist.ps.policy_table import PolicyTable
from hpcdist.ps.row_policy import ClickScore, RowPolicy, check_servers, quotas_of
from hpcdist.ps.table import RowInitializer, RowOptimizer


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: RowPolicy(admit_after=0), "admit_after: expected a whole number, 1 or more"),
        (lambda: RowPolicy(expire_days=1.5), "expire_days: expected a whole number, 0 or more"),
        (lambda: RowPolicy(budget_rows=True), "budget_rows: .*got True"),
        (lambda: RowPolicy(admit_probability=0), "admit_probability: expected a number above 0"),
        (lambda: RowPolicy(admit_probability=math.nan), "admit_probability: .*got nan"),
        (lambda: RowPolicy(until_admitted="zero"), "until_admitted: expected one of .*'zeros'"),
        (lambda: RowPolicy(keep="recent"), "keep='recent' is for tables with a budget"),
        (lambda: RowPolicy(keep="score", budget_rows=99), r"needs score=ClickScore"),
        (lambda: RowPolicy(score=0.5), "score: expected a ClickScore, got 0.5"),
        (lambda: RowPolicy(shows=("s", "c")), r"shows are for tables with score"),
        (lambda: RowPolicy(score=ClickScore(), shows="sc"), "names of two variables.*got 'sc'"),
        (lambda: RowPolicy(budget_rows=99, budget_bytes=9), "budget_rows or budget_bytes, not"),
        (lambda: RowPolicy(budget_rows=59), "budget_rows 59: expected at least as many as parts"),
        (lambda: RowPolicy(rows="int4"), "rows: expected one of .*'int8'.*, got 'int4'"),
        (lambda: RowPolicy(state="int8"), "state: expected one of .*, got 'int8'"),
        (lambda: RowPolicy(rows="int8", rounding="up"), "rounding: expected one of .*got 'up'"),
        (lambda: RowPolicy(rounding="nearest"), "'nearest' is for rows in float16, bfloat16 or"),
        (lambda: RowPolicy(row_wise=1), "row_wise: expected True or False, got 1"),
        (lambda: RowPolicy(clip_norm=-1), "clip_norm: expected a number, 0 or more, got -1"),
        (lambda: RowPolicy(weight_bounds=(1, -1)), "weight_bounds: expected two numbers, the leas"),
        (lambda: RowPolicy(weight_bounds=(0, math.inf)), r"weight_bounds: .*got \(0, inf\)"),
        (lambda: RowPolicy(weight_bounds=3), "weight_bounds: .*got 3"),
        (lambda: RowPolicy(sketch_bytes=1 << 20), "sketch_bytes is for tables with admit_after"),
        (lambda: RowPolicy(admit_after=2, sketch_bytes=99), "sketch_bytes 99: expected at least"),
        (lambda: RowPolicy(waiting_ids=99), "waiting_ids is for tables with admit_after"),
        (
            lambda: RowPolicy(admit_after=2, waiting_ids=99, sketch_bytes=1 << 20),
            "waiting_ids is for tables with admit_after above 1 and no sketch_bytes",
        ),
        (lambda: ClickScore(click_coeff=math.inf), "click_coeff: expected a finite number"),
        (lambda: ClickScore(show_click_decay_rate=1.1), "show_click_decay_rate: .*from 0 to 1"),
        (lambda: RowPolicy.from_plain({"admit_after": "2"}), "malformed policy of rows"),
        (lambda: fluid.ParamAttr(row_policy=3), "row_policy: expected a RowPolicy, got 3"),
        (
            lambda: check_servers("t", 60, 7),
            r"60 parts, of which 7 servers .*use 6 servers, or RowPolicy\(parts=420\)",
        ),
    ],
)
def test_a_wrong_policy_is_named(make, told):
    with pytest.raises(HpcdistError, match=told):
        make()


def test_a_policy_is_for_distributed_tables():
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        ids = fluid.layers.data("ids", [1], dtype="int64")
        attr = fluid.ParamAttr("t", row_policy=RowPolicy(expire_days=3))
        with pytest.raises(HpcdistError, match="row_policy is for tables whose rows come and go"):
            fluid.layers.embedding(ids, [10, 3], is_sparse=True, param_attr=attr)
        fluid.layers.embedding(ids, [10, 3], True, True, param_attr=attr)
        other = fluid.ParamAttr("t", row_policy=RowPolicy(expire_days=4))
        with pytest.raises(HpcdistError, match="expire_days=3.*cannot share it with.*=4"):
            fluid.layers.embedding(ids, [10, 3], True, True, param_attr=other)


def test_shows_need_their_variables_and_ids_of_equal_number():
    def build(names, lod_level):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            ids = fluid.layers.data("ids", [1], dtype="int64", lod_level=lod_level)
            fluid.layers.data("show", [1])
            fluid.layers.data("pair", [2])
            policy = RowPolicy(score=ClickScore(), shows=names)
            attr = fluid.ParamAttr("t", row_policy=policy)
            rows = fluid.layers.embedding(ids, [-1, 3], True, True, param_attr=attr)
            fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(rows))
            exe = fluid.Executor()
            exe.run(fluid.default_startup_program())
            feed = {"ids": np.zeros((6, 1), "int64"), "show": np.ones((4, 1), "float32")}
            feed["pair"] = np.ones((4, 2), "float32")
            exe.run(feed=feed)

    for names, lod_level, told in [
        (("show", "clk"), 0, "expected 'clk' to be a variable .*no such variable"),
        (("pair", "show"), 0, r"expected 'pair' .*got shape \[-1, 2\]"),
        (("show", "show"), 2, "'ids' has sequences of sequences"),
        (("show", "show"), 0, "6 ids are looked up for 4 numbers of shows"),
    ]:
        with pytest.raises(HpcdistError, match=told):
            build(names, lod_level)


def test_each_id_of_a_sequence_has_its_example_s_shows_and_clicks():
    """Sequences of no, one and several ids; one id in two of them, and twice in one."""
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        ids = fluid.layers.data("ids", [1], dtype="int64", lod_level=1)
        for name in ("show", "click"):
            fluid.layers.data(name, [1])
        policy = RowPolicy(score=ClickScore(), shows=("show", "click"))
        attr = fluid.ParamAttr("t", row_policy=policy)
        rows = fluid.layers.embedding(ids, [-1, 3], True, True, param_attr=attr)
        pooled = fluid.layers.sequence_pool(rows, "sum")
        fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(pooled))
        main, startup = fluid.default_main_program(), fluid.default_startup_program()
        exe, scope = fluid.Executor(), fluid.Scope()
        exe.run(startup, scope=scope)
        for lengths, ids in ([[3, 0, 1, 2], [5, 6, 5, 6, 7, 8]], [[1, 1, 0, 0], [8, 9]]):
            feed = {
                "ids": fluid.create_lod_tensor(np.array(ids)[:, None], [lengths]),
                "show": np.array([[1], [10], [100], [1000]], np.float32),
                "click": np.array([[0], [1], [2], [3]], np.float32),
            }
            exe.run(main, feed=feed, scope=scope)
    table = scope.find_var("t").value
    known = table.metadata(np.arange(5, 10)).view(np.float32)[:, 3:5]
    assert known.tolist() == [[2, 0], [101, 2], [1000, 3], [1001, 3], [10, 1]]


def test_a_policy_travels_as_json():
    policy = RowPolicy(
        admit_after=3,
        score=ClickScore(delete_after_unseen_days=2),
        shows=("s", "c"),
        rows="int8",
        weight_bounds=(-1, 1),
        clip_norm=3,
        row_wise=True,
    )
    assert RowPolicy.from_plain(json.loads(json.dumps(policy.to_plain()))) == policy


def test_scores_are_those_of_ctr_common_accessor():
    """By hand: (show - click) * 0.1 + click * 1, in float32; thresholds as there."""
    score = ClickScore()
    show, click = np.array([[10, 2, 30], [1, 2, 0]], np.float32)
    np.testing.assert_allclose(score.of(show, click), [1.9, 2.0, 3.0], 1e-6)
    words = np.zeros((4, 5), np.uint32)
    words.view(np.float32)[:, 3] = [7.9, 8.1, 100, 100]
    words[:, 2] = [40, 40, 10, 9]
    expired = RowPolicy(score=score).expired(words, step=0, day=40)
    assert expired.tolist() == [True, False, False, True]


def test_large_tables_have_more_parts():
    assert [RowPolicy().parts_for(n) for n in (100, 840_000, 6_000_000)] == [60, 840, 5040]
    assert RowPolicy(parts=7).parts_for(100) == 7


def test_a_budget_in_bytes_counts_what_rows_take():
    """16 values with a moment each: 4 of the id, 16 of what is known, and values and state."""

    def rows(**stored):
        policy = RowPolicy(budget_bytes=10**6, **stored)
        facts = RowOptimizer("adagrad"), RowInitializer("constant", 0.0), 1
        return PolicyTable("t", 16, *facts, policy=policy).bound

    assert rows() == 10**6 // (30 + 20 + 64 + 64)
    assert rows(rows="float16") == 10**6 // (30 + 20 + 32 + 64)
    assert rows(rows="int8", state="float16") == 10**6 // (30 + 20 + 20 + 36)


def test_what_only_says_how_rows_are_kept_keeps_nothing_else():
    assert RowPolicy(rows="bfloat16", rounding="stochastic").keeps_all
    assert not RowPolicy(rows="int8", expire_days=1).keeps_all
    assert not RowPolicy().keeps_all


@pytest.mark.parametrize(("bound", "parts"), [(7, 7), (59_999, 60), (20_000_000, 5040), (9000, 1)])
def test_quotas_come_to_the_bound_and_lie_evenly_apart(bound, parts):
    """Parts of one size would all be full, and forget, in the same steps."""
    quotas, share = quotas_of(bound, parts), bound // parts
    assert quotas.sum() == bound
    assert abs(quotas - share).max() <= share // 16 + 1
    least = share - share // 16 if parts > 1 else share
    even = np.linspace(least, 2 * share - least, parts)
    assert abs(np.sort(quotas) - even).max() <= 2
    half = np.sort(quotas[: (parts + 1) // 2])  # of one of two servers
    assert abs(half - even[::2][: len(half)]).max() <= share // 16 // 4 + 2
