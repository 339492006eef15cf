"""Parameter servers: packets, the server's state machine, client and server.

As a library, for numpy scripts: `connect` returns a `Table` with ``pull`` and ``push``; `rank`,
`size` and `mean` divide the work. These names import what is above this package when first used.
"""

from __future__ import annotations

import importlib
from typing import Any

from hpcdist.base.nearest import did_you_mean

_LIBRARY = {
    **dict.fromkeys(("Push", "Table", "connect", "mean", "rank", "size"), "fluid.declared.tables"),
    "Initial": "ps.facts",
    **dict.fromkeys(("ClickScore", "RowPolicy"), "ps.row_policy"),
}
__all__ = sorted(_LIBRARY)


def __getattr__(name: str) -> Any:
    module = _LIBRARY.get(name)
    if module is None:
        near = "" if name.startswith("__") else did_you_mean(name, _LIBRARY)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{near}")
    value = getattr(importlib.import_module(f"hpcdist.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LIBRARY})
