"""Joins consecutive element-wise calls on a GPU into one kernel.

A kernel is launched in microseconds, which is longer than small ones run, and each reads and writes
all its memory. cupy.fuse joins several; computations and their order are unchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Call
from hpcdist.ops.types import ArrayModule

MOST = 24  # arrays of one kernel: CUDA hands over 4 KiB of arguments


@dataclass(frozen=True)
class _Call:
    """``target[...] = function(*operands)``: operands are arrays of a GPU, or numbers."""

    function: Callable[..., Any]
    operands: tuple[Any, ...]
    target: Any

    @property
    def arrays(self) -> list[Any]:
        """Arrays it reads and writes, the one it writes at the end."""
        return [*(o for o in self.operands if _is_array(o)), self.target]


@dataclass(frozen=True)
class _Nth:
    """The place of an operand among the arrays of a chain."""

    index: int


@dataclass
class _Chain:
    """Calls that may become one kernel; every array it writes has one shape."""

    arrays: dict[object, Any] = field(default_factory=dict)  # by place, shape and type
    written: set[object] = field(default_factory=set)
    calls: list[_Call] = field(default_factory=list)

    def takes(self, call: _Call) -> bool:
        """Return whether one kernel can do this call, too."""
        if not self.calls:
            return True
        if call.target.shape != self.calls[0].target.shape:
            return False
        new = {_place(a): a for a in call.arrays}
        if len(self.arrays.keys() | new.keys()) > MOST:
            return False
        written = self.written | {_place(call.target)}
        everything = {**self.arrays, **new}
        return not any(
            a != b and (a in written or b in written) and _meet(everything[a], everything[b])
            for a in new
            for b in everything
        )

    def add(self, call: _Call) -> None:
        """Take a call in."""
        self.calls.append(call)
        self.arrays.update((_place(a), a) for a in call.arrays)
        self.written.add(_place(call.target))

    def kernel(self, xp: Any) -> Call:
        """Return the call that launches the kernel."""
        index = {place: i for i, place in enumerate(self.arrays)}
        program = [
            (
                call.function,
                [_Nth(index[_place(o)]) if _is_array(o) else o for o in call.operands],
                index[_place(call.target)],
            )
            for call in self.calls
        ]

        def chain(*arrays: Any) -> None:
            for function, operands, target in program:
                values = [arrays[o.index] if isinstance(o, _Nth) else o for o in operands]
                arrays[target][...] = function(*values)

        return functools.partial(xp.fuse(chain), *self.arrays.values())


def join_chains(
    xp: ArrayModule, steps: Sequence[Call], ops: Sequence[Operator]
) -> tuple[list[Call], list[Operator]]:
    """Return steps with chains as one step each, and the operators that errors are told of.

    ``ops[i]`` is what ``steps[i]`` executes; a chain belongs to the last of its operators.
    """
    joined: list[Call] = []
    owners: list[Operator] = []
    chain = _Chain()
    waiting: list[tuple[Call, Operator]] = []  # the steps that are in the chain

    def end() -> None:
        nonlocal chain
        if len(waiting) > 1:
            joined.append(chain.kernel(xp))
            owners.append(waiting[-1][1])
        else:
            joined.extend(step for step, _ in waiting)
            owners.extend(op for _, op in waiting)
        waiting.clear()
        chain = _Chain()

    for step, op in zip(steps, ops):
        for part in parts_of(step):
            call = _element_wise(xp, part)
            if call is None or not chain.takes(call):
                end()
            if call is None:
                joined.append(part)
                owners.append(op)
            else:
                chain.add(call)
                waiting.append((part, op))
    end()
    return joined, owners


def parts_of(step: Call) -> list[Call]:
    """Return the calls that a step makes one after another, or could make in its place."""
    parts = getattr(step, "parts", None)
    return [step] if parts is None else [inner for part in parts for inner in parts_of(part)]


def _element_wise(xp: ArrayModule, step: Call) -> _Call | None:
    """Return a step's operation, if it is a ufunc or a copy into an existing array."""
    if not isinstance(step, functools.partial):
        return None
    function, args, named = step.func, step.args, dict(step.keywords)
    if function is xp.copyto:
        return None if named.keys() - {"where"} else _copy(xp, *args, mask=named.get("where"))
    if not isinstance(function, xp.ufunc):
        return None
    (operands, outs), out = (args[: function.nin], args[function.nin :]), named.pop("out", None)
    targets = [*outs, *([] if out is None else [out])]
    if named or len(targets) != 1 or function.nout != 1:
        return None
    return _checked(function, operands, targets[0])


def _copy(xp: ArrayModule, target: Any, source: Any, *, mask: Any) -> _Call | None:
    if mask is None:
        return _checked(_itself, (source,), target)
    return _checked(xp.where, (mask, source, target), target)


def _itself(value: object) -> Any:
    return value


def _checked(function: Any, operands: Sequence[Any], target: Any) -> _Call | None:
    """Return a call, unless it is none of arrays of a GPU, with numbers of their type."""
    arrays = [o for o in operands if _is_array(o)]
    if not arrays or not all(map(_plain, (*arrays, target))):
        return None
    if np.broadcast_shapes(*(a.shape for a in arrays), target.shape) != target.shape:
        return None
    numbers = [_number(o, arrays[-1].dtype) for o in operands if not _is_array(o)]
    if None in numbers:
        return None
    rest = iter(numbers)
    return _Call(function, tuple(o if _is_array(o) else next(rest) for o in operands), target)


def _number(value: Any, dtype: Any) -> Any:
    """Return a number as one of a dtype, as arithmetic of arrays takes it; None if it is not."""
    if isinstance(value, np.generic):
        return value
    kinds = {float: "f", int: "fi"}.get(type(value), "")
    return dtype.type(value) if dtype.kind in kinds else None


def _is_array(value: object) -> bool:
    return hasattr(value, "strides") and not isinstance(value, np.generic)


def _plain(array: Any) -> bool:
    return (
        not isinstance(array, np.ndarray) and array.size > 0 and all(s >= 0 for s in array.strides)
    )


def _place(array: Any) -> Any:
    """What is equal for two arrays if they are one and the same."""
    return array.data.ptr, array.shape, array.strides, array.dtype


def _meet(a: object, b: object) -> bool:
    """Return whether the memory of two arrays may overlap."""
    (begin, end), (other, other_end) = _span(a), _span(b)
    return bool(begin < other_end and other < end)


def _span(array: Any) -> tuple[int, int]:
    reach = sum((n - 1) * stride for n, stride in zip(array.shape, array.strides))
    return array.data.ptr, array.data.ptr + reach + array.itemsize
