"""Runs of operators that torch computes as one: the numbers are those of single operators."""

from __future__ import annotations

import operator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

import hpcdist as fluid  # noqa: E402
from hpcdist.errors import FeedError, GraphError, HpcdistError  # noqa: E402
from hpcdist.executor.segments import TYPE  # noqa: E402
from hpcdist.graph.op_role import OpRole  # noqa: E402
from hpcdist.ops import by_torch  # noqa: E402
from hpcdist.ops.torch_forms import forms  # noqa: E402
from tests.support.random_programs import build  # noqa: E402

KERNELS = ("own", "fused")


def built(network, optimizer=None):
    """Return main, startup and loss of a network that takes x [n, 6] and label [n, 1]."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x = fluid.data("x", [None, 6])
        label = fluid.data("label", [None, 1], "int64")
        loss = network(x, label)
        (optimizer or fluid.optimizer.SGD(0.1)).minimize(loss)
    return main, startup, loss


def perceptron(x, label):
    hidden = fluid.layers.fc(x, 8, act="relu")
    score = fluid.layers.fc(hidden, 5)
    return fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(score, label))


def batches(rows=(4, 4, 7, 4)):
    rng = np.random.default_rng(0)
    return [
        {"x": rng.standard_normal((n, 6), np.float32), "label": rng.integers(0, 5, (n, 1))}
        for n in rows
    ]


def trained(monkeypatch, kernels, network, optimizer=None, also=()):
    """Return what is fetched in each step: the loss, and variables by name; and the executor."""
    monkeypatch.setenv("HPCDIST_KERNELS", kernels)
    main, startup, loss = built(network, optimizer() if optimizer else None)
    exe, scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
    exe.run(startup, scope=scope)
    fetched = [exe.run(main, feed, [loss, *also], scope=scope) for feed in batches()]
    return fetched, exe, main


def types_of(exe, main):
    """Return the operators of the compiled forms of a Program."""
    return [[op.type for op in entry.compiled.ops] for entry in exe.forms(main)]


def assert_alike(one, other, near=2e-6):
    for got, wanted in zip(one, other, strict=True):
        for a, b in zip(got, wanted, strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            np.testing.assert_allclose(a, b, rtol=near, atol=near)


def mixed_sgd():
    return fluid.contrib.mixed_precision.decorate(fluid.optimizer.Momentum(0.1, 0.9))


def mixed_bf16():
    return fluid.contrib.mixed_precision.decorate_bf16(fluid.optimizer.Momentum(0.1, 0.9))


def images(x, label):
    picture = fluid.layers.reshape(fluid.layers.fc(x, 64), [-1, 1, 8, 8])
    for filters in (4, 4):
        picture = fluid.layers.conv2d(picture, filters, 3, padding=1, bias_attr=False)
        picture = fluid.layers.batch_norm(picture, act="relu")
    pooled = fluid.layers.pool2d(picture, 2, "max", 2)
    score = fluid.layers.fc(pooled, 5)
    return fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(score, label))


IN_HALF = {mixed_sgd: 2e-3, mixed_bf16: 2e-2}


@pytest.mark.parametrize("optimizer", [None, lambda: fluid.optimizer.Adam(0.01), *IN_HALF])
def test_a_perceptron_is_one_segment_and_its_updates(monkeypatch, optimizer):
    also = ["fc_0.tmp_1", "fc_0.w_0"]
    runs = [trained(monkeypatch, k, perceptron, optimizer, also) for k in KERNELS]
    assert_alike(runs[0][0], runs[1][0], IN_HALF.get(optimizer, 2e-6))
    for types in types_of(*runs[1][1:]):
        assert types[0] == TYPE and types.count(TYPE) <= 2
    assert all(TYPE not in types for types in types_of(*runs[0][1:]))


def test_what_computes_rates_is_in_no_segment(monkeypatch):
    """Servers compute them without torch: float64 parameters would show how it rounds a rate."""
    monkeypatch.setenv("HPCDIST_KERNELS", "fused")
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        loss = perceptron(fluid.data("x", [None, 6]), fluid.data("label", [None, 1], "int64"))
        rate = fluid.layers.natural_exp_decay(0.1, 2, 0.7, staircase=True)
        fluid.optimizer.SGD(rate).minimize(loss)
    exe, scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
    exe.run(startup, scope=scope)
    for feed in batches():
        exe.run(main, feed, [loss], scope=scope)
    ops = [op for entry in exe.forms(main) for op in entry.compiled.ops]
    segments = [op.attrs["segment"].ops for op in ops if op.type == TYPE]
    assert segments and "exp" in {op.type for op in ops}
    assert not [op for run in segments for op in run if op.role & OpRole.LR_SCHED]


def test_integers_that_are_moved_about_are_in_a_segment(monkeypatch):
    monkeypatch.setenv("HPCDIST_KERNELS", "fused")
    main = fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, fluid.Program()):
        ids, places = fluid.data("ids", [None, 2], "int64"), fluid.data("places", [None], "int64")
        chosen = fluid.layers.gather(ids, places)
        doubled = fluid.layers.concat([chosen, fluid.layers.scale(chosen, 2)], axis=1)
    exe = fluid.Executor(fluid.CPUPlace())
    feed = {"ids": np.arange(6).reshape(3, 2), "places": np.array([2, 0])}
    (got,) = exe.run(main, feed, [doubled])
    np.testing.assert_array_equal(got, [[4, 5, 8, 10], [0, 1, 0, 2]])
    assert types_of(exe, main) == [[TYPE]]


@pytest.mark.parametrize("optimizer", [None, *IN_HALF])
def test_images_and_their_moving_averages(monkeypatch, optimizer):
    also = ["batch_norm_0.w_1", "batch_norm_1.w_2", "conv2d_0.w_0"]
    runs = [trained(monkeypatch, k, images, optimizer, also)[0] for k in KERNELS]
    assert_alike(runs[0], runs[1], 10 * IN_HALF.get(optimizer, 2e-5))


@pytest.mark.parametrize("wished", [False, True])
def test_a_gpu_adds_products_in_float32_and_rounds_to_tf32_only_if_that_is_wished(
    monkeypatch, wished
):
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    places = [(matmul, f"allow_{half}_reduced_precision_reduction") for half in ("fp16", "bf16")]
    places += [(matmul, "allow_tf32"), (cudnn, "allow_tf32")]
    before = [getattr(*place) for place in places]
    monkeypatch.setenv("HPCDIST_TF32", str(int(wished)))
    try:
        for place, value in zip(places, (True, True, not wished, not wished)):
            setattr(*place, value)
        by_torch.set_rounding.__wrapped__(torch)
        assert [getattr(*place) for place in places] == [False, False, wished, wished]
    finally:
        for place, value in zip(places, before):
            setattr(*place, value)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_products_are_computed_in_the_type_that_the_program_rounds_to(half):
    """Each number is the product in single precision, rounded once; torch rounds as we do."""
    main = fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main):
        x, w = fluid.data("x", [9, 70]), fluid.data("w", [70, 33])
        made = [main.global_block().create_var(name) for name in ("a", "b", "product", "out")]
        a, b, product, out = made
        block = main.global_block()
        for source, target in ((x, a), (w, b)):
            block.append_op(f"round_to_{half}", {"X": source}, {"Out": target})
        block.append_op("mul", {"X": a, "Y": b}, {"Out": product})
        block.append_op(f"round_to_{half}", {"X": product}, {"Out": out})
    rng = np.random.default_rng(0)
    feed = {"x": rng.standard_normal((9, 70), np.float32)}
    feed["w"] = rng.standard_normal((70, 33), np.float32)
    given = [torch.from_numpy(feed[n]).to(getattr(torch, half)) for n in "xw"]
    wanted = (given[0] @ given[1]).float().numpy()
    with fluid.scope_guard(fluid.Scope()), pytest.MonkeyPatch.context() as patch:
        patch.setenv("HPCDIST_KERNELS", "fused")
        exe = fluid.Executor(fluid.CPUPlace())
        fused, rounded = exe.run(main, feed, [out, a])
        patch.setenv("HPCDIST_KERNELS", "own")
        own = fluid.Executor(fluid.CPUPlace()).run(main, feed, [out, a])
    np.testing.assert_array_equal(fused, wanted)
    np.testing.assert_array_equal(rounded, given[0].float().numpy())
    np.testing.assert_array_equal(own[1], rounded)
    np.testing.assert_allclose(own[0], fused, rtol=2e-2 if half == "bfloat16" else 2e-3, atol=1e-2)


def test_gradients_of_mixed_precision_are_checked_together():
    """But for one kernel for each, which makes it zero if any is infinite."""
    make_fx = torch.fx.experimental.proxy_tensor.make_fx
    by_type, counts = forms(), []
    for several in (2, 12):
        xs = [torch.ones(3, k + 1) for k in range(several)]

        def step(scale, *xs):
            outs, found = by_type["check_finite_and_unscale"](
                torch, [list(xs), scale], {"zeroes": True}, [], []
            )
            return [*outs, found]

        graph = make_fx(step, tracing_mode="fake")(torch.full((1,), 2.0), *xs)
        calls = [n for n in graph.graph.nodes if n.op == "call_function"]
        counts.append(len([n for n in calls if n.target is not operator.getitem]))
        (halved, *_, found) = graph(torch.full((1,), 2.0), *xs)
        assert (halved == 0.5).all() and not found
        for bad in (float("inf"), float("nan")):
            xs[-1][1, 1] = bad
            (*zeros, found) = graph(torch.full((1,), 2.0), *xs)
            assert found and not any(zero.any() for zero in zeros)
    assert counts[1] - counts[0] == 10


def test_a_wrong_label_is_told_before_anything_is_updated(monkeypatch):
    monkeypatch.setenv("HPCDIST_KERNELS", "fused")
    main, startup, loss = built(perceptron)
    exe, scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
    exe.run(startup, scope=scope)
    feed = batches()[0]
    exe.run(main, feed, [loss], scope=scope)
    before = np.array(scope.find_var("fc_0.w_0").get_tensor())
    for wrong in (-3, 5):
        with pytest.raises(FeedError, match=rf"softmax_with_cross_entropy: id {wrong} is outside"):
            exe.run(main, {**feed, "label": feed["label"] * 0 + wrong}, [loss], scope=scope)
    assert (before == np.array(scope.find_var("fc_0.w_0").get_tensor())).all()
    exe.run(main, feed, [loss], scope=scope)  # what was wrong is forgotten


def test_executors_in_threads_trace_at_the_same_time(monkeypatch):
    monkeypatch.setenv("HPCDIST_KERNELS", "fused")
    made = [built(images) for _ in range(4)]

    def losses(main, startup, loss):
        exe, scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
        exe.run(startup, scope=scope)
        return [exe.run(main, feed, [loss], scope=scope) for feed in batches()]

    with ThreadPoolExecutor(len(made)) as pool:
        first, *others = pool.map(lambda one: losses(*one), made)
    for other in others:
        assert_alike(first, other, near=0)


def of_operator(type, inputs, attrs=None):
    """Return what an operator gives, also of types that its layer refuses."""
    block = inputs["X"].block
    out = block.create_var("out")
    block.append_op(type, inputs, {"Out": out}, attrs or {})
    return out


@pytest.mark.parametrize(
    "function",
    [
        lambda x: of_operator("mean", {"X": x}),
        lambda x: fluid.layers.reduce_mean(x, 1),
        lambda x: of_operator("matmul", {"X": x, "Y": x}, {"transpose_Y": True}),
        lambda x: fluid.layers.adaptive_pool2d(fluid.layers.reshape(x, [-1, 1, 2, 3]), 1, "max"),
        lambda x: of_operator("clip", {"X": x}, {"min": -1.5, "max": 2.5}),
        lambda x: fluid.layers.exp(x),
        lambda x: of_operator("softmax", {"X": x}),
    ],
)
def test_integers_are_computed_or_refused_as_without_torch(monkeypatch, function):
    main = fluid.Program()
    with fluid.program_guard(main):
        result = function(fluid.data("x", [None, 6], "int64"))
        fetch = [fluid.layers.scale(result, 3.0), fluid.layers.cast(result, "float32")]
    found = []
    for kernels in KERNELS:
        monkeypatch.setenv("HPCDIST_KERNELS", kernels)
        exe = fluid.Executor(fluid.CPUPlace())
        try:
            found.append([exe.run(main, {"x": np.arange(-6, 6).reshape(2, 6)}, fetch)])
        except HpcdistError as error:
            found.append(str(error).partition(":")[2])
    own, fused = found
    assert own == fused if isinstance(own, str) else assert_alike(own, fused, near=0) is None


def test_variables_that_change_places(monkeypatch):
    """Each result is computed from what was there before the segment, whatever it overwrites."""
    found = []
    for kernels in KERNELS:
        monkeypatch.setenv("HPCDIST_KERNELS", kernels)
        main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            a, b = (
                fluid.layers.create_global_var([2], value, "float32", persistable=True)
                for value in (1.0, 2.0)
            )
            kept = fluid.layers.assign(a)
            fluid.layers.assign(b, a)
            fluid.layers.assign(fluid.layers.scale(kept, 10.0), b)
            fluid.layers.assign(kept, kept)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup, scope=scope)
        found.append([exe.run(main, fetch_list=[a, b, kept], scope=scope) for _ in range(3)])
    assert_alike(*found, near=0)


def test_an_error_names_the_operators_of_the_segment(monkeypatch):
    monkeypatch.setenv("HPCDIST_KERNELS", "fused")
    _, exe, main = trained(monkeypatch, "fused", perceptron)
    (entry, *_) = exe.forms(main)
    segment = next(op for op in entry.compiled.ops if op.type == TYPE)
    assert entry.compiled.described(segment).startswith("op #0 mul to op #")


@pytest.mark.parametrize("first", [0, 10, 20])
def test_random_programs(monkeypatch, first):
    compared = 0
    for seed in range(first, first + 10):
        results = []
        for kernels in KERNELS:
            monkeypatch.setenv("HPCDIST_KERNELS", kernels)
            program, scope = build(seed), fluid.Scope()
            try:
                with fluid.scope_guard(scope):
                    exe = fluid.Executor(fluid.CPUPlace())
                    exe.run(program.startup)
                    fetch = [*program.fetch, *program.parameters]
                    steps = [exe.run(program.main, f, fetch) for f in program.feeds]
            except (GraphError, FeedError) as error:
                steps = type(error).__name__
            results.append(steps)
        if isinstance(results[0], str):
            assert results[0] == results[1], f"seed {seed}"
            continue
        if not all(np.isfinite(v).all() for step in results[0] for v in step):
            continue
        compared += 1
        for own, fused in zip(*results, strict=True):
            for a, b in zip(own, fused, strict=True):
                scale = max(1.0, float(np.abs(a).max(initial=0)))
                message = f"seed {seed}: {program.ops}"
                np.testing.assert_allclose(b, a, rtol=2e-4, atol=2e-4 * scale, err_msg=message)
    assert compared > 3


def test_what_reads_a_shape_only_parts_no_run(monkeypatch):
    """A transposed or reshaped value, and probabilities of classes, as most networks have them."""

    def network(x, label):
        pieces = fluid.layers.reshape(fluid.layers.fc(x, 12), [-1, 3, 4])
        turned = fluid.layers.transpose(pieces, [0, 2, 1])
        flat = fluid.layers.flatten(fluid.layers.fc(turned, 2, act="relu", num_flatten_dims=2))
        wide = fluid.layers.unsqueeze(fluid.layers.fc(flat, 5, act="softmax"), [1])
        guess = fluid.layers.squeeze(wide, [1])
        return fluid.layers.mean(fluid.layers.cross_entropy(guess, label))

    (own, _, _), (fused, exe, main) = (trained(monkeypatch, how, network) for how in KERNELS)
    assert_alike(fused, own)
    assert all(types[0] == TYPE and {*types[1:]} == {"sgd"} for types in types_of(exe, main))
