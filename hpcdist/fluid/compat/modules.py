"""Fluid's modules under ``hpcdist``, and names that are refused.

``fluid.contrib.memory_usage`` is ``hpcdist.contrib.memory_usage``. A module of Fluid's is the one
of that name here, or one that lies elsewhere (`ALIASES`), or an empty one whose names are resolved
elsewhere (`SOURCES`). A missing name raises one error that says what to use instead.
"""

from __future__ import annotations

import functools
import importlib
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hpcdist.base.errors import MissingModuleError
from hpcdist.fluid.compat import fluid_names
from hpcdist.fluid.compat.fluid_names import FLUID, ROOT

if TYPE_CHECKING:  # `import hpcdist` imports this module, and little else
    import inspect
    from collections.abc import Callable, Sequence

HERE = "hpcdist"
_DOOR = f"{HERE}.fluid"
FACADE = f"{_DOOR}.facade"  # the names of hpcdist itself
_COMPAT = f"{_DOOR}.compat"
_LAYERS = f"{HERE}.layers."  # modules of the layers: each has them all
_FLEET = "hpcdist.incubate.fleet"
_BY_TRANSPILER = f"{_FLEET}.parameter_server.distribute_transpiler"

# Public names of modules that lie in other folders, with all that is in them.
MOVED = {
    **{
        f"{HERE}.{name}": f"{_DOOR}.{name}"
        for name in (
            *("clip", "compat", "contrib", "data_feeder", "data_loader", "dataset", "fleet"),
            *("initializer", "io", "layers", "metrics", "multi_slot", "nets", "online"),
            *("optimizer", "regularizer"),
        )
    },
    "hpcdist.backward": "hpcdist.graph.autodiff.backward",
    "hpcdist.columnar": "hpcdist.data.columnar",
    "hpcdist.errors": "hpcdist.base.errors",
    "hpcdist.lod_tensor": "hpcdist.graph.lod_tensor",
    "hpcdist.notebook": "hpcdist.launch.notebook",
    "hpcdist.reader": "hpcdist.data.reader",
    "hpcdist.serving": "hpcdist.ps.published",
    "hpcdist.settings": "hpcdist.base.settings",
}
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
        "op",
        "parallel_executor",
        "param_attr",
        "profiler",
    )},
    "hpcdist.dygraph": f"{_COMPAT}.eager",
    "hpcdist.dygraph.base": f"{_COMPAT}.eager",
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
    "hpcdist.transpiler.details": f"{_COMPAT}.program_code",
    "hpcdist.transpiler.details.checkport": f"{_COMPAT}.program_code",
    "hpcdist.transpiler.details.program_utils": f"{_COMPAT}.program_code",
    "hpcdist.transpiler.ps_dispatcher": "hpcdist.ps.dispatch",
    "hpcdist.layers.device": f"{_COMPAT}.device",
    "hpcdist.layers.metric_op": f"{_DOOR}.layers.metric",
    "hpcdist.layers.rnn": f"{_DOOR}.layers.recurrent",
    "hpcdist.layers.sequence_lod": f"{_DOOR}.layers.sequence",
    "hpcdist.layers.utils": f"{_DOOR}.layers.structure",
}  # fmt: skip

