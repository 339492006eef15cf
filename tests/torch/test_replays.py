"""Steps that are CUDA graphs, over stand-ins: what they compute, and how little they launch."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

import hpcdist as fluid  # noqa: E402
from hpcdist.base import device  # noqa: E402
from hpcdist.comm.world import mpi_world  # noqa: E402
from hpcdist.executor.traced import TracedSegment  # noqa: E402
from tests.mpi.device_jobs import check_losses  # noqa: E402
from tests.support import device as support_device  # noqa: E402
from tests.support import graphs as support_graphs  # noqa: E402
from tests.support.counted_models import example, mlp, wide_and_deep, word2vec  # noqa: E402
from tests.support.nccl import NcclModule  # noqa: E402
from tests.support.streams import MACHINE, Counts  # noqa: E402


@pytest.fixture(autouse=True, params=[0, 1, 2])
def cupy(monkeypatch, request):
    monkeypatch.setenv("HPCDIST_KERNELS", "fused")
    support_graphs.install(monkeypatch)
    return support_device.install(monkeypatch, seed=request.param)


class Training:
    """A model that trains at a place, with batches drawn by the step's number."""

    def __init__(self, build, place):
        self.main, startup, self.scope = fluid.Program(), fluid.Program(), fluid.Scope()
        self.main.random_seed = startup.random_seed = 5
        with fluid.unique_name.guard(), fluid.program_guard(self.main, startup):
            self.loss, self.batch = build()
        self.exe = fluid.Executor(place)
        self.exe.run(startup, scope=self.scope)

    def step(self, number, fetch=True):
        feed = self.batch(np.random.default_rng(number))
        fetched = [self.loss] if fetch else []
        got = self.exe.run(self.main, feed, fetched, scope=self.scope)
        return float(got[0][0]) if fetch else None


def losses(training):
    found = [training.step(i) for i in range(4)]
    for i in range(4, 8):
        training.step(i, fetch=False)
    return found + [training.step(i) for i in range(8, 11)]


def mixed():
    return in_half(fluid.contrib.mixed_precision.decorate)


def in_bfloat16():
    return in_half(fluid.contrib.mixed_precision.decorate_bf16)


def in_half(decorate):
    """A perceptron in mixed precision: Lamb takes memory while it computes."""
    x, label = fluid.data("x", [None, 6]), fluid.data("label", [None, 1], "int64")
    score = fluid.layers.fc(fluid.layers.fc(x, 8, act="relu"), 3)
    loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(score, label))
    decorate(fluid.optimizer.Lamb(0.01)).minimize(loss)
    return loss, lambda rng: {
        "x": rng.standard_normal((4, 6), np.float32),
        "label": rng.integers(0, 3, (4, 1)),
    }


def residual():
    """A step of `resnet50`, with one block of each kind: tracing all of them takes seconds."""
    made = example("resnet.py")
    made["BLOCKS"][50] = [1] * 4
    image, label = fluid.data("image", [None, 3, 32, 32]), fluid.data("label", [None, 1], "int64")
    guess = made["resnet"](image, 10, 50)
    loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(guess, label))
    fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    return loss, lambda rng: {
        "image": rng.random((2, 3, 32, 32), np.float32),
        "label": rng.integers(0, 10, (2, 1)),
    }


# Kernels by themselves, and replays, of a step: a limit is what one takes today.
LIMITS = {
    **dict.fromkeys((mlp, mixed, in_bfloat16, residual), (0, 1)),
    wide_and_deep: (52, 2),
    word2vec: (33, 7),
}
NEAR = {mixed: 5e-3, in_bfloat16: 4e-2}


@pytest.mark.parametrize(
    "build", [build for build in LIMITS if build is not residual], ids=lambda build: build.__name__
)
def test_replayed_steps_give_what_single_operators_give(build, monkeypatch):
    monkeypatch.setattr(device, "AHEAD", 1)  # feeds go up beside the replay before
    got = losses(Training(build, fluid.CUDAPlace(0)))
    monkeypatch.setenv("HPCDIST_KERNELS", "own")
    wanted = losses(Training(build, fluid.CPUPlace()))
    np.testing.assert_allclose(got, wanted, rtol=NEAR.get(build, 1e-5))


@pytest.mark.parametrize("build", LIMITS, ids=lambda build: build.__name__)
def test_a_step_is_few_launches_and_no_wait(build):
    training = Training(build, fluid.CUDAPlace(0))

    def counted(number) -> Counts:
        MACHINE.current().synchronize()
        MACHINE.counts.clear()
        training.step(number, fetch=False)
        return replace(MACHINE.counts)

    for number in range(3):  # computed, recorded, replayed
        counted(number)
    quiet = counted(3)
    launches, replays = LIMITS[build]
    assert quiet.waits == quiet.downloads == quiet.hidden == 0
    assert quiet.launches <= launches and quiet.replays <= replays
    assert quiet.replays > 0


def test_a_wrong_label_of_a_replayed_step_is_told_before_any_value():
    training = Training(mixed, fluid.CUDAPlace(0))
    wrong = {**training.batch(np.random.default_rng(0)), "label": np.full((4, 1), -3)}
    for number in range(3):  # computed, recorded, replayed
        training.exe.run(training.main, wrong, [], scope=training.scope)
        with pytest.raises(fluid.HpcdistError, match=r"id -3 is outside 0\.\.2"):
            training.step(number)
        assert np.isfinite(training.step(number))


def test_what_cannot_be_recorded_is_launched_as_before_and_says_so(monkeypatch):
    launch = TracedSegment.launch

    def refused(segment):
        if MACHINE.capturing is not None:
            raise RuntimeError("cuBLAS has no workspace")
        launch(segment)

    monkeypatch.setattr(TracedSegment, "launch", refused)
    training = Training(mixed, fluid.CUDAPlace(0))
    training.step(0)
    with pytest.warns(UserWarning, match="not replayed as a CUDA graph.*no workspace"):
        training.step(1)
    assert torch.cuda.current_stream().of is MACHINE.default()
    got = [training.step(number) for number in range(2, 5)]
    assert MACHINE.counts.replays == 0
    monkeypatch.setenv("HPCDIST_KERNELS", "own")
    other = Training(mixed, fluid.CPUPlace())
    wanted = [other.step(number) for number in range(5)][2:]
    np.testing.assert_allclose(got, wanted, rtol=5e-3)


@pytest.mark.mpi(min_size=2)
def test_sums_through_pinned_memory_lie_between_replays(cupy, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", NcclModule())  # a GPU for every rank
    monkeypatch.setenv("HPCDIST_ALLREDUCE", "mpi")
    monkeypatch.setenv("FLAGS_fuse_parameter_memory_size", "32")
    check_losses(2, fluid.CUDAPlace)
    assert (MACHINE.counts.replays > 0) == (mpi_world().rank < 2)  # the others take no part
