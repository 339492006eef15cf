"""The base class of optimizers that wrap another one and change its backward pass or gradients."""

from __future__ import annotations

from typing import Any

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid.clip import GradientClipBase
from hpcdist.fluid.optimizer.base import Minimizer, Optimizer, ParamGrads
from hpcdist.graph.operator import Operator
from hpcdist.graph.variable import Variable


class OptimizerWrapper(Minimizer):
    """An optimizer, or a wrapper of one, and what a subclass does about it.

    Subclasses override `_backward` and `apply_gradients`; both append to the default programs.
    """

    def __init__(self, inner_optimizer: AnyOptimizer) -> None:
        if not isinstance(inner_optimizer, (Optimizer, OptimizerWrapper)):
            raise GraphTypeError(
                f"{type(self).__name__}: expected an optimizer, got {inner_optimizer!r}"
            )
        self.inner_optimizer: AnyOptimizer = inner_optimizer
        inner = inner_optimizer
        while isinstance(inner, OptimizerWrapper):
            if type(inner) is type(self):
                raise GraphError(f"{type(self).__name__}: the optimizer given holds one already")
            inner = inner.inner_optimizer

    def _backward(self, loss: Variable, *arguments: Any) -> ParamGrads:
        return self.inner_optimizer._backward(loss, *arguments)

    def apply_gradients(
        self, params_grads: ParamGrads, grad_clip: GradientClipBase | None = None
    ) -> list[Operator]:
        """Append clip, regularization and updates; return the updates."""
        return self.inner_optimizer.apply_gradients(params_grads, grad_clip)


AnyOptimizer = Optimizer | OptimizerWrapper
