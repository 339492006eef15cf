"""``paddle._C_ops``: libraries import it for their dygraph mode; here no operator runs at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from hpcdist.base.errors import GraphError

__all__: list[str] = []


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise GraphError(
            f"paddle._C_ops.{name}: no operator runs at once here: call the function of paddle, "
            "paddle.nn.functional or paddle.static.nn that appends it to a Program"
        )

    return refuse
