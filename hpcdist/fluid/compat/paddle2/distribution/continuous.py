"""Distributions of real numbers, drawn by noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import tensor as t
from hpcdist.fluid.compat.paddle2.distribution.distribution import (
    Distribution,
    ExponentialFamily,
    broadcast,
    noise,
    normal,
    parameters,
    uniform,
    values,
)
from hpcdist.fluid.layers.helper import LayerHelper
from hpcdist.graph.variable import Variable

_TINY, _EPS = float(np.finfo("float32").tiny), float(np.finfo("float32").eps)
_EULER = float(np.euler_gamma)


class Normal(Distribution):
    """Normal numbers of mean ``loc`` and deviation ``scale``."""

    def __init__(self, loc: Any, scale: Any, name: str | None = None) -> None:
        self.loc, self.scale = parameters("Normal", loc=loc, scale=scale)
        super().__init__(self.loc.shape)

    @property
    def mean(self) -> Variable:
        """Return ``loc``."""
        return self.loc

    @property
    def variance(self) -> Variable:
        """Return the square of ``scale``."""
        return t.pow(self.scale, 2)

    def sample(self, shape: Any = (), seed: int = 0) -> Variable:
        """Draw values; the seed is the Program's."""
        return self.rsample(shape)

    def rsample(self, shape: Any = ()) -> Variable:
        """Draw loc + noise scale."""
        drawn = noise("Normal", normal, self.loc + self.scale, shape, dtype=self.loc.dtype)
        return self.loc + drawn * self.scale

    def entropy(self) -> Variable:
        """Return 1/2 + log(2 pi) / 2 + log(scale)."""
        spread = self.scale + t.zeros_like(self.loc + self.scale)
        return t.log(spread) + (0.5 + 0.5 * math.log(2 * math.pi))

    def log_prob(self, value: Variable) -> Variable:
        """Return the logarithm of the density at ``value``."""
        apart = values("Normal", value, self.loc) - self.loc
        spread = t.log(self.scale) + 0.5 * math.log(2.0 * math.pi)
        return apart * apart * -1.0 / (self.scale * self.scale * 2.0) - spread

    def _divergence(self, other: Normal) -> Variable:
        ratio = t.square(self.scale / other.scale)
        apart = t.square((self.loc - other.loc) / other.scale)
        return ratio * 0.5 + (apart - 1.0 - t.log(ratio)) * 0.5


class LogNormal(Distribution):
    """Numbers whose logarithms are normal, of mean ``loc`` and deviation ``scale``."""

    def __init__(self, loc: Any, scale: Any) -> None:
        self._base = Normal(loc, scale)
        self.loc, self.scale = self._base.loc, self._base.scale
        super().__init__(self.loc.shape)

    @property
    def mean(self) -> Variable:
        """Return exp(loc + scale^2 / 2)."""
        return t.exp(self.loc + self._base.variance / 2.0)

    @property
    def variance(self) -> Variable:
        """Return the variance."""
        spread = self._base.variance
        return t.expm1(spread) * t.exp(self.loc * 2.0 + spread)

    def rsample(self, shape: Any = ()) -> Variable:
        """Draw exponentials of normal numbers."""
        return t.exp(self._base.rsample(shape))

    def entropy(self) -> Variable:
        """Return that of the logarithms, plus ``loc``."""
        return self._base.entropy() + self.loc

    def log_prob(self, value: Variable) -> Variable:
        """Return the logarithm of the density at ``value``."""
        root = t.log(values("LogNormal", value, self.loc))
        return self._base.log_prob(root) - root

    def _divergence(self, other: LogNormal) -> Variable:
        return self._base.kl_divergence(other._base)


class Uniform(Distribution):
    """Every number of [low, high) alike."""

    def __init__(self, low: Any, high: Any, name: str | None = None) -> None:
        self.low, self.high = parameters("Uniform", low=low, high=high)
        super().__init__(self.low.shape)

    @property
    def mean(self) -> Variable:
        """Return the middle."""
        return (self.low + self.high) / 2.0

    @property
    def variance(self) -> Variable:
        """Return (high - low)^2 / 12."""
        return t.square(self.high - self.low) / 12.0

    def sample(self, shape: Any = (), seed: int = 0) -> Variable:
        """Draw values; the seed is the Program's."""
        return self.rsample(shape)

    def rsample(self, shape: Any = ()) -> Variable:
        """Draw low + noise (high - low)."""
        facts = {"low": 0.0, "high": 1.0, "dtype": self.low.dtype}
        drawn = noise("Uniform", uniform, self.low + self.high, shape, **facts)
        return drawn * (self.high - self.low) + self.low

    def _inside(self, value: Variable) -> Variable:
        value = values("Uniform", value, self.low)
        return t.cast(self.low < value, value.dtype) * t.cast(value < self.high, value.dtype)

    def log_prob(self, value: Variable) -> Variable:
        """Return -log(high - low) between both, else -inf."""
        return t.log(self._inside(value)) - self.entropy()

    def prob(self, value: Variable) -> Variable:
        """Return 1 / (high - low) between both, else 0."""
        return self._inside(value) / (self.high - self.low)

    def entropy(self) -> Variable:
        """Return log(high - low)."""
        return t.log(self.high - self.low)


