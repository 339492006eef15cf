"""Values rounded to few bits: steps and scales are those of Fluid 1.8.5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import Program, program_guard, scope_guard
from hpcdist.graph.registry import lookup
from hpcdist.graph.rows import MixesRows

STEPS = (1.0, 3.0, 2.0, 0.5, 0.4, 0.3, 0.2, 0.1)  # how large values are, step by step


def _run(
    type: str,
    inputs: Mapping[str, np.ndarray],
    outputs: Mapping[str, str],
    xs: Sequence[np.ndarray],
    **attrs: Any,
) -> list[dict[str, np.ndarray]]:
    """Run an operator on one x after the other; the other inputs are kept from step to step."""
    with program_guard(Program(), Program()), scope_guard(fluid.Scope()):
        block = fluid.default_main_program().global_block()
        scope = fluid.global_scope()
        for name, array in inputs.items():
            block.create_var(name, shape=array.shape, dtype=array.dtype.name, persistable=True)
            scope.var(name).get_tensor().set(array)
        x = fluid.data("x", list(xs[0].shape), str(xs[0].dtype))
        for name in outputs.values():
            if name not in inputs:
                block.create_var(name)
        slots = {name: [name] for name in inputs if name in [s.name for s in lookup(type).inputs]}
        block.append_op(type, {"X": x, **slots}, {s: [n] for s, n in outputs.items()}, attrs)
        exe, names = fluid.Executor(), list(outputs.values())
        found = []
        for step, value in enumerate(xs):
            if "Iter" in inputs:
                scope.var("Iter").get_tensor().set(np.array([step], "int64"))
            found.append(dict(zip(names, exe.run(feed={"x": value}, fetch_list=names))))
        return found


def test_half_a_step_is_rounded_away_from_zero() -> None:
    x = np.array([[-2.0, 1.0], [0.5, -0.1]], "float32")
    outputs = {"Out": "out", "OutScale": "scale"}
    (found,) = _run("fake_quantize_abs_max", {}, outputs, [x], bit_length=3)
    assert found["scale"].tolist() == [2.0]
    assert found["out"].tolist() == [[-3.0, 2.0], [1.0, 0.0]]


def test_zeros_stay_zeros() -> None:
    outputs = {"Out": "out", "OutScale": "scale"}
    (found,) = _run("fake_quantize_abs_max", {}, outputs, [np.zeros((2, 2), "float32")])
    assert not found["out"].any()


def test_a_scale_is_the_largest_of_the_last_steps() -> None:
    x = np.array([[1.0, -0.25]], "float32")
    kept = {
        "InScale": np.array([0.001], "float32"),
        "Iter": np.array([0], "int64"),
        "scales": np.zeros(3, "float32"),
    }
    outputs = {"Out": "out", "OutScale": "InScale", "OutScales": "scales"}
    xs = [x * np.float32(step) for step in STEPS]
    found = _run("fake_quantize_range_abs_max", kept, outputs, xs, window_size=3)
    scales = [float(f["InScale"][0]) for f in found]
    assert np.allclose(scales, [1, 3, 3, 3, 2, 0.5, 0.4, 0.3])
    assert found[-1]["out"].tolist() == [[42.0, -11.0]]  # 0.1 and 0.025 in steps of 0.3 / 127


@pytest.mark.parametrize("back", [False, True])
def test_a_moving_scale_forgets_what_was_long_ago(back: bool) -> None:
    x = np.array([[1.0, -0.5]], "float32")
    names = ("InScale", "InState", "InAccum")
    outputs = {"Out": "out", "OutScale": "InScale", "OutState": "InState", "OutAccum": "InAccum"}
    kept = {name: np.ones(1, "float32") for name in names}
    type = f"fake_quantize_{'dequantize_' if back else ''}moving_average_abs_max"
    found = _run(type, kept, outputs, [x, x * 3], moving_rate=0.5)
    state, accum = 1.0, 1.0
    for step, largest in zip(found, (1.0, 3.0)):
        state, accum = 0.5 * state + 1, 0.5 * accum + largest
        assert np.allclose(step["InScale"], accum / state)
    whole = found[-1]["out"] * (127 / (accum / state) if back else 1)
    assert np.allclose(whole, [[127.0, -89.0]], atol=1e-3)  # 3 and 1.5 in steps of 2.14 / 127


def test_a_scale_of_all_rows_divides_no_batch() -> None:
    for type in ("fake_quantize_abs_max", "moving_average_abs_max_scale"):
        treat = lookup(type).rows
        assert treat is not None
        with pytest.raises(MixesRows, match="the largest element of all rows"):
            treat(None)  # type: ignore[arg-type]
