"""All operators: importing this module enters each of them into the table.

They stand in the modules beside this one and in the folders. Modules for one kind of kernel
(``*_kernels``, ``*_cpu``, ``*_device``) and forms for torch are imported when they are first used.
"""

import importlib
import pkgutil
from types import ModuleType

from hpcdist import ops

_LATER = ("_kernels", "_cpu", "_device", ".torch_forms", ".families")


def _import_all(package: ModuleType) -> None:
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if not found.name.endswith(_LATER):
            module = importlib.import_module(found.name)
            if found.ispkg:
                _import_all(module)


_import_all(ops)
