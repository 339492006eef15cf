"""``paddle.optimizer.lr``: learning rates that the script steps; Executors put them into the scope.

rate = paddle.optimizer.lr.StepDecay(0.1, step_size=30)
paddle.optimizer.SGD(rate).minimize(loss)
...
rate.step()  # after an epoch, or a step
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, Literal

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.fluid.compat.paddle2.kinds import bounded
from hpcdist.fluid.compat.paddle2.optimizer.cycles import CyclicLR, OneCycleLR
from hpcdist.fluid.compat.paddle2.optimizer.scheduler import LRScheduler
from hpcdist.fluid.compat.public_names import public

_MODULE = "paddle.optimizer.lr"


def _rising(where: str, value: Any) -> list[float]:
    """Take a list of numbers, each above the one before."""
    numbers = isinstance(value, (list, tuple)) and all(isinstance(one, Real) for one in value)
    if numbers and all(a < b for a, b in itertools.pairwise(value)):
        return list(value)
    raise declare.refusal(where, "a list of rising numbers", value)


_KINDS = {
    **declare.KINDS,
    "Rising": _rising,
    "Share": bounded("a number above 0, up to 1", lambda x: 0 < x <= 1),
    "Smaller": bounded("a number below 1", lambda x: x < 1),
}

# Name: parameters beside last_epoch and verbose; the rate of epoch n, by the scheduler s.
_FORMULAS: dict[str, tuple[str, Callable[[Any, int], float]]] = {
    "NoamDecay": (
        "d_model: Positive, warmup_steps: Positive, learning_rate: float = 1.0",
        lambda s, n: (
            s.base_lr * s.d_model**-0.5 * min(n**-0.5 if n else 1, n * s.warmup_steps**-1.5)
        ),
    ),
    "NaturalExpDecay": (
        "learning_rate: float, gamma: float",
        lambda s, n: s.base_lr * math.exp(-s.gamma * n),
    ),
    "InverseTimeDecay": (
        "learning_rate: float, gamma: float",
        lambda s, n: s.base_lr / (1 + s.gamma * n),
    ),
    "ExponentialDecay": (
        "learning_rate: float, gamma: float",
        lambda s, n: s.base_lr * s.gamma**n,
    ),
    "PolynomialDecay": (
        (
            "learning_rate: float, decay_steps: Count, end_lr: float = 0.0001, "
            "power: Positive = 1.0, cycle: bool = False"
        ),
        lambda s, n: _polynomial(s, n),
    ),
    "StepDecay": (
        "learning_rate: float, step_size: Count, gamma: Smaller = 0.1",
        lambda s, n: s.base_lr * s.gamma ** (n // s.step_size),
    ),
    "MultiStepDecay": (
        "learning_rate: float, milestones: Rising, gamma: Smaller = 0.1",
        lambda s, n: s.base_lr * s.gamma ** sum(n >= milestone for milestone in s.milestones),
    ),
    "LambdaDecay": (
        "learning_rate: float, lr_lambda: Function",
        lambda s, n: s.base_lr * s.lr_lambda(n),
    ),
    "MultiplicativeDecay": (
        "learning_rate: float, lr_lambda: Function",
        lambda s, n: s.base_lr * math.prod(s.lr_lambda(k) for k in range(1, n + 1)),
    ),
    "CosineAnnealingDecay": (
        "learning_rate: float, T_max: Count, eta_min: float = 0",
        lambda s, n: (
            s.eta_min + (s.base_lr - s.eta_min) * (1 + math.cos(math.pi * n / s.T_max)) / 2
        ),
    ),
    "CosineAnnealingWarmRestarts": (
        "learning_rate: float, T_0: Count, T_mult: Count = 1, eta_min: float = 0",
        lambda s, n: (
            s.eta_min + (s.base_lr - s.eta_min) * (1 + math.cos(math.pi * _of_restart(s, n))) / 2
        ),
    ),
    "LinearLR": (
        (
            "learning_rate: float, total_steps: Count, start_factor: Share = 0.3333333333333333, "
            "end_factor: Probability = 1.0"
        ),
        lambda s, n: (
            s.base_lr
            * (
                s.start_factor
                + (s.end_factor - s.start_factor) * min(n, s.total_steps) / s.total_steps
            )
        ),
    ),
}


def _polynomial(s: Any, n: int) -> float:
    steps = s.decay_steps
    if s.cycle:
        steps *= math.ceil(n / steps) if n else 1
    else:
        n = min(n, steps)
    return (s.base_lr - s.end_lr) * (1 - n / steps) ** s.power + s.end_lr


def _of_restart(s: Any, n: int) -> float:
    """Return which part of the time between two restarts has passed."""
    length = s.T_0
    while n >= length:
        n -= length
        length *= s.T_mult
    return n / length


def _scheduler(name: str, parameters: str, formula: Callable[[Any, int], float]) -> type:
    text = f"{parameters}, last_epoch: int = -1, verbose: bool = False"
    signature, kinds = declare.parsed_parameters(text, named=False)
    where = f"paddle.optimizer.lr.{name}"

    def init(self: LRScheduler, *args: Any, **kwargs: Any) -> None:
        given = declare.bound(where, signature, args, kwargs)
        for key, value in given.items():
            checked = _KINDS[kinds[key]](f"{where}: {key}", value) if key in kinds else value
            if key not in ("learning_rate", "last_epoch", "verbose"):
                setattr(self, key, checked)
        LRScheduler.__init__(self, given["learning_rate"], given["last_epoch"], given["verbose"])

    body = {
        "__init__": init,
        "__doc__": f"{name}({parameters}); see docs/paddle2.md.",
        "__module__": "paddle.optimizer.lr",
        "__signature__": signature,
        "get_lr": lambda self: formula(self, self.last_epoch),
    }
    return type(name, (LRScheduler,), body)


globals().update({name: _scheduler(name, *facts) for name, facts in _FORMULAS.items()})


class PiecewiseDecay(LRScheduler):
    """``values[k]`` before ``boundaries[k]``, the last value after them."""

    def __init__(
        self,
        boundaries: Sequence[float],
        values: Sequence[float],
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        where = f"{_MODULE}.PiecewiseDecay"
        boundaries = _rising(f"{where}: boundaries", boundaries)
        if not isinstance(values, (list, tuple)):
            raise declare.refusal(f"{where}: values", "a list of numbers", values)
        self.values = [_KINDS["float"](f"{where}: values", value) for value in values]
        if not boundaries or len(values) <= len(boundaries):
            raise GraphError(
                f"paddle.optimizer.lr.PiecewiseDecay: expected one value more than boundaries, got "
                f"{len(boundaries)} boundaries and {len(values)} values"
            )
        self.boundaries = boundaries
        super().__init__(self.values[0], last_epoch, verbose)

    def get_lr(self) -> float:
        """Return the value of the part that ``last_epoch`` is in."""
        return self.values[sum(self.last_epoch >= bound for bound in self.boundaries)]


class LinearWarmup(LRScheduler):
    """Go from ``start_lr`` to ``end_lr`` in ``warmup_steps``; then follow ``learning_rate``."""

    def __init__(
        self,
        learning_rate: float | LRScheduler,
        warmup_steps: float,
        start_lr: float,
        end_lr: float,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        if not isinstance(learning_rate, (int, float, LRScheduler)):
            raise GraphTypeError(
                f"paddle.optimizer.lr.LinearWarmup: learning_rate: expected a number or a "
                f"scheduler, got {learning_rate!r}"
            )
        if warmup_steps <= 0 or end_lr <= start_lr:
            raise GraphError(
                f"paddle.optimizer.lr.LinearWarmup: expected warmup_steps above 0 and end_lr above "
                f"start_lr, got {warmup_steps}, {end_lr} and {start_lr}"
            )
        self.learning_rate, self.warmup_steps = learning_rate, warmup_steps
        self.start_lr, self.end_lr = start_lr, end_lr
        super().__init__(start_lr, last_epoch, verbose)

    def get_lr(self) -> float:
        """Return the rate of ``last_epoch``."""
        done = self.last_epoch / self.warmup_steps
        if done < 1:
            return (self.end_lr - self.start_lr) * done + self.start_lr
        if isinstance(self.learning_rate, LRScheduler):
            self.learning_rate.step(self.last_epoch - self.warmup_steps)
            return self.learning_rate()
        return float(self.learning_rate)


class ReduceOnPlateau(LRScheduler):
    """Multiply by ``factor`` when ``step(metric)`` has been no better for ``patience`` times."""

    def __init__(
        self,
        learning_rate: float,
        mode: Literal["min", "max"] = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: Literal["rel", "abs"] = "rel",
        cooldown: int = 0,
        min_lr: float = 0,
        epsilon: float = 1e-8,
        verbose: bool = False,
    ) -> None:
        if factor >= 1.0:
            raise GraphError(f"{_MODULE}.ReduceOnPlateau: factor: expected below 1, got {factor}")
        self.mode, self.factor, self.patience = mode, factor, patience
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.cooldown, self.min_lr, self.epsilon = cooldown, min_lr, epsilon
        self.cooldown_counter = self.num_bad_epochs = 0
        self.best: float | None = None
        self.base_lr = self.last_lr = float(learning_rate)
        self.last_epoch, self.verbose = 0, verbose

    def state_keys(self) -> Sequence[str]:
        """Return the attributes that `state_dict` has."""
        return ("cooldown_counter", "best", "num_bad_epochs", "last_epoch", "last_lr")

    def step(  # type: ignore[override]
        self, metrics: Any = None, epoch: int | None = None
    ) -> None:
        """Note a metric: a number, or an array of one."""
        if metrics is None:
            raise GraphTypeError("ReduceOnPlateau.step needs the metric that it watches")
        try:
            value = float(metrics)
        except (TypeError, ValueError) as error:
            raise declare.refusal("ReduceOnPlateau.step: metrics", "a number", metrics) from error
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            return
        if self.best is None or self._is_better(value, self.best):
            self.best, self.num_bad_epochs = value, 0
            return
        self.num_bad_epochs += 1
        if self.num_bad_epochs > self.patience:
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
            rate = max(self.last_lr * self.factor, self.min_lr)
            if self.last_lr - rate > self.epsilon:
                self.last_lr = rate
                self._tell()

    def _is_better(self, value: float, best: float) -> bool:
        margin = best * self.threshold if self.threshold_mode == "rel" else self.threshold
        return value < best - margin if self.mode == "min" else value > best + margin


declare.check_constructors(_MODULE, globals())
_ELSEWHERE = {one.__name__ for one in (CyclicLR, LRScheduler, OneCycleLR)}
__all__ = sorted({*_FORMULAS, *_ELSEWHERE, *public(globals())})
