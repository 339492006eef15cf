"""Fluid's modules under ``hpcdist``, and names that are refused.

``fluid.contrib.memory_usage`` is ``hpcdist.contrib.memory_usage``. A module of Fluid's is the one
of that name here, or another (`ALIASES`), or an empty one whose names are resolved elsewhere
(`SOURCES`). A missing name raises one error that says what to use instead.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from hpcdist.compat import fluid_names
from hpcdist.compat.fluid_names import FLUID, ROOT
from hpcdist.errors import MissingModuleError, MissingNameError

HERE = "hpcdist"
_COMPAT = f"{HERE}.compat"
_LAYERS = f"{HERE}.layers."  # modules of the layers: each has them all
_FLEET = "hpcdist.incubate.fleet"
_BY_TRANSPILER = f"{_FLEET}.parameter_server.distribute_transpiler"

# Modules of Fluid's that are another module here.
ALIASES = {
    **{f"{HERE}.{name}": f"{_COMPAT}.{name}" for name in (
        "average",
        "compiler",
        "core",
        "data",  # imported by `install`: hpcdist's own attribute of this name is a function
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
    "hpcdist.contrib.mixed_precision": "hpcdist.optimizer.mixed_precision",
    "hpcdist.contrib.mixed_precision.bf16": "hpcdist.optimizer.mixed_precision",
    "hpcdist.contrib.mixed_precision.decorator": "hpcdist.optimizer.mixed_precision",
    "hpcdist.contrib.mixed_precision.fp16_lists": "hpcdist.optimizer.mixed_precision",
    "hpcdist.contrib.op_frequence": f"{_COMPAT}.program_statistics",
    "hpcdist.layer_helper_base": f"{_COMPAT}.layer_helper",
    "hpcdist.unique_name": "hpcdist.graph.names",
    "hpcdist.incubate.data_generator": "hpcdist.multi_slot.data_generator",
    f"{_FLEET}.base.fleet_base": "hpcdist.fleet.fleet_base",
    f"{_FLEET}.base.mode": f"{_COMPAT}.fleet_mode",
    f"{_FLEET}.base.role_maker": "hpcdist.fleet.role_maker",
    f"{_FLEET}.collective": "hpcdist.fleet.collective",
    f"{_FLEET}.utils.fleet_util": "hpcdist.fleet.fleet_util",
    f"{_FLEET}.utils.hdfs": f"{_COMPAT}.hdfs",
    _BY_TRANSPILER: "hpcdist.fleet",
    f"{_BY_TRANSPILER}.distributed_strategy": "hpcdist.fleet.strategy",
    "hpcdist.transpiler.collective": "hpcdist.transpiler.grad_allreduce",
    "hpcdist.transpiler.details": f"{_COMPAT}.program_code",
    "hpcdist.transpiler.details.checkport": f"{_COMPAT}.program_code",
    "hpcdist.transpiler.details.program_utils": f"{_COMPAT}.program_code",
    "hpcdist.transpiler.ps_dispatcher": "hpcdist.transpiler.dispatch",
    "hpcdist.layers.metric_op": "hpcdist.layers.metric",
    "hpcdist.layers.rnn": "hpcdist.layers.recurrent",
    "hpcdist.layers.sequence_lod": "hpcdist.layers.sequence",
    "hpcdist.layers.utils": "hpcdist.layers.structure",
}  # fmt: skip

# Where modules look for names of Fluid's that they do not have themselves.
SOURCES = {
    "hpcdist.compiler": ("hpcdist",),
    "hpcdist.contrib": (f"{_COMPAT}.program_statistics",),
    "hpcdist.contrib.extend_optimizer": ("hpcdist.contrib",),
    "hpcdist.contrib.extend_optimizer.extend_optimizer_with_weight_decay": ("hpcdist.contrib",),
    "hpcdist.contrib.layers": ("hpcdist.contrib", "hpcdist.layers"),
    "hpcdist.contrib.layers.metric_op": ("hpcdist.contrib", "hpcdist.layers"),
    "hpcdist.contrib.layers.nn": ("hpcdist.contrib", "hpcdist.layers"),
    "hpcdist.contrib.layers.rnn_impl": ("hpcdist.contrib",),
    "hpcdist.core": ("hpcdist", f"{_COMPAT}.predictor", "hpcdist.io.descs"),
    "hpcdist.data_feed_desc": ("hpcdist",),
    "hpcdist.data_feeder": (f"{_COMPAT}.data_checks",),
    "hpcdist.dataset": ("hpcdist", "hpcdist.multi_slot.datasets"),
    _BY_TRANSPILER: ("hpcdist.fleet.strategy",),
    f"{_FLEET}.base.fleet_base": (f"{_COMPAT}.fleet_mode",),
    "hpcdist.executor": ("hpcdist", "hpcdist.executor.dataset_run"),
    "hpcdist.framework": ("hpcdist", "hpcdist.core"),
    "hpcdist.input": ("hpcdist",),
    "hpcdist.io": ("hpcdist", "hpcdist.reader"),
    "hpcdist.parallel_executor": ("hpcdist",),
    "hpcdist.reader": ("hpcdist.io",),
    "hpcdist.trainer_desc": ("hpcdist",),
    "hpcdist.transpiler.distribute_transpiler": ("hpcdist.transpiler",),
    "hpcdist.transpiler.memory_optimization_transpiler": ("hpcdist.transpiler",),
}

# Modules beside functions of the same name, which importing them must not replace.
CALLED = ("hpcdist.data", "hpcdist.layers.rnn")


class _Finder(MetaPathFinder, Loader):
    """Finds Fluid's modules that have no file; stands last, so it is asked for nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(HERE + "."):
            return None
        if fullname in ALIASES:
            module = importlib.import_module(ALIASES[fullname])
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


def install() -> None:
    """Install the import hook for Fluid's modules, which refuses missing names."""
    sys.meta_path.append(_Finder())
    importlib.import_module(f"{_COMPAT}.data")
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
            return ["hpcdist.layers"]
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
    paths = getattr(asked, "__path__", None)
    if paths and PathFinder.find_spec(f"{asked.__name__}.{name}", paths) is not None:
        return None  # hpcdist has a module of its own there, such as hpcdist.fleet
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
