"""The common part of the optimizers of tables and of parameters on servers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from hpcdist.base.errors import TableError
from hpcdist.ps.facts import OptimizerFacts, TrainingMode
from hpcdist.torch.tables import Tables

NUMBERS = ("betas", "eps", "momentum", "weight_decay")  # that scripts schedule, beside the rate


class KeptOptimizer(torch.optim.Optimizer):
    """One of the optimizers whose steps together are a step of the job; see `Tables.step`.

    ``param_groups[0]["lr"]`` is the learning rate. With servers trainer 0's counts alone.
    """

    # So torch.amp.GradScaler leaves what it found in `found_inf`, and `step` can refuse it.
    _step_supports_amp_scaling = True

    def __init__(
        self, tables: Tables, number: int, parameters: Iterable[nn.Parameter], lr: float
    ) -> None:
        super().__init__(parameters, {"lr": lr})
        self.tables = tables
        tables.use(self)
        self._number = number
        self._rate_only = True  # not where groups are those of an optimizer of torch's

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take the first group, which `__init__` gives. TableError for others."""
        if self.param_groups:
            raise TableError(
                f"{type(self).__name__}.add_param_group: what is kept elsewhere is settled when "
                "the optimizer is made, and has one group; give it all then, or use an optimizer "
                "of torch's for the rest"
            )
        super().add_param_group(param_group)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move what is kept elsewhere by the gradients that have come since the last step.

        Collective: every trainer calls this in every step, also one that has no gradients. Of
        several optimizers the last to step moves all; what comes after an optimizer's own step
        is for its next one. TableError if a GradScaler calls it, and for
        a number in ``param_groups`` that torch's optimizers would take up, beside the rate.
        """
        self._refuse_scaler()
        given = [name for name in NUMBERS if name in self.param_groups[0]]
        if self._rate_only and given:
            raise TableError(
                f"{type(self).__name__}.param_groups has {given[0]!r}, and only the learning rate "
                "can change: give other numbers when the optimizer is made"
            )
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.tables.rates[self._number] = float(self.param_groups[0]["lr"])
        self.tables.step(self._number)
        return loss

    def _refuse_scaler(self) -> None:
        if self.__dict__.pop("found_inf", None) is not None:
            raise TableError(
                f"GradScaler.step({type(self).__name__}): it unscales no gradients of rows, and "
                "would skip steps on single trainers, while all must step; use bfloat16 "
                "(torch.autocast), which needs no GradScaler"
            )


def check(facts: OptimizerFacts, lr: object, mode: TrainingMode, modes: Sequence[str]) -> None:
    """Refuse an optimizer that cannot be. TableError, or PlanError."""
    if not (isinstance(lr, (int, float)) and math.isfinite(lr) and lr >= 0):
        raise TableError(f"lr: expected a number that is not negative, got {lr!r}")
    mode.check(modes)
    facts.check()
