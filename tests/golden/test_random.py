"""Seeded streams: the very values of Fluid 1.8.5, and slices as parts of the whole's stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcdist import layers
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope
from hpcdist.graph.names import guard
from hpcdist.graph.program import Program, program_guard
from hpcdist.initializer import MSRA, Normal, TruncatedNormal, Uniform, Xavier
from tests.golden.loader import golden

RANDOM = golden("programs.json")["random"]


def drawn(initializer: Any, shape: list[int], seed: int) -> np.ndarray:
    """Return what a startup program of this seed fills a parameter with."""
    main, startup, scope = Program(), Program(), Scope()
    startup.random_seed = seed
    with guard(), program_guard(main, startup):
        layers.create_parameter(shape, "float32", name="p", default_initializer=initializer)
    Executor().run(startup, scope=scope)
    return np.array(scope.find_var("p").get_tensor())


@pytest.mark.parametrize("seed", [1, 7, 90, 12345])
@pytest.mark.parametrize(
    ("key", "initializer"),
    [("uniform_minus_half_to_half", Uniform(-0.5, 0.5)), ("gaussian_mean0_std1", Normal())],
)
def test_first_values(seed: int, key: str, initializer: Any) -> None:
    want = np.array(RANDOM[str(seed)][key], np.float32)
    np.testing.assert_array_equal(drawn(initializer, [len(want)], seed), want)


@pytest.mark.parametrize(
    ("key", "initializer"),
    [("q.w_0 (default Xavier", Xavier()), ("r.w_0", TruncatedNormal()), ("m.w_0 (MSRA", MSRA())],
)
def test_weights_of_a_seeded_program(key: str, initializer: Any) -> None:
    (values,) = (v for k, v in RANDOM.items() if k.startswith(f"program random_seed 7, {key}"))
    want = np.array(values, np.float32).reshape(4, 3)
    np.testing.assert_array_equal(drawn(initializer, [4, 3], 7), want)


def test_every_operator_has_the_programs_seed() -> None:
    startup = Program()
    startup.random_seed = 7
    with guard(), program_guard(Program(), startup):
        x = layers.data("x", [4])
        for name, initializer in (("q", None), ("r", TruncatedNormal()), ("m", MSRA())):
            attr = layers.helper.ParamAttr(initializer=initializer)
            layers.fc(x, 3, param_attr=attr, name=name)
    got = [
        [op.type, op.attrs.get("seed"), op.output("Out")[0]] for op in startup.global_block().ops
    ]
    assert got == RANDOM["startup op seeds"]
