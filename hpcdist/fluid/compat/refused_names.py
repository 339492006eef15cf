"""Prints the refused names of Fluid 1.8.5: ``python -m hpcdist.fluid.compat.refused_names``."""

from __future__ import annotations

import importlib

from hpcdist.base.errors import MissingModuleError
from hpcdist.fluid.compat import aspaddle, fluid_names
from hpcdist.fluid.compat.importable import OnlyImported


def refused() -> dict[str, tuple[int, list[str]]]:
    """Return for each module of Fluid's how many public names it defines, and which are refused."""
    refused_by_module = {}
    for module, entries in sorted(fluid_names.table().items()):
        names = [name for name, home in entries.items() if home is None and name[0] != "_"]
        try:
            namespace = importlib.import_module(module)
        except MissingModuleError:
            namespace = None
        refused_by_module[module] = (
            len(names),
            sorted(name for name in names if _is_refused(namespace, name)),
        )
    return refused_by_module


def _is_refused(namespace: object, name: str) -> bool:
    return not hasattr(namespace, name) or isinstance(getattr(namespace, name), OnlyImported)


if __name__ == "__main__":
    aspaddle.install()
    for module, (count, names) in refused().items():
        print(f"{module}: {count - len(names)} of {count}; refused: {names}")
