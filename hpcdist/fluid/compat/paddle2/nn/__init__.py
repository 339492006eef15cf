"""``paddle.nn``: layers as classes, and what clips gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcdist.fluid.compat.paddle2.nn import functional, initializer, layer
from hpcdist.fluid.compat.paddle2.nn.clip import (
    ClipGradByGlobalNorm,
    ClipGradByNorm,
    ClipGradByValue,
)
from hpcdist.fluid.compat.paddle2.nn.decode import BeamSearchDecoder, dynamic_decode
from hpcdist.fluid.compat.paddle2.nn.layer import *  # noqa: F403

__all__ = ["BeamSearchDecoder", "dynamic_decode", "functional", "initializer"]
__all__ += ["ClipGradByGlobalNorm", "ClipGradByNorm", "ClipGradByValue"]
__all__ += [name for name in vars(layer) if name[0].isupper()]

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
