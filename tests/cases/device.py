"""What a device must compute as the CPU does: every operator, and whole trainings."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdist.executor.backend import CPUPlace, CUDAPlace
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope
from hpcdist.ops import by_torch
from tests.support.ops import Case, Draw, Graph, dense, every_case, floats_in, like

CASES = every_case()

NEAR = 2e-5


class DeviceTests:
    """Cases for CUDAPlace(0); a subclass provides the device."""

    @pytest.mark.parametrize("type", sorted(CASES))
    @settings(max_examples=4, deadline=None)
    @given(data=st.data())
    def test_operators_and_gradients_are_those_of_the_cpu(self, type, data):
        if type in by_torch.functions() and not hasattr(sys.modules["cupy"], "__version__"):
            pytest.skip("cupy's stand-in has no memory that another library can take")
        case = CASES[type](Draw(data.draw))
        fetched = [_run(type, case, place) for place in (CPUPlace(), CUDAPlace(0))]
        for wanted, got in zip(*fetched, strict=True):
            assert got.dtype == wanted.dtype
            np.testing.assert_allclose(dense(got), dense(wanted), rtol=NEAR, atol=NEAR)

    @pytest.mark.parametrize(
        ("x", "y"), [((1, 2), (1, 2, 1)), ((1, 1, 2), (2, 1)), ((2,), (1, 2, 3))]
    )
    def test_products_fill_arrays_of_fewer_dimensions_than_their_batches(self, monkeypatch, x, y):
        monkeypatch.setenv("HPCDIST_KERNELS", "own")
        case = Case({"X": [np.ones(x)], "Y": [np.full(y, 2.0)]})
        wanted, got = (_run("matmul", case, place) for place in (CPUPlace(), CUDAPlace(0)))
        for a, b in zip(wanted, got, strict=True):
            np.testing.assert_allclose(b, a)

    @pytest.mark.parametrize("sparse", [False, True])
    @pytest.mark.parametrize(
        "name",
        ["SGD", "Momentum", "Adagrad", "Adam", "Adamax", "RMSProp", "DecayedAdagrad", "Ftrl"],
    )
    def test_training_is_that_of_the_cpu(self, name, sparse):
        if sparse and name in ("Adamax", "DecayedAdagrad", "Ftrl"):
            pytest.skip(f"{name} takes no sparse gradients")
        wanted, got = (train(name, sparse, place) for place in (CPUPlace(), CUDAPlace(0)))
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)

    def test_training_on_images_is_that_of_the_cpu(self):
        wanted, got = (train_on_images(place) for place in (CPUPlace(), CUDAPlace(0)))
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("sparse", [False, True])
    def test_sequences_of_any_lengths_train_as_on_the_cpu(self, sparse):
        wanted, got = (train_ragged(sparse, place) for place in (CPUPlace(), CUDAPlace(0)))
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)

    def test_a_scope_may_be_used_from_both_sides(self):
        import hpcdist as fluid

        main, startup = fluid.Program(), fluid.Program()
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            out = fluid.layers.fc(fluid.layers.data("x", [3]), 2, param_attr="w")
        scope = Scope()
        cpu, gpu = Executor(CPUPlace()), Executor(CUDAPlace(0))
        gpu.run(startup, scope=scope)
        feed = {"x": np.ones((2, 3), np.float32)}
        for new in (1.0, 2.0):
            scope.find_var("w").get_tensor().set(np.full((3, 2), new, np.float32), CPUPlace())
            for exe in (gpu, cpu, gpu):
                (got,) = exe.run(main, feed, [out], scope=scope)
                np.testing.assert_allclose(got, np.full((2, 2), 3 * new), rtol=1e-6)


def _run(type: str, case: Case, place: Any) -> list[Any]:
    """Return the outputs of an operator, and the gradients of its inputs, in single precision."""
    from hpcdist.backward import gradients

    graph = Graph(type, _single(case), place)
    written = {n for op in graph.block.ops for n in op.output_arg_names}
    outputs = [v for held in graph.outputs.values() for v in held if v.name in written]
    targets = [v for v in floats_in(graph.outputs, case.targets) if 0 not in v.shape]
    weights = graph.weights(targets, lambda shape: np.full(shape, 0.5))
    moved = floats_in(graph.inputs, case.wrt)
    return graph.run([*outputs, *gradients(targets, moved, weights)])


def _single(case: Case) -> Case:
    def cast(value: Any) -> Any:
        if isinstance(value, list):
            return [cast(v) for v in value]
        array = np.asarray(value)
        return like(value, array.astype(np.float32)) if array.dtype == np.float64 else value

    inputs = {slot: cast(value) for slot, value in case.inputs.items()}
    return Case(inputs, case.attrs, case.outputs, case.wrt, case.targets)


def train(name: str, sparse: bool, place: Any) -> np.ndarray:
    """Return losses and accuracies of a net with an embedding, dropout and a schedule."""
    import hpcdist as fluid
    from hpcdist import layers

    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x, word = layers.data("x", [6]), layers.data("word", [1], dtype="int64")
        label = layers.data("label", [1], dtype="int64")
        rows = layers.embedding(word, [9, 4], is_sparse=sparse)
        hidden = layers.fc(layers.concat([rows, x], axis=1), 8, act="relu")
        guess = layers.fc(layers.dropout(hidden, 0.3), 3, act="softmax")
        loss = layers.mean(layers.cross_entropy(guess, label))
        hits = [layers.accuracy(guess, label, k) for k in (1, 2)]
        rate = layers.piecewise_decay([3], [0.1, 0.05])
        make: Callable[..., Any] = getattr(fluid.optimizer, name)
        make(rate, **({"momentum": 0.9} if name == "Momentum" else {})).minimize(loss)
    exe, scope = Executor(place), Scope()
    exe.run(startup, scope=scope)
    losses = []
    for step in range(6):
        rng = np.random.default_rng(step)
        feed = {
            "x": rng.uniform(-1, 1, (5 + step % 2, 6)).astype(np.float32),
            "word": rng.integers(0, 9, (5 + step % 2, 1)),
            "label": rng.integers(0, 3, (5 + step % 2, 1)),
        }
        losses += exe.run(main, feed, [loss, *hits], scope=scope)
    return np.concatenate(losses)


def train_on_images(place: Any) -> np.ndarray:
    """Return losses of a net with grouped and depthwise convolutions, pools and batch_norm."""
    import hpcdist as fluid
    from hpcdist import layers, nets

    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        image, label = layers.data("image", [3, 12, 12]), layers.data("label", [1], dtype="int64")
        x = nets.simple_img_conv_pool(image, 6, 3, 2, 2, conv_padding=1, act="relu")
        x = layers.batch_norm(layers.conv2d(x, 12, 3, groups=3, bias_attr=False), act="relu")
        x = layers.conv2d(x, 12, 3, stride=2, padding="SAME", groups=12, use_cudnn=False)
        x = layers.pool2d(x, pool_type="avg", global_pooling=True)
        guess = layers.fc(x, 3, act="softmax")
        loss = layers.mean(layers.cross_entropy(guess, label))
        test = main.clone(for_test=True)
        fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    exe, scope, losses = Executor(place), Scope(), []
    exe.run(startup, scope=scope)
    for step in range(4):
        rng = np.random.default_rng(step)
        feed = {
            "image": rng.uniform(-1, 1, (5 + step % 2, 3, 12, 12)).astype(np.float32),
            "label": rng.integers(0, 3, (5 + step % 2, 1)),
        }
        losses += [exe.run(p, feed, [loss], scope=scope)[0] for p in (main, test)]
    return np.concatenate(losses)


def train_ragged(sparse: bool, place: Any) -> np.ndarray:
    """Return losses and areas under curves of a text model, over batches of other lengths."""
    import hpcdist as fluid
    from hpcdist import layers

    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        words = layers.data("words", [1], dtype="int64", lod_level=1)
        label = layers.data("label", [1], dtype="int64")
        rows = layers.embedding(words, [9, 4], is_sparse=sparse, padding_idx=0)
        weights = layers.sequence_softmax(layers.fc(rows, 1))
        bag = layers.sequence_pool(layers.elementwise_mul(rows, weights, axis=0), "sum")
        near = layers.sequence_pool(layers.sequence_conv(rows, 4, act="tanh"), "max")
        guess = layers.fc([bag, near], 2, act="softmax")
        loss = layers.mean(layers.cross_entropy(guess, label))
        total, last, _ = layers.auc(guess, label, num_thresholds=50, slide_steps=2)
        fluid.optimizer.Adagrad(0.1).minimize(loss)
    exe, scope = Executor(place), Scope()
    exe.run(startup, scope=scope)
    found = []
    for step, lengths in enumerate([[2, 0, 3], [4, 4, 1], [0, 0, 0], [1, 5, 2], [4, 4, 1]]):
        rng = np.random.default_rng(step)
        ids = rng.integers(0, 9, (sum(lengths), 1))
        feed = {
            "words": fluid.create_lod_tensor(ids, [lengths]),
            "label": rng.integers(0, 2, (3, 1)),
        }
        found += exe.run(main, feed, [loss, total, last], scope=scope)
    return np.concatenate(found)
