"""``paddle.distribution``: densities, entropies, divergences, and values that are drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid.compat.paddle2.distribution import transform
from hpcdist.fluid.compat.paddle2.distribution.continuous import (
    Beta,
    Cauchy,
    Dirichlet,
    Gumbel,
    Laplace,
    LogNormal,
    Normal,
    Uniform,
)
from hpcdist.fluid.compat.paddle2.distribution.discrete import (
    Bernoulli,
    Categorical,
    Geometric,
    Multinomial,
)
from hpcdist.fluid.compat.paddle2.distribution.distribution import (
    Distribution,
    ExponentialFamily,
)
from hpcdist.fluid.compat.paddle2.distribution.transform import *  # noqa: F403
from hpcdist.fluid.compat.paddle2.distribution.transformed_distribution import (
    Independent,
    TransformedDistribution,
)
from hpcdist.graph.variable import Variable

F = TypeVar("F", bound=Callable[..., Any])
_registered: dict[tuple[type, type], Callable[..., Any]] = {}


def register_kl(cls_p: type, cls_q: type) -> Callable[[F], F]:
    """Return a decorator for the divergence of two kinds of distributions."""
    for name, kind in (("cls_p", cls_p), ("cls_q", cls_q)):
        if not (isinstance(kind, type) and issubclass(kind, Distribution)):
            raise GraphTypeError(
                f"paddle.distribution.register_kl: {name}: expected a class of distributions, got "
                f"{kind!r:.80}"
            )

    def decorate(function: F) -> F:
        _registered[cls_p, cls_q] = function
        return function

    return decorate


def kl_divergence(p: Distribution, q: Distribution) -> Variable:
    """Return the divergence of ``p`` from ``q``: two of a kind, or a registered pair."""
    for name, value in (("p", p), ("q", q)):
        if not isinstance(value, Distribution):
            raise GraphTypeError(
                f"paddle.distribution.kl_divergence: {name}: expected a distribution, got "
                f"{value!r:.80}"
            )
    for one in type(p).__mro__:
        for two in type(q).__mro__:
            if found := _registered.get((one, two)):
                return found(p, q)
    if type(p) is not type(q):
        raise GraphError(
            f"paddle.distribution.kl_divergence: no divergence of a {type(p).__name__} from a "
            f"{type(q).__name__}: write a function and decorate it with register_kl"
        )
    return p.kl_divergence(q)


__all__ = [
    "Bernoulli",
    "Beta",
    "Categorical",
    "Cauchy",
    "Dirichlet",
    "Distribution",
    "ExponentialFamily",
    "Geometric",
    "Gumbel",
    "Independent",
    "Laplace",
    "LogNormal",
    "Multinomial",
    "Normal",
    "TransformedDistribution",
    "Uniform",
    "kl_divergence",
    "register_kl",
    *transform.__all__,
]

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
