"""What to use instead of names that hpcdist does not have, of Fluid's and of Paddle 2's."""

from __future__ import annotations

import functools
import re

from hpcdist.base import text_tables

FLUID = "Fluid 1.8.5"
PADDLE = "Paddle 2.6.2"


@functools.cache
def _hints(product: str) -> list[tuple[re.Pattern[str], str]]:
    hint, found = "", []
    for line in text_tables.sections(__package__, "instead.txt")[product]:
        if line[0] == " ":
            found.append((re.compile(line.strip()), hint))
        else:
            hint = line
    return found


def instead(product: str, name: str) -> str | None:
    """Return the advice for a name of `FLUID` or `PADDLE` that is missing; None: there is none."""
    return next((hint for names, hint in _hints(product) if names.match(name)), None)
