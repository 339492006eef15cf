"""Names of a package whose modules are imported when a name is first used (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from hpcdist.base.nearest import did_you_mean


def lazy_names(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package: ``modules`` has each name's module.

    A module's name is absolute, or begins with a dot for a module of the package. The value becomes
    an attribute, so that a name is looked up once. A name that is not there is an AttributeError,
    with the nearest one.

    Examples:
        >>> find, names = lazy_names("hpcdist.serving", {"Lookup": ".lookup"})
        >>> find("Lookup").__name__
        'Lookup'
    """

    def find(name: str) -> Any:
        if name not in modules:
            near = "" if name.startswith("_") else did_you_mean(name, modules)
            raise AttributeError(f"module {package!r} has no attribute {name!r}{near}")
        value = getattr(importlib.import_module(modules[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return find, names