class _Located(Distribution):
    """A distribution with ``loc`` and ``scale`` that is drawn by ``_of_noise`` in (low, high)."""

    low, high = _TINY, 1.0 - _EPS

    def __init__(self, loc: Any, scale: Any) -> None:
        self.loc, self.scale = broadcast(type(self).__name__, loc=loc, scale=scale)
        super().__init__(self.loc.shape)

    @property
    def mean(self) -> Variable:
        """Return ``loc``."""
        return self.loc

    def rsample(self, shape: Any = ()) -> Variable:
        """Draw values."""
        facts = {"low": self.low, "high": self.high, "dtype": self.loc.dtype}
        drawn = noise(type(self).__name__, uniform, self.loc, shape, **facts)
        return self.loc + self.scale * self._of_noise(drawn)

    def _of_noise(self, drawn: Variable) -> Variable:
        raise NotImplementedError

    def _apart(self, value: Variable) -> Variable:
        return (values(type(self).__name__, value, self.loc) - self.loc) / self.scale


class Laplace(_Located):
    """Numbers whose distance to ``loc`` is exponential, of mean ``scale``."""

    low, high = -1.0 + _EPS, 1.0 - _EPS

    @property
    def stddev(self) -> Variable:
        """Return the root of 2 times ``scale``."""
        return self.scale * 2**0.5

    @property
    def variance(self) -> Variable:
        """Return 2 scale^2."""
        return t.pow(self.stddev, 2)

    def _of_noise(self, drawn: Variable) -> Variable:
        return t.sign(drawn) * t.log1p(t.abs(drawn) * -1.0) * -1.0

    def log_prob(self, value: Variable) -> Variable:
        """Return -|value - loc| / scale - log(2 scale)."""
        return t.abs(self._apart(value)) * -1.0 - t.log(self.scale * 2.0)

    def entropy(self) -> Variable:
        """Return 1 + log(2 scale)."""
        return t.log(self.scale * 2.0) + 1.0

    def cdf(self, value: Variable) -> Variable:
        """Return the chance of numbers up to ``value``."""
        apart = self._apart(value)
        return 0.5 - t.sign(apart) * t.expm1(t.abs(apart) * -1.0) * 0.5

    def icdf(self, value: Variable) -> Variable:
        """Return the number up to which the chance is ``value``."""
        side = values("Laplace", value, self.loc) - 0.5
        return self.loc - self.scale * t.sign(side) * t.log1p(t.abs(side) * -2.0)

    def _divergence(self, other: Laplace) -> Variable:
        apart = t.abs(self.loc - other.loc)
        first = (self.scale * t.exp(apart * -1.0 / self.scale) + apart) / other.scale
        return first + t.log(other.scale / self.scale) - 1.0


class Gumbel(_Located):
    """The greatest of many numbers: by ``loc`` and ``scale``."""

    @property
    def mean(self) -> Variable:
        """Return loc + scale times Euler's constant."""
        return self.loc + self.scale * _EULER

    @property
    def variance(self) -> Variable:
        """Return scale^2 pi^2 / 6."""
        return t.pow(self.scale, 2) * (math.pi * math.pi) / 6.0

    def _of_noise(self, drawn: Variable) -> Variable:
        return t.log(t.log(drawn) * -1.0) * -1.0

    def prob(self, value: Variable) -> Variable:
        """Return the density at ``value``."""
        apart = self._apart(value) * -1.0
        return t.exp(apart - t.exp(apart)) / self.scale

    def log_prob(self, value: Variable) -> Variable:
        """Return its logarithm."""
        return t.log(self.prob(value))

    def cdf(self, value: Variable) -> Variable:
        """Return the chance of numbers up to ``value``."""
        return t.exp(t.exp(self._apart(value) * -1.0) * -1.0)

    def entropy(self) -> Variable:
        """Return log(scale) + 1 + Euler's constant."""
        return t.log(self.scale) + (1 + _EULER)


