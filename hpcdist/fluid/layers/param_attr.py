"""ParamAttr: settings of a parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from hpcdist.base.errors import GraphTypeError
from hpcdist.base.keywords import name_arguments_in
from hpcdist.ps.row_policy import RowPolicy

if TYPE_CHECKING:
    from hpcdist.fluid.regularizer import WeightDecayRegularizer

# What layers take as param_attr and bias_attr; see `ParamAttr.of`.
ParamLike: TypeAlias = (
    "ParamAttr | Callable[..., object] | WeightDecayRegularizer | str | bool | None"
)


class ParamAttr:
    """Name, initializer, learning-rate multiplier, regularizer and clip of a parameter.

    Examples:
        >>> attr = fluid.ParamAttr(name="w", initializer=fluid.initializer.Constant(0.1))
        >>> fluid.layers.fc(fluid.data("x", [None, 3]), 1, param_attr=attr).shape
        (-1, 1)
    """

    need_clip = True  # of Paddle 2's: whether a clip of all gradients takes this one

    def __init__(
        self,
        name: str | None = None,
        initializer: Any = None,
        learning_rate: float = 1.0,
        regularizer: Any = None,
        trainable: bool = True,
        do_model_average: bool = True,
        gradient_clip: Any = None,
        *,
        row_policy: RowPolicy | None = None,
    ) -> None:
        """``row_policy``: of a distributed table (``is_distributed=True``), see `RowPolicy`."""
        if not isinstance(name, (str, type(None))):
            raise GraphTypeError(f"ParamAttr: name must be a string, got {name!r}")
        self.name = name
        self.initializer = initializer
        self.learning_rate = learning_rate
        self.regularizer = regularizer
        self.trainable = trainable
        self.gradient_clip = gradient_clip
        self.do_model_average = do_model_average
        if not isinstance(row_policy, (RowPolicy, type(None))):
            raise GraphTypeError(f"ParamAttr: row_policy: expected a RowPolicy, got {row_policy!r}")
        self.row_policy = row_policy

    @staticmethod
    def of(value: ParamLike) -> ParamAttr | None:
        """Turn what layers accept into a ParamAttr; None means: no parameter (``False``)."""
        if value is None or value is True:
            return ParamAttr()
        if isinstance(value, ParamAttr):
            return value
        if value is False:
            return None
        if isinstance(value, str):
            return ParamAttr(name=value)
        if callable(value):
            return ParamAttr(initializer=value)
        if hasattr(value, "append_to"):
            return ParamAttr(regularizer=value)
        raise GraphTypeError(
            f"param_attr: expected a ParamAttr, a name, an initializer or False, got {value!r}"
        )


class WeightNormParamAttr(ParamAttr):
    """A parameter as a direction and a learned length; see `layers.weight_norm`.

    ``dim``: the dimension along which each part has a length; None: all elements have one.
    """

    params_with_weight_norm: ClassVar[list[Any]] = []  # what takes the parameters' places

    def __init__(
        self,
        dim: int | None = None,
        name: str | None = None,
        initializer: Any = None,
        learning_rate: float = 1.0,
        regularizer: Any = None,
        trainable: bool = True,
        do_model_average: bool = False,
    ) -> None:
        facts = initializer, learning_rate, regularizer, trainable, do_model_average
        super().__init__(name, *facts)
        self.dim = dim


name_arguments_in(__name__)
