"""Published tables: versions that training writes, looked up in any process without a job.

`Lookup` maps the newest complete version of a directory; `compact` makes a chain of increments one
base. Neither imports MPI.
"""

from __future__ import annotations

import importlib
from typing import Any

_NAMES = {"Lookup": "lookup", "Version": "version", "compact": "compaction"}
__all__ = sorted(_NAMES)


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