class Cauchy(_Located):
    """Numbers without mean or variance, about ``loc``, of half width ``scale``."""

    low, high = 0.0, 1.0

    def __init__(self, loc: Any, scale: Any, name: str | None = None) -> None:
        super().__init__(loc, scale)

    @property
    def mean(self) -> Any:
        """Refuse: there is none."""
        raise GraphError("paddle.distribution.Cauchy has no mean, variance and stddev")

    @property
    def variance(self) -> Any:
        """Refuse: there is none."""
        return self.mean

    def sample(self, shape: Any = (), name: str | None = None) -> Variable:
        """Draw values."""
        return self.rsample(shape)

    def rsample(self, shape: Any = (), name: str | None = None) -> Variable:
        """Draw values."""
        return super().rsample(shape)

    def _of_noise(self, drawn: Variable) -> Variable:
        return t.tan((drawn - 0.5) * math.pi)

    def log_prob(self, value: Variable) -> Variable:
        """Return the logarithm of the density at ``value``."""
        inside = t.log1p(t.square(self._apart(value))) * -1.0
        return inside - (t.log(self.scale) + math.log(math.pi))

    def cdf(self, value: Variable) -> Variable:
        """Return the chance of numbers up to ``value``."""
        return t.atan(self._apart(value)) / math.pi + 0.5

    def entropy(self) -> Variable:
        """Return log(4 pi scale)."""
        return t.log(self.scale) + math.log(4 * math.pi)

    def _divergence(self, other: Cauchy) -> Variable:
        both = t.square(self.scale + other.scale) + t.square(self.loc - other.loc)
        return t.log(both) - t.log(self.scale * other.scale * 4.0)


class Dirichlet(ExponentialFamily):
    """Shares that sum to 1 along the last dimension of ``concentration``."""

    def __init__(self, concentration: Variable) -> None:
        (self.concentration,) = parameters("Dirichlet", concentration=concentration)
        if not self.concentration.shape:
            raise GraphError(
                "paddle.distribution.Dirichlet: concentration: expected at least one dimension"
            )
        super().__init__(self.concentration.shape[:-1], self.concentration.shape[-1:])

    @property
    def _total(self) -> Variable:
        return t.sum(self.concentration, -1, None, True)

    @property
    def mean(self) -> Variable:
        """Return the shares of the concentration."""
        return self.concentration / self._total

    @property
    def variance(self) -> Variable:
        """Return the variances."""
        total = self._total
        return self.concentration * (total - self.concentration) / (t.pow(total, 2) * (total + 1.0))

    def sample(self, shape: Any = ()) -> Variable:
        """Draw shares, through which no gradients flow."""
        given, own = {"low": _TINY, "high": 1.0 - _EPS}, self.concentration
        drawn = noise("Dirichlet", uniform, own, shape, dtype=own.dtype, **given)
        facts = {"X": own + t.zeros_like(drawn), "Chance": drawn}
        helper = LayerHelper("dirichlet")
        logs = helper.apply("log_gamma_quantile", facts, dtype=own.dtype, stop_gradient=True)
        shares = layers.softmax(logs, axis=-1)
        shares.stop_gradient = True
        return shares

    def log_prob(self, value: Variable) -> Variable:
        """Return the logarithm of the density at ``value``."""
        logs = t.log(values("Dirichlet", value, self.concentration))
        inside = t.sum(logs * (self.concentration - 1.0), -1)
        return inside - _log_beta(self.concentration)

    def entropy(self) -> Variable:
        """Return the entropy."""
        own, count = self.concentration, float(self.concentration.shape[-1])
        total = t.sum(own, -1)
        inside = t.sum((own - 1.0) * t.digamma(own), -1)
        return _log_beta(own) - (count - total) * t.digamma(total) - inside

    def _divergence(self, other: Dirichlet) -> Variable:
        own, theirs = self.concentration, other.concentration
        apart = t.digamma(own) - t.digamma(self._total)
        return _log_beta(theirs) - _log_beta(own) + t.sum((own - theirs) * apart, -1)


def _log_beta(concentration: Variable) -> Variable:
    return t.sum(t.lgamma(concentration), -1) - t.lgamma(t.sum(concentration, -1))


class Beta(ExponentialFamily):
    """Numbers of [0, 1], by ``alpha`` and ``beta``."""

    def __init__(self, alpha: Any, beta: Any) -> None:
        self.alpha, self.beta = broadcast("Beta", alpha=alpha, beta=beta)
        self._dirichlet = Dirichlet(t.stack([self.alpha, self.beta], -1))
        super().__init__(self.alpha.shape)

    @property
    def mean(self) -> Variable:
        """Return alpha / (alpha + beta)."""
        return self.alpha / (self.alpha + self.beta)

    @property
    def variance(self) -> Variable:
        """Return the variance."""
        total = self.alpha + self.beta
        return self.alpha * self.beta / (t.pow(total, 2) * (total + 1.0))

    def sample(self, shape: Any = ()) -> Variable:
        """Draw numbers, through which no gradients flow."""
        shares = self._dirichlet.sample(shape)
        last = len(shares.shape) - 1
        return t.squeeze(t.slice(shares, [last], [0], [1]), last)

    def log_prob(self, value: Variable) -> Variable:
        """Return the logarithm of the density at ``value``."""
        value = values("Beta", value, self.alpha)
        return self._dirichlet.log_prob(t.stack([value, 1.0 - value], -1))

    def entropy(self) -> Variable:
        """Return the entropy."""
        return self._dirichlet.entropy()

    def _divergence(self, other: Beta) -> Variable:
        return self._dirichlet.kl_divergence(other._dirichlet)
