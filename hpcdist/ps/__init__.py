"""Parameter servers: packets, the server's state machine, client and server.

As a library, for numpy scripts: `connect` returns a `Table` with ``pull`` and ``push``; `rank`,
`size` and `mean` divide the work. These names import what is above this package when first used.
"""

from __future__ import annotations

from hpcdist.base.lazy import lazy_names

_TABLES = "hpcdist.fluid.declared.tables"
_LIBRARY = {
    **dict.fromkeys(("Push", "Table", "connect", "mean", "rank", "size"), _TABLES),
    "Initial": ".facts",
    **dict.fromkeys(("ClickScore", "RowPolicy"), ".row_policy"),
}
__getattr__, __dir__ = lazy_names(__name__, _LIBRARY)
__all__ = sorted(_LIBRARY)
