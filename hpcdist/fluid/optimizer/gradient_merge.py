"""Gradient merge: gradients of several steps are added, and the last of these steps updates."""

from __future__ import annotations

from typing import Any

from hpcdist.base import checks
from hpcdist.base.checks import GRAPH
from hpcdist.base.errors import GraphError
from hpcdist.fluid.optimizer.base import ParamGrads, create_persistable
from hpcdist.fluid.optimizer.wrapper import AnyOptimizer, OptimizerWrapper
from hpcdist.graph.block import block_of
from hpcdist.graph.dtypes import VarType
from hpcdist.graph.names import generate
from hpcdist.graph.op_role import (
    MERGE_COUNTER,
    MERGED_STEPS,
    OF_LAST_STEP,
    ROLE_ATTR,
    ROLE_VAR_ATTR,
    OpRole,
)
from hpcdist.graph.operator import Operator
from hpcdist.graph.variable import Parameter, Variable

MERGED = "@MERGED"  # after a gradient's name: the sum, or mean, that the update reads


class GradientMergeOptimizer(OptimizerWrapper):
    """Adds the gradients of ``k_steps`` steps; the last one updates by their mean, or their sum.

    The other steps compute no schedule, no clip and no update, and exchange nothing with other
    ranks; `hpcdist.executor.merging` leaves these operators out. So k steps are one step of a batch
    k times as large, as long as the loss is a mean over equally many rows in each. As in fleet 2.0.
    """

    type = "gradient_merge"

    def __init__(self, inner_optimizer: AnyOptimizer, k_steps: int = 1, avg: bool = True) -> None:
        super().__init__(inner_optimizer)
        self.k_steps = checks.integer("GradientMergeOptimizer: k_steps", k_steps, 1, errors=GRAPH)
        self.avg = bool(avg)

    def _backward(self, loss: Variable, *args: Any) -> ParamGrads:
        """Raises GraphError for sparse gradients, which are rows of one step."""
        pairs = super()._backward(loss, *args)
        return self._merged(loss, pairs) if pairs and self.k_steps > 1 else pairs

    def _merged(self, loss: Variable, pairs: ParamGrads) -> ParamGrads:
        block = block_of(loss)
        _refuse_rows(pairs)
        if any(MERGED_STEPS in op.attrs for op in block.ops):
            raise GraphError("GradientMergeOptimizer: this program's gradients are merged already")
        sums = {
            p.name: create_persistable(generate(f"{p.name}_gradient_merge"), p.shape, 0.0, p.dtype)
            for p, _ in pairs
        }
        # Named by a parameter, as the sums are: other programs of this scope count for themselves.
        named = generate(pairs[0][0].name + MERGE_COUNTER)
        counter = create_persistable(named, (1,), 0.0, "int64")
        writers = block.last_writers()
        merged_pairs: ParamGrads = []
        # Close after the backward operators, so that gradients need no memory for long; from the
        # last one, so that the positions of the others stay.
        for p, g in sorted(pairs, key=lambda pair: writers[pair[1].name], reverse=True):
            index = writers[g.name]
            _take_role_var(block.ops[index], p.name, g.name)
            merged = block.create_var(g.name + MERGED, shape=p.shape, dtype=p.dtype)
            for op in reversed(self._merging(p, g, sums[p.name], merged)):
                block.add_op(op, index + 1)
            merged_pairs.append((p, merged))
        role = {ROLE_ATTR: int(OpRole.BACKWARD)}
        again = {OF_LAST_STEP: True, MERGED_STEPS: self.k_steps, **role}
        count = {"step": 1.0, **role}
        block.add_op(Operator(block, "increment", {"X": counter}, {"Out": counter}, count))
        block.add_op(_cleared(counter, again))
        in_order = {p.name: number for number, (p, _) in enumerate(pairs)}
        return sorted(merged_pairs, key=lambda pair: in_order[pair[0].name])

    def _merging(
        self, p: Parameter, g: Variable, accumulator: Variable, merged: Variable
    ) -> list[Operator]:
        role = {ROLE_ATTR: int(OpRole.BACKWARD)}
        last = {**role, OF_LAST_STEP: True}
        factor = 1.0 / self.k_steps if self.avg else 1.0
        mean = {"scale": factor, "bias": 0.0, "bias_after_scale": True}
        finishes = {ROLE_VAR_ATTR: [p.name, merged.name]}
        return [
            Operator(g.block, "sum", {"X": [accumulator, g]}, {"Out": accumulator}, role),
            Operator(
                g.block, "scale", {"X": accumulator}, {"Out": merged}, {**last, **mean, **finishes}
            ),
            _cleared(accumulator, last),
        ]


def _cleared(accumulator: Variable, attrs: dict[str, Any]) -> Operator:
    zeros = {"shape": list(accumulator.shape), "dtype": accumulator.dtype, "value": 0.0}
    return Operator(
        accumulator.block, "fill_constant", {}, {"Out": accumulator}, {**zeros, **attrs}
    )


def _refuse_rows(pairs: ParamGrads) -> None:
    for p, g in pairs:
        if g.type == VarType.SELECTED_ROWS or p.is_distributed:
            raise GraphError(
                f"gradients of {p.name!r} are rows of a table, which are not merged over steps: "
                "use embedding(is_sparse=False), or larger batches instead of gradient merge"
            )


def _take_role_var(op: Operator, parameter: str, gradient: str) -> None:
    """Take a pair from those that an operator finishes: another one finishes what is merged."""
    names = list(op.attrs.get(ROLE_VAR_ATTR) or ())
    pairs = list(zip(names[::2], names[1::2]))
    remaining = [name for pair in pairs if pair != (parameter, gradient) for name in pair]
    if remaining:
        op.set_attr(ROLE_VAR_ATTR, remaining)
    else:
        op.attrs.pop(ROLE_VAR_ATTR, None)
