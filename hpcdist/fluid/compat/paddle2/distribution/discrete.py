"""Distributions of counts and classes."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.fluid.compat.paddle2 import tensor as t
from hpcdist.fluid.compat.paddle2.distribution.distribution import (
    Distribution,
    ExponentialFamily,
    broadcast,
    noise,
    parameters,
    uniform,
    values,
)
from hpcdist.fluid.compat.paddle2.nn import functional
from hpcdist.graph.variable import Variable

_TINY = float(np.finfo("float32").tiny)


class Categorical(Distribution):
    """Classes along the last dimension of ``logits``.

    As in 2.6.2 `entropy`, `kl_divergence` and `sample` take these as logarithms of weights, `probs`
    and `log_prob` as the weights themselves.
    """

    def __init__(self, logits: Any, name: str | None = None) -> None:
        (self.logits,) = parameters("Categorical", logits=logits)
        if not self.logits.shape:
            raise GraphError(
                "paddle.distribution.Categorical: logits: expected at least one dimension"
            )
        super().__init__(self.logits.shape[:-1])

    def _shares(self) -> tuple[Variable, Variable]:
        """Return the chances of classes, and their logarithms."""
        apart = self.logits - t.max(self.logits, -1, True)
        weights = t.exp(apart)
        total = t.sum(weights, -1, None, True)
        return weights / total, apart - t.log(total)

    def sample(self, shape: Any = ()) -> Variable:
        """Draw classes: int64."""
        facts = {"low": _TINY, "high": 1.0, "dtype": self.logits.dtype}
        drawn = noise("Categorical", uniform, self.logits, shape, **facts)
        return t.argmax(self.logits - t.log(t.log(drawn) * -1.0), -1)

    def entropy(self) -> Variable:
        """Return the entropy: without the dimension of classes."""
        chances, logs = self._shares()
        return t.sum(chances * logs, -1) * -1.0

    def _divergence(self, other: Categorical) -> Variable:
        (chances, logs), (_, theirs) = self._shares(), other._shares()
        return t.sum(chances * (logs - theirs), -1, None, True)

    def probs(self, value: Variable) -> Variable:
        """Return the shares of the classes ``value``."""
        value = declare.operand("paddle.distribution.Categorical.probs: value", value)
        shares = self.logits / t.sum(self.logits, -1, None, True)
        if len(shares.shape) == 1:
            found = t.gather(shares, t.reshape(value, [-1]))
            return t.reshape(found, list(value.shape))
        if len(value.shape) == 1:
            front = list(shares.shape[:-1])
            value = layers.reshape(value, [1] * len(front) + [-1])
            zeros = t.cast(t.sum(shares, -1, None, True) * 0.0, value.dtype)
            value = value + zeros
        return t.take_along_axis(shares, value, -1)

    def prob(self, value: Variable) -> Variable:
        """Return `probs`."""
        return self.probs(value)

    def log_prob(self, value: Variable) -> Variable:
        """Return their logarithms."""
        return t.log(self.probs(value))


class Bernoulli(ExponentialFamily):
    """1 with the chance ``probs``, else 0."""

    def __init__(self, probs: Any, name: str | None = None) -> None:
        (given,) = parameters("Bernoulli", probs=probs)
        least = float(np.finfo(given.dtype).eps)
        self.probs: Any = t.clip(given, least, 1 - least)
        self.logits = t.log(self.probs) - t.log1p(self.probs * -1.0)
        super().__init__(given.shape)

    @property
    def mean(self) -> Variable:
        """Return the chance."""
        return self.probs

    @property
    def variance(self) -> Variable:
        """Return p (1 - p)."""
        return self.probs * (1.0 - self.probs)

    def _drawn(self, shape: Any) -> Variable:
        facts = {"low": 0.0, "high": 1.0, "dtype": self.probs.dtype}
        return noise("Bernoulli", uniform, self.probs, shape, **facts)

    def sample(self, shape: Any = ()) -> Variable:
        """Draw 0 and 1, through which no gradients flow."""
        return t.cast(self._drawn(shape) < self.probs, self.probs.dtype)

    def rsample(self, shape: Any = (), temperature: float = 1.0) -> Variable:
        """Draw logits of values near 0 and 1, the nearer the lower ``temperature``."""
        heat = declare.KINDS["float"](
            "paddle.distribution.Bernoulli.rsample: temperature", temperature
        )
        drawn = self._drawn(shape)
        return (t.log(drawn) - t.log1p(drawn * -1.0) + self.logits) / heat

    def cdf(self, value: Variable) -> Variable:
        """Return the chance of numbers up to ``value``."""
        chances, value = broadcast(
            "Bernoulli", probs=self.probs, value=values("Bernoulli", value, self.probs)
        )
        ones = t.ones_like(chances)
        return t.where(value < 0.0, ones * 0.0, t.where(value < 1.0, 1.0 - chances, ones))

    def log_prob(self, value: Variable) -> Variable:
        """Return the logarithm of the chance of ``value``."""
        logits, value = broadcast(
            "Bernoulli", probs=self.logits, value=values("Bernoulli", value, self.probs)
        )
        loss = functional.binary_cross_entropy_with_logits(logits, value, reduction="none")
        return loss * -1.0

    def prob(self, value: Variable) -> Variable:
        """Return the chance of ``value``."""
        return t.exp(self.log_prob(value))

    def entropy(self) -> Variable:
        """Return the entropy."""
        return functional.binary_cross_entropy_with_logits(
            self.logits, self.probs, reduction="none"
        )

    def _divergence(self, other: Bernoulli) -> Variable:
        one, two = (functional.softplus(x.logits * -1.0) * -1.0 for x in (self, other))
        none, neither = (functional.softplus(x.logits) * -1.0 for x in (self, other))
        chance = functional.sigmoid(self.logits)
        return (one - two) * chance + (none - neither) * functional.sigmoid(self.logits * -1.0)


class Geometric(Distribution):
    """How often it fails before what has the chance ``probs`` is met."""

    def __init__(self, probs: Any) -> None:
        (given,) = parameters("Geometric", probs=probs)
        self.probs: Any = given
        super().__init__(given.shape)

    @property
    def mean(self) -> Variable:
        """Return 1 / p - 1."""
        return 1.0 / self.probs - 1.0

    @property
    def variance(self) -> Variable:
        """Return (1 / p - 1) / p."""
        return self.mean / self.probs

    def rsample(self, shape: Any = ()) -> Variable:
        """Draw counts."""
        facts = {"low": _TINY, "high": 1.0, "dtype": self.probs.dtype}
        drawn = noise("Geometric", uniform, self.probs, shape, **facts)
        return t.floor(t.log(drawn) / t.log1p(self.probs * -1.0))

    def pmf(self, k: Any) -> Variable:
        """Return the chance of the count ``k``."""
        return t.pow(1.0 - self.probs, k) * self.probs

    def log_pmf(self, k: Any) -> Variable:
        """Return its logarithm."""
        return t.log(self.pmf(k))

    def cdf(self, k: Any) -> Variable:
        """Return the chance of counts up to ``k``."""
        return 1.0 - t.pow(1.0 - self.probs, k + 1)

    def entropy(self) -> Variable:
        """Return the entropy."""
        fail = 1.0 - self.probs
        return (fail * t.log(fail) + self.probs * t.log(self.probs)) * -1.0 / self.probs

    def _divergence(self, other: Geometric) -> Variable:
        own, theirs = self.probs, other.probs
        fail, failed = 1.0 - own, 1.0 - theirs
        return own * t.log(own / theirs) + fail * t.log(fail / failed)


class Multinomial(Distribution):
    """How often classes are met in ``total_count`` trials."""

    def __init__(self, total_count: int, probs: Variable) -> None:
        self.total_count = declare.KINDS["int"](
            "paddle.distribution.Multinomial: total_count", total_count
        )
        (given,) = parameters("Multinomial", probs=probs)
        if self.total_count < 1 or not given.shape:
            raise GraphError(
                "paddle.distribution.Multinomial: expected a total_count from 1 on and probs of at "
                f"least one dimension, got {total_count} and {given.shape}"
            )
        self.probs: Any = given / t.sum(given, -1, None, True)
        self._categorical = Categorical(t.log(given))
        super().__init__(given.shape[:-1], given.shape[-1:])

    @property
    def mean(self) -> Variable:
        """Return n p."""
        return self.probs * float(self.total_count)

    @property
    def variance(self) -> Variable:
        """Return n p (1 - p)."""
        return self.mean * (1.0 - self.probs)

    def sample(self, shape: Any = ()) -> Variable:
        """Draw counts of classes."""
        drawn = self._categorical.sample([self.total_count, *shape])
        marks = functional.one_hot(drawn, self.probs.shape[-1])
        return t.sum(t.cast(marks, self.probs.dtype), 0)

    def log_prob(self, value: Variable) -> Variable:
        """Return the logarithm of the chance of counts."""
        counts = values("Multinomial", value, self.probs)
        logs = t.log(self.probs)
        never = t.cast(counts == 0.0, self.probs.dtype) * t.cast(t.isinf(logs), self.probs.dtype)
        logs = t.where(never > 0.0, never * 0.0, logs + never * 0.0)
        ways = t.lgamma(t.sum(counts, -1) + 1.0) - t.sum(t.lgamma(counts + 1.0), -1)
        return ways + t.sum(counts * logs, -1)

    def entropy(self) -> Variable:
        """Return the entropy."""
        count, rank = self.total_count, len(self.probs.shape)
        n = t.full([1], float(count), self.probs.dtype)
        support = t.reshape(t.arange(1, count + 1, dtype=self.probs.dtype), [-1] + [1] * rank)
        logits = t.log(self.probs) - t.log1p(self.probs * -1.0)
        ways = t.lgamma(n + 1.0) - t.lgamma(support + 1.0) - t.lgamma(n - support + 1.0)
        size = functional.relu(logits) + t.log1p(t.exp(t.abs(logits) * -1.0))
        chances = t.exp(ways + support * logits - size * float(count))
        spread = t.sum(chances * t.lgamma(support + 1.0), [0, -1])
        return self._categorical.entropy() * float(count) - t.lgamma(n + 1.0) + spread
