"""Published tables: versions that training writes, looked up in any process without a job.

`Lookup` maps the newest complete version of a directory; `compact` makes a chain of increments one
base. Neither imports MPI.
"""

from __future__ import annotations

from hpcdist.base.lazy import lazy_names

_NAMES = {"Lookup": ".lookup", "Version": ".version", "compact": ".compaction"}
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
__all__ = sorted(_NAMES)
