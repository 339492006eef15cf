"""Binds the kernel of an operator to its arrays."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from hpcdist.executor.backend import Backend
from hpcdist.executor.memory import new_value
from hpcdist.executor.states import OperatorStates
from hpcdist.graph.names import EMPTY
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Call, Meta, arguments, declared_attrs, lookup


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
    ins = arguments(definition.inputs, {s: [get(n) for n in v] for s, v in op.inputs.items()})
    outputs = {s: [None if n == EMPTY else get(n) for n in v] for s, v in op.outputs.items()}
    copies = []
    for slot, names in op.outputs.items():
        for i, name in enumerate(names):
            if name in op.input_arg_names and not definition.may_overwrite(slot):
                fresh = new_value(metas[name], backend)
                copies.append((outputs[slot][i], fresh))
                outputs[slot][i] = fresh
    outs = arguments(definition.outputs, outputs)
    attrs = declared_attrs(definition, op.attrs)
    if definition.state is not None:
        attrs["state"] = states.of(op, definition.state)
    if definition.lods or definition.measures:
        lods = {s: [metas[n].lod for n in op.input(s)] for s in definition.lods}
        lods |= {s: [metas[n].lengths for n in op.input(s)] for s in definition.measures}
        read = [slot for slot in definition.inputs if slot.name in lods]
        attrs["lods"] = arguments(read, lods)
    if definition.bind is not None:
        call: Call = definition.bind(xp, *ins, *outs, **attrs)
    else:
        assert definition.kernel is not None  # control operators are bound elsewhere
        call = functools.partial(definition.kernel, xp, *ins, *outs, **attrs)
    return functools.partial(_call_and_copy, call, copies) if copies else call


def _call_and_copy(call: Call, copies: Sequence[tuple[Any, Any]]) -> None:
    call()
    for target, source in copies:
        target[...] = source