# Where modules look for names of Fluid's that they do not have themselves.
SOURCES = {
    "hpcdist.compiler": (FACADE,),
    "hpcdist.contrib": (f"{_COMPAT}.program_statistics",),
    "hpcdist.contrib.extend_optimizer": (f"{_DOOR}.contrib",),
    "hpcdist.contrib.extend_optimizer.extend_optimizer_with_weight_decay": (f"{_DOOR}.contrib",),
    "hpcdist.contrib.layers": (f"{_DOOR}.contrib", f"{_DOOR}.layers"),
    "hpcdist.contrib.layers.metric_op": (f"{_DOOR}.contrib", f"{_DOOR}.layers"),
    "hpcdist.contrib.layers.nn": (f"{_DOOR}.contrib", f"{_DOOR}.layers"),
    "hpcdist.contrib.layers.rnn_impl": (f"{_DOOR}.contrib",),
    "hpcdist.core": (
        FACADE,
        f"{_COMPAT}.core_ops",
        f"{_COMPAT}.predictor",
        f"{_DOOR}.io.descs",
    ),
    "hpcdist.data_feed_desc": (FACADE,),
    "hpcdist.data_feeder": (f"{_COMPAT}.data_checks",),
    "hpcdist.dataset": (FACADE, f"{_DOOR}.multi_slot.datasets"),
    _BY_TRANSPILER: (f"{_DOOR}.fleet.strategy",),
    f"{_FLEET}.base.fleet_base": (f"{_COMPAT}.fleet_mode",),
    "hpcdist.backward": (f"{_COMPAT}.internals",),
    "hpcdist.executor": (FACADE, "hpcdist.executor.dataset_run", f"{_COMPAT}.internals"),
    "hpcdist.framework": (FACADE, f"{_COMPAT}.core", f"{_COMPAT}.op_protos"),
    "hpcdist.input": (FACADE,),
    "hpcdist.io": (FACADE, "hpcdist.data.reader"),
    "hpcdist.parallel_executor": (FACADE,),
    "hpcdist.reader": (f"{_DOOR}.io", f"{_DOOR}.data_loader"),
    "hpcdist.trainer_desc": (FACADE,),
    "hpcdist.transpiler.distribute_transpiler": ("hpcdist.transpiler", f"{_COMPAT}.internals"),
    "hpcdist.transpiler.memory_optimization_transpiler": ("hpcdist.transpiler",),
}

_GUARDS: dict[str, NameGuard] = {}  # of modules that are loaded, by their real names

# Modules beside a function of the same name, which importing them must not replace.
CALLED = ("hpcdist.layers.rnn",)


@functools.cache
def _names() -> dict[str, list[str]]:
    """Return Fluid's names for modules that are called otherwise here, by their real names."""
    names: dict[str, list[str]] = {}
    for alias, real in ALIASES.items():
        names.setdefault(real, []).append(alias)
    return names


class _PublicLoader(SourceFileLoader):
    """Loads a module from its file, registers its public names, and guards it if it is Fluid's."""

    def __init__(self, fullname: str, path: str, names: Sequence[str]) -> None:
        super().__init__(fullname, path)
        self._names = names

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        if module.__name__ == _Data.NAME:
            module.__class__ = _Data
        for name in (module.__name__, *self._names):
            # At once: if a module is imported by another name later, Python makes it an attribute
            # of its package, in place of a function of that name (`layers.embedding`).
            sys.modules[name] = module
            if _is_fluids(name):
                guard(module, name)


class _Data(ModuleType):
    """The package that reads files, which can be called as Fluid's function ``fluid.data``.

    It has the function as ``data``, too, as Fluid's module of that name does.
    """

    NAME = "hpcdist.data"

    @property
    def data(self) -> Callable[..., Any]:
        return importlib.import_module(f"{_DOOR}.layers.io").data_v2

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return self.data.__doc__

    @property
    def __signature__(self) -> inspect.Signature:
        import inspect

        return inspect.signature(self.data)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.data(*args, **kwargs)


