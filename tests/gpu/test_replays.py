"""On a real GPU: runs of operators by torch, replayed as CUDA graphs. Skipped without one."""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.executor.traced import TracedSegment
from tests.gpu.gpus import missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "never")
if not missing():
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

FEATURES, CLASSES = 32, 10
NEAR = {"decorate": 5e-3, "decorate_bf16": 4e-2}  # 11 and 8 significant bits
HOW = [{}, {"dropout": True}, *({"mixed": name} for name in NEAR)]


def network(x, label, dropout):
    hidden = fluid.layers.fc(x, 64, act="relu")
    if dropout:
        hidden = fluid.layers.dropout(hidden, 0.3, dropout_implementation="upscale_in_train")
    hidden = fluid.layers.fc(hidden, 32, act="relu")
    score = fluid.layers.fc(hidden, CLASSES)
    return fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(score, label))


class Training:
    """A perceptron that trains at a place."""

    def __init__(self, place, dropout=False, mixed=""):
        self.main, startup, self.scope = fluid.Program(), fluid.Program(), fluid.Scope()
        self.main.random_seed = startup.random_seed = 5
        with fluid.unique_name.guard(), fluid.program_guard(self.main, startup):
            x = fluid.data("x", [None, FEATURES])
            label = fluid.data("label", [None, 1], "int64")
            self.loss = network(x, label, dropout)
            optimizer = fluid.optimizer.Adam(0.01)
            if mixed:
                optimizer = getattr(fluid.contrib.mixed_precision, mixed)(optimizer)
            optimizer.minimize(self.loss)
        self.exe = fluid.Executor(place)
        self.exe.run(startup, scope=self.scope)

    def step(self, number, rows=16, fetch=True):
        rng = np.random.default_rng(number)
        feed = {"x": rng.standard_normal((rows, FEATURES), np.float32)}
        feed["label"] = rng.integers(0, CLASSES, (rows, 1))
        got = self.exe.run(self.main, feed, [self.loss] if fetch else [], scope=self.scope)
        return float(got[0][0]) if fetch else None

    def calls(self):
        """Return how many calls each compiled form of the Program makes in a step."""
        return [len(e.compiled.steps) for e in self.exe.forms(self.main)]


def losses(training):
    """Train with batches of two sizes, with and without fetching, and with a weight set by hand."""
    found = [training.step(i) for i in range(4)]
    found += [training.step(i, rows=24) for i in range(4, 8)]
    for i in range(8, 12):
        training.step(i, fetch=False)
    tensor = training.scope.find_var("fc_1.w_0").get_tensor()
    tensor.set(np.array(tensor) * np.float32(0.5), training.exe.place)
    return found + [training.step(i) for i in range(12, 16)]


@pytest.mark.parametrize("kernels", ["own", "fused", "compiled", "measured"])
@pytest.mark.parametrize("how", HOW, ids=str)
def test_losses_are_those_of_the_cpu(monkeypatch, kernels, how):
    monkeypatch.setenv("HPCDIST_KERNELS", kernels)
    got = losses(Training(fluid.CUDAPlace(0), **how))
    if kernels == "own":
        again = losses(Training(fluid.CUDAPlace(0), **how))
        np.testing.assert_array_equal(again, got, err_msg="not bit for bit")
    monkeypatch.setenv("HPCDIST_KERNELS", "own")
    wanted = losses(Training(fluid.CPUPlace(), **how))
    near = NEAR.get(how.get("mixed"), 1e-4)
    np.testing.assert_allclose(got, wanted, rtol=near, atol=near)


@pytest.mark.parametrize("kernels", ["fused", "compiled"])
@pytest.mark.parametrize("mixed", ["", *NEAR])
def test_a_step_is_one_replay(monkeypatch, kernels, mixed):
    monkeypatch.setenv("HPCDIST_KERNELS", kernels)
    training = Training(fluid.CUDAPlace(0), mixed=mixed)
    for i in range(3):
        training.step(i)
    assert training.calls() == [1]
    (entry,) = training.exe.forms(training.main)
    assert entry.compiled.steps[0].captured


