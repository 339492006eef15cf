"""What a module offers scripts: it defines or imports that, and lists it nowhere else."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import ModuleType
from typing import Any


def public(namespace: Mapping[str, Any], declared: Collection[str] = ()) -> list[str]:
    """Return the names of a module's own functions and classes, for ``__all__`` at its end.

    namespace: its ``globals()``; declared: further names. What begins with ``_`` is not public.
    """
    own = {
        name
        for name, value in namespace.items()
        if not name.startswith("_") and getattr(value, "__module__", None) == namespace["__name__"]
    }
    return sorted({*own, *declared})


def imported(namespace: Mapping[str, Any], modules: Collection[str] = ()) -> list[str]:
    """Return all that a module imports and may be had from it, for its ``__all__`` at its end.

    modules: which of the modules among that; names with ``_`` are not offered.
    """
    return sorted(
        name
        for name, value in namespace.items()
        if name[0] != "_" and (name in modules or not isinstance(value, ModuleType))
    )
