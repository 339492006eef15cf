"""``paddle.utils``: versions and names."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

from hpcdist.base.errors import LaunchError
from hpcdist.fluid.compat.install_check import run_check
from hpcdist.fluid.compat.plot import Ploter
from hpcdist.graph import names as unique_name

__all__ = ["Ploter", "deprecated", "require_version", "run_check", "try_import", "unique_name"]

F = TypeVar("F", bound=Callable[..., Any])
VERSION = (2, 6, 2)


def require_version(min_version: str, max_version: str | None = None) -> None:
    """Refuse a script that asks for other versions than 2.6.2: LaunchError."""
    low = _parts("min_version", min_version)
    high = None if max_version is None else _parts("max_version", max_version)
    if low > VERSION or (high is not None and high < VERSION):
        to = f" to {max_version}" if max_version else " or higher"
        raise LaunchError(
            f"the script requires Paddle {min_version}{to}; hpcdist has the names of 2.6.2"
        )


def _parts(what: str, version: str) -> tuple[int, ...]:
    if not isinstance(version, str) or not all(part.isdigit() for part in version.split(".")):
        raise LaunchError(f"require_version: {what}: expected one like '2.0.0', got {version!r}")
    return tuple(int(part) for part in version.split("."))[:3]


def try_import(module_name: str, err_msg: str | None = None) -> ModuleType:
    """Import a module; ImportError says how to install it."""
    try:
        return importlib.import_module(module_name)
    except ImportError as error:
        advice = err_msg or f"{module_name} is not installed: pip install {module_name}"
        raise ImportError(advice) from error


def deprecated(
    update_to: str = "", since: str = "", reason: str = "", level: int = 0
) -> Callable[[F], F]:
    """Return a decorator that changes nothing."""
    return lambda function: function
