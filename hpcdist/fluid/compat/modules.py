"""Fluid's modules under ``hpcdist``, and names that are refused.

``fluid.contrib.memory_usage`` is ``hpcdist.contrib.memory_usage``. A module of Fluid's is the one
of that name here, or one that lies elsewhere (`ALIASES`), or an empty one whose names are resolved
elsewhere (`SOURCES`). A missing name raises one error that says what to use instead.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from hpcdist.base.errors import MissingModuleError, MissingNameError
from hpcdist.fluid.compat import fluid_names
from hpcdist.fluid.compat.fluid_names import FLUID, ROOT

HERE = "hpcdist"
_DOOR = f"{HERE}.fluid"
_COMPAT = f"{_DOOR}.compat"
_LAYERS = f"{HERE}.layers."  # modules of the layers: each has them all
_FLEET = "hpcdist.incubate.fleet"
_BY_TRANSPILER = f"{_FLEET}.parameter_server.distribute_transpiler"

# Public names of modules that lie in other folders, with all that is in them.
MOVED = {
    **{f"{HERE}.{name}": f"{_DOOR}.{name}" for name in (
        "clip",
        "compat",
        "contrib",
        "data_feeder",
        "data_loader",
        "dataset",
        "fleet",
        "initializer",
        "io",
        "layers",
        "metrics",
        "multi_slot",
        "nets",
        "optimizer",
        "regularizer",
    )},
    "hpcdist.backward": "hpcdist.autodiff.backward",
    "hpcdist.columnar": "hpcdist.data.columnar",
    "hpcdist.errors": "hpcdist.base.errors",
    "hpcdist.lod_tensor": "hpcdist.graph.lod_tensor",
    "hpcdist.reader": "hpcdist.data.reader",
    "hpcdist.settings": "hpcdist.base.settings",
}  # fmt: skip
_PUBLIC = {real: name for name, real in MOVED.items()}

# Modules of Fluid's that are another module here.
ALIASES = {
    **{f"{HERE}.{name}": f"{_COMPAT}.{name}" for name in (
        "average",
        "compiler",
        "core",
        "debugger",
        "default_scope_funcs",
        "evaluator",
        "framework",
        "install_check",
        "layer_helper",
        "log_helper",
        "parallel_executor",
        "param_attr",
        "profiler",
    )},
    "hpcdist.contrib.utils": f"{_COMPAT}.hdfs",
    "hpcdist.contrib.utils.hdfs_utils": f"{_COMPAT}.hdfs",
    "hpcdist.contrib.memory_usage_calc": f"{_COMPAT}.program_statistics",
    "hpcdist.contrib.mixed_precision": f"{_DOOR}.optimizer.mixed_precision",
    "hpcdist.contrib.mixed_precision.bf16": f"{_DOOR}.optimizer.mixed_precision",
    "hpcdist.contrib.mixed_precision.decorator": f"{_DOOR}.optimizer.mixed_precision",
    "hpcdist.contrib.mixed_precision.fp16_lists": f"{_DOOR}.optimizer.mixed_precision",
    "hpcdist.contrib.op_frequence": f"{_COMPAT}.program_statistics",
    "hpcdist.layer_helper_base": f"{_COMPAT}.layer_helper",
    "hpcdist.unique_name": "hpcdist.graph.names",
    "hpcdist.incubate.data_generator": f"{_DOOR}.multi_slot.data_generator",
    f"{_FLEET}.base.fleet_base": f"{_DOOR}.fleet.fleet_base",
    f"{_FLEET}.base.mode": f"{_COMPAT}.fleet_mode",
    f"{_FLEET}.base.role_maker": f"{_DOOR}.fleet.role_maker",
    f"{_FLEET}.collective": f"{_DOOR}.fleet.collective",
    f"{_FLEET}.utils.fleet_util": f"{_DOOR}.fleet.fleet_util",
    f"{_FLEET}.utils.hdfs": f"{_COMPAT}.hdfs",
    _BY_TRANSPILER: f"{_DOOR}.fleet",
    f"{_BY_TRANSPILER}.distributed_strategy": f"{_DOOR}.fleet.strategy",
    "hpcdist.transpiler.collective": "hpcdist.transpiler.grad_allreduce",
    "hpcdist.transpiler.details": f"{_COMPAT}.program_code",
    "hpcdist.transpiler.details.checkport": f"{_COMPAT}.program_code",
    "hpcdist.transpiler.details.program_utils": f"{_COMPAT}.program_code",
    "hpcdist.transpiler.ps_dispatcher": "hpcdist.transpiler.dispatch",
    "hpcdist.layers.metric_op": f"{_DOOR}.layers.metric",
    "hpcdist.layers.rnn": f"{_DOOR}.layers.recurrent",
    "hpcdist.layers.sequence_lod": f"{_DOOR}.layers.sequence",
    "hpcdist.layers.utils": f"{_DOOR}.layers.structure",
}  # fmt: skip

# Where modules look for names of Fluid's that they do not have themselves.
SOURCES = {
    "hpcdist.compiler": ("hpcdist",),
    "hpcdist.contrib": (f"{_COMPAT}.program_statistics",),
    "hpcdist.contrib.extend_optimizer": (f"{_DOOR}.contrib",),
    "hpcdist.contrib.extend_optimizer.extend_optimizer_with_weight_decay": (f"{_DOOR}.contrib",),
    "hpcdist.contrib.layers": (f"{_DOOR}.contrib", f"{_DOOR}.layers"),
    "hpcdist.contrib.layers.metric_op": (f"{_DOOR}.contrib", f"{_DOOR}.layers"),
    "hpcdist.contrib.layers.nn": (f"{_DOOR}.contrib", f"{_DOOR}.layers"),
    "hpcdist.contrib.layers.rnn_impl": (f"{_DOOR}.contrib",),
    "hpcdist.core": ("hpcdist", f"{_COMPAT}.predictor", f"{_DOOR}.io.descs"),
    "hpcdist.data_feed_desc": ("hpcdist",),
    "hpcdist.data_feeder": (f"{_COMPAT}.data_checks",),
    "hpcdist.dataset": ("hpcdist", f"{_DOOR}.multi_slot.datasets"),
    _BY_TRANSPILER: (f"{_DOOR}.fleet.strategy",),
    f"{_FLEET}.base.fleet_base": (f"{_COMPAT}.fleet_mode",),
    "hpcdist.executor": ("hpcdist", "hpcdist.executor.dataset_run"),
    "hpcdist.framework": ("hpcdist", f"{_COMPAT}.core"),
    "hpcdist.input": ("hpcdist",),
    "hpcdist.io": ("hpcdist", "hpcdist.data.reader"),
    "hpcdist.parallel_executor": ("hpcdist",),
    "hpcdist.reader": (f"{_DOOR}.io",),
    "hpcdist.trainer_desc": ("hpcdist",),
    "hpcdist.transpiler.distribute_transpiler": ("hpcdist.transpiler",),
    "hpcdist.transpiler.memory_optimization_transpiler": ("hpcdist.transpiler",),
}

# A module beside a function of the same name, which importing it must not replace.
CALLED = ("hpcdist.layers.rnn",)


class _Finder(MetaPathFinder, Loader):
    """Finds modules by their public names, and Fluid's that have no file.

    Stands first: by a public name Python would find the file, and load it a second time.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(HERE + "."):
            return None
        real = ALIASES.get(fullname) or _moved(fullname)
        if real is not None:
            module = importlib.import_module(real)
        elif (spec := PathFinder.find_spec(fullname, path)) is not None:
            return spec
        elif _is_fluids(fullname):
            module = ModuleType(
                fullname, f"What hpcdist has of Fluid's module {_fluids(fullname)}."
            )
        else:
            above, _, name = fullname.rpartition(".")
            if _is_fluids(above):
                guard(sys.modules[above], above)  # nothing had imported it until now
            getter = vars(sys.modules[above]).get("__getattr__")
            if not isinstance(getter, _Guard) or not _holder(getter.names, name):
                return None
            if getter.elsewhere(name) is not None:
                return None
            raise MissingModuleError(_refusal(getter.names, name, ()))
        guard(module, fullname)
        return ModuleSpec(fullname, self, loader_state=(module, module.__spec__))

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return spec.loader_state[0]

    def exec_module(self, module: ModuleType) -> None:
        # The import system has put the alias's spec on the module; give back its own.
        spec = module.__spec__
        if spec is not None and spec.loader_state[1] is not None:
            module.__spec__ = spec.loader_state[1]


