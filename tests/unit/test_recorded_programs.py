"""Programs in recordings: how they are written and read, and the work of their operators."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.base.trace import files, rates, summary
from hpcdist.base.trace.events import EventKind
from hpcdist.base.trace.files import RankOfJob
from hpcdist.base.trace.programs import Moved, OperatorFacts, ProgramFacts, from_plain
from hpcdist.base.trace.rates import Rates
from hpcdist.errors import TraceError
from hpcdist.executor.described import described
from hpcdist.graph.registry import declared_attrs, lookup
from hpcdist.launch import graphs, job_report, plots
from hpcdist.launch.operator_table import operators_of
from tests.support.job import alone
from tests.support.recorded_jobs import Rank, job, programs


def test_operators_stand_below_what_they_read_from():
    operators = [
        OperatorFacts("a", (), ("x",)),
        OperatorFacts("b", ("x",), ("y",)),
        OperatorFacts("c", ("x", "y"), ("x",)),
        OperatorFacts("d", ("x",), ()),
    ]
    between = graphs.edges(operators)
    assert between == [(0, 1), (0, 2), (1, 2), (2, 3)]  # d reads what c wrote last
    assert graphs.layers(4, between) == [[0], [1], [2], [3]]
    wide = graphs.layers(20, [])
    assert [len(row) for row in wide] == [8, 8, 4]
    assert [*chain(*wide)] == list(range(20))
    assert graphs.layers(0, []) == []


def test_what_is_read_further_down_has_a_lane_of_its_own_beside_the_graph():
    # Each place is a row. 0 is read in row 4 too, 1 in rows 3 and 5, and 5 in row 8.
    between = [(0, 1), (0, 4), (1, 3), (1, 5), (5, 8)]
    assert graphs.lanes({k: k for k in range(9)}, between) == {0: (0, 4), 1: (1, 5), 5: (0, 8)}


def test_two_programs_of_one_rank_with_the_same_operators_are_not_two_trainers():
    pytest.importorskip("jinja2", reason="python -m pip install 'hpcdist[report]'")
    alike = tuple(ProgramFacts("runs", (OperatorFacts("relu", (x,), ()),)) for x in "ab")
    found = [Rank(k, "TRAINER", k) for k in range(2)]
    for rank in found:
        rank.note(EventKind.STEP, "step", 0, 5, step=3)
    found = [rank.recording(programs=alike) for rank in found]
    ranks = [summary.summarize(rank) for rank in found]
    text = job_report.page(found, ranks, [], "a job", {})
    assert text.count("2 trainers: another Program, 1 operator") == 2
    assert "4 trainers" not in text


def test_programs_are_written_and_read_as_they_were(tmp_path):
    (one, *_) = job()
    assert files.read(files.write(tmp_path, one)).recording.programs == one.recording.programs
    trains, serves = programs()
    plain = json.loads(json.dumps(trains.plain()))
    older = {key: value for key, value in plain.items() if key != "moved"}
    assert from_plain(older) == replace(trains, moved=())  # written when nothing was said of bytes
    assert {op.role for op in trains.operators} == {"forward", "backward", "exchange"}
    assert (trains.kind, serves.kind) == ("trains", "serves")
    assert sum(parameter.nbytes for parameter in serves.parameters) in (4 * 1200, 4 * 301)


def test_a_table_of_any_number_of_rows_is_written_and_read():
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        ids = fluid.data("ids", [None, 1], "int64")
        rows = fluid.embedding(ids, [-1, 4], is_sparse=True, is_distributed=True, param_attr="t")
        fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(rows))
        t = fluid.DistributeTranspiler()
        t.transpile(0, pservers="a:1,b:1", trainers=3)
        serves = described(t.get_pserver_program("a:1"))
    (table,) = serves.parameters
    assert (table.shape, table.extents, table.nbytes) == ((None, 4), "any x 4", 0)
    assert from_plain(json.loads(json.dumps(serves.plain()))) == serves


def test_a_key_of_many_names_takes_several_rows():
    names = [f"a long cause of waits {k}" for k in range(9)]
    drawn = plots.bars(["rank 0"], [dict.fromkeys(names, 0.1)], names)
    keys = [float(x) for x in re.findall(r'<text x="([0-9.]+)" [^>]*>a long', drawn)]
    assert len(keys) == 9 and max(keys) + 7 * len(names[0]) < plots.WIDTH


@pytest.mark.parametrize(
    "wrong",
    [{"name": 99}, {"name": -1}, {"kind": 0}, {"end": -5}, {"peer": -2}, {"begin": -(1 << 63)}],
)
def test_events_that_nobody_noted_are_refused(tmp_path, wrong):
    (one, *_) = job()
    for field, value in wrong.items():
        one.recording.events[field][2] = value
    path = files.write(tmp_path, one)
    with pytest.raises(TraceError, match="malformed event"):
        files.read(path)


def test_a_recording_that_unpacks_to_more_is_refused(tmp_path):
    (one, *_) = job()
    path = files.write(tmp_path, one)
    with np.load(path) as found:
        np.savez_compressed(path, about=found["about"], events=np.resize(found["events"], 10_000))
    with pytest.raises(TraceError, match="it is compressed"):
        files.read(path)


def test_the_work_of_operators_is_known_from_shapes_but_for_looked_up_rows():
    with alone(), fluid.program_guard(fluid.Program(), fluid.Program()):
        x, word = fluid.data("x", [None, 4]), fluid.data("word", [None, 1], "int64")
        rows = fluid.layers.reshape(fluid.embedding(word, [9, 2], is_sparse=True), [-1, 2])
        loss = fluid.layers.mean(fluid.layers.elementwise_add(fluid.layers.fc(x, 2), rows))
        fluid.optimizer.SGD(0.1).minimize(loss)
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        exe.run(feed={"x": np.ones((3, 4), "float32"), "word": np.ones((3, 1), "int64")})
        *_, entry = exe.forms()
        moved = described(fluid.default_main_program(), entry.compiled).moved
    assert Moved("mul", 1, 4 * (3 * 4 + 4 * 2 + 3 * 2), flops=2 * 3 * 4 * 2) in moved
    # Of its gradients one is wanted: x is fed.
    assert Moved("mul_grad", 1, 4 * (12 + 8 + 6 + 8), flops=2 * 3 * 4 * 2) in moved
    assert Moved("elementwise_add", 2, 4 * (6 + 2 + 6 + 6 + 6 + 6), flops=0) in moved
    # Of the mean's input it reads the shape only.
    assert Moved("mean_grad", 1, 4 * (1 + 6)) in moved
    # The table's rows, of which there are fewer than the table has, and what moves them.
    assert not {"lookup_table_v2", "lookup_table_v2_grad", "sgd"} & {one.type for one in moved}


@pytest.mark.parametrize(
    ("type_", "shapes", "attrs", "flops"),
    [
        ("matmul", [(5, 2, 3), (5, 3, 4), (5, 2, 4)], {}, 5 * 2 * (2 * 3 * 4)),
        ("matmul", [(3, 2), (3, 4), (2, 4)], {"transpose_X": True}, 2 * (2 * 3 * 4)),
        ("mul", [(2, 3, 4), (12, 5), (2, 5)], {}, 2 * (2 * 12 * 5)),
        (
            "conv2d",
            [(2, 4, 8, 8), (32, 2, 3, 3), (2, 32, 6, 6)],
            {"groups": 2},
            2 * (2 * 32 * 36) * (2 * 9),
        ),
        # Each number of the smaller image goes into a window of the larger one.
        ("conv2d_transpose", [(2, 16, 6, 6), (16, 2, 3, 3), (2, 2, 8, 8)], {}, 2 * 1152 * 18),
        (
            "conv2d_grad",
            [(2, 2, 8, 8), (16, 2, 3, 3), (2, 16, 6, 6), None, (16, 2, 3, 3)],
            {},
            2 * 1152 * 18,
        ),
        # Of few filters in a group the products are not what takes the time.
        ("conv2d", [(2, 1, 8, 8), (6, 1, 3, 3), (2, 6, 6, 6)], {}, None),
        ("depthwise_conv2d", [(2, 32, 8, 8), (32, 1, 3, 3), (2, 32, 6, 6)], {"groups": 32}, None),
        (
            "conv2d_grad",
            [(2, 1, 8, 8), (6, 1, 3, 3), (2, 6, 6, 6), None, (6, 1, 3, 3)],
            {},
            None,
        ),
    ],
)
def test_operators_say_what_their_products_take(type_, shapes, attrs, flops):
    arrays = [None if shape is None else np.empty(shape, "float32") for shape in shapes]
    definition = lookup(type_)
    assert definition.flops(*arrays, **declared_attrs(definition, attrs)) == flops


def test_the_table_of_operators_says_how_long_they_take_at_least_and_which_are_slow():
    found = []
    for k, rate in enumerate((1e9, 3e9)):  # 2 GB/s on average
        rank = Rank(k, "TRAINER", k)
        for step in range(4):
            rank.note(EventKind.OPERATOR, "relu", 0, 20, step=step)
            rank.note(EventKind.OPERATOR, "mul", 20, 1020, step=step)
            rank.note(EventKind.OPERATOR, "sort", 1020, 2020, step=step)
            rank.note(EventKind.STEP, "step", 0, 2020, step=step)
        work = Moved("relu", 1, 20_000, 0), Moved("mul", 1, 20_000, 10**6), Moved("sort", 1, 20_000)
        facts = ProgramFacts("trains", (OperatorFacts("mul", ("x",), ("y",)),), moved=work)
        rates = {"bytes_per_s": rate, "flops_per_s": 1e10, "call_s": 1e-6}
        of = RankOfJob(k, "TRAINER", k, "n", 1, **rates)
        found.append(rank.recording(of, programs=(facts,)))
    told = {row["name"]: row for row in operators_of(found)}
    assert told["relu"]["least_us"] == pytest.approx(1 + 10)
    assert told["mul"]["least_us"] == pytest.approx(1 + 100)  # by its products
    assert told["mul"]["times"] == pytest.approx(1000 / 101)
    # Of what sort does only the bytes are known.
    assert [name for name, row in told.items() if row["slow"]] == ["mul"]
    older = [replace(rank, of=replace(rank.of, bytes_per_s=0.0)) for rank in found]
    assert not any(row["times"] or row["slow"] for row in operators_of(older))


def test_rates_are_measured_and_tell_the_least_time():
    found = rates.measured()
    assert found.bytes_per_s > 1e7 and found.flops_per_s > 1e7 and 0 < found.call_s < 1e-2
    assert found.least_s(0, 0) == found.call_s
    assert Rates(2e9, 1e9, 1e-6).least_s(2000, 5000) == pytest.approx(1e-6 + 5e-6)
    assert Rates().least_s(1, 1) == 0
