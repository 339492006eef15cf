"""``paddle.optimizer``: Fluid's optimizers, by the parameters of Paddle 2.

``learning_rate`` may be a scheduler of ``paddle.optimizer.lr``; ``parameters`` are those that are
trained; ``weight_decay`` is a regularizer, or the factor of L2.
"""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.executor.scope import Scope, global_scope
from hpcdist.fluid import layers
from hpcdist.fluid import optimizer as fluid
from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.fluid.compat.paddle2.optimizer import lr
from hpcdist.fluid.compat.paddle2.optimizer.scheduler import schedulers
from hpcdist.fluid.optimizer import Optimizer
from hpcdist.fluid.optimizer.kinds import UnbiasedLamb
from hpcdist.fluid.optimizer.weight_decay import extend_with_decoupled_weight_decay
from hpcdist.fluid.regularizer import L2Decay, WeightDecayRegularizer
from hpcdist.graph.program import Program, default_main_program, program_of
from hpcdist.graph.variable import Variable


class _RatedAdadelta(fluid.AdadeltaOptimizer):
    """Adadelta (Zeiler, 2012), its steps multiplied by the learning rate."""

    type = "rated_adadelta"


_COMMON = "parameters: Parameters = None, weight_decay: Decay = None, grad_clip=None"
_MOMENTS = "beta1: Fraction = 0.9, beta2: Fraction = 0.999"
# Name: the class that is made, and the parameters of Paddle's.
_OPTIMIZERS: dict[str, tuple[type[Optimizer], str]] = {
    "SGD": (fluid.SGDOptimizer, f"learning_rate=0.001, {_COMMON}, multi_precision=False"),
    "Momentum": (
        fluid.MomentumOptimizer,
        (
            "learning_rate=0.001, momentum: float = 0.9, parameters: Parameters = None, "
            "use_nesterov: bool = False, weight_decay: Decay = None, grad_clip=None, "
            "multi_precision=False, rescale_grad=1.0, "
            "use_multi_tensor=False"
        ),
    ),
    "Adagrad": (
        fluid.AdagradOptimizer,
        (
            f"learning_rate, epsilon: Unsigned = 1e-6, {_COMMON}, name: str = None, "
            "initial_accumulator_value: Unsigned = 0.0"
        ),
    ),
    "Adadelta": (
        _RatedAdadelta,
        f"learning_rate=0.001, epsilon: Unsigned = 1e-6, rho: Probability = 0.95, {_COMMON}",
    ),
    "Adam": (
        fluid.AdamOptimizer,
        (
            f"learning_rate=0.001, {_MOMENTS}, epsilon: Unsigned = 1e-8, {_COMMON}, "
            "lazy_mode: bool = False, multi_precision=False, use_multi_tensor=False"
        ),
    ),
    "Adamax": (
        fluid.AdamaxOptimizer,
        f"learning_rate=0.001, {_MOMENTS}, epsilon: Unsigned = 1e-8, {_COMMON}",
    ),
    "RMSProp": (
        fluid.RMSPropOptimizer,
        (
            "learning_rate, rho: Probability = 0.95, epsilon: Unsigned = 1e-6, "
            f"momentum: Unsigned = 0.0, centered: bool = False, {_COMMON}"
        ),
    ),
    "Lamb": (
        UnbiasedLamb,
        (
            f"learning_rate=0.001, lamb_weight_decay: float = 0.01, {_MOMENTS}, "
            "epsilon: Unsigned = 1e-6, parameters: Parameters = None, grad_clip=None, "
            "exclude_from_weight_decay_fn: Function = None, multi_precision=False, "
            "always_adapt: bool = False"
        ),
    ),
}
_FLUID = {"parameters": "parameter_list", "weight_decay": "regularization"}
# What has no counterpart here: only the default is taken.
_FIXED = {"multi_precision": False, "rescale_grad": 1.0}
_IGNORED = ("use_multi_tensor",)


def _decay(where: str, value: Any) -> WeightDecayRegularizer:
    if isinstance(value, WeightDecayRegularizer):
        return value
    if isinstance(value, Real) and not isinstance(value, bool):
        return L2Decay(float(value))
    raise declare.refusal(where, "a factor, or paddle.regularizer.L1Decay or L2Decay", value)


def _parameters(where: str, value: Any) -> list[Any]:
    many = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    if all(isinstance(one, (Variable, str)) for one in many) and not isinstance(value, str):
        return many
    raise declare.refusal(where, "a list of parameters", value)


_KINDS = {**declare.KINDS, "Decay": _decay, "Parameters": _parameters}


def _optimizer(name: str, base: type[Optimizer], parameters: str) -> type[Optimizer]:
    """Return the class of a declaration."""
    signature, kinds = declare.parsed_parameters(parameters)
    checks = {
        k: (_KINDS[kind], signature.parameters[k].default is None) for k, kind in kinds.items()
    }

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        where = f"paddle.optimizer.{type(self).__name__}"
        given = declare.bound(where, signature, args, kwargs)
        declare.check(where, checks, given)
        for key in [key for key in given if key in _FIXED]:
            if given.pop(key) != _FIXED[key]:
                raise GraphError(f"{where}: {key} is {_FIXED[key]} here; see docs/paddle2.md")
        rate = given.pop("learning_rate")
        chosen = {_FLUID.get(k, k): v for k, v in given.items() if k not in _IGNORED}
        scheduler = rate if isinstance(rate, lr.LRScheduler) else None
        base.__init__(self, rate if scheduler is None else scheduler(), **chosen)
        if "epsilon" in self.attrs and base is fluid.AdamOptimizer:
            self.attrs["scaled_epsilon"] = True
        self.scheduler, self.given = scheduler, {}
        self.let_follow(self)

    body = {
        "__init__": init,
        "__doc__": f"{base.__doc__}\n\nParameters: {parameters}.",
        "__module__": "paddle.optimizer",
        "__signature__": signature,
    }
    return type(name, (_Methods, base), body)


