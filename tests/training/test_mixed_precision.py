"""Mixed precision: what is rounded, how the loss is scaled, and where it is refused."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.contrib import mixed_precision
from hpcdist.errors import FleetError, GraphError, PlanError
from hpcdist.fleet import DistributedStrategy
from hpcdist.runtime.batches.analysis import SharedProgram
from tests.support.device import install
from tests.support.streams import MACHINE

# Measured with Fluid 1.8.5: the logarithm of the scale, and the first weight, after each step.
FLUID = [
    (127, 0.1),
    (67, 0.1),
    (67, 1.05319),
    (67, 2.00924),
    (68, 2.62952),
    (68, 2.9869),
    (68, 3.24966),
    (69, 2.4935),
    (69, 2.1407),
    (69, 1.82319),
    (9, 1.53743),
    (9, 1.05005),
    (9, 0.611416),
    (9, 0.49352),
]


def linear() -> Any:
    x, y = layers.data("x", [3]), layers.data("y", [1])
    start = fluid.ParamAttr("w", initializer=fluid.initializer.Constant(0.1))
    return layers.mean(layers.square_error_cost(layers.fc(x, 1, param_attr=start), y))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("place", [fluid.CPUPlace(), fluid.CUDAPlace(0)], ids=str)
def test_the_scale_and_steps_that_overflow_are_those_of_fluid(place: Any, monkeypatch: Any) -> None:
    install(monkeypatch)
    lists = mixed_precision.AutoMixedPrecisionLists(custom_black_list={"mul"})
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        optimizer = mixed_precision.decorate(
            fluid.optimizer.Momentum(0.1, 0.9),
            lists,
            init_loss_scaling=2.0**127,
            incr_every_n_steps=2,
            decr_every_n_nan_or_inf=1,
            decr_ratio=2.0**-60,
        )
        loss = linear()
        optimizer.minimize(loss)
    random, exe, found = np.random.RandomState(0), fluid.Executor(place), []
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        for step in range(len(FLUID)):
            x, y = random.rand(4, 3).astype("float32"), 20 * random.rand(4, 1).astype("float32")
            if step in (9, 10, 12):
                y[0] = 3e38
            fetch = [optimizer.get_loss_scaling(), "w"]
            scale, w = exe.run(main, feed={"x": x, "y": y}, fetch_list=fetch)
            found.append((np.log2(scale[0]), w[0, 0]))
        MACHINE.counts.clear()
        exe.run(main, feed={"x": x, "y": y})
        assert MACHINE.counts.waits == 0  # nobody has asked whether gradients are finite
    np.testing.assert_allclose(found, FLUID, rtol=1e-5)


def half(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float16).astype(np.float32)


def brain(array: np.ndarray) -> np.ndarray:
    """What bfloat16 holds: 8 bits of the mantissa, in units of 2^-133 at least."""
    exponent = np.frexp(array.astype(np.float64))[1]
    unit = np.exp2(np.maximum(exponent - 8.0, -133.0))
    rounded = np.rint(array / unit) * unit
    return np.where(np.abs(rounded) >= 2.0**128, np.copysign(np.inf, array), rounded).astype("f4")


def test_what_white_operators_read_and_give_is_rounded_and_so_are_gradients() -> None:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = layers.data("x", [16])
        guess = layers.fc(x, 8, act="tanh", bias_attr=False, param_attr="w")
        loss = layers.mean(guess)
        optimizer = mixed_precision.decorate(
            fluid.optimizer.SGD(1.0), init_loss_scaling=1024.0, use_dynamic_loss_scaling=False
        )
        optimizer.minimize(loss)
    rows = np.random.default_rng(0).normal(size=(6, 16)).astype("float32")
    exe = fluid.Executor()
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        w = np.array(fluid.global_scope().find_var("w").get_tensor())
        given, grad = exe.run(main, feed={"x": rows}, fetch_list=[guess, "w@GRAD@UNSCALED"])
    computed = np.tanh(half(half(rows) @ half(w)))
    np.testing.assert_allclose(given, half(computed), rtol=1e-3)
    dout = half(np.full_like(given, 1024 / given.size))
    dproduct = half(dout * (1 - computed * computed))
    np.testing.assert_allclose(grad, half(half(rows).T @ dproduct) / 1024, rtol=2e-3, atol=1e-6)
    assert np.all(half(grad * 1024) == grad * 1024)


EDGES = {  # values beside those drawn, the exponents of these, and what rounds them
    "float16": ([65519.9, 65520, 65504, 1e9, 2**-14, 2**-24, 2**-25, 3 * 2**-26], (-30, 20), half),
    "bfloat16": ([3.3961e38, 3.39e38, 2.0**-126, 2.0**-133, 2.0**-134, 1e-45], (-149, 128), brain),
}


@pytest.mark.parametrize("place", [fluid.CPUPlace(), fluid.CUDAPlace(0)], ids=str)
@pytest.mark.parametrize("kind", EDGES)
def test_rounding_is_to_the_nearest_value(kind: str, place: Any, monkeypatch: Any) -> None:
    install(monkeypatch)
    edges, exponents, rounded = EDGES[kind]
    random = np.random.default_rng(0)
    values = np.array([0, np.inf, np.nan, *edges], np.float32)
    values = np.concatenate([values, np.exp2(random.uniform(*exponents, 4000)).astype("f4")])
    with np.errstate(over="ignore", invalid="ignore"):
        between = rounded(values) * np.float32(1 + 2 ** -(11 if kind == "float16" else 8))
        values = np.concatenate([values, -values, between])
        wanted = rounded(values)
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        x = layers.data("x", [len(values)], append_batch_size=False)
        out = main.global_block().create_var("out")
        main.global_block().append_op(f"round_to_{kind}", {"X": x}, {"Out": out})
    (found,) = fluid.Executor(place).run(main, feed={"x": values}, fetch_list=[out])
    np.testing.assert_array_equal(found, wanted)
    known = ~np.isnan(wanted)
    assert found[known].tobytes() == wanted[known].tobytes()


def kinds(lists: Any, net: Any) -> list[str]:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        loss = net()
        mixed_precision.decorate(fluid.optimizer.SGD(0.1), lists).minimize(loss)
        return [op.type for op in loss.block.ops if not op.role]


def test_lists_say_what_is_rounded() -> None:
    plain = kinds(None, linear)
    # x, the weight, the product, the bias, the sum, y, the difference; squares are single again.
    assert plain.count("round_to_float16") == 7
    black = mixed_precision.AutoMixedPrecisionLists(custom_black_list=["mul"])
    assert "round_to_float16" not in kinds(black, linear)
    names = mixed_precision.AutoMixedPrecisionLists(custom_black_varnames=["w"])
    assert "round_to_float16" not in kinds(names, linear)
    white = mixed_precision.AutoMixedPrecisionLists(custom_white_list=["square"])
    assert kinds(white, linear).count("round_to_float16") == 8
    with pytest.raises(GraphError, match=r"\['mul'\] are in both custom lists"):
        mixed_precision.AutoMixedPrecisionLists(["mul"], ["mul"])


def test_trainers_divide_its_batches_and_servers_refuse_it() -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        mixed_precision.decorate(fluid.optimizer.SGD(0.1)).minimize(linear())
    assert not SharedProgram(main, 2).why_whole
    with pytest.raises(PlanError, match="mixed precision looks at all gradients at once"):
        fluid.DistributeTranspiler().transpile(0, main, "a:1", 2, startup_program=startup)


def test_a_strategy_for_servers_leaves_float16_out_and_says_so() -> None:
    strategy, sgd = DistributedStrategy(), fluid.optimizer.SGD(0.1)
    strategy.amp = True
    with pytest.warns(UserWarning, match="strategy.amp: with parameter servers .* float32 here"):
        assert strategy.wrapped(sgd, servers=True) is sgd
    assert isinstance(strategy.wrapped(sgd), mixed_precision.OptimizerWithMixedPrecision)
    strategy.amp_configs = {"dtype": "bfloat16"}
    assert isinstance(strategy.wrapped(sgd, servers=True), mixed_precision.OptimizerInBfloat16)


def test_rows_of_tables_are_refused() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        ids = layers.data("ids", [1], dtype="int64")
        loss = layers.mean(layers.embedding(ids, [7, 2], is_sparse=True, param_attr="table"))
        with pytest.raises(GraphError, match="mixed precision with rows of table 'table'"):
            mixed_precision.decorate(fluid.optimizer.SGD(0.1)).minimize(loss)


def test_bfloat16_rounds_what_is_white_and_scales_nothing() -> None:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = layers.data("x", [16])
        guess = layers.fc(x, 8, act="tanh", bias_attr=False, param_attr="w")
        loss = layers.mean(guess)
        mixed_precision.bf16.decorate_bf16(fluid.optimizer.Momentum(0.5, 0.9)).minimize(loss)
    rows = np.random.default_rng(0).normal(size=(6, 16)).astype("float32")
    exe, scope = fluid.Executor(), fluid.Scope()
    exe.run(startup, scope=scope)
    w = np.array(scope.find_var("w").get_tensor())
    given, grad = exe.run(main, {"x": rows}, [guess, "w@GRAD"], scope=scope)
    computed = np.tanh(brain(brain(rows) @ brain(w)))
    np.testing.assert_allclose(given, brain(computed), rtol=1e-2)
    dproduct = brain(brain(np.full_like(given, 1 / given.size)) * (1 - computed * computed))
    np.testing.assert_allclose(grad, brain(brain(rows).T @ dproduct), rtol=2e-2, atol=1e-4)
    assert brain(grad).tobytes() == grad.tobytes()
    updated = np.array(scope.find_var("w").get_tensor())
    np.testing.assert_array_equal(updated, w - np.float32(0.5) * grad)  # float32, as it is saved
    assert brain(updated).tobytes() != updated.tobytes()
    kept = sorted(v.name for v in main.list_vars() if v.persistable)
    assert kept == ["learning_rate_0", "w", "w_velocity_0"]


def test_fleet_takes_bfloat16_and_no_scale_for_it() -> None:
    strategy = DistributedStrategy()
    strategy.amp = True
    strategy.amp_configs = {"dtype": "bfloat16", "custom_black_list": ["mul"]}
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        loss = linear()
        strategy.wrapped(fluid.optimizer.SGD(0.1)).minimize(loss)
    assert not {"round_to_bfloat16", "round_to_float16"} & {op.type for op in loss.block.ops}
    strategy.amp_configs = {"dtype": "bfloat16", "init_loss_scaling": 2.0}
    with pytest.raises(
        FleetError, match=r"\['init_loss_scaling'\]: with dtype 'bfloat16' the loss"
    ):
        strategy.wrapped(fluid.optimizer.SGD(0.1))
    strategy.amp_configs = {"dtype": "float8"}
    with pytest.raises(FleetError, match="expected 'float16' or 'bfloat16', got 'float8'"):
        strategy.wrapped(fluid.optimizer.SGD(0.1))


def test_what_bfloat16_does_not_take_is_refused() -> None:
    sgd = fluid.optimizer.SGD(0.1)
    for name in ("use_pure_bf16", "use_bf16_guard"):
        with pytest.raises(GraphError, match=f"{name}: parameters stay float32"):
            mixed_precision.decorate_bf16(sgd, **{name: True})
    for one, other in itertools.permutations(
        [mixed_precision.decorate, mixed_precision.decorate_bf16]
    ):
        with pytest.raises(GraphError, match="decorate with one type of half precision"):
            one(other(sgd))
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = layers.data("x", [2], dtype="float64")
        with pytest.raises(GraphError, match="round_to_bfloat16.*expected float32, got float64"):
            x.block.append_op("round_to_bfloat16", {"X": x}, {"Out": x.block.create_var("out")})