def _moved(fullname: str) -> str | None:
    """Return what a module is called that has this public name; None if there is none."""
    package, _, rest = fullname.removeprefix(HERE + ".").partition(".")
    real = MOVED.get(f"{HERE}.{package}")
    if real is None or not rest:
        return real
    above, _, name = f"{real}.{rest}".rpartition(".")
    try:
        paths = getattr(importlib.import_module(above), "__path__", None)
    except ModuleNotFoundError:
        return None
    return f"{above}.{name}" if paths and PathFinder.find_spec(f"{above}.{name}", paths) else None


def _public(fullname: str) -> str | None:
    """Return the public name of a module that lies in another folder; None if it has none."""
    above, rest = fullname, ""
    while above not in _PUBLIC:
        above, dot, name = above.rpartition(".")
        if not dot:
            return None
        rest = f".{name}{rest}"
    return _PUBLIC[above] + rest


def install() -> None:
    """Install the import hook for Fluid's modules, which refuses missing names."""
    sys.meta_path.insert(0, _Finder())
    importlib.import_module(f"{_COMPAT}.data")
    for name, module in list(sys.modules.items()):
        public = _public(name)
        if public is not None:
            sys.modules[public] = module
            if public in MOVED:
                vars(sys.modules[HERE]).setdefault(public.removeprefix(HERE + "."), module)
    for alias, name in ALIASES.items():
        if name in sys.modules:
            sys.modules[alias] = sys.modules[name]
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == HERE and _is_fluids(name):
            guard(module, name)


