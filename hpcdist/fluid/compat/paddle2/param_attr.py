"""``paddle.ParamAttr`` and what static programs have beside it, by the parameters of Paddle 2."""

from __future__ import annotations

from typing import Any

from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.fluid.compat.paddle2.kinds import Function
from hpcdist.fluid.layers import param_attr as fluid
from hpcdist.fluid.regularizer import WeightDecayRegularizer


def _check_penalty(where: str, value: Any) -> None:
    if not isinstance(value, (WeightDecayRegularizer, type(None))):
        raise declare.refusal(where, "paddle.regularizer.L1Decay or L2Decay", value)


class ParamAttr(fluid.ParamAttr):
    """Settings of a parameter; ``need_clip=False``: clips of all gradients leave its own out."""

    def __init__(
        self,
        name: str | None = None,
        initializer: Function | None = None,
        learning_rate: float = 1.0,
        regularizer: Any = None,
        trainable: bool = True,
        do_model_average: bool = True,
        need_clip: bool = True,
    ) -> None:
        facts = initializer, learning_rate, regularizer, trainable, do_model_average
        super().__init__(name, *facts)
        self.need_clip = need_clip
        _check_penalty(f"paddle.{type(self).__name__}: regularizer", regularizer)


class WeightNormParamAttr(fluid.WeightNormParamAttr):
    """A parameter as a direction and a learned length; see Fluid's."""

    def __init__(
        self,
        dim: int | None = None,
        name: str | None = None,
        initializer: Function | None = None,
        learning_rate: float = 1.0,
        regularizer: Any = None,
        trainable: bool = True,
        do_model_average: bool = False,
        need_clip: bool = True,
    ) -> None:
        facts = initializer, learning_rate, regularizer, trainable, do_model_average
        super().__init__(dim, name, *facts)
        self.need_clip = need_clip
        _check_penalty(f"paddle.{type(self).__name__}: regularizer", regularizer)


declare.check_constructors("paddle", globals())
