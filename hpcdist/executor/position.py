"""Where this process is: kept so that every error can say step, operator and variable."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Position:
    """The step of the training program that runs, and what it is doing or waiting for."""

    step: int = 0
    doing: str = ""

    def __str__(self) -> str:
        return f"step {self.step}" + (f", {self.doing}" if self.doing else "")


here = Position()
