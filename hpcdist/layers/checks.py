"""What layers are given: an argument that must be a Variable is one, or there is a TypeError."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from hpcdist.errors import GraphTypeError
from hpcdist.graph.variable import Variable

_ONE = ("Variable", "Variable | None")
_SEVERAL = ("Sequence[Variable]", "Variable | Sequence[Variable]")


def checked(name: str, layer: Callable[..., Any]) -> Callable[..., Any]:
    """Return the layer with a look at those of its arguments that are annotated as Variables."""
    parameters = inspect.signature(layer).parameters
    order = list(parameters)
    wanted = {p.name: p.annotation for p in parameters.values() if p.annotation in _ONE + _SEVERAL}
    if not wanted:
        return layer

    @functools.wraps(layer)
    def call(*args: Any, **kwargs: Any) -> Any:
        for key, value in (*zip(order, args), *kwargs.items()):
            if key in wanted and not _fits(value, wanted[key], parameters[key].default):
                what = "a Variable" if wanted[key] in _ONE else "Variables"
                raise GraphTypeError(f"layers.{name}: {key} must be {what}, got {value!r}")
        return layer(*args, **kwargs)

    return call


def _fits(value: Any, annotation: str, default: Any) -> bool:
    if isinstance(value, Variable) or (value is None and default is None):
        return True
    several = annotation in _SEVERAL and isinstance(value, (list, tuple))
    return several and all(isinstance(v, Variable) for v in value)
