"""Momentum with gradients that are compressed before they are sent (DGC)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hpcdist.base import checks
from hpcdist.base.checks import GRAPH
from hpcdist.base.errors import GraphAssertionError, GraphError, GraphTypeError
from hpcdist.fluid.clip import GradientClipBase, GradientClipByNorm
from hpcdist.fluid.layers.control_flow import autoincreased_step_counter
from hpcdist.fluid.optimizer.base import ParamGrads, create_persistable
from hpcdist.fluid.optimizer.kinds import MomentumOptimizer
from hpcdist.fluid.regularizer import L1DecayRegularizer, L2DecayRegularizer, WeightDecayRegularizer
from hpcdist.graph.block import Block
from hpcdist.graph.dtypes import VarType
from hpcdist.graph.names import generate
from hpcdist.graph.op_role import OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import default_main_program, program_of
from hpcdist.graph.variable import Parameter, Variable
from hpcdist.ops.optimize.dgc import COUNTER, L1, L2, NO_DECAY

SMALLEST = 16384  # elements of a parameter from which on it pays, as in Fluid


class DGCMomentumOptimizer(MomentumOptimizer):
    """Deep gradient compression (Lin et al., 2018), for training without servers.

    From step ``rampup_begin_step`` on, counted from 0, a trainer sends of each gradient the
    1 - sparsity largest elements, and keeps the others for later. ``sparsity`` lists what holds in
    equal parts of the first ``rampup_step`` steps of these; its last value holds from then on.
    Parameters of fewer than 16384 elements, and sparse gradients, take Momentum. Clip is by norm,
    on each trainer, by its part of the norm, and needs ``num_trainers``. A process alone trains
    with Momentum.
    """

    accumulators = ("_dgc_u_",)
    _u_velocity_acc_str = "_dgc_u_"

    def __init__(
        self,
        learning_rate: float | Variable,
        momentum: float,
        rampup_begin_step: int,
        rampup_step: int = 1,
        sparsity: Sequence[float] = (0.999,),
        parameter_list: Sequence[Parameter | str] | None = None,
        use_nesterov: bool = False,
        num_trainers: int | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
        *,
        local_grad_clip_norm: float | None = None,
    ) -> None:
        """``local_grad_clip_norm`` is what ``grad_clip`` was called before Fluid 1.8."""
        if local_grad_clip_norm is not None:
            grad_clip = GradientClipByNorm(float(local_grad_clip_norm))
        super().__init__(
            learning_rate, momentum, parameter_list, use_nesterov, regularization, grad_clip, name
        )
        clip_norm = 0.0
        if grad_clip is not None:
            if not isinstance(grad_clip, GradientClipByNorm):
                raise GraphTypeError(
                    f"DGCMomentum: grad_clip must be a GradientClipByNorm, got {grad_clip!r}"
                )
            argument = "DGCMomentum: num_trainers, which grad_clip needs,"
            trainers = checks.integer(argument, num_trainers, 1, errors=GRAPH)
            clip_norm = grad_clip.clip_norm * trainers**-0.5
        self._compression = {
            "rampup_begin_step": checks.integer(
                "DGCMomentum: rampup_begin_step", rampup_begin_step, 0, errors=GRAPH
            ),
            "rampup_step": checks.integer("DGCMomentum: rampup_step", rampup_step, 1, errors=GRAPH),
            "sparsity": _sparsity(sparsity),
            "clip_norm": float(clip_norm),
        }
        self._compressed: set[str] = set()

    def apply_gradients(
        self, params_grads: ParamGrads, grad_clip: GradientClipBase | None = None
    ) -> list[Operator]:
        """Append clip, regularization and updates; compressed gradients have both within theirs."""
        if grad_clip is not None:
            raise GraphError("DGCMomentum: give grad_clip to the optimizer, not to minimize()")
        compressed = sorted(
            (pair for pair in params_grads if _is_compressed(*pair)), key=lambda pair: pair[0].name
        )
        uncompressed = [pair for pair in params_grads if not _is_compressed(*pair)]
        if compressed:
            with default_main_program().role_guard(OpRole.LR_SCHED):
                autoincreased_step_counter(COUNTER, begin=0)
        self._compressed.update(param.name for param, _ in compressed)
        ops = super().apply_gradients(uncompressed) if uncompressed else []
        return [*ops, *self._append_updates(compressed)]

    def _append_update(self, block: Block, param: Parameter, grad: Variable) -> None:
        if param.name not in self._compressed:
            super()._append_update(block, param, grad)
            return
        kind, coefficient = _decay(param, param.regularizer or self.regularization)
        velocity = self._persistent[program_of(param), "Velocity", param.name]
        residual = generate(f"{param.name}__dgc_v_")
        inputs = {
            "Param": param,
            "Grad": grad,
            "Velocity": velocity,
            "Residual": create_persistable(residual, param.shape, 0.0, param.dtype),
            "LearningRate": self._rate_of(param),
        }
        attrs = {"regular_type": kind, "regular_coeff": coefficient}
        outputs = {"ParamOut": param, "VelocityOut": velocity}
        block.append_op(
            "dgc_momentum", inputs, outputs, {**self.attrs, **self._compression, **attrs}
        )


def _is_compressed(param: Parameter, grad: Variable) -> bool:
    dense = grad.type != VarType.SELECTED_ROWS and not param.is_distributed
    return dense and param.dtype == "float32" and abs(math.prod(param.shape)) >= SMALLEST


def _sparsity(sparsity: Sequence[float]) -> list[float]:
    levels = [float(s) for s in sparsity]
    if not levels or not all(0 <= s < 1 for s in levels):
        raise GraphError(
            f"DGCMomentum: sparsity: expected numbers from 0 to below 1, got {sparsity}"
        )
    return levels


def _decay(param: Parameter, regularizer: Any) -> tuple[int, float]:
    if regularizer is None:
        return NO_DECAY, 0.0
    for kind, regularizer_class in ((L1, L1DecayRegularizer), (L2, L2DecayRegularizer)):
        if isinstance(regularizer, regularizer_class):
            return kind, regularizer.coeff
    raise GraphAssertionError(
        f"DGCMomentum: regularization of {param.name!r} must be L1Decay or L2Decay, "
        f"got {regularizer!r}"
    )
