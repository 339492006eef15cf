"""``paddle.ParamAttr`` and what static programs have beside it, by the parameters of Paddle 2."""

from __future__ import annotations

from typing import Any

from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.fluid.layers import param_attr as fluid


class ParamAttr(fluid.ParamAttr):
    """Settings of a parameter; ``need_clip=False``: clips of all gradients leave its own out."""

    def __init__(
        self,
        name: str | None = None,
        initializer: Any = None,
        learning_rate: float = 1.0,
        regularizer: Any = None,
        trainable: bool = True,
        do_model_average: bool = True,
        need_clip: bool = True,
    ) -> None:
        facts = initializer, learning_rate, regularizer, trainable, do_model_average
        super().__init__(name, *facts)
        self.need_clip = declare.KINDS["bool"]("paddle.ParamAttr: need_clip", need_clip)


class WeightNormParamAttr(fluid.WeightNormParamAttr):
    """A parameter as a direction and a learned length; see Fluid's."""

    def __init__(
        self,
        dim: int | None = None,
        name: str | None = None,
        initializer: Any = None,
        learning_rate: float = 1.0,
        regularizer: Any = None,
        trainable: bool = True,
        do_model_average: bool = False,
        need_clip: bool = True,
    ) -> None:
        facts = initializer, learning_rate, regularizer, trainable, do_model_average
        super().__init__(dim, name, *facts)
        self.need_clip = declare.KINDS["bool"]("paddle.WeightNormParamAttr: need_clip", need_clip)
