"""Decoupled weight decay (Loshchilov, Hutter, 2019): makes AdamW from Adam."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcdist.base.errors import GraphTypeError
from hpcdist.fluid import layers
from hpcdist.fluid.clip import GradientClipBase
from hpcdist.fluid.optimizer.base import Optimizer, ParamGrads
from hpcdist.graph.op_role import OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import default_main_program
from hpcdist.graph.variable import Parameter, Variable


def extend_with_decoupled_weight_decay(base_optimizer: type[Optimizer]) -> type[Optimizer]:
    """Return a class of ``base_optimizer`` that first takes ``weight_decay`` of each parameter.

    It is made with ``weight_decay`` (a number or a Variable), ``apply_decay_param_fun`` (which
    parameters, by name; default: all), and by keyword what the base takes. The decay is of the
    parameter's value before the update; the rate does not count. Of a distributed table those rows
    decay that a step moves: that must be a number.
    """
    if not (isinstance(base_optimizer, type) and issubclass(base_optimizer, Optimizer)):
        raise GraphTypeError(f"expected a class of optimizers, got {base_optimizer!r}")

    class OptimizerWithDecoupledWeightDecay(base_optimizer):  # type: ignore[misc, valid-type]
        decay_attr = "decoupled_decay"  # what tells the update of a distributed table of it

        def __init__(
            self,
            weight_decay: float | Variable,
            apply_decay_param_fun: Callable[[str], bool] | None = None,
            **kwargs: Any,
        ) -> None:
            if not isinstance(weight_decay, (float, Variable)):
                raise GraphTypeError(
                    f"weight_decay must be a float or a Variable, got {weight_decay!r}"
                )
            super().__init__(**kwargs)
            self._coefficient, self._decays = weight_decay, apply_decay_param_fun

        def apply_gradients(
            self, params_grads: ParamGrads, grad_clip: GradientClipBase | None = None
        ) -> list[Operator]:
            """Append the decay, then what follows backward."""
            program = default_main_program()
            for parameter, gradient in params_grads:
                if parameter.is_distributed or not self._is_decayed(parameter):
                    continue
                with program.role_guard(OpRole.OPTIMIZE, (parameter, gradient)):
                    decayed = layers.elementwise_sub(parameter, self._decay_of(parameter))
                    layers.assign(decayed, parameter)
            return super().apply_gradients(params_grads, grad_clip)

        def _is_decayed(self, parameter: Variable) -> bool:
            chosen = self._decays is None or self._decays(parameter.name)
            return chosen and (isinstance(self._coefficient, Variable) or self._coefficient != 0.0)

        def _attrs_for(self, param: Parameter) -> dict[str, Any]:
            attrs: dict[str, Any] = super()._attrs_for(param)
            if not (param.is_distributed and self._is_decayed(param)):
                return attrs
            if isinstance(self._coefficient, Variable):
                raise GraphTypeError(
                    f"table {param.name!r} has is_distributed=True: the decay of its rows must be "
                    f"a number, got {self._coefficient!r}"
                )
            return {**attrs, self.decay_attr: self._coefficient}

        def _decay_of(self, parameter: Variable) -> Variable:
            """Return the decay of a parameter in a step."""
            return parameter * self._coefficient

    return OptimizerWithDecoupledWeightDecay
