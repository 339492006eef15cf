"""Layers that call one function: activations, losses, pools, ... by their functions' signatures.

A line of ``functions.txt`` declares a class whose constructor takes the function's parameters
behind the inputs, with their defaults, and whose ``forward`` takes the inputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from hpcdist.base import text_tables
from hpcdist.base.errors import GraphError
from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.fluid.compat.paddle2.nn import functional
from hpcdist.fluid.compat.paddle2.nn.layer.layers import Layer

# What a function takes, but not the class.
_WITHOUT = ("dtype", "training", "weight_grad", "slope", "offset")


class FunctionLayer(Layer):
    """Base of layers that call one function."""

    function: Any = None
    inputs = 1
    trains = False  # the function is told whether this is training
    signature = inspect.Signature()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        where = f"paddle.nn.{type(self).__name__}"
        options = declare.bound(where, type(self).signature, args, kwargs)
        checks = type(self).function.__checks__
        declare.check(where, {k: v for k, v in checks.items() if k in options}, options)
        self.__dict__["_options"] = options
        super().__init__()

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Call the function with the inputs and the options."""
        mode = {"training": self.training} if self.trains else {}
        return type(self).function(*inputs, **named, **mode, **self._options)

    def extra_repr(self) -> str:
        """Return the options that were given."""
        shown = {k: v for k, v in self._options.items() if v is not None}
        return ", ".join(f"{key}={value}" for key, value in shown.items())


def _layer(name: str, function: str, inputs: int, order: Sequence[str] = ()) -> type[FunctionLayer]:
    """Return the class of a declaration; ``order``: of its parameters, if not the function's."""
    called = getattr(functional, function)
    parameters = list(inspect.signature(called).parameters.values())
    options = [p for p in parameters[inputs:] if p.name not in _WITHOUT]
    if order:
        options.sort(key=lambda p: order.index(p.name))
    return type(
        name,
        (FunctionLayer,),
        {
            "__module__": "paddle.nn",
            "__doc__": called.__doc__,
            "function": staticmethod(called),
            "inputs": inputs,
            "trains": any(p.name == "training" for p in parameters),
            "signature": inspect.Signature(options),
            "__signature__": inspect.Signature(options),
        },
    )


_LAYERS = {
    name: _layer(name, function, int(inputs), order)
    for name, function, inputs, *order in map(
        str.split, text_tables.lines(__package__, "functions.txt")
    )
}
globals().update(_LAYERS)


class PReLU(Layer):
    """Return x where it is above 0, else weight x, with a learned weight."""

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        weight_attr: Any = None,
        data_format: str = "NCHW",
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._data_format = data_format
        from hpcdist.fluid.initializer import Constant

        self._weight = self.create_parameter(
            [num_parameters], weight_attr, default_initializer=Constant(init)
        )

    def forward(self, x: Any) -> Any:
        """Append the activation."""
        return functional.prelu(x, self._weight, self._data_format)


class HSigmoidLoss(Layer):
    """Return the cost of the way down a tree of classes to the label."""

    def __init__(
        self,
        feature_size: int,
        num_classes: int,
        weight_attr: Any = None,
        bias_attr: Any = None,
        is_custom: bool = False,
        is_sparse: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__()
        if num_classes < 2 and not is_custom:
            raise GraphError(
                f"paddle.nn.HSigmoidLoss: a tree needs 2 classes or more, got {num_classes}"
            )
        self._classes = num_classes
        rows = num_classes if is_custom else num_classes - 1
        self.weight = self.create_parameter([rows, feature_size], weight_attr)
        self.bias = self.create_parameter([rows, 1], bias_attr, is_bias=True)

    def forward(self, input: Any, label: Any, path_table: Any = None, path_code: Any = None) -> Any:
        """Append the loss."""
        own = self._classes, self.weight, self.bias
        return functional.hsigmoid_loss(input, label, *own, path_table, path_code)


__all__ = [*_LAYERS, "HSigmoidLoss", "PReLU"]
