"""What `minimize` returns may be fetched: of all updates those are made, and no other."""

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import GraphError, GraphTypeError

FEED = {"x": np.ones((2, 3), "float32"), "y": np.ones((2, 1), "float32")}


@pytest.fixture
def net():
    """Return two losses of one Program, and what `minimize` has returned for each."""
    main, startup = fluid.Program(), fluid.Program()
    scope = fluid.core.Scope()
    guards = fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(scope)
    with guards[0], guards[1], guards[2]:
        x, y = fluid.data("x", [None, 3]), fluid.data("y", [None, 1])
        one = layers.mean(layers.square_error_cost(layers.fc(x, 1, param_attr="a"), y))
        two = layers.mean(layers.fc(x, 1, param_attr="b"))
        clip = fluid.clip.GradientClipByGlobalNorm(0.1)
        made = [
            fluid.optimizer.SGD(0.1, grad_clip=clip).minimize(one),
            fluid.optimizer.Adam(0.1).minimize(two),
        ]
        exe = fluid.Executor()
        exe.run(startup)
        yield exe, (one, two), made


def moved(exe, **run):
    """Return which parameters a run has moved, and what it has returned."""

    def values():
        scope = fluid.global_scope()
        return {name: np.array(scope.find_var(name).get_tensor()) for name in "ab"}

    before = values()
    fetched = exe.run(**run)
    return {n for n, v in values().items() if (v != before[n]).any()}, fetched


def test_updates_that_are_fetched_are_made_alone(net):
    exe, (one, two), made = net
    which, fetched = moved(exe, feed=FEED, fetch_list=[one, made[0]])
    assert which == {"a"} and len(fetched) == 1
    which, _ = moved(exe, feed={"x": FEED["x"]}, fetch_list=[made[1][0], two])  # y is not needed
    assert which == {"b"}
    assert moved(exe, feed=FEED, fetch_list=[one, *made])[0] == {"a", "b"}
    assert moved(exe, feed=FEED, fetch_list=[one], use_prune=True)[0] == {"a", "b"}  # as in Fluid


def test_an_update_that_is_fetched_is_that_of_a_plain_run(net):
    exe, (one, two), made = net
    startup = fluid.default_startup_program()
    found = []
    for fetched in ([one, two], [one, two, *made]):
        exe.run(startup)
        exe.run(feed=FEED, fetch_list=fetched)
        found.append(np.array(fluid.global_scope().find_var("a").get_tensor()))  # clipped
    np.testing.assert_array_equal(*found)


def test_a_feed_that_the_program_does_not_know_is_told_here_too(net):
    exe, (one, _), made = net
    with pytest.warns(UserWarning, match="'z' is left out"):
        exe.run(feed=FEED | {"z": FEED["y"]}, fetch_list=[one, made[0]])


def test_what_cannot_be_fetched_is_refused(net):
    exe, (one, _), made = net
    with pytest.raises(GraphTypeError, match="updates no parameter"):
        exe.run(feed=FEED, fetch_list=[one.op])
    with pytest.raises(GraphError, match="not in the Program that is run"):
        exe.run(fluid.Program(), fetch_list=[made[0]])
    compiled = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(one.name)
    with pytest.raises(GraphError, match="a CompiledProgram is not pruned"):
        exe.run(compiled, feed=FEED, fetch_list=[one, made[0]])


def merged():
    return fluid.optimizer.GradientMergeOptimizer(fluid.optimizer.SGD(0.1), 2)


def scaled():
    plain = fluid.optimizer.SGD(0.1)
    return fluid.contrib.mixed_precision.decorate(
        plain, init_loss_scaling=8.0, incr_every_n_steps=1
    )


@pytest.mark.parametrize("optimizer", [merged, scaled])
@pytest.mark.parametrize("prunes", [False, True])
def test_what_is_kept_from_step_to_step_is_that_of_plain_runs(optimizer, prunes):
    """Merged gradients are cleared after their update, and the scale of a loss moves."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        loss = layers.mean(layers.fc(fluid.data("x", [None, 3]), 1))
        aside = layers.mean(layers.fc(fluid.data("x", [None, 3]), 1))
        made = optimizer().minimize(loss)
        other = fluid.optimizer.SGD(0.1).minimize(aside)
    names = [var.name for var in main.list_vars() if var.persistable]
    ends = []
    for run in ({}, {"use_prune": True} if prunes else {"fetch_list": [loss, made, other]}):
        exe, scope = fluid.Executor(), fluid.core.Scope()
        exe.run(startup, scope=scope)
        for _ in range(3):
            exe.run(main, feed={"x": FEED["x"]}, scope=scope, **{"fetch_list": [loss]} | run)
        ends.append([np.array(scope.find_var(name).get_tensor()) for name in names])
    for expected, got in zip(*ends):
        np.testing.assert_array_equal(got, expected)
