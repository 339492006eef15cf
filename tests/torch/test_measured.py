"""HPCDIST_KERNELS=measured, by clocks of the test's own: what is chosen, by whom, what stays."""

from __future__ import annotations

import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

import hpcdist as fluid  # noqa: E402
from hpcdist.errors import FeedError, HpcdistError  # noqa: E402
from hpcdist.executor.backend import NumpyBackend  # noqa: E402
from hpcdist.executor.measured import STEPS  # noqa: E402
from hpcdist.executor.traced import TracedSegment  # noqa: E402
from tests.support import device as support_device  # noqa: E402
from tests.support import graphs as support_graphs  # noqa: E402
from tests.support.streams import MACHINE  # noqa: E402
from tests.support.thread_jobs import ranks_as_threads  # noqa: E402

ALL = 2 * STEPS + 3
FASTER = {"fused": (1.0, 2.0), "compiled": (2.0, 1.0)}  # seconds of a run, fused and compiled


class Clock(threading.local):
    """A clock of each thread's; ``costs`` are what a run takes, fused and compiled."""

    now, costs, used = 0.0, (1.0, 1.0), ""


@pytest.fixture
def clock(monkeypatch):
    """Have time pass with runs of operators only, and inductor compile nothing."""
    found, made, launch = Clock(), [], TracedSegment.launch

    def launched(segment):
        is_compiled = any(segment.graph is graph for graph in made)
        found.now += found.costs[is_compiled]
        found.used = ("fused", "compiled")[is_compiled]
        launch(segment)

    monkeypatch.setenv("HPCDIST_KERNELS", "measured")
    monkeypatch.setattr(torch, "compile", lambda graph, **_: made.append(graph) or graph)
    monkeypatch.setattr(TracedSegment, "launch", launched)
    monkeypatch.setattr(NumpyBackend, "mark", lambda self: found.now)
    monkeypatch.setattr(MACHINE, "clock", lambda: found.now)
    support_graphs.install(monkeypatch)
    support_device.install(monkeypatch)
    return found


def training(clock, place=None, costs=(1.0, 1.0), rows=(4,)):
    """Return a script that trains and returns losses, kernels of each step, and forms that stay."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 5
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 3]), 2, act="tanh"))
        fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)

    def script():
        clock.costs = costs
        exe = fluid.Executor(place)
        exe.run(startup)
        losses, used = [], []
        for step in range(ALL):
            x = np.random.default_rng(step).random((rows[step % len(rows)], 3), np.float32)
            losses.append(exe.run(main, {"x": x}, [loss])[0].item())
            used.append(clock.used)
        kept = sum(entry.trains for entry in exe.forms())
        exe.close()
        return losses, used, kept

    return script


def alone(script):
    with fluid.scope_guard(fluid.Scope()):
        return script()


def said(caplog):
    """Return what was told of the choice; torch logs a lot, too."""
    return [record.message for record in caplog.records if record.name == "hpcdist"]


TRIED = ["fused"] * STEPS + ["compiled"] * STEPS


@pytest.mark.parametrize("place", [fluid.CPUPlace(), fluid.CUDAPlace(0)], ids=str)
@pytest.mark.parametrize(("faster", "costs"), FASTER.items())
def test_the_faster_kernels_stay(clock, caplog, monkeypatch, faster, costs, place):
    losses, used, kept = alone(training(clock, place, costs))
    assert kept == 1  # of the Program; the other's memory is freed
    assert used == TRIED + [faster] * 3
    before, after = said(caplog)
    assert "the last digits of values may differ from run to run" in before
    fused, compiled = (f"{1e3 * seconds:.3g} ms" for seconds in costs)
    assert f"{fused} fused, {compiled} compiled" in after and f"from now on {faster}" in after
    monkeypatch.setenv("HPCDIST_KERNELS", "fused")
    assert losses == alone(training(clock, place))[0]


def test_where_inductor_fails_fused_kernels_stay_and_every_step_is_made_once(
    clock, caplog, monkeypatch
):
    def compile(graph, **_):
        def call(*tensors):
            raise RuntimeError("no C++ compiler\nat all")

        return call

    monkeypatch.setattr(torch, "compile", compile)
    losses, used, _ = alone(training(clock, None, (2.0, 1.0)))
    assert used == ["fused"] * ALL
    assert "inductor fails: RuntimeError: no C++ compiler" in said(caplog)[1]
    assert "inf ms compiled" in said(caplog)[2]
    monkeypatch.setenv("HPCDIST_KERNELS", "fused")
    assert losses == alone(training(clock))[0]


def test_what_is_tried_out_has_no_places_that_nobody_has_written(clock, monkeypatch):
    tried = []

    def compile(graph, **_):
        runs = []

        def call(*tensors):
            if not runs:
                whole = [tensor for tensor in tensors if not tensor.is_floating_point()]
                tried.append(len(whole) > 0 and not any(tensor.any() for tensor in whole))
            runs.append(graph(*tensors))

        return call

    monkeypatch.setattr(torch, "compile", compile)
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        score = fluid.layers.fc(fluid.data("x", [None, 3]), 5)
        cost = fluid.layers.softmax_with_cross_entropy(score, fluid.data("y", [None, 1], "int64"))
        fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(cost))
    exe, scope = fluid.Executor(), fluid.Scope()
    exe.run(startup, scope=scope)
    feed = {"x": np.ones((4, 3), np.float32), "y": np.full((4, 1), 4)}
    for _ in range(STEPS):
        with pytest.raises(FeedError):  # that is no step
            exe.run(main, {**feed, "x": np.ones((4, 2), np.float32)}, [], scope=scope)
        exe.run(main, feed, [], scope=scope)
    assert tried == []
    exe.run(main, feed, [], scope=scope)
    assert tried == [True]


def test_shapes_that_come_too_seldom_are_not_timed(clock, caplog):
    _, used, _ = alone(training(clock, None, (2.0, 1.0), rows=(1, 2, 3, 4, 5)))
    assert used[-3:] == ["fused"] * 3
    assert "inf ms fused, inf ms compiled" in said(caplog)[1]


def test_trainers_choose_by_the_sum_of_their_times(clock, caplog):
    costs = [(1.0, 2.0), (4.0, 1.0)]  # trainer 0 alone would stay with fused kernels
    with ranks_as_threads() as run:
        (one, used, _), (other, others, _) = run(2, 0, [training(clock, None, c) for c in costs])
    assert used == others == TRIED + ["compiled"] * 3
    np.testing.assert_allclose(one, other, rtol=1e-6)
    assert "2.5e+03 ms fused, 1.5e+03 ms compiled" in said(caplog)[-1]
    assert len(said(caplog)) == 2  # trainer 0 says it


def test_with_servers_it_is_refused(clock):
    with (
        ranks_as_threads() as run,
        pytest.raises(HpcdistError, match=r"measured in a job with 1 parameter servers, expected"),
    ):
        run(2, 1, [training(clock) for _ in range(3)])