@pytest.mark.parametrize("kernels", ["own", "fused", "compiled"])
def test_the_host_does_not_wait_in_a_step_that_fetches_nothing(monkeypatch, kernels):
    monkeypatch.setenv("HPCDIST_KERNELS", kernels)
    training = Training(fluid.CUDAPlace(0))
    for i in range(4):
        training.step(i, fetch=False)
    busy = torch.cuda.Event()
    torch.cuda._sleep(int(3e9))  # cycles: more than a second
    busy.record()
    for i in range(4):
        training.step(i, fetch=False)
    assert not busy.query()
    assert np.isfinite(training.step(9))


def test_a_wrong_label_is_told_when_a_value_is_fetched(monkeypatch):
    monkeypatch.setenv("HPCDIST_KERNELS", "fused")
    training = Training(fluid.CUDAPlace(0))
    feed = {"x": np.zeros((4, FEATURES), np.float32), "label": np.full((4, 1), -3)}
    for _ in range(3):  # computed, captured, replayed
        training.exe.run(training.main, feed, [], scope=training.scope)
        with pytest.raises(fluid.HpcdistError, match=r"id -3 is outside 0\.\.9"):
            training.step(0)
        training.step(1)


def sampled_slopes():
    """Return gradients of operators that torch computes in any case, with many places alike."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    main.random_seed = startup.random_seed = 5
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x = fluid.layers.create_parameter([2, 4, 32, 32], "float32", name="x")
        grid = fluid.data("grid", [2, 64, 64, 2], "float32")
        offset = fluid.data("offset", [2, 18, 32, 32], "float32")
        mask = fluid.data("mask", [2, 9, 32, 32], "float32")
        read = fluid.layers.grid_sampler(x, grid)
        moved = fluid.layers.deformable_conv(x, offset, mask, 3, 3, padding=1)
        volumes = fluid.layers.reshape(x, [1, 2, 4, 32, 32])
        pooled = fluid.layers.pool3d(volumes, 3, "max", 1)
        parts = (fluid.layers.reduce_mean(fluid.layers.square(v)) for v in (read, moved, pooled))
        slopes = dict(fluid.backward.append_backward(fluid.layers.sums(list(parts))))
    exe = fluid.Executor(fluid.CUDAPlace(0))
    exe.run(startup, scope=scope)
    rng = np.random.default_rng(0)
    feed = {
        "grid": rng.uniform(-0.2, 0.2, (2, 64, 64, 2)).astype("float32"),
        "offset": rng.uniform(-9, 9, (2, 18, 32, 32)).astype("float32"),
        "mask": rng.random((2, 9, 32, 32), np.float32),
    }
    return exe.run(main, feed, list(slopes.values()), scope=scope)


def test_what_torch_computes_has_the_same_bits_in_every_run_with_own_kernels(monkeypatch):
    monkeypatch.setenv("HPCDIST_KERNELS", "own")
    first = sampled_slopes()
    for _ in range(5):
        for again, before in zip(sampled_slopes(), first):
            np.testing.assert_array_equal(again, before, err_msg="not bit for bit")


def test_a_graph_that_cannot_be_recorded_leaves_torch_as_it_was(monkeypatch):
    monkeypatch.setenv("HPCDIST_KERNELS", "fused")
    launch = TracedSegment.launch

    def launched(segment):
        launch(segment)
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream().synchronize()

    monkeypatch.setattr(TracedSegment, "launch", launched)
    training = Training(fluid.CUDAPlace(0))
    training.step(0)
    before = torch.cuda.current_stream()
    with pytest.warns(UserWarning, match="not replayed as a CUDA graph"):
        training.step(1)
    assert torch.cuda.current_stream() == before
    assert np.isfinite(training.step(2))