class _Methods(Optimizer):
    """What optimizers of Paddle 2 have beside, or in other words than, those of Fluid."""

    scheduler: Any
    given: dict[str, float]  # the scheduler's rate in the last step, by variable

    def minimize(  # type: ignore[override]
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameters: Any = None,
        no_grad_set: Any = None,
    ) -> Any:
        """Append all that a training step needs; see `hpcdist.optimizer.Optimizer.minimize`."""
        return super().minimize(loss, startup_program, parameters, no_grad_set)

    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameters: Any = None,
        no_grad_set: Any = None,
        callbacks: Any = None,
    ) -> Any:
        """Append the backward operators; return parameters with their gradients."""
        return super().backward(loss, startup_program, parameters, no_grad_set, callbacks)

    def let_follow(self, other: Any) -> None:
        """Give an optimizer, such as one that takes this one's place, the scheduler's rates."""
        if self.scheduler is not None:
            other.scheduler, other.given = self.scheduler, {}
            self.scheduler.optimizers.append(other)

    def get_lr(self) -> float:
        """Return the learning rate: the scheduler's, or the number that was given or set."""
        return self.scheduler() if self.scheduler is not None else float(self.learning_rate)

    def set_lr(self, value: float) -> None:
        """Set the learning rate in the global scope, from the next step on."""
        number = declare.KINDS["float"]("set_lr: value", value)
        if self.scheduler is not None:
            raise GraphError("set_lr: the learning rate is a scheduler's: step that")
        variable = self._global_learning_rate(default_main_program())
        self.learning_rate = number
        if variable is not None:
            _put(global_scope(), variable.name, np.asarray([number], variable.dtype))

    def clear_grad(self, set_to_zero: bool = True) -> None:
        """Do nothing: a step begins without gradients."""


def has_schedulers() -> bool:
    """Return whether there is a rate that a script may step."""
    return bool(schedulers)


def set_rates(program: Program, scope: Scope, with_servers: bool) -> None:
    """Put the rates of schedulers into a scope, before a step of the Program that they train.

    ``with_servers``: only those that have changed, since servers are given them.
    """
    for scheduler in list(schedulers):
        for optimizer in scheduler.optimizers:
            variable = optimizer._global_learning_rate(program)
            if variable is None or program_of(variable) is not program:
                continue
            rate = scheduler()
            if with_servers and rate == optimizer.given.get(variable.name, optimizer.learning_rate):
                continue
            optimizer.given[variable.name] = rate
            wanted = np.asarray([rate], variable.dtype)
            if with_servers:  # a value that they have would be asked for
                scope.var(variable.name).get_tensor().set(wanted, None)
            else:
                _put(scope, variable.name, wanted)


def _put(scope: Scope, name: str, wanted: np.ndarray) -> None:
    found = scope.find_var(name)
    if found is None or not np.array_equal(np.asarray(found.get_tensor()), wanted):
        scope.var(name).get_tensor().set(wanted, None)


globals().update({name: _optimizer(name, *facts) for name, facts in _OPTIMIZERS.items()})


class AdamW(extend_with_decoupled_weight_decay(_optimizer("Adam", *_OPTIMIZERS["Adam"]))):  # type: ignore[misc]
    """Adam that first takes ``learning_rate * weight_decay`` of each parameter, of every step's
    rate."""

    decay_attr = "rate_decay"
    __signature__ = None  # not Adam's

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        parameters: Any = None,
        weight_decay: float = 0.01,
        lr_ratio: Any = None,
        apply_decay_param_fun: Any = None,
        grad_clip: Any = None,
        lazy_mode: bool = False,
        multi_precision: bool = False,
        name: str | None = None,
    ) -> None:
        if apply_decay_param_fun is not None:
            where = "paddle.optimizer.AdamW: apply_decay_param_fun"
            _KINDS["Function"](where, apply_decay_param_fun)
        if lr_ratio is not None:
            raise GraphTypeError(
                "paddle.optimizer.AdamW: lr_ratio is None here: give parameters a rate of their "
                "own by paddle.ParamAttr(learning_rate=...)"
            )
        super().__init__(
            weight_decay=_KINDS["float"]("paddle.optimizer.AdamW: weight_decay", weight_decay),
            apply_decay_param_fun=apply_decay_param_fun,
            learning_rate=learning_rate,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            parameters=parameters,
            grad_clip=grad_clip,
            lazy_mode=lazy_mode,
            multi_precision=multi_precision,
            name=name,
        )

    def apply_gradients(self, params_grads: Any, grad_clip: Any = None) -> Any:
        """Append the decay, then what follows backward."""
        self._make_rate(params_grads)
        return super().apply_gradients(params_grads, grad_clip)

    def _decay_of(self, parameter: Variable) -> Variable:
        factor = layers.scale(self._rate_of(parameter), self._coefficient)
        return layers.elementwise_mul(parameter, factor)


__all__ = [*_OPTIMIZERS, "AdamW", "Optimizer", "lr"]
