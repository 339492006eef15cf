"""Initializers: the operators they prepend, and the streams these draw from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import initializer as init
from hpcdist.errors import GraphError, GraphTypeError
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.ops.random import seeded

SHAPE = (6, 4)


def filled(initializer: Any, shape: tuple[int, ...] = SHAPE, dtype: str = "float32") -> Operator:
    """Return the operator that the initializer prepends for a parameter ``w``."""
    block = Program().global_block()
    return initializer(block.create_parameter("w", shape=shape, dtype=dtype), block)


def run(*ops: Operator) -> dict[str, np.ndarray]:
    scope = Scope()
    for op in ops:
        Executor().run(op.block.program, scope=scope)
    return {n: np.array(scope.find_var(n).get_tensor()) for op in ops for n in op.output("Out")}


@pytest.mark.parametrize(
    ("initializer", "type", "facts"),
    [
        (init.Constant(2.5), "fill_constant", {"value": 2.5}),
        (init.Uniform(-1, 3, seed=5), "uniform_random", {"min": -1.0, "max": 3.0, "seed": 5}),
        (init.Normal(1, 2), "gaussian_random", {"mean": 1.0, "std": 2.0, "seed": 0}),
        (init.TruncatedNormal(1, 2), "truncated_gaussian_random", {"mean": 1.0, "std": 2.0}),
        (init.Xavier(), "uniform_random", {"min": -(0.6**0.5), "max": 0.6**0.5}),
        (init.Xavier(fan_in=1, fan_out=5), "uniform_random", {"max": 1.0}),
        (init.Xavier(uniform=False), "gaussian_random", {"mean": 0.0, "std": 0.2**0.5}),
        (init.MSRA(), "uniform_random", {"max": 1.0}),
        (init.MSRA(uniform=False, fan_in=8), "gaussian_random", {"std": 0.5}),
    ],
)
def test_operator(initializer: Any, type: str, facts: dict[str, Any]) -> None:
    op = filled(initializer)
    assert op.type == type
    assert op.attr("shape") == list(SHAPE)
    assert {k: op.attr(k) for k in facts} == pytest.approx(facts)


def test_long_names_are_the_same_classes() -> None:
    assert init.XavierInitializer is init.Xavier
    assert init.ConstantInitializer is init.Constant


@pytest.mark.parametrize(
    ("shape", "fans"),
    [((), (1, 1)), ((5,), (5, 5)), ((5, 3), (5, 3)), ((8, 4, 3, 3), (36, 72))],
)
def test_fans(shape: tuple[int, ...], fans: tuple[int, int]) -> None:
    assert init.fans(shape) == fans


def test_a_constant_may_be_an_array_of_one_element() -> None:
    assert init.Constant(np.array([[2.5]])).value == 2.5


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64"])
def test_numpy_array(dtype: str) -> None:
    values = np.arange(24).reshape(SHAPE)
    got = run(filled(init.NumpyArrayInitializer(values), dtype=dtype))["w"]
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, values)


def test_the_initializers_seed_wins_over_the_programs() -> None:
    block = Program().global_block()
    block.program.random_seed = 9
    w = block.create_parameter("w", shape=SHAPE)
    assert init.Uniform(seed=4)(w, block).attr("seed") == 4
    assert init.Uniform()(w, block).attr("seed") == 9


def test_an_initializer_can_be_used_in_programs_of_different_seeds() -> None:
    shared = init.Uniform()
    seeds = []
    for seed in (3, 4):
        block = Program().global_block()
        block.program.random_seed = seed
        seeds.append(shared(block.create_parameter("w", shape=SHAPE), block).attr("seed"))
    assert seeds == [3, 4]


def test_last_parameter_is_initialized_first() -> None:
    block = Program().global_block()
    for name in "ab":
        init.Constant()(block.create_parameter(name, shape=SHAPE), block)
    assert [op.output("Out")[0] for op in block.ops] == ["b", "a"]


def test_refusals() -> None:
    with pytest.raises(GraphError, match="low 2 is above high 1"):
        init.Uniform(2, 1)
    with pytest.raises(GraphTypeError, match="int64"):
        filled(init.Uniform(), dtype="int64")
    with pytest.raises(GraphError, match=r"\(3,\)"):
        filled(init.NumpyArrayInitializer(np.zeros(3)))
    with pytest.raises(GraphTypeError, match="float64"):
        filled(init.NumpyArrayInitializer(np.zeros(SHAPE)), dtype="float64")
    with pytest.raises(GraphTypeError, match="expected an array"):
        init.NumpyArrayInitializer([1.0])  # type: ignore[arg-type]


# -- streams ---------------------------------------------------------------------------------------
def test_unseeded_values_follow_job_seed_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(filled(init.Uniform()))["w"]
    np.testing.assert_array_equal(run(filled(init.Uniform()))["w"], first)
    monkeypatch.setenv("HPCDIST_SEED", "1")
    assert not np.array_equal(run(filled(init.Uniform()))["w"], first)
    assert seeded.job_seed("a") != seeded.job_seed("b")


def test_unseeded_seed_is_the_same_in_every_process() -> None:
    assert seeded.job_seed("fc_0.w_0") == 750488884


@pytest.mark.parametrize("draw", [seeded.uniform, seeded.normal, seeded.truncated_normal])
@pytest.mark.parametrize("offset", [0, 1, 2, 7, 8])
def test_a_slice_is_part_of_the_whole(draw: Any, offset: int) -> None:
    facts = {"min": -1.0, "max": 1.0, "mean": 0.0, "std": 1.0}
    whole = draw(42, 0, 20, **facts)
    for size in (1, 4, 5, 20 - offset):
        part = draw(42, offset, size, **facts)
        np.testing.assert_array_equal(part, whole[offset : offset + size])


def test_jump_is_that_many_draws() -> None:
    state = 12345
    for _ in range(1000):
        state = state * seeded.MULTIPLIER % seeded.MODULUS
    assert seeded.jump(12345, 1000) == state


def test_moments() -> None:
    n = 200_000
    for draw, facts, mean, std in (
        (seeded.uniform, {"min": 1.0, "max": 3.0}, 2.0, 3**-0.5),
        (seeded.normal, {"mean": 1.0, "std": 2.0}, 1.0, 2.0),
        (seeded.truncated_normal, {"mean": 1.0, "std": 2.0}, 1.0, 2 * 0.87962566),
    ):
        values = draw(7, 0, n, **facts)
        assert values.mean() == pytest.approx(mean, abs=0.02)
        assert values.std() == pytest.approx(std, rel=0.01)
    assert np.abs(values - 1).max() <= 4.0


def test_half_precision_begins_with_the_values_of_an_array() -> None:
    given = np.array([[0.5, -2.25, 3.0]], "float32")
    startup, scope = fluid.Program(), fluid.Scope()
    with (
        fluid.program_guard(fluid.Program(), startup),
        fluid.unique_name.guard(),
        fluid.scope_guard(scope),
    ):
        made = fluid.layers.create_parameter(
            [1, 3],
            "float16",
            default_initializer=fluid.initializer.NumpyArrayInitializer(given),
        )
        fluid.Executor().run(startup)
        found = np.array(scope.find_var(made.name).get_tensor())
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, given.astype("float16"))
