"""This made hpcdist/fluid/compat/fluid_names.txt: run by PaddlePaddle Fluid 1.8.5 on Python 3.7.

    python names.py > fluid_names.txt

Every module of paddle, and every name in it: names of its own as they are, names that it has
imported as ``name@module.name``, where they are to be found (``name@module:`` is a module).
"""

import importlib
import pkgutil
import sys
import textwrap
import types

ROOT = "paddle"
CORE = ("paddle.fluid.core", "paddle.fluid.core_avx")


def walk(package):
    """Yield the names of all modules of a package that can be imported here."""
    yield package.__name__
    for found in sorted(pkgutil.iter_modules(package.__path__), key=lambda m: m.name):
        name = package.__name__ + "." + found.name
        if name.endswith(("__main__", "core_noavx", "paddle.fluid.core_avx")):
            continue
        try:
            module = importlib.import_module(name)
        except Exception as error:
            print(name, error, file=sys.stderr)
            sys.modules.setdefault(name, types.ModuleType(name))  # it fails in Fluid, too
            yield name
            continue
        if found.ispkg:
            yield from walk(module)
        else:
            yield name


def homes(modules):
    """Return for each function and class the module that defines it and exports it by its name."""
    found = {}
    for name in modules:
        for key, value in vars(sys.modules[name]).items():
            if getattr(value, "__module__", None) == name:
                found[id(value)] = (name, key)
    for key, value in vars(sys.modules["paddle.fluid.core"]).items():
        found.setdefault(id(value), ("paddle.fluid.core", key))
    return found


def entry(module, name, value, exported, found):
    """Return how a name of a module is listed; None if it is not."""
    if name.startswith("__") or type(value).__name__ == "_Feature" or name in exported:
        return None if name not in exported else name
    if isinstance(value, types.ModuleType):
        home = value.__name__.replace("core_avx", "core")
        return name if home == module + "." + name else name + "@" + home + ":"
    home = found.get(id(value))
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type)) or home:
        if home is None:
            home = (str(getattr(value, "__module__", "")), getattr(value, "__name__", name))
        if (
            home[0] in sys.modules
            and home[0] != module
            and home[1].isidentifier()
            and home[1][:2] != "__"
        ):
            return name + "@" + home[0] + "." + home[1]
    return name


def main():
    top = importlib.import_module(ROOT)
    importlib.import_module("paddle.fluid.incubate.fleet.parameter_server.pslib")
    modules = [name for name in walk(top) if name in sys.modules]
    found = homes(modules)
    layers = set(sys.modules["paddle.fluid.layers"].__all__)
    print("# What the modules of PaddlePaddle Fluid 1.8.5 hold; made by tests/fluid_1_8/names.py.")
    for name in modules:
        module = sys.modules[name]
        exported = set(getattr(module, "__all__", None) or ())
        entries = [
            entry(name, key, value, exported, found) for key, value in sorted(vars(module).items())
        ]
        listed = {one for one in entries if one} | {one for one in exported if one.isidentifier()}
        if name.startswith("paddle.fluid.layers."):
            listed -= layers  # they are listed once
        print("\n[" + name + "]")
        if listed:
            print(
                textwrap.fill(
                    " ".join(sorted(listed)), 100, break_on_hyphens=False, break_long_words=False
                )
            )


if __name__ == "__main__":
    sys.exit(main())
