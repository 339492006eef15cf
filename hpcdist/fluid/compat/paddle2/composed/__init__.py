"""Functions of Paddle 2 that need more than one operator, or a look at their arguments first."""

from typing import TYPE_CHECKING, Any

from hpcdist.fluid.compat.paddle2.composed import arithmetic, questions, selection, shapes
from hpcdist.fluid.compat.paddle2.composed.arithmetic import *  # noqa: F403
from hpcdist.fluid.compat.paddle2.composed.questions import *  # noqa: F403
from hpcdist.fluid.compat.paddle2.composed.selection import *  # noqa: F403
from hpcdist.fluid.compat.paddle2.composed.shapes import *  # noqa: F403

__all__ = sorted({*arithmetic.__all__, *questions.__all__, *selection.__all__, *shapes.__all__})

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
