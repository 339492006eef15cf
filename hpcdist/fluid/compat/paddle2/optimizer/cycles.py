"""Learning rates that go up and down: once, or again and again."""

from __future__ import annotations

import math
from collections.abc import Callable

from hpcdist.base.errors import GraphError
from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.fluid.compat.paddle2.optimizer.scheduler import LRScheduler

_KINDS = declare.KINDS


class CyclicLR(LRScheduler):
    """Go up to ``max_learning_rate`` and down again, again and again.

    ``scale_fn`` multiplies the height, of the cycle's number or of ``last_epoch`` (``scale_mode``
    "iterations"); else ``mode`` says it: triangular: 1; triangular2: half of the last cycle's;
    exp_range: ``exp_gamma`` to the power of ``last_epoch``.
    """

    def __init__(
        self,
        base_learning_rate: float,
        max_learning_rate: float,
        step_size_up: int,
        step_size_down: int | None = None,
        mode: str = "triangular",
        exp_gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        where = "paddle.optimizer.lr.CyclicLR"
        scales: dict[str, tuple[Callable[[float], float], str]] = {
            "triangular": (lambda _: 1.0, "cycle"),
            "triangular2": (lambda cycle: 0.5 ** (cycle - 1), "cycle"),
            "exp_range": (lambda n: exp_gamma**n, "iterations"),
        }
        if (scale_fn is None and mode not in scales) or scale_mode not in ("cycle", "iterations"):
            raise GraphError(
                f"{where}: expected one of {[*scales]} and scale_mode 'cycle' or 'iterations', got "
                f"{mode!r} and {scale_mode!r}"
            )
        self.up = _KINDS["int"](f"{where}: step_size_up", step_size_up)
        self.down = self.up
        if step_size_down is not None:
            self.down = _KINDS["int"](f"{where}: step_size_down", step_size_down)
        if min(self.up, self.down) < 1:
            raise GraphError(
                f"{where}: expected steps up and down from 1 on, got {self.up} and {self.down}"
            )
        self.max_lr = _KINDS["float"](f"{where}: max_learning_rate", max_learning_rate)
        self.scale = (scale_fn, scale_mode) if scale_fn is not None else scales[mode]
        super().__init__(base_learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        """Return the rate of ``last_epoch``."""
        cycle, place = divmod(self.last_epoch, self.up + self.down)
        left = self.up + self.down - place
        height = place / self.up if place <= self.up else left / self.down
        scale, of = self.scale
        factor = scale(cycle + 1 if of == "cycle" else self.last_epoch)
        return self.base_lr + (self.max_lr - self.base_lr) * height * factor


class OneCycleLR(LRScheduler):
    """Go from ``max_learning_rate / divide_factor`` up to it, in ``phase_pct`` of the steps, and
    down to ``end_learning_rate``; ``three_phase``: by way of where it began."""

    def __init__(
        self,
        max_learning_rate: float,
        total_steps: int,
        divide_factor: float = 25.0,
        end_learning_rate: float = 0.0001,
        phase_pct: float = 0.3,
        anneal_strategy: str = "cos",
        three_phase: bool = False,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        where = "paddle.optimizer.lr.OneCycleLR"
        top = _KINDS["float"](f"{where}: max_learning_rate", max_learning_rate)
        steps = _KINDS["int"](f"{where}: total_steps", total_steps)
        if anneal_strategy not in ("cos", "linear") or steps < 1:
            raise GraphError(
                f"{where}: expected anneal_strategy 'cos' or 'linear' and total_steps from 1 on, "
                f"got {anneal_strategy!r} and {steps}"
            )
        if not 0 <= phase_pct <= (0.5 if three_phase else 1):
            raise GraphError(
                f"{where}: phase_pct: expected a part of the steps that leaves the other phases "
                f"some, got {phase_pct}"
            )
        first, last, begin = phase_pct * steps - 1, steps - 1, top / divide_factor
        self.ends = [0, first, 2 * first, last] if three_phase else [0, first, last]
        between = [begin] if three_phase else []
        self.rates = [begin, top, *between, end_learning_rate]
        self.total_steps, self.anneal_strategy = steps, anneal_strategy
        super().__init__(begin, last_epoch, verbose)

    def get_lr(self) -> float:
        """Return the rate of ``last_epoch``; GraphError behind the last step."""
        n, phases = self.last_epoch, len(self.ends) - 1
        if n > self.total_steps:
            raise GraphError(
                f"paddle.optimizer.lr.OneCycleLR: step {n} of {self.total_steps}: give more "
                "total_steps"
            )
        k = next((k for k in range(phases) if n <= self.ends[k + 1]), phases - 1)
        part = (n - self.ends[k]) / (self.ends[k + 1] - self.ends[k])
        if self.anneal_strategy == "cos":
            part = (1 - math.cos(math.pi * part)) / 2
        return self.rates[k] + (self.rates[k + 1] - self.rates[k]) * part
