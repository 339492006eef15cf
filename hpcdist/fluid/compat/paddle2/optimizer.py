"""``paddle.optimizer``: Fluid's optimizers, by the parameters of Paddle 2.0.

``parameters`` are those that are trained; ``weight_decay`` is a regularizer, or the factor of L2.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from hpcdist.fluid import optimizer as fluid
from hpcdist.fluid.optimizer import Optimizer
from hpcdist.fluid.regularizer import L2Decay

__all__ = ["SGD", "Adagrad", "Adam", "Adamax", "Lamb", "Momentum", "Optimizer", "RMSProp"]

_NAMES = {"parameter_list": "parameters", "regularization": "weight_decay"}
_FLUID = {new: old for old, new in _NAMES.items()}


def _renamed(
    optimizer: Callable[..., Optimizer], without: str = "", **defaults: float
) -> Callable[..., Optimizer]:
    """Return Fluid's optimizer as a function with Paddle 2.0's names and defaults."""
    signature = inspect.signature(optimizer)
    parameters = [
        p.replace(name=_NAMES.get(p.name, p.name), default=defaults.get(p.name, p.default))
        for p in signature.parameters.values()
        if p.name != without
    ]
    signature = signature.replace(parameters=parameters, return_annotation="Optimizer")

    @functools.wraps(optimizer, updated=())
    def make(*args: Any, **kwargs: Any) -> Optimizer:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{optimizer.__name__}: {error}") from None
        bound.apply_defaults()
        decay = bound.arguments.get("weight_decay")
        if isinstance(decay, (int, float)) and not isinstance(decay, bool):
            bound.arguments["weight_decay"] = L2Decay(decay)
        return optimizer(**{_FLUID.get(k, k): v for k, v in bound.arguments.items()})

    make.__signature__ = signature  # type: ignore[attr-defined]
    return make


SGD = _renamed(fluid.SGD, learning_rate=0.001)
Momentum = _renamed(fluid.Momentum, learning_rate=0.001, momentum=0.9)
Adagrad = _renamed(fluid.Adagrad)
Adam = _renamed(fluid.Adam)
Adamax = _renamed(fluid.Adamax)
RMSProp = _renamed(fluid.RMSProp)
Lamb = _renamed(fluid.Lamb, without="regularization")
