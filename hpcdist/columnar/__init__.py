"""Columnar files as batches: `hpcdist.data.read`."""

from __future__ import annotations

from typing import Any

from hpcdist.errors import DataError

__all__ = ["read"]


def read(*args: Any, **kwargs: Any) -> Any:
    """Read columnar files in batches; arguments and result are `hpcdist.columnar.rows.read`'s."""
    try:
        from hpcdist.columnar import rows  # pyarrow is an extra
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise DataError(
            "data.read needs pyarrow, which is not installed: pip install hpcdist[data]"
        ) from None
    return rows.read(*args, **kwargs)
