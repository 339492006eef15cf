"""Run one operator, compare its gradient with finite differences, and cases to do that with.

``every_case()[type]`` is a function ``(Draw) -> Case``. A family of operators adds its own in a
module of ``tests/cases/operators/`` by ``@case("type")``.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import hpcdist.ops
from hpcdist.backward import gradients
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope
from hpcdist.graph import Program, Variable, lookup
from hpcdist.lod_tensor import LoDTensor
from hpcdist.ops import by_torch

Slots = Mapping[str, Any]  # slot -> an array or a LoDTensor, or a list of those


@dataclass(frozen=True)
class Case:
    """An operator with inputs and attributes; ``outputs`` tells how many a list slot gives.

    ``wrt``: the inputs to differentiate by (default: all of a float type);
    ``targets``: the outputs to differentiate (default: all of a float type that have elements).
    """

    inputs: Slots
    attrs: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, int] = field(default_factory=dict)
    wrt: Sequence[str] | None = None
    targets: Sequence[str] | None = None
    step: float = 1e-6
    tolerance: float = 1e-6


class Draw:
    """Draws shapes, attributes and well-behaved numbers for a case."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self._draw = draw
        self.rng = np.random.default_rng(self.int(0, 2**32 - 1))

    def int(self, low: int, high: int) -> int:
        """Return a number in [low, high]."""
        return self._draw(st.integers(low, high))

    def of(self, *choices: Any) -> Any:
        """Return one of the choices."""
        return self._draw(st.sampled_from(choices))

    def bool(self) -> bool:
        """Return True or False."""
        return self._draw(st.booleans())

    def shape(self, low: int = 1, high: int = 4, extent: int = 4) -> tuple[int, ...]:
        """Return a shape of ``low`` to ``high`` dimensions."""
        return tuple(self._draw(st.lists(st.integers(1, extent), min_size=low, max_size=high)))

    def floats(
        self,
        shape: Sequence[int],
        low: float = -2.0,
        high: float = 2.0,
        avoid: Sequence[float] = (),
    ) -> np.ndarray:
        """Return float64 numbers in [low, high], away from kinks at the numbers to avoid."""
        x = self.rng.uniform(low, high, tuple(shape))
        for kink in avoid:
            near = np.abs(x - kink) < 0.01
            x[near] = kink + 0.02
        return x

    def lengths(self, sequences: int | None = None) -> list[int]:
        """Return lengths of sequences, some of them 0."""
        count = self.int(1, 4) if sequences is None else sequences
        return [self.int(0, 3) for _ in range(count)]

    def ragged(self, lengths: Sequence[int], width: Sequence[int]) -> LoDTensor:
        """Return numbers at least 0.05 apart, in rows of a shape, in sequences of these lengths."""
        tensor = LoDTensor(self.apart((sum(lengths), *width)))
        tensor.set_recursive_sequence_lengths([list(lengths)])
        return tensor

    def apart(self, shape: Sequence[int]) -> np.ndarray:
        """Return numbers at least 0.05 apart from each other: nothing ties for a maximum."""
        size = int(np.prod(shape))
        return (self.rng.permutation(size).reshape(tuple(shape)) - size // 2) * 0.1


class Seeded(Draw):
    """Draws from a seed, without hypothesis: the same cases every time, and many of them."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def int(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def of(self, *choices: Any) -> Any:
        return choices[self.int(0, len(choices) - 1)]

    def bool(self) -> bool:
        return bool(self.int(0, 1))

    def shape(self, low: int = 1, high: int = 4, extent: int = 4) -> tuple[int, ...]:
        return tuple(self.int(1, extent) for _ in range(self.int(low, high)))


CASES: dict[str, Callable[[Draw], Case]] = {}


def case(*types: str) -> Callable[[Callable[[Draw], Case]], Callable[[Draw], Case]]:
    """Enter a function into CASES for these operator types."""

    def enter(make: Callable[[Draw], Case]) -> Callable[[Draw], Case]:
        for type in types:
            if type in CASES:
                raise ValueError(f"operator {type!r} has two cases")
            CASES[type] = _with_torch(make) if type in by_torch.functions() else make
        return make

    return enter


def every_case() -> Mapping[str, Callable[[Draw], Case]]:
    """Return the cases of all families."""
    families = Path(__file__).parents[1] / "cases" / "operators"
    for family in sorted(families.glob("*.py")):
        importlib.import_module(f"tests.cases.operators.{family.stem}")
    return CASES


def names_kernels_use() -> set[str]:
    """Return the names of numpy's or cupy's that the sources of operators have behind ``xp.``"""
    sources = Path(hpcdist.ops.__file__).parent.rglob("*.py")
    return {name for path in sources for name in re.findall(r"\bxp\.(\w+)", path.read_text())}


def _with_torch(make: Callable[[Draw], Case]) -> Callable[[Draw], Case]:
    def draw_with_torch(draw: Draw) -> Case:
        pytest.importorskip("torch")
        return make(draw)

    return draw_with_torch


class Graph:
    """A Program of one operator whose inputs are fed."""

    def __init__(self, type: str, given: Case, place: Any = None) -> None:
        self.program = Program()
        self.block = self.program.global_block()
        self.feed: dict[str, Any] = {}
        self.inputs = {slot: self._feed_slot(slot, v) for slot, v in given.inputs.items()}
        self.outputs = {
            slot.name: [
                self.block.create_var(f"{slot.name}_{i}".lower() + "_out")
                for i in range(given.outputs.get(slot.name, 1))
            ]
            for slot in lookup(type).outputs
        }
        self.block.append_op(type, self.inputs, self.outputs, given.attrs)
        self._executor, self._scope = Executor(place), Scope()

    def _feed_slot(self, slot: str, value: Any) -> list[Variable]:
        values = value if isinstance(value, list) else [value]
        return [self.add_feed(f"{slot}_{i}".lower(), v) for i, v in enumerate(values)]

    def add_feed(self, name: str, value: Any) -> Variable:
        """Create a data variable that holds ``value``, an array or a LoDTensor."""
        self.feed[name] = value
        array = np.asarray(value)
        levels = len(value.lod()) if isinstance(value, LoDTensor) else 0
        shape = (-1, *array.shape[1:]) if levels else array.shape
        return self.block.create_var(
            name, shape=shape, dtype=array.dtype, is_data=True, lod_level=levels
        )

    def weights(
        self, targets: Sequence[Variable], draw: Callable[[tuple[int, ...]], np.ndarray]
    ) -> list[Variable]:
        """Create data variables with numbers for all elements of what the Program computes."""
        made = []
        for target, value in zip(targets, self.run(targets, return_numpy=False)):
            value.set(draw(np.asarray(value).shape).astype(target.dtype))
            made.append(self.add_feed(f"weight_of_{target.name}", value))
            made[-1].shape = target.shape
        return made

    def run(self, fetch: Sequence[Any], **how: Any) -> list[Any]:
        """Run the Program on what is fed."""
        return self._executor.run(
            self.program, feed=self.feed, fetch_list=list(fetch), scope=self._scope, **how
        )


def run_op(
    type: str, inputs: Slots, attrs: Mapping[str, Any] | None = None, **outputs: int
) -> dict[str, Any]:
    """Run one operator and return its outputs by slot; a slot counted in ``outputs`` is a list."""
    graph = Graph(type, Case(inputs, attrs or {}, outputs))
    written = {
        s: [v for v in held if v.name in _inferred(graph)] for s, held in graph.outputs.items()
    }
    names = [v for held in written.values() for v in held]
    values = iter(graph.run(names))
    result = {slot: [next(values) for _ in held] for slot, held in written.items()}
    return {s: v if s in outputs or len(v) != 1 else v[0] for s, v in result.items()}


def _inferred(graph: Graph) -> set[str]:
    return {name for op in graph.block.ops for name in op.output_arg_names}


def dense(value: Any) -> np.ndarray:
    """Return a gradient as an array, SelectedRows written out."""
    return value.to_dense() if hasattr(value, "to_dense") else np.asarray(value)


def like(fed: Any, array: np.ndarray) -> Any:
    """Return an array in the sequences of what was fed, if that has any."""
    return LoDTensor(array, fed.sequences) if isinstance(fed, LoDTensor) else array


def floats_in(
    slots: Mapping[str, Sequence[Variable]], chosen: Sequence[str] | None
) -> list[Variable]:
    """Return the values of float types in the chosen slots; None: in all."""
    return [
        var
        for slot, variables in slots.items()
        if chosen is None or slot in chosen
        for var in variables
        if var.dtype.startswith("float")
    ]


def check_gradient(type: str, given: Case) -> None:
    """Compare the gradient of a random projection of the outputs with finite differences.

    Every input is moved along a random direction by +-step; an AssertionError names operator and
    input when the slope is not the gradient's.
    """
    graph = Graph(type, given)
    rng = np.random.default_rng(1)
    targets = [v for v in floats_in(graph.outputs, given.targets) if 0 not in v.shape]
    weights = graph.weights(targets, lambda shape: rng.uniform(0.5, 1.5, shape))
    moved = floats_in(graph.inputs, given.wrt)
    assert targets and moved, f"{type}: the case has nothing to differentiate"
    found = gradients(targets, moved, weights)
    missing = [v.name for v, g in zip(moved, found) if g is None]
    assert not missing, f"{type}: no gradient reaches {missing}"
    grads = [dense(g) for g in graph.run(found)]

    def projection() -> float:
        outs = graph.run(targets)
        return float(sum(np.vdot(o, np.asarray(graph.feed[w.name])) for o, w in zip(outs, weights)))

    for var, grad in zip(moved, grads):
        fed = graph.feed[var.name]
        here = np.asarray(fed)
        assert grad.shape == here.shape, (
            f"{type}: {var.name} {here.shape} has gradient {grad.shape}"
        )
        direction = rng.uniform(-1, 1, here.shape).astype(here.dtype)
        slopes = []
        for sign in (1, -1):
            graph.feed[var.name] = like(fed, here + sign * given.step * direction)
            slopes.append(projection())
        graph.feed[var.name] = fed
        slope = (slopes[0] - slopes[1]) / (2 * given.step)
        claimed = float(np.vdot(grad, direction))
        scale = max(1.0, abs(slope), float(np.abs(grad * direction).sum()))
        assert abs(slope - claimed) <= given.tolerance * scale, (
            f"{type}: along {var.name} the value changes by {slope}, its gradient says {claimed}"
        )
