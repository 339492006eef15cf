"""Functions of Paddle 2 that need more than one operator, or a look at their arguments first."""

from typing import TYPE_CHECKING, Any

from hpcdist.fluid.compat.paddle2.composed import (
    arithmetic,
    elementary,
    places,
    questions,
    selection,
    shapes,
    statistics,
)
from hpcdist.fluid.compat.paddle2.composed.arithmetic import *  # noqa: F403
from hpcdist.fluid.compat.paddle2.composed.elementary import *  # noqa: F403
from hpcdist.fluid.compat.paddle2.composed.places import *  # noqa: F403
from hpcdist.fluid.compat.paddle2.composed.questions import *  # noqa: F403
from hpcdist.fluid.compat.paddle2.composed.selection import *  # noqa: F403
from hpcdist.fluid.compat.paddle2.composed.shapes import *  # noqa: F403
from hpcdist.fluid.compat.paddle2.composed.statistics import *  # noqa: F403

_MODULES = (arithmetic, elementary, places, questions, selection, shapes, statistics)
__all__ = sorted({name for module in _MODULES for name in module.__all__})

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
