"""``--as-paddle``: a script that says ``import paddle.fluid`` finds hpcdist under that name."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from hpcdist.base import settings
from hpcdist.base.errors import LaunchError, MissingModuleError, MissingNameError
from hpcdist.fluid.compat import fluid_names, modules, paddle2, version
from hpcdist.fluid.compat.fluid_names import FLUID, ROOT
from hpcdist.fluid.io import selection

PADDLE2 = "hpcdist.fluid.compat.paddle2"
DATASET = "paddle.dataset"
DATASETS = "hpcdist.fluid.compat.datasets"
CHILDREN = str(Path(__file__).with_name("paddle_path"))  # for pipe commands of Datasets

# Modules that are called otherwise here; an empty string is a package with nothing in it.
ELSEWHERE = {
    "paddle.compat": "hpcdist.fluid.compat.python_versions",
    "paddle.reader.decorator": "hpcdist.data.reader",
    "paddle.metric": "hpcdist.fluid.layers.metric",
    "paddle.version": "hpcdist.fluid.compat.version",
    "paddle.dataset": "hpcdist.fluid.dataset",
    **{
        f"{DATASET}.{name}": f"{DATASETS}.{name}"
        for name in (
            "cifar",
            "common",
            "conll05",
            "imdb",
            "imikolov",
            "mnist",
            "movielens",
            "uci_housing",
            "wmt14",
            "wmt16",
        )
    },
    "paddle.nn": PADDLE2 + ".nn",
    "paddle.nn.functional": PADDLE2 + ".nn.functional",
    "paddle.optimizer": PADDLE2 + ".optimizer",
    "paddle.static": PADDLE2 + ".static",
    "paddle.static.nn": PADDLE2 + ".static.nn",
    "paddle.distributed": PADDLE2 + ".distributed",
    "paddle.distributed.fleet": "hpcdist.fluid.fleet",
    "paddle.distributed.fleet.base": "",
    "paddle.distributed.fleet.base.role_maker": "hpcdist.fluid.fleet.role_maker",
}


class _Package(ModuleType):
    """A package of paddle: it has its modules as attributes, and what ``sources`` have."""

    def __init__(self, name: str, *sources: ModuleType) -> None:
        super().__init__(name, "What hpcdist has under a name of paddle.")
        self.__path__: list[str] = []
        self._sources = sources

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        if full in ELSEWHERE or full == FLUID:
            return importlib.import_module(full)
        for source in self._sources:
            if hasattr(source, name):
                return getattr(source, name)
        raise MissingNameError(fluid_names.told(self.__name__, name, dir(self._sources[-1])))


class _Finder(MetaPathFinder, Loader):
    """Finds ``paddle.fluid.x`` and ``paddle.x`` as the module ``hpcdist.x`` itself, not a copy."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == ROOT:
            return ModuleSpec(ROOT, self, is_package=True)
        if not fullname.startswith(ROOT + "."):
            return None
        alias = _alias(fullname)
        module = _module(alias) if alias else _Package(fullname)
        if module is not None and (alias.startswith(PADDLE2) or fullname == DATASET):
            module = _Package(fullname, module)
        elif module is not None and fullname in ELSEWHERE:
            modules.guard(module, "hpcdist" + fullname.removeprefix(ROOT))
        if module is None:
            above, _, name = fullname.rpartition(".")
            raise MissingModuleError(fluid_names.told(above, name, ()))
        state = (module, module.__spec__)
        is_package = hasattr(module, "__path__")
        return ModuleSpec(fullname, self, loader_state=state, is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        if spec.name != ROOT:
            return spec.loader_state[0]
        paddle = _Package(ROOT, paddle2, sys.modules["hpcdist"])
        vars(paddle)["__version__"] = version.full_version
        return paddle

    def exec_module(self, module: ModuleType) -> None:
        # The import system has put the alias's spec on the module; give back its own.
        spec = module.__spec__
        if spec is not None and spec.loader_state is not None:
            module.__spec__ = spec.loader_state[1]


class _Teller(MetaPathFinder):
    """Tells a script that imports paddle, though it was started without ``--as-paddle``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != ROOT:
            return None
        advice = "python -m hpcdist --as-paddle ... lets the script find hpcdist as paddle"
        if PathFinder.find_spec(ROOT) is None:
            raise MissingModuleError(f"the script imports paddle, which is not installed: {advice}")
        warnings.warn(
            f"the script imports the paddle that is installed, not hpcdist, so that every rank "
            f"trains alone: {advice}",
            stacklevel=2,
        )
        return None


def tell() -> None:
    """From now on, tell a script that imports paddle of ``--as-paddle``."""
    sys.meta_path.insert(0, _Teller())


def install() -> None:
    """Make ``import paddle`` mean hpcdist, from now on in this process and those it starts."""
    if ROOT in sys.modules:
        raise LaunchError("--as-paddle: the real paddle is already imported in this process")
    sys.meta_path.insert(0, _Finder())
    # Found by the finder, a module would take the place of the function that has its name.
    for name in modules.CALLED:
        sys.modules[FLUID + name.removeprefix(modules.HERE)] = sys.modules[name]
    settings.put_on_childrens_path(CHILDREN, True)
    selection.save_as("fluid")  # scripts look for the file of a variable before they load it


def uninstall() -> None:
    """Undo ``install`` and forget the modules imported under paddle's name."""
    sys.meta_path[:] = [
        finder for finder in sys.meta_path if not isinstance(finder, (_Finder, _Teller))
    ]
    settings.put_on_childrens_path(CHILDREN, False)
    selection.save_as("hdf5")
    for name in [n for n in sys.modules if n == ROOT or n.startswith(ROOT + ".")]:
        del sys.modules[name]


def _alias(fullname: str) -> str:
    if fullname in ELSEWHERE:
        return ELSEWHERE[fullname]
    if fullname == FLUID or fullname.startswith(FLUID + "."):
        return "hpcdist" + fullname.removeprefix(FLUID)
    return "hpcdist" + fullname.removeprefix(ROOT)


def _module(name: str) -> ModuleType | None:
    """Import a module of hpcdist, or find one that a module holds under another name."""
    try:
        return importlib.import_module(name)
    except MissingModuleError:
        return None
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there, but not what it imports
    parent, _, last = name.rpartition(".")
    value = getattr(sys.modules.get(parent), last, None)
    return value if isinstance(value, ModuleType) else None