def guard(module: ModuleType, fullname: str) -> None:
    """Have a module find its names elsewhere, too, and refuse those that are not there."""
    getter: Callable[[str], Any] | None = vars(module).get("__getattr__")
    if isinstance(getter, _Guard):
        if fullname not in getter.names:
            getter.names.append(fullname)
        return
    vars(module)["__getattr__"] = _Guard(module, fullname, getter)
    # A module with a path: `from module import name` then asks the finder, whose error is shown.
    vars(module).setdefault("__path__", [])


class _Guard:
    """The ``__getattr__`` of a module of Fluid's, under whatever names it is found."""

    def __init__(self, module: ModuleType, name: str, getter: Callable[[str], Any] | None) -> None:
        self._module = module
        self._getter = getter
        self.names = [name]

    def __call__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self._module.__name__!r} has no attribute {name!r}")
        if self._getter is not None and not _holder(self.names, name):
            return self._getter(name)
        value = self.elsewhere(name)
        if value is not None:
            return value
        for module in self.names:
            if _holder([module], name) or f"{module}.{name}" in ALIASES:
                value = _submodule(f"{module}.{name}")
                if value is not None:
                    guard(value, f"{module}.{name}")
                    return value
        raise MissingNameError(_refusal(self.names, name, dir(self._module)))

    def elsewhere(self, name: str) -> Any:
        """Return what another module has under this name; None if there is none."""
        for module in self.names:
            for source in self._sources(module, name):
                namespace = vars(importlib.import_module(source))
                if name in namespace:
                    return namespace[name]
            imported = _imported(self._module, module, name)
            if imported is not None:
                return imported
        return None

    def _sources(self, module: str, name: str) -> Sequence[str]:
        if module.startswith(_LAYERS):
            return [f"{_DOOR}.layers"]
        return SOURCES.get(module, ()) if fluid_names.is_known(_fluids(module), name) else ()


def _submodule(fullname: str) -> ModuleType | None:
    try:
        return importlib.import_module(fullname)
    except ModuleNotFoundError as error:
        if isinstance(error, MissingModuleError) or error.name == fullname:
            return None
        raise  # it is there, but not what it imports


def _imported(asked: ModuleType, module: str, name: str) -> Any:
    """Return what Fluid's module has imported under this name; None if it is not to be had."""
    home = fluid_names.home(_fluids(module), name)
    if home is None:
        return None
    inside = home.module == FLUID or home.module.startswith(FLUID + ".")
    if home.module.partition(".")[0] == ROOT and not inside:
        return None
    if _moved(f"{module}.{name}") is not None:
        return None  # hpcdist has a module of its own under this name
    paths = getattr(asked, "__path__", None)
    if paths and PathFinder.find_spec(f"{asked.__name__}.{name}", paths) is not None:
        return None
    found = HERE + home.module.removeprefix(FLUID) if inside else home.module
    try:
        held = importlib.import_module(found)
        if held is asked:
            return None
        return getattr(held, home.name) if home.name else held
    except (ImportError, AttributeError):  # refused there, or a package that is not installed
        return None


def _refusal(modules: Sequence[str], name: str, names: Sequence[str]) -> str:
    """Say why modules have no such name; ``names`` are those that they have."""
    return fluid_names.told(_holder(modules, name) or _fluids(modules[0]), name, names)


def _holder(modules: Sequence[str], name: str) -> str | None:
    """Return which of Fluid's or paddle's modules of these names has this one."""
    named = [root + module.removeprefix(HERE) for module in modules for root in (FLUID, ROOT)]
    if any(module.startswith(_LAYERS) for module in modules):
        named.append(f"{FLUID}.layers")
    return next((module for module in named if fluid_names.is_known(module, name)), None)


def _fluids(fullname: str) -> str:
    return FLUID + fullname.removeprefix(HERE)


def _is_fluids(fullname: str) -> bool:
    """Return whether Fluid has this module, whatever is in it here."""
    return _fluids(fullname) in fluid_names.table()
