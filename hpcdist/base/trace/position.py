"""The current step, operator and variable of this process, for error messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Position:
    """The step of the training program that runs, and what it is doing or waiting for."""

    step: int = 0
    script_step: int = 0  # of a PyTorch script, whose steps are its optimizer's
    doing: str = ""
    after_first_step: list[Callable[[], None]] = field(default_factory=list)  # called once

    def first_step_done(self) -> None:
        """Call what waits for the first step."""
        calls, self.after_first_step = self.after_first_step, []
        for call in calls:
            call()

    def __str__(self) -> str:
        return f"step {self.step or self.script_step}" + (f", {self.doing}" if self.doing else "")


here = Position()
