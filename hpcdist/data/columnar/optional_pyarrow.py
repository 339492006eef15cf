"""pyarrow is optional: modules that need it are imported with the first file."""

from __future__ import annotations

import importlib
from typing import Any

from hpcdist.base.errors import DataError
from hpcdist.base.extras import install_command


def needing_pyarrow(module: str, feature: str) -> Any:
    """Return a module of this package; DataError that says what needs pyarrow if it is missing."""
    try:
        return importlib.import_module(f"hpcdist.data.columnar.{module}")
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise DataError(
            f"{feature} needs pyarrow, which is not installed: {install_command('data')}"
        ) from None
