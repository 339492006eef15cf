"""Differentially private training (Dpsgd): clipped gradients with noise."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.fluid.optimizer.base import Optimizer
from hpcdist.graph.block import Block
from hpcdist.graph.variable import Parameter, Variable


class DpsgdOptimizer(Optimizer):
    """p -= lr (g / max(1, |g| / clip) + noise / batch_size); one normal number of deviation sigma.

    After Abadi et al. (2016). The noise is drawn by counter, the same on all ranks.
    """

    type = "dpsgd"

    def __init__(
        self,
        learning_rate: float | Variable = 0.001,
        clip: float = 0.9,
        batch_size: float = 0.999,
        sigma: float = 1e-8,
        parameter_list: Sequence[Parameter | str] | None = None,
    ) -> None:
        super().__init__(learning_rate, parameter_list)
        self.attrs = {"clip": float(clip), "batch_size": float(batch_size), "sigma": float(sigma)}

    def _add_accumulators(self, param: Parameter) -> None:
        """It keeps nothing."""

    def _append_update(self, block: Block, param: Parameter, grad: Variable) -> None:
        inputs = {"Param": param, "Grad": grad, "LearningRate": self._rate_of(param)}
        block.append_op("dpsgd", inputs, {"ParamOut": param}, self.attrs)
