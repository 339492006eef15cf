"""reshape, flatten, squeeze, unsqueeze and transpose, as models of Fluid before 1.0 have them.

They do what `reshape2` and the others do, without ``XShape``: their gradients read X itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcdist.graph.registry import Meta, lookup
from hpcdist.ops.algebra import second_derivatives
from hpcdist.ops.common import define_with_grad, same
from hpcdist.ops.tensor import reshape  # noqa: F401  (defines the second versions)
from hpcdist.ops.types import ArrayModule, Call


def _define(type: str) -> None:
    """Enter the first version of an operator, made of its second one."""
    second = lookup(f"{type}2")
    gradient = lookup(f"{type}2_grad").bind
    assert second.infer is not None and second.bind is not None and gradient is not None
    define_with_grad(
        type,
        ", ".join(map(str, second.inputs)) + " -> Out",
        "X, Out@GRAD -> X@GRAD",
        rows=second.rows,
        attrs=second.attrs,
        given=second.given,
        infer=_without_xshape(second.infer),
        bind=_unshaped(second.bind),
        folds=second.folds,
        alias=second.alias,
        grad_infer=same,
        grad_bind=gradient,
        grad_grad=second_derivatives.linear(type),
        grad_shape_only=("X",),
    )


def _without_xshape(infer: Callable[..., Any]) -> Callable[..., Meta]:
    return lambda x, **attrs: infer(x, **attrs)[0]


def _unshaped(bind: Callable[..., Call]) -> Callable[..., Call]:
    def bound(xp: ArrayModule, x, out, **attrs) -> Call:
        return bind(xp, x, out, None, **attrs)

    return bound


for _type in ("reshape", "flatten", "squeeze", "unsqueeze", "transpose"):
    _define(_type)
