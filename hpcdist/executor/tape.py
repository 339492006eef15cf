"""A tape of what was computed in loops and branches, from which gradients are computed.

Values are identified by object, not by name: a loop gives a name a new value in every iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.graph.block import Block, block_of
from hpcdist.graph.names import EMPTY, GRAD_SUFFIX, grad_name
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import lookup
from hpcdist.graph.values import TensorArray, Value
from hpcdist.ops.tensor.tensor_array import zeros_like

# What these give is one of the values they take, so its gradient is there already.
SAME_VALUE = ("write_to_array", "read_from_array", "select_input")

Gradients = Sequence[Value | None]
Execute = Callable[[Operator, dict[str, Any]], None]  # writes results of an operator into the dict


@dataclass
class TapeEntry:
    """One computation: ``back`` turns gradients of the outputs into those of the inputs."""

    inputs: Sequence[Value]
    outputs: Sequence[Value]
    back: Callable[[Gradients, Sequence[bool]], Gradients]


@dataclass
class Tape:
    """What one run of a loop or branch has computed, in order.

    ``before`` and ``after``: values of outer names when it began and when it ended.
    """

    entries: list[TapeEntry] = field(default_factory=list)
    before: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)

    def gradients(self, seeds: Iterable[tuple[Value, Value]], sources: Iterable[Value]) -> Any:
        """Return a function from values to their gradients, None where there is none.

        ``seeds``: values with their gradients; ``sources``: values that gradients flow to.
        """
        reached = {id(value) for value in sources}
        for entry in self.entries:
            if any(id(operand) in reached for operand in entry.inputs):
                reached.update(map(id, entry.outputs))
        gradients: dict[int, Value] = {}

        def add(value: Value, gradient: Value | None) -> None:
            if gradient is None or id(value) not in reached or value.array.dtype.kind != "f":
                return
            before = gradients.get(id(value))
            if before is not None:
                gradient = Value(before.array + gradient.array, before.lod)
            gradients[id(value)] = gradient

        for value, gradient in seeds:
            add(value, gradient)
        for entry in reversed(self.entries):
            # An array that is assigned has the values of the other: their gradients are there.
            taken = set(map(id, entry.inputs))
            out_gradients = [
                None if id(value) in taken else gradients.get(id(value)) for value in entry.outputs
            ]
            if all(g is None for g in out_gradients):
                continue
            flows = [id(v) in reached and v.array.dtype.kind == "f" for v in entry.inputs]
            if not any(flows):
                continue
            for operand, found_here in zip(entry.inputs, entry.back(out_gradients, flows)):
                add(operand, found_here)
        return lambda value: gradients.get(id(value))


class TapeRecorder:
    """Makes entries of operators that were run; what is the same in every turn is found once."""

    def __init__(self, execute: Execute) -> None:
        self._execute = execute
        self._differentiated: dict[object, _Differentiated] = {}

    def entry(
        self, op: Operator, inputs: dict[str, list[Any]], outputs: dict[str, list[Any]]
    ) -> TapeEntry | None:
        """Return the entry of an operator that was run; None if it has no gradient."""
        if lookup(op.type).grad is None or op.type in SAME_VALUE:
            return None
        all_values = [v for slots in (inputs, outputs) for values in slots.values() for v in values]
        key = id(op), tuple([v is None for v in all_values])
        if key not in self._differentiated:
            self._differentiated[key] = _Differentiated(op, inputs, outputs, self._execute)
        return self._differentiated[key].entry(all_values)


class _Differentiated:
    """An operator whose operands have separate names, for a name may stand for several."""

    def __init__(
        self,
        op: Operator,
        inputs: dict[str, list[Any]],
        outputs: dict[str, list[Any]],
        execute: Execute,
    ) -> None:
        self._execute = execute
        self._block = block_of(op)
        attrs = {**op.attrs, "is_sparse": False} if "is_sparse" in op.attrs else op.attrs
        ins, outs = _named(inputs, "in"), _named(outputs, "out")
        self._copy = Operator(op.block, op.type, ins, outs, attrs)
        self._in_names, self._out_names = self._copy.input_arg_names, self._copy.output_arg_names
        self._stopped = {
            new
            for slot, names in ins.items()
            for new, name in zip(names, op.input(slot))
            if _is_stopped(block_of(op), name)
        }
        self._steps: dict[frozenset[str], list[Operator]] = {}

    def entry(self, forward_values: Sequence[Any]) -> TapeEntry:
        """Return the entry of one run, with these operands: inputs, then outputs."""
        values = dict(zip((*self._in_names, *self._out_names), forward_values))
        ins, outs = _flat(self._in_names, values), _flat(self._out_names, values)

        def back(gradients: Gradients, flows: Sequence[bool]) -> Gradients:
            differentiated = {
                name for (name, _, _), flow in zip(ins, flows) if flow
            } - self._stopped
            named = dict(values)
            for (name, index, _), gradient in zip(outs, gradients):
                if index is not None:
                    empty = TensorArray([None] * len(values[name]))
                    named.setdefault(grad_name(name), empty)[index] = gradient
                elif gradient is not None:
                    named[grad_name(name)] = gradient
            for step in self._back(frozenset(differentiated)):
                for name in step.input_arg_names:
                    forward = name.removesuffix(GRAD_SUFFIX)
                    if name not in named and isinstance(values.get(forward), Value):
                        named[name] = zeros_like(values[forward])
                self._execute(step, named)
            result = []
            for name, index, _ in ins:
                gradient = named.get(grad_name(name)) if name in differentiated else None
                result.append(gradient if gradient is None or index is None else gradient[index])
            return result

        return TapeEntry([v for *_, v in ins], [v for *_, v in outs], back)

    def _back(self, differentiated: frozenset[str]) -> list[Operator]:
        """Return the operators that compute the gradients of these inputs."""
        if differentiated not in self._steps:
            grad = lookup(self._copy.type).grad
            assert grad is not None, "others are not recorded"
            steps = [
                Operator(self._block, made.type, made.inputs, made.outputs, made.attrs)
                for made in grad(self._copy, differentiated.__contains__)
            ]
            self._steps[differentiated] = [
                step for step in steps if any(name != EMPTY for name in step.output_arg_names)
            ]
        return self._steps[differentiated]


def _named(slots: dict[str, list[Any]], side: str) -> dict[str, list[str]]:
    return {
        slot: [EMPTY if v is None else f"{side}_{slot}_{k}" for k, v in enumerate(values)]
        for slot, values in slots.items()
    }


def _flat(names: Sequence[str], values: dict[str, Any]) -> list[tuple[str, int | None, Value]]:
    """Return values with their names, and with their places in arrays."""
    entries: list[tuple[str, int | None, Value]] = []
    for name in names:
        value = values.get(name)
        if isinstance(value, Value):
            entries.append((name, None, value))
        elif isinstance(value, TensorArray):
            entries += [(name, k, v) for k, v in enumerate(value) if v is not None]
    return entries


def _is_stopped(block: Block, name: str) -> bool:
    var = block.find_var(name)
    return var is not None and var.stop_gradient


def kept_apart(values: Mapping[str, Any], fixed: Collection[str]) -> dict[str, Any]:
    """Return values by name so that no two share an object, by which gradients are found.

    An array holds what was written into it, which has a name of its own. ``fixed`` names keep
    their objects.
    """
    seen = {id(values[name]) for name in fixed}

    def own(value: Any) -> Any:
        if isinstance(value, TensorArray):
            return TensorArray(map(own, value))
        if isinstance(value, Value):
            if id(value) in seen:
                value = Value(value.array, value.lod)
            seen.add(id(value))
        return value

    return {name: v if name in fixed else own(v) for name, v in values.items()}


def expect_free_place(op: Operator, array: TensorArray | None, index: int) -> None:
    """Raise GraphError if something stands there already, and gradients flow to the array.

    Outside of loops gradients are found by name and place: what was there would get those of what
    takes its place, as in Fluid.
    """
    (name,) = op.output("Out")
    if array is None or index >= len(array) or array[index] is None:
        return
    gradient = grad_name(name)
    if any(n.startswith(gradient) for o in block_of(op).ops for n in o.output_arg_names):
        raise GraphError(
            f"{op.place} {op}: {name!r} holds a value at {index} already, and gradients flow "
            "through it: write at another place, or to another array"
        )


def unstacked(x: Value) -> tuple[list[Value], TapeEntry]:
    """Return the parts of a value along its first dimension."""
    parts = [Value(part) for part in x.array]

    def back(gradients: Gradients, _: Sequence[bool]) -> Gradients:
        out = np.zeros_like(x.array)
        for k, gradient in enumerate(gradients):
            if gradient is not None:
                out[k] = gradient.array
        return [Value(out)]

    return parts, TapeEntry([x], parts, back)


def stacked(parts: Sequence[Value]) -> tuple[Value, TapeEntry]:
    """Return the opposite of `unstacked`."""
    out = Value(np.stack([part.array for part in parts]))

    def back(gradients: Gradients, _: Sequence[bool]) -> Gradients:
        (gradient,) = gradients
        return [None] * len(parts) if gradient is None else [Value(g) for g in gradient.array]

    return out, TapeEntry(list(parts), [out], back)


def seeds_of(value: Any, gradient: Any) -> list[tuple[Value, Value]]:
    """Return values with their gradients: of an array, those of its elements."""
    if value is None or gradient is None:
        return []
    if isinstance(value, TensorArray):
        return [(v, g) for v, g in zip(value, gradient) if v is not None and g is not None]
    return [(value, gradient)]


def summed(arrays: Sequence[Any]) -> TensorArray:
    """Return the sums of the values at each place of arrays that may be of different lengths."""
    total = TensorArray([None] * max(map(len, arrays)))
    for array in arrays:
        for k, value in enumerate(array):
            if value is not None:
                before = total[k]
                total[k] = (
                    value if before is None else Value(before.array + value.array, before.lod)
                )
    return total
