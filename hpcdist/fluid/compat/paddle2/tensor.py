"""``paddle.tensor``: functions of Variables, which ``paddle`` and Variables' methods have, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import composed, creation, declare, reductions
from hpcdist.fluid.compat.paddle2.declare import Extents
from hpcdist.fluid.layers import (  # noqa: F401 - which paddle.tensor has, though paddle has not
    array_length,
    array_read,
    array_write,
    create_array,
    create_parameter,
    create_tensor,
    fill_constant,
)
from hpcdist.graph.dtypes import canonical
from hpcdist.graph.variable import Variable

DECLARED = declare.functions("paddle")

globals().update(DECLARED)
for _module in (creation, reductions, composed):
    globals().update({name: getattr(_module, name) for name in _module.__all__})

IN_PLACE = declare.in_place("paddle", globals())
globals().update(IN_PLACE)

__all__ = sorted({*DECLARED, *IN_PLACE, *creation.__all__, *reductions.__all__, *composed.__all__})


@declare.composed("paddle.tensor.random")
def gaussian(
    shape: Extents,
    mean: float = 0.0,
    std: float = 1.0,
    seed: int = 0,
    dtype: Any = None,
    name: str | None = None,
) -> Variable:
    """Draw from the normal distribution; ``paddle.tensor.random`` is this module, too."""
    kind = creation.get_default_dtype() if dtype is None else canonical(dtype)
    return layers.gaussian_random(shape, mean, std, seed, kind)


if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
