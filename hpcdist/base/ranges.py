"""Which numbers and words a value may be, declared in the words of the error.

{"max_norm": "above 0", "groups": "at least 1", "ratio": "[0, 0.5]", "beta": "[0, 1)"}
{"rate": "a finite number", "mode": "min or max"}
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

_LIMITS = {"above ": operator.gt, "at least ": operator.ge}


@functools.cache
def _test(text: str) -> Callable[[Any], bool]:
    for words, compare in _LIMITS.items():
        if text.startswith(words):
            limit = float(text.removeprefix(words))
            return lambda value: compare(value, limit) and math.isfinite(value)
    if text.startswith("["):
        least, most = map(float, text[1:-1].split(","))
        below = operator.lt if text.endswith(")") else operator.le
        return lambda value: least <= value and below(value, most)
    if text == "a finite number":
        return math.isfinite
    allowed = text.split(" or ")
    return lambda value: str(value) in allowed


def is_within(text: str, value: Any) -> bool:
    """Return whether a value, or every one of a list, is what the text says; nan is in no range.

    None stands for what is not known yet.
    """
    if isinstance(value, (list, tuple)):
        return all(is_within(text, one) for one in value)
    return value is None or _test(text)(value)
