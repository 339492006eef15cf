"""What is made from Programs lives as long as they do: clones that are dropped are freed."""

import gc

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import runtime
from hpcdist.comm.cluster import Cluster
from hpcdist.comm.loopback import world
from hpcdist.executor import forms
from hpcdist.executor.scope import Scope, scope_guard
from hpcdist.graph.program import Program, ProgramCache, program_guard


@pytest.fixture
def one_rank_job():
    """Make this process the only rank of a job."""
    (transport,) = world(1)
    runtime.start(transport, Cluster((0,), ()))
    yield
    runtime.finish()


@pytest.fixture(autouse=True)
def older_objects():
    """Leave out of each search for Programs what was made before the test: it takes 0.2 s."""
    gc.freeze()


def programs():
    """Return how many Programs of this test are alive."""
    gc.collect()
    return sum(isinstance(found, Program) for found in gc.get_objects())


def table_net():
    """Return a training Program with a distributed table, its startup and its prediction."""
    main, startup = Program(), Program()
    with program_guard(main, startup):
        ids = fluid.layers.data("ids", [1], dtype="int64")
        rows = fluid.layers.embedding(ids, [100, 4], is_sparse=True, is_distributed=True)
        predicted = fluid.layers.fc(rows, 1)
        fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(predicted))
    return main, startup, predicted


def dense_net():
    """Return a training Program, its startup and its prediction."""
    main, startup = Program(), Program()
    with program_guard(main, startup):
        ids = fluid.layers.data("ids", [1], dtype="int64")
        predicted = fluid.layers.fc(fluid.layers.cast(ids, "float32"), 1)
        fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(predicted))
    return main, startup, predicted


def evaluate_clones(net, number):
    """Train a step, evaluate ``number`` clones; return how many Programs more there are then."""
    main, startup, predicted = net()
    exe, feed = fluid.Executor(fluid.CPUPlace()), {"ids": np.array([[1], [2]])}
    with scope_guard(Scope()):
        exe.run(startup)
        exe.run(main, feed=feed)
        exe.run(main.clone(for_test=True), feed=feed, fetch_list=[predicted.name])
        before = programs()
        for _ in range(number):
            exe.run(main.clone(for_test=True), feed=feed, fetch_list=[predicted.name])
        return programs() - before


def test_evaluated_clones_with_a_table_are_freed():
    assert evaluate_clones(table_net, 100) <= 0


def test_evaluated_clones_are_freed_in_a_job(one_rank_job):
    assert evaluate_clones(dense_net, 100) <= 0


def test_trained_programs_are_freed_in_a_job(one_rank_job):
    alive = []
    for _ in range(4):
        evaluate_clones(dense_net, 0)
        alive.append(programs())
    assert alive[-1] <= alive[0]


def test_a_lasting_value_outlives_changes_of_its_program():
    cache, program = ProgramCache(lasting=True), Program()
    cache.put(program, "made")
    program.touch()
    assert cache.of(program, lambda: "made anew") == "made"


def test_a_value_is_dropped_when_its_program_changes():
    cache, program = ProgramCache(), Program()
    assert cache.get(program) is None
    assert cache.put(program, "made") == cache.get(program) == "made"
    assert list(cache) == ["made"]
    program.touch()
    assert cache.get(program) is None
    cache.clear()
    assert list(cache) == []


def test_the_executor_drops_the_form_that_was_used_longest_ago(monkeypatch):
    monkeypatch.setattr(forms, "CACHE_SIZE", 3)
    main, startup, predicted = dense_net()
    evaluation = main.clone(for_test=True)
    exe = fluid.Executor(fluid.CPUPlace())
    with scope_guard(Scope()):
        exe.run(startup)

        def run(rows):
            feed = {"ids": np.ones((rows, 1), np.int64)}
            exe.run(evaluation, feed=feed, fetch_list=[predicted.name])

        run(1)
        (first,) = [form for form in exe.forms() if form.fetches]
        for rows in range(2, 6):
            run(rows)
            run(1)
        assert first in exe.forms()
        assert len(exe.forms()) == 3
