"""An optimizer whose backward pass recomputes forward values, to save memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.base.errors import GraphAssertionError, GraphTypeError
from hpcdist.fluid.optimizer.base import ParamGrads
from hpcdist.fluid.optimizer.wrapper import AnyOptimizer, OptimizerWrapper
from hpcdist.graph.autodiff.recompute import recompute
from hpcdist.graph.block import block_of
from hpcdist.graph.op_role import OpRole
from hpcdist.graph.variable import Variable


class RecomputeOptimizer(OptimizerWrapper):
    """Keeps the values at checkpoints, and computes what lies between them again; the same bits.

    Call `_set_checkpoints` (it is Fluid's name) before ``minimize``, with the outputs of some
    layers: with about sqrt(n) of n layers, memory for activations grows with sqrt(n).
    """

    def __init__(self, optimizer: AnyOptimizer) -> None:
        super().__init__(optimizer)
        self._checkpoints: list[Variable | str] | None = None

    def _set_checkpoints(self, checkpoints: Sequence[Variable | str]) -> None:
        """Say which values stay until the backward pass."""
        if not isinstance(checkpoints, (list, tuple)):
            raise GraphTypeError(f"checkpoints: expected a list of Variables, got {checkpoints!r}")
        self._checkpoints = list(checkpoints)

    def load(self, stat_dict: Any) -> None:
        """Fluid has no such function either: load a model by fluid.io."""
        raise NotImplementedError("load: RecomputeOptimizer has none, fluid.io loads models")

    def _backward(self, loss: Variable, *args: Any) -> ParamGrads:
        if self._checkpoints is None:
            raise GraphAssertionError("RecomputeOptimizer: call _set_checkpoints first")
        pairs = super()._backward(loss, *args)
        # The forward pass may have grown meanwhile, as in mixed precision.
        forward = [i for i, op in enumerate(loss.block.ops) if not op.role & OpRole.BACKWARD]
        recompute(block_of(loss), 1 + forward[-1], self._checkpoints)
        return pairs
