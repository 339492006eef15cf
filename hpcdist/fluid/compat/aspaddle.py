"""``--as-paddle``: a script that says ``import paddle.fluid`` finds hpcdist under that name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from hpcdist.base import settings
from hpcdist.base.errors import LaunchError, MissingModuleError, MissingNameError
from hpcdist.fluid.compat import fluid_names, modules, old_names, paddle2_names, version
from hpcdist.fluid.compat.advice import Teller
from hpcdist.fluid.compat.fluid_names import FLUID, ROOT

PADDLE2 = "hpcdist.fluid.compat.paddle2"
BASE = "paddle.base"
_HELPERS = (
    "composed", "creation", "data", "declare", "einstein", "methods", "objects", "reductions",
    "scalars", "sparse_table", "values",
)  # fmt: skip
DATASET = "paddle.dataset"
DATASETS = "hpcdist.fluid.compat.datasets"
CHILDREN = str(Path(__file__).with_name("paddle_path"))  # for pipe commands of Datasets

# Modules that are called otherwise here; an empty string is a package with nothing in it.
ELSEWHERE = {
    "paddle.compat": "hpcdist.fluid.compat.python_versions",
    "paddle.reader.decorator": "hpcdist.data.reader",
    "paddle.version": "hpcdist.fluid.compat.version",
    "paddle._legacy_C_ops": PADDLE2 + "._C_ops",
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
    "paddle.distributed.fleet": "hpcdist.fluid.fleet",
    "paddle.distributed.entry_attr": PADDLE2 + ".entry_attr",
    "paddle.utils.plot": "hpcdist.fluid.compat.plot",
    "paddle.tensor.random": PADDLE2 + ".tensor",
    **{
        f"paddle.distributed.fleet.{name}": module
        for name, module in {
            "base": "",
            "base.distributed_strategy": "hpcdist.fluid.fleet.strategy_v2",
            "base.role_maker": "hpcdist.fluid.fleet.role_maker",
            "base.util_factory": "hpcdist.fluid.fleet.job_util",
            "data_generator": "hpcdist.fluid.multi_slot.data_generator",
            "data_generator.data_generator": "hpcdist.fluid.multi_slot.data_generator",
            "dataset": "hpcdist.fluid.multi_slot.datasets",
            "dataset.dataset": "hpcdist.fluid.multi_slot.datasets",
            "metrics": "hpcdist.fluid.fleet.metrics",
            "metrics.metric": "hpcdist.fluid.fleet.metrics",
            "utils": "hpcdist.fluid.fleet.file_systems",
            "utils.fs": "hpcdist.fluid.fleet.file_systems",
        }.items()
    },
    "paddle.incubate.distributed": "",
    "paddle.incubate.distributed.fleet": "",
    "paddle.incubate.distributed.fleet.fleet_util": "hpcdist.fluid.fleet.fleet_util",
}

_undone: list[Callable[[], None]] = []  # what takes back what `install` has changed


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
        if full in ELSEWHERE or full in (FLUID, BASE) or _of_paddle2(full) or _leads_on(full):
            return importlib.import_module(full)
        for source in self._sources:
            if hasattr(source, name):
                return getattr(source, name)
        raise MissingNameError(_refusal(self.__name__, name, dir(self)))

    def __dir__(self) -> list[str]:
        own = vars(self).get("_sources", ())
        return sorted({name for source in own for name in getattr(source, "__all__", ())})


class _PaddleFinder(MetaPathFinder, Loader):
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
        if module is None and _leads_on(fullname):
            module = _Package(fullname)
        if module is not None and (alias.startswith(PADDLE2) or fullname == DATASET):
            module = _Package(fullname, module)
        elif module is not None and fullname in ELSEWHERE:
            modules.guard(module, "hpcdist" + fullname.removeprefix(ROOT))
        if module is None:
            above, _, name = fullname.rpartition(".")
            raise MissingModuleError(_refusal(above, name, ()))
        state = (module, module.__spec__)
        is_package = hasattr(module, "__path__")
        return ModuleSpec(fullname, self, loader_state=state, is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        if spec.name != ROOT:
            return spec.loader_state[0]
        paddle = _Package(ROOT, importlib.import_module(PADDLE2), sys.modules["hpcdist"])
        vars(paddle)["__version__"] = version.full_version
        return paddle

    def exec_module(self, module: ModuleType) -> None:
        # The import system has put the alias's spec on the module; give back its own.
        spec = module.__spec__
        if spec is not None and spec.loader_state is not None:
            module.__spec__ = spec.loader_state[1]


def install() -> None:
    """Make ``import paddle`` mean hpcdist, from now on in this process and those it starts."""
    if ROOT in sys.modules:
        raise LaunchError("--as-paddle: the real paddle is already imported in this process")
    sys.meta_path.insert(0, _PaddleFinder())
    # Found by the finder, a module would take the place of the function that has its name.
    for name in modules.CALLED:
        module = importlib.import_module(modules.ALIASES[name])
        sys.modules[FLUID + name.removeprefix(modules.HERE)] = module
    settings.put_on_childrens_path(CHILDREN, True)
    from hpcdist.fluid.io import selection  # with all layers: other scripts need none

    selection.save_as("fluid")  # scripts look for the file of a variable before they load it
    _undone.append(old_names.install())


def uninstall() -> None:
    """Undo ``install`` and forget the modules imported under paddle's name."""
    sys.meta_path[:] = [
        finder for finder in sys.meta_path if not isinstance(finder, (_PaddleFinder, Teller))
    ]
    settings.put_on_childrens_path(CHILDREN, False)
    from hpcdist.fluid.io import selection

    selection.save_as("hdf5")
    if methods := sys.modules.get(PADDLE2 + ".methods"):
        methods.uninstall()
    while _undone:
        _undone.pop()()
    for name in [n for n in sys.modules if n == ROOT or n.startswith(ROOT + ".")]:
        del sys.modules[name]


def _alias(fullname: str) -> str:
    if fullname in ELSEWHERE:
        return ELSEWHERE[fullname]
    if own := _of_paddle2(fullname):
        return own
    for fluid in (FLUID, BASE):  # Paddle 2.6 calls Fluid its base
        if fullname == fluid or fullname.startswith(fluid + "."):
            return "hpcdist" + fullname.removeprefix(fluid)
    return "hpcdist" + fullname.removeprefix(ROOT)


def _of_paddle2(fullname: str) -> str:
    """Return the module with Paddle 2's names of a module; "" if there is none of this name."""
    below = fullname.removeprefix(ROOT + ".").split(".")
    path = Path(__file__).with_name("paddle2").joinpath(*below)
    if below[0] in _HELPERS or not (path.is_dir() or path.with_suffix(".py").is_file()):
        return ""
    return ".".join([PADDLE2, *below])


def _leads_on(fullname: str) -> bool:
    """Whether a package of Paddle has modules that are here, though it is not itself."""
    below = fullname + "."
    known = (name for name in paddle2_names.table() if name.startswith(below))
    return any(map(_of_paddle2, known)) or any(name.startswith(below) for name in ELSEWHERE)


def _refusal(module: str, name: str, names: Iterable[str]) -> str:
    """Say why a module of paddle has no such name: in Paddle 2's words, or in Fluid's."""
    of_fluid = fluid_names.is_known(module, name) and not paddle2_names.is_known(module, name)
    if of_fluid or module == FLUID or module.startswith(FLUID + "."):
        return fluid_names.describe_missing(module, name, names)
    return paddle2_names.describe_missing(module, name, names)


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
