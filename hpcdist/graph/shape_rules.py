"""What shape rules say of the results of an operator, before it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hpcdist.base.checks import is_within
from hpcdist.base.errors import GraphError, HpcdistError
from hpcdist.graph.lod import Lod
from hpcdist.graph.registry import (
    INTEGERS,
    MOST_NUMBERS,
    Meta,
    OpDef,
    arguments,
    known_attrs,
    lookup,
)
from hpcdist.graph.values import Value


def infer_outputs(
    type: str,
    inputs: Mapping[str, Sequence[Meta]],
    attrs: Mapping[str, Any],
    in_step: bool = False,
) -> dict[str, list[Meta]]:
    """Apply an operator's shape rule; {} if it has none. Shapes that do not fit: GraphError.

    ``in_step``: no attribute stands for values that give it, see `known_attrs`.
    """
    definition = lookup(type)
    if definition.infer is None:
        return {}
    known = known_attrs(definition, attrs, inputs, in_step)
    for name, text in definition.limits.items():
        if not is_within(text, known.get(name)):
            raise GraphError(f"{type}: {name}: expected {text}, got {known[name]!r:.80}")
    try:
        result = definition.infer(*arguments(definition.operands, inputs), **known)
    except HpcdistError:
        raise
    except (
        Exception
    ) as error:  # what no rule looks for: an axis past the last one, a list too short
        raise GraphError(_misfit(type, inputs, known, error)) from error
    per_slot = result if isinstance(result, tuple) else (result,)
    outputs = {
        slot.name: list(metas) if slot.many else [metas]
        for slot, metas in zip(definition.outputs, per_slot)
        if metas is not None
    }
    if definition.folds:
        outputs = _folded(definition, inputs, attrs, outputs)
    if definition.lods or definition.measures:
        return outputs
    ragged = [m for metas in inputs.values() for m in metas if m.lod is not None]
    if not ragged:
        return outputs
    return {slot: [_grouped(m, ragged) for m in metas] for slot, metas in outputs.items()}


def _misfit(
    type: str, inputs: Mapping[str, Sequence[Meta]], attrs: Mapping[str, Any], error: Exception
) -> str:
    got = [f"{slot} {list(m.shape)}" for slot, metas in inputs.items() for m in metas]
    got += [f"{name}={value!r:.60}" for name, value in attrs.items()]
    return (
        f"{type}: expected inputs and attributes that fit each other, got {', '.join(got)} "
        f"({error.__class__.__name__}: {error})"
    )


def _folded(
    definition: OpDef,
    inputs: Mapping[str, Sequence[Meta]],
    attrs: Mapping[str, Any],
    outputs: dict[str, list[Meta]],
) -> dict[str, list[Meta]]:
    """Compute the results of an operator on a few known integers; otherwise leave them open."""
    metas_out = [meta for metas in outputs.values() for meta in metas]
    if not all(m.dtype in INTEGERS and 0 <= m.size <= MOST_NUMBERS for m in metas_out):
        return outputs
    if any(m.numbers is None for metas in inputs.values() for m in metas):
        return outputs
    values = {
        s: [np.array(m.numbers, m.dtype).reshape(m.shape) for m in metas]
        for s, metas in inputs.items()
    }
    results = {s: [np.empty(m.shape, m.dtype) for m in metas] for s, metas in outputs.items()}
    arrays = arguments(definition.operands, values) + arguments(definition.outputs, results)
    known = known_attrs(definition, attrs, inputs)
    if definition.bind is not None:
        definition.bind(np, *arrays, **known)()
    elif definition.kernel is not None:
        definition.kernel(np, *arrays, **known)
    return {
        s: [replace(m, numbers=tuple(a.reshape(-1).tolist())) for m, a in zip(metas, results[s])]
        for s, metas in outputs.items()
    }


def _grouped(meta: Meta, ragged: Sequence[Meta]) -> Meta:
    """Give a result the sequences of the first of the inputs that has as many rows."""
    for source in ragged:
        if meta.lod is None and meta.shape[:1] == source.shape[:1] and meta.rows < 0:
            return replace(meta, lod=source.lod)
    return meta


def operand_meta(definition: OpDef, slot: str, value: Value) -> Meta:
    """Describe an operand of a step that is interpreted, for its shape rule.

    Lengths, and what gives attributes, are described with their numbers.
    """
    if slot in definition.measures:
        return replace(value.meta, lengths=Lod.of_lengths([value.array.reshape(-1)]))
    if slot in definition.giving:
        return replace(value.meta, numbers=tuple(value.array.reshape(-1).tolist()))
    return value.meta
