"""This made signatures.txt: run by PaddlePaddle Fluid 1.8.5 on Python 3.7.

    python signatures.py > signatures.txt

For each public function, class and method of the modules below, the parameters in their order, with
defaults; ``?`` stands for an object.
"""

import ast
import importlib
import inspect

MODULES = """
fluid fluid.backward fluid.clip fluid.contrib fluid.contrib.layers fluid.contrib.mixed_precision
fluid.contrib.reader fluid.data_feeder fluid.evaluator fluid.executor fluid.framework
fluid.incubate.fleet.base.role_maker fluid.incubate.fleet.collective
fluid.incubate.fleet.parameter_server.distribute_transpiler.distributed_strategy
fluid.incubate.fleet.utils.fleet_util fluid.initializer fluid.io fluid.layers fluid.metrics
fluid.nets fluid.optimizer fluid.profiler fluid.regularizer fluid.transpiler fluid.unique_name
reader
"""


def default(value):
    try:
        ast.literal_eval(repr(value))
    except (ValueError, SyntaxError):
        return "?"
    return repr(value).replace(" ", "")


def parameters(function):
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    words = []
    for p in found:
        mark = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        words.append(mark + p.name + ("" if p.default is p.empty else "=" + default(p.default)))
    return words


def of_fluid(value):
    return (getattr(value, "__module__", None) or "").startswith("paddle")


def show(name, words):
    if words is not None:
        print(" ".join([name, *words]))


def main():
    seen = set()
    for name in MODULES.split():
        module = importlib.import_module("paddle." + name)
        for key in sorted(set(getattr(module, "__all__", ()))):
            value = getattr(module, key, None)
            if not of_fluid(value) or id(value) in seen or "dygraph" in value.__module__:
                continue
            seen.add(id(value))
            full = name + "." + key
            if inspect.isfunction(value):
                show(full, parameters(value))
            elif inspect.isclass(value):
                if inspect.isfunction(value.__init__):
                    show(full, parameters(value.__init__)[1:])
                for method, function in sorted(vars(value).items()):
                    if inspect.isfunction(function) and not method.startswith("_"):
                        show(full + "." + method, parameters(function)[1:])


main()
