"""Distributed tables: several in one program, what ranks run in their place, a process alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers, optimizer
from hpcdist.errors import FeedError, GraphError, PlanError, TableError
from hpcdist.executor import control
from hpcdist.ps.table import SparseTable
from hpcdist.transpiler.plan import ProgramPlan
from hpcdist.transpiler.table_metadata import read_tables
from hpcdist.transpiler.table_steps import lone_steps, trainer_steps
from tests.support.transpiler import built, transpile

TWO = "ps0:6174,ps1:6174"
SIZE = 10**11  # rows: an array of them would not fit


def table(ids: Any, name: str, width: int = 2, rows: int = SIZE, **how: Any) -> Any:
    how = {"is_sparse": True, "is_distributed": True, **how}
    attr = fluid.ParamAttr(name=name, initializer=fluid.initializer.Constant(0.5))
    return layers.embedding(ids, [rows, width], param_attr=attr, **how)


def ids_input(name: str = "ids") -> Any:
    return layers.data(name, [1], dtype="int64")


def two_tables(minimize: Any = None, rows: int = SIZE) -> Any:
    def build() -> Any:
        a, b = ids_input("a"), ids_input("b")
        parts = [table(a, "u", rows=rows), table(b, "u", rows=rows), table(a, "v", 3)]
        loss = layers.mean(layers.fc(layers.concat(parts, axis=1), 1, param_attr="w"))
        (minimize or optimizer.SGD(0.1)).minimize(loss)
        return loss

    return build


def kinds(program: Any) -> list[str]:
    return [op.type for op in program.global_block().ops]


# -- programs --------------------------------------------------------------------------------------
def test_one_prefetch_asks_for_rows_of_all_tables() -> None:
    transpiler = transpile(built(two_tables()), 0, TWO, 2)
    ops = transpiler.get_trainer_program().global_block().ops
    assert [op.type for op in ops[:5]] == [
        "split_ids", "split_ids", "prefetch", "merge_ids", "merge_ids"
    ]  # fmt: skip
    assert ops[2].attrs["epmap"] == transpiler.pserver_endpoints * 2
    assert len(set(ops[2].input("X"))) == len(set(ops[2].output("Out"))) == 4
    steps = transpiler.get_trainer_program().distribution.table_steps
    assert [(p.table, p.ids) for p in steps.pulled] == [("u", "a"), ("u", "b"), ("v", "a")]
    sends = [op for op in ops if op.type == "send" and op.attrs["op_role_var"][0] in "uv"]
    assert [len(op.input("X")) for op in sends] == [2, 2]


def test_a_distributed_table_is_not_looked_up_behind_its_update() -> None:
    def build() -> Any:
        loss = two_tables()()
        table(ids_input("c"), "u")
        return loss

    with pytest.raises(
        PlanError, match="'u' has is_distributed=True: .* behind the table's update"
    ):
        transpile(built(build), 0, TWO, 2)


@pytest.mark.parametrize("kind", ["Adam", "Ftrl", "Adagrad"])
def test_servers_have_every_table_with_its_optimizer(kind: str) -> None:
    transpiler = transpile(built(two_tables(getattr(optimizer, kind)(0.1))), 0, TWO, 2)
    for endpoint in transpiler.pserver_endpoints:
        server = transpiler.get_pserver_program(endpoint)
        held = server.distribution.tables
        assert [h.table.parameter for h in held] == ["u", "v"]
        for h in held:
            assert [op.type for op in server.block(h.update).ops] == ["sum", kind.lower()]
            assert h.height == SIZE // 2
        (serve,) = (op for op in server.global_block().ops if op.type == "listen_and_serv")
        assert len(serve.attrs["prefetch_var_name_to_block_id"]) == 2
        startup = transpiler.get_startup_program(endpoint)
        made = lone_steps(startup, [h.table for h in held])
        assert kinds(made).count("make_table") == 2
        shapes = [op.attrs.get("shape", [1]) for op in made.global_block().ops]
        assert max(np.prod(shape) for shape in shapes) < 100


def test_a_trainer_pulls_once_and_pushes_once() -> None:
    program = transpile(built(two_tables()), 1, TWO, 2).get_trainer_program()
    steps = trainer_steps(program, program.distribution)
    assert kinds(steps).count("pull_sparse") == kinds(steps).count("push_sparse") == 1
    gone = {"split_ids", "prefetch", "merge_ids", "lookup_table_grad"}
    assert not gone & set(kinds(steps))
    pull, push = (op for op in steps.global_block().ops if op.type.endswith("_sparse"))
    assert pull.input("Ids") == push.input("Ids") == ["a", "b", "a"]
    assert [p.table for p in pull.attrs["lookups"]] == ["u", "u", "v"]
    assert [p.table for p in push.attrs["lookups"]] == ["u", "u", "v"]
    assert push.input("Grads") == [f"{name}@GRAD" for name in pull.output("Out")]
    assert pull.attrs["create"]
    assert kinds(program)[0] == "split_ids", "the given program stays as it is"


def test_programs_without_tables_are_run_as_they_are() -> None:
    def build() -> Any:
        optimizer.SGD(0.1).minimize(layers.mean(layers.fc(layers.data("x", [3]), 1)))

    program = transpile(built(build), 0, TWO, 2).get_trainer_program()
    plan: ProgramPlan = program.distribution
    assert trainer_steps(program, plan) is program


def test_test_programs_make_no_rows() -> None:
    main, _ = built(two_tables())
    test = main.clone(for_test=True)
    (pull,) = (op for op in lone_steps(test, ()).global_block().ops if op.type == "pull_sparse")
    assert not pull.attrs["create"]


def test_a_table_in_a_conditional_block_is_refused() -> None:
    main, _ = built(two_tables())
    inner = main.create_block(0)
    lookup = main.global_block().ops[0].copied_to(inner)
    inner.add_op(lookup)
    main.current_block_idx = 0
    with pytest.raises(ValueError, match="inside a conditional block"):
        read_tables(main)


# -- a process alone -------------------------------------------------------------------------------
@pytest.fixture
def alone() -> Any:
    assert control.installed() is None
    scope = fluid.Scope()
    with fluid.scope_guard(scope):
        yield scope


def run_steps(build: Any, feeds: list[dict[str, Any]], fetch: Any = None) -> list[np.ndarray]:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        loss = build()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    return [exe.run(main, feed=feed, fetch_list=[fetch or loss])[0] for feed in feeds]


def feed_of(*ids: int) -> dict[str, np.ndarray]:
    column = np.array(ids, np.int64).reshape(-1, 1)
    return {"a": column, "b": column[::-1].copy()}


def test_rows_move_by_the_sum_of_their_gradients(alone: fluid.Scope) -> None:
    """sgd on the mean of rows of one: each of n look-ups moves its row by rate / n."""

    def build() -> Any:
        loss = layers.mean(table(ids_input("a"), "t", 1))
        optimizer.SGD(0.5).minimize(loss)
        return loss

    lowest = -(2**63)
    feed = {"a": np.array([[7], [7], [lowest], [2**63 - 1]], np.int64)}
    losses = run_steps(build, [feed, feed])
    held = alone.find_var("t").value
    assert isinstance(held, SparseTable) and len(held) == 3
    rows = np.empty((3, 1), np.float32)
    held.pull(np.array([7, lowest, 2**63 - 1]), rows)
    np.testing.assert_allclose(rows[:, 0], [0.5 - 2 * 0.25, 0.5 - 2 * 0.125, 0.5 - 2 * 0.125])
    np.testing.assert_allclose([v[0] for v in losses], [0.5, (2 * 0.25 + 2 * 0.375) / 4])


def test_startup_begins_anew(alone: fluid.Scope) -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        loss = two_tables()()
    exe = fluid.Executor(fluid.CPUPlace())
    told = []
    for _ in range(2):
        exe.run(startup)
        told.append([exe.run(main, feed=feed_of(1, 2), fetch_list=[loss])[0] for _ in range(2)])
    assert told[0] == told[1]
    assert told[0][0] != told[0][1]


def test_without_startup_there_is_no_table(alone: fluid.Scope) -> None:
    main, _ = built(two_tables())
    alone.var("w").hold(np.ones((7, 1), np.float32))
    with pytest.raises(GraphError, match="run the startup program first"):
        fluid.Executor(fluid.CPUPlace()).run(main, feed=feed_of(1), fetch_list=[])


def test_ids_may_depend_on_rows_where_nobody_else_must_be_asked(alone: fluid.Scope) -> None:
    def build() -> Any:
        first = table(ids_input("a"), "t", 1)
        second = table(layers.cast(layers.scale(first, 4.0), "int64"), "t", 1)
        loss = layers.mean(layers.elementwise_add(first, second))
        optimizer.SGD(0.5).minimize(loss)
        return loss

    run_steps(build, [{"a": np.array([[1], [1]], np.int64)}])
    held = alone.find_var("t").value
    rows = np.empty((2, 1), np.float32)
    held.pull(np.array([1, 2]), rows)  # 0.5 * 4 is the id 2
    np.testing.assert_allclose(rows[:, 0], [0.0, 0.0])


def test_a_look_up_that_is_not_trained_moves_nothing(alone: fluid.Scope) -> None:
    def build() -> Any:
        seen = table(ids_input("b"), "t", 1)
        seen.stop_gradient = True
        loss = layers.mean(layers.elementwise_mul(table(ids_input("a"), "t", 1), seen))
        optimizer.Momentum(0.5, 0.9).minimize(loss)
        return loss

    column = np.array([[5]], np.int64)
    run_steps(build, [{"a": column, "b": column + 1}] * 2)
    held = alone.find_var("t").value
    rows = np.empty((2, 1), np.float32)
    held.pull(np.array([5, 6]), rows)
    assert rows[1] == 0.5 and rows[0] < 0.5
    assert held.statistics().rows_pushed == 2


def test_a_full_table_is_refused(alone: fluid.Scope) -> None:
    with pytest.raises(TableError, match="table 'u' is full"):
        run_steps(two_tables(rows=3), [feed_of(1, 2, 3), feed_of(4)])


def test_a_table_is_no_array_to_fetch(alone: fluid.Scope) -> None:
    for name in ("u", "u@GRAD"):
        with pytest.raises((GraphError, FeedError), match="distributed table 'u'"):
            run_steps(two_tables(), [feed_of(1)], fetch=name)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("trained", [True, False])
def test_rows_of_another_dtype_are_refused(alone: fluid.Scope, dtype: str, trained: bool) -> None:
    def build() -> Any:
        rows = table(ids_input("a"), "t", dtype=dtype)
        if trained:
            optimizer.SGD(0.1).minimize(layers.mean(rows))
        return rows

    with pytest.raises(PlanError, match=f"table 't'.*its rows are float32, got dtype {dtype}"):
        run_steps(build, [{"a": np.array([[1]], np.int64)}])


@pytest.mark.parametrize("padding", [-1, 10**12, 0])
def test_padding_is_an_id_or_counts_from_the_end(alone: fluid.Scope, padding: int) -> None:
    def build() -> Any:
        loss = layers.mean(table(ids_input("a"), "t", 1, padding_idx=padding))
        optimizer.Momentum(0.1, 0.9).minimize(loss)
        return loss

    none = padding % SIZE if padding < 0 else padding
    (loss,) = run_steps(build, [{"a": np.array([[none], [4]], np.int64)}])
    assert loss == 0.25
    assert len(alone.find_var("t").value) == 1


def test_padding_from_the_end_of_what_has_none_is_refused() -> None:
    with pytest.raises(GraphError, match="would count from the end"):
        built(lambda: table(ids_input(), "t", rows=-1, padding_idx=-1))


def test_one_trainer_of_a_group_trains_as_a_process_alone(alone: fluid.Scope) -> None:
    """Its startup lacks the ring; the table begins with the state that its optimizer wants."""
    told = []
    for in_a_group in (False, True):
        main, startup = fluid.Program(), fluid.Program()
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            loss = two_tables(optimizer.Adam(0.1, lazy_mode=True))()
        if in_a_group:
            config = fluid.DistributeTranspilerConfig()
            config.mode = "nccl2"
            fluid.DistributeTranspiler(config).transpile(
                0, main, trainers="t0:1", startup_program=startup, current_endpoint="t0:1"
            )
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        told.append([exe.run(main, feed=feed_of(1, 2), fetch_list=[loss])[0] for _ in range(2)])
    assert told[0] == told[1]


def test_a_table_that_was_made_for_another_optimizer_is_refused(alone: fluid.Scope) -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        loss = layers.mean(table(ids_input("a"), "t", rows=9))
        optimizer.Adam(0.1, lazy_mode=True).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup.clone())  # knows no Program that trains
    with pytest.raises(GraphError, match="was made for sgd, but this program updates it by adam"):
        exe.run(main, feed={"a": np.array([[1]])})


def test_programs_of_one_startup_have_tables_of_their_own(alone: fluid.Scope) -> None:
    """As one that has no other beside it."""

    def trained(count: int) -> list[np.ndarray]:
        startup, mains = fluid.Program(), []
        with fluid.unique_name.guard():
            for k in range(count):
                with fluid.program_guard(fluid.Program(), startup):
                    loss = layers.mean(table(ids_input("a"), f"t{k}", rows=9))
                    optimizer.Adam(0.1 + 0.1 * k, lazy_mode=True).minimize(loss)
                    mains.append((fluid.default_main_program(), loss))
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        feed = {"a": np.array([[1], [1], [2]])}
        return [exe.run(main, feed, [loss])[0] for _ in range(3) for main, loss in mains]

    assert trained(2)[::2] == trained(1)
