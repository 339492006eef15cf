"""``paddle.optimizer``: Fluid's optimizers, by the parameters of Paddle 2.0.

``parameters`` are those that are trained; ``weight_decay`` is a regularizer, or the factor of L2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpcdist import optimizer as fluid
from hpcdist.graph.variable import Parameter, Variable
from hpcdist.optimizer import Optimizer
from hpcdist.regularizer import L2Decay

__all__ = ["SGD", "Adagrad", "Adam", "Adamax", "Lamb", "Momentum", "Optimizer", "RMSProp"]

Rate = float | Variable
Parameters = Sequence[Parameter | str] | None


def _decay(weight_decay: Any) -> Any:
    plain = isinstance(weight_decay, (int, float)) and not isinstance(weight_decay, bool)
    return L2Decay(weight_decay) if plain else weight_decay


def SGD(
    learning_rate: Rate = 0.001,
    parameters: Parameters = None,
    weight_decay: Any = None,
    grad_clip: Any = None,
    name: str | None = None,
) -> Optimizer:
    """Return Fluid's SGD."""
    return fluid.SGD(learning_rate, parameters, _decay(weight_decay), grad_clip, name)


def Momentum(
    learning_rate: Rate = 0.001,
    momentum: float = 0.9,
    parameters: Parameters = None,
    use_nesterov: bool = False,
    weight_decay: Any = None,
    grad_clip: Any = None,
    name: str | None = None,
) -> Optimizer:
    """Return Fluid's Momentum."""
    rest = (_decay(weight_decay), grad_clip, name)
    return fluid.Momentum(learning_rate, momentum, parameters, use_nesterov, *rest)


def Adagrad(
    learning_rate: Rate,
    epsilon: float = 1.0e-6,
    parameters: Parameters = None,
    weight_decay: Any = None,
    grad_clip: Any = None,
    name: str | None = None,
    initial_accumulator_value: float = 0.0,
) -> Optimizer:
    """Return Fluid's Adagrad."""
    rest = (_decay(weight_decay), grad_clip, name, initial_accumulator_value)
    return fluid.Adagrad(learning_rate, epsilon, parameters, *rest)


def Adam(
    learning_rate: Rate = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    parameters: Parameters = None,
    weight_decay: Any = None,
    grad_clip: Any = None,
    name: str | None = None,
    lazy_mode: bool = False,
) -> Optimizer:
    """Return Fluid's Adam."""
    rest = (_decay(weight_decay), grad_clip, name, lazy_mode)
    return fluid.Adam(learning_rate, beta1, beta2, epsilon, parameters, *rest)


def Adamax(
    learning_rate: Rate = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    parameters: Parameters = None,
    weight_decay: Any = None,
    grad_clip: Any = None,
    name: str | None = None,
) -> Optimizer:
    """Return Fluid's Adamax."""
    rest = (_decay(weight_decay), grad_clip, name)
    return fluid.Adamax(learning_rate, beta1, beta2, epsilon, parameters, *rest)


def RMSProp(
    learning_rate: Rate,
    rho: float = 0.95,
    epsilon: float = 1.0e-6,
    momentum: float = 0.0,
    centered: bool = False,
    parameters: Parameters = None,
    weight_decay: Any = None,
    grad_clip: Any = None,
    name: str | None = None,
) -> Optimizer:
    """Return Fluid's RMSProp."""
    rest = (parameters, _decay(weight_decay), grad_clip, name)
    return fluid.RMSProp(learning_rate, rho, epsilon, momentum, centered, *rest)


def Lamb(
    learning_rate: Rate = 0.001,
    lamb_weight_decay: float = 0.01,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-6,
    parameters: Parameters = None,
    grad_clip: Any = None,
    exclude_from_weight_decay_fn: Callable[[Parameter], bool] | None = None,
    name: str | None = None,
) -> Optimizer:
    """Return Fluid's Lamb."""
    rest = (parameters, None, grad_clip, exclude_from_weight_decay_fn, name)
    return fluid.Lamb(learning_rate, lamb_weight_decay, beta1, beta2, epsilon, *rest)
