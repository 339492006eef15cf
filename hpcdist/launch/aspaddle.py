"""``--as-paddle``: a script that says ``import paddle.fluid`` finds hpcdist under that name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import ClassVar

import hpcdist
from hpcdist.errors import LaunchError

ROOT = "paddle"
FLUID = "paddle.fluid"


class _Paddle(ModuleType):
    """The module ``paddle``: its attributes are hpcdist's."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return getattr(hpcdist, name)
        except AttributeError:
            raise AttributeError(
                f"the script uses paddle.{name}, which hpcdist does not have"
            ) from None


class _Finder(MetaPathFinder, Loader):
    """Finds ``paddle.fluid.x`` and ``paddle.x`` as the module ``hpcdist.x`` itself, not a copy."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != ROOT and not fullname.startswith(ROOT + "."):
            return None
        if fullname != ROOT and not _exists(_alias(fullname)):
            raise ModuleNotFoundError(
                f"the script imports {fullname}, which hpcdist does not have", name=fullname
            )
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        if spec.name == ROOT:
            return _Paddle(ROOT)
        module = importlib.import_module(_alias(spec.name))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has put the alias's spec on the module, which is still itself.
        if module.__spec__ is not None and module.__spec__.loader_state is not None:
            module.__spec__ = module.__spec__.loader_state


def install() -> None:
    """Make ``import paddle`` mean hpcdist, from now on in this process."""
    if ROOT in sys.modules:
        raise LaunchError("--as-paddle: the real paddle is already imported in this process")
    sys.meta_path.insert(0, _Finder())


def uninstall() -> None:
    """Undo ``install`` and forget the modules imported under paddle's name."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    for name in [n for n in sys.modules if n == ROOT or n.startswith(ROOT + ".")]:
        del sys.modules[name]


def _alias(fullname: str) -> str:
    if fullname == FLUID or fullname.startswith(FLUID + "."):
        return "hpcdist" + fullname.removeprefix(FLUID)
    return "hpcdist" + fullname.removeprefix(ROOT)


def _exists(name: str) -> bool:
    try:
        return name in sys.modules or find_spec(name) is not None
    except ModuleNotFoundError:
        return False
