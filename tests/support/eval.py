"""A direct evaluator of Programs: every result in memory of its own, nothing planned or dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcdist.graph import Meta, Program
from hpcdist.graph.block import Block
from hpcdist.graph.registry import arguments, known_attrs, lookup
from hpcdist.graph.shape_rules import infer_outputs


def evaluate(program: Program, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return every value after running all operators in order on fed and persistable ``values``."""
    held = {name: np.array(value) for name, value in values.items()}
    _evaluate_block(program.global_block(), held)
    return held


def _evaluate_block(block: Block, held: dict[str, np.ndarray]) -> None:
    for op in block.ops:
        if op.type == "conditional_block":
            if held[op.input("Cond")[0]].reshape(-1)[0]:
                _evaluate_block(block.program.block(op.attrs["sub_block"]), held)
            continue
        definition = lookup(op.type)
        inputs = {slot: [held[n].copy() for n in names] for slot, names in op.inputs.items()}
        metas = {
            slot: [
                Meta(
                    a.shape, a.dtype.name, numbers=tuple(a.reshape(-1).tolist()) if given else None
                )
                for a in arrays
            ]
            for slot, arrays in inputs.items()
            for given in [slot in definition.giving]
        }
        outputs = {
            slot: [np.full(meta.shape, 77, meta.dtype) for meta in found]
            for slot, found in infer_outputs(op.type, metas, op.attrs).items()
            if op.output(slot)
        }
        arrays = [*arguments(definition.operands, inputs), *arguments(definition.outputs, outputs)]
        attrs: dict[str, Any] = known_attrs(definition, op.attrs, metas)
        if definition.bind is not None:
            definition.bind(np, *arrays, **attrs)()
        else:
            assert definition.kernel is not None
            definition.kernel(np, *arrays, **attrs)
        for slot, written in outputs.items():
            held.update(zip(op.output(slot), written))
