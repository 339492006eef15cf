"""Warnings that name the user's line, however deep in the package they come from."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from pathlib import Path

from hpcdist.base import settings

# The standard library's own frames stand between those of decorated functions.
OURS = (f"{Path(__file__).parents[1]}/", contextlib.__file__, functools.__file__)
BETWEEN = ("torch.optim", "torch.nn")  # whose methods call ours


def tells_for_all() -> bool:
    """Return whether this process tells what is the same on all ranks: trainer 0, or one alone."""
    return settings.TRAINER_ID.read() == 0 and settings.PADDLE_ROLE.read() != "PSERVER"


def warn(text: str) -> None:
    """Warn, as `warnings.warn` does, of the line outside this package that has led here."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(OURS)
        or frame.f_globals.get("__name__", "").startswith(BETWEEN)
    ):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)
