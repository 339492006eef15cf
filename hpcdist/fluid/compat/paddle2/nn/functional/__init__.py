"""``paddle.nn.functional``: layers without parameters of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.fluid.compat.paddle2.nn.functional import (
    activation,
    classes,
    common,
    conv,
    likelihood,
    loss,
    pooling,
    vision,
)

_MODULES = (activation, classes, common, conv, likelihood, loss, pooling, vision)
for _module in _MODULES:
    globals().update({name: getattr(_module, name) for name in _module.__all__})

_IN_PLACE = declare.in_place("paddle.nn.functional", globals())
globals().update(_IN_PLACE)

__all__ = sorted({*_IN_PLACE, *(name for module in _MODULES for name in module.__all__)})

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