class _PublicFinder:
    """Finds modules by their public names, and Fluid's that have no file.

    Stands first: by a public name Python would find the file, and load it a second time. It has no
    base of importlib.abc, which takes longer to import than all else that `import hpcdist` does.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(HERE + "."):
            return None
        real = ALIASES.get(fullname) or _moved(fullname)
        if real is not None:
            module = importlib.import_module(real)
            # Python would load it again, from its own file, if this name were there already.
            sys.modules.pop(fullname, None)
        elif (spec := PathFinder.find_spec(fullname, path)) is not None:
            return _registering(spec)
        elif _is_fluids(fullname):
            module = ModuleType(
                fullname, f"What hpcdist has of Fluid's module {_fluids(fullname)}."
            )
            guard(module, fullname)
        else:
            above, _, name = fullname.rpartition(".")
            guarded = _GUARDS.get(sys.modules[above].__name__)
            if guarded is None or not _holder(guarded.names, name):
                return None
            if guarded.elsewhere(name) is not None:
                return None
            raise MissingModuleError(_refusal(guarded.names, name, ()))
        state = (module, module.__spec__)
        return ModuleSpec(fullname, self, loader_state=state)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return spec.loader_state[0]

    def exec_module(self, module: ModuleType) -> None:
        # The import system has put the alias's spec on the module; give back its own.
        spec = module.__spec__
        if spec is not None and spec.loader_state[1] is not None:
            module.__spec__ = spec.loader_state[1]


def _moved(fullname: str) -> str | None:
    """Return the real name of the module with this public name; None if there is none."""
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


def _registering(spec: ModuleSpec) -> ModuleSpec:
    """Return the spec of a module whose public names are registered once it is loaded."""
    public = _public(spec.name)
    names = [*([public] if public else ()), *_names().get(spec.name, ())]
    if (names or _is_fluids(spec.name)) and isinstance(spec.loader, SourceFileLoader):
        spec.loader = _PublicLoader(spec.name, spec.loader.path, names)
    return spec


def install() -> None:
    """Install the import hook for public names, which refuses missing ones."""
    sys.meta_path.insert(0, _PublicFinder())


def guard(module: ModuleType, fullname: str) -> None:
    """Make a module find its names elsewhere, too, and refuse those that are not there."""
    getter: Callable[[str], Any] | None = vars(module).get("__getattr__")
    if not isinstance(getter, NameGuard):
        getter = vars(module)["__getattr__"] = NameGuard(module, fullname, getter)
        # With a path, `from module import name` then asks the finder, whose error is shown.
        vars(module).setdefault("__path__", [])
    if fullname not in getter.names:
        getter.names.append(fullname)


class NameGuard:
    """The ``__getattr__`` of a module of Fluid's, under whatever names it is found."""

    def __init__(
        self, module: ModuleType, name: str, getter: Callable[[str], Any] | None = None
    ) -> None:
        self._module = module
        self._getter = getter
        self.names = [name]
        _GUARDS[module.__name__] = self

    def __call__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self._module.__name__!r} has no attribute {name!r}")
        if _has_file(self._module, name):
            return importlib.import_module(f"{self._module.__name__}.{name}")
        if self._getter is not None and not _holder(self.names, name):
            return self._getter(name)
        value = self.elsewhere(name)
        if value is not None:
            return value
        for module in self.names:
            inner = f"{module}.{name}"
            if _holder([module], name) or inner in ALIASES or inner in MOVED:
                value = _submodule(inner)
                if value is not None:
                    return value
        # Loaded only for whoever asks for what is not there.
        stand_in = importlib.import_module(f"{_COMPAT}.importable").stand_in
        held = [module for module in self.names if _holder([module], name)]
        refusal = _refusal(self.names, name, dir(self._module))
        found = vars(self._module)[name] = stand_in(held, name, refusal)
        return found

    def elsewhere(self, name: str) -> Any:
        """Return the value of this name in another module; None if there is none."""
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


def _has_file(package: ModuleType, name: str) -> bool:
    """Return whether a package has a module of this name in its folder."""
    paths = getattr(package, "__path__", None)
    return bool(paths) and PathFinder.find_spec(f"{package.__name__}.{name}", paths) is not None


def _submodule(fullname: str) -> ModuleType | None:
    try:
        return importlib.import_module(fullname)
    except ModuleNotFoundError as error:
        if isinstance(error, MissingModuleError) or error.name == fullname:
            return None
        raise  # it is there, but not what it imports


def _imported(asked: ModuleType, module: str, name: str) -> Any:
    """Return the value that Fluid's module imports under this name; None if there is none."""
    home = fluid_names.home(_fluids(module), name)
    if home is None:
        return None
    inside = home.module == FLUID or home.module.startswith(FLUID + ".")
    if home.module.partition(".")[0] == ROOT and not inside:
        return None
    if _moved(f"{module}.{name}") is not None:
        return None  # hpcdist has a module of its own under this name
    if _has_file(asked, name):
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
    return fluid_names.describe_missing(_holder(modules, name) or _fluids(modules[0]), name, names)


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
