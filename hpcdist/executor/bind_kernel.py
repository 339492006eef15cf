"""Binds the kernel of an operator to its arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.executor.backend import Backend
from hpcdist.executor.memory import new_value
from hpcdist.executor.states import OperatorStates
from hpcdist.graph.names import EMPTY
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import (
    Call,
    Meta,
    arguments,
    attrs_of,
    gives_open,
    lookup,
)
from hpcdist.graph.shape_rules import infer_outputs


def bind_kernel(
    op: Operator,
    metas: Mapping[str, Meta],
    arrays: Mapping[str, Any],
    states: OperatorStates,
    backend: Backend,
) -> Call:
    """Return the call by which an operator computes its outputs, in place.

    An output that is an operand too, which the kernel may not overwrite, is computed apart and
    copied after the call.
    """
    definition = lookup(op.type)
    xp = backend.xp
    get = arrays.get
    ins = arguments(definition.operands, {s: [get(n) for n in v] for s, v in op.inputs.items()})
    outputs = {s: [None if n == EMPTY else get(n) for n in v] for s, v in op.outputs.items()}
    copies = []
    for slot, names in op.outputs.items():
        for i, name in enumerate(names):
            if name in op.input_arg_names and not definition.may_overwrite(slot):
                fresh = new_value(metas[name], backend)
                copies.append((outputs[slot][i], fresh))
                outputs[slot][i] = fresh
    outs = arguments(definition.outputs, outputs)
    attrs: dict[str, Any] = {}
    if definition.state is not None:
        attrs["state"] = states.of(op, definition.state)
    if definition.lods or definition.measures:
        lods = {s: [metas[n].lod for n in op.input(s)] for s in definition.lods}
        lods |= {s: [metas[n].lengths for n in op.input(s)] for s in definition.measures}
        read = [slot for slot in definition.inputs if slot.name in lods]
        attrs["lods"] = arguments(read, lods)

    def bind(metas: Mapping[str, Meta]) -> Call:
        known = attrs_of(op.type, op.attrs, op.inputs, metas)
        if definition.bind is not None:
            return definition.bind(xp, *ins, *outs, **known, **attrs)
        assert definition.kernel is not None  # control operators are bound elsewhere
        return functools.partial(definition.kernel, xp, *ins, *outs, **known, **attrs)

    if gives_open(op.type, op.inputs, metas):
        call: Call = _LateCall(op, metas, arrays, bind)
    else:
        call = bind(metas)
    return functools.partial(_call_and_copy, call, copies) if copies else call


class _LateCall:
    """A call of an operator that a value gives numbers, such as where a part begins.

    Its results have the same shapes whatever they are. It is bound anew when they change.
    """

    def __init__(
        self,
        op: Operator,
        metas: Mapping[str, Meta],
        arrays: Mapping[str, Any],
        bind: Callable[[Mapping[str, Meta]], Call],
    ) -> None:
        self._op, self._bind = op, bind
        self._metas = {n: metas[n] for n in (*op.input_arg_names, *op.output_arg_names)}
        names = [n for slot in lookup(op.type).giving for n in op.input(slot)]
        self._giving = {name: arrays[name] for name in names}
        self._numbers: dict[str, Any] = {}
        self._call: Call | None = None

    def __call__(self) -> None:
        """Compute with the numbers of this step; GraphError if they do not fit."""
        numbers = {n: tuple(a.reshape(-1).tolist()) for n, a in self._giving.items()}
        if self._call is None or numbers != self._numbers:
            self._call, self._numbers = self._bound(numbers), numbers
        self._call()

    def _bound(self, numbers: Mapping[str, Any]) -> Call:
        op, metas = self._op, dict(self._metas)
        metas |= {name: replace(metas[name], numbers=found) for name, found in numbers.items()}
        inputs = {slot: [metas[n] for n in names] for slot, names in op.inputs.items() if names}
        try:
            inferred = infer_outputs(op.type, inputs, op.attrs)
        except GraphError as error:
            raise GraphError(f"{op.place} {op}, given {dict(numbers)}: {error}") from None
        for slot, new in inferred.items():
            for name, meta in zip(op.output(slot), new):
                if name != EMPTY and meta.shape != metas[name].shape:
                    raise GraphError(
                        f"{op.place} {op}, given {dict(numbers)}: {name!r} would be {meta.shape}, "
                        f"expected {metas[name].shape} in every step"
                    )
        return self._bind(metas)


def _call_and_copy(call: Call, copies: Sequence[tuple[Any, Any]]) -> None:
    call()
    for target, source in copies:
        target[...] = source
