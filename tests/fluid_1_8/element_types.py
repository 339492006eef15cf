"""This made hpcdist/fluid/layers/element_types.txt: run by PaddlePaddle Fluid 1.8.5 on Python 3.7.

    python element_types.py > element_types.txt

For each argument of a layer that Fluid checks with check_variable_and_dtype, the element types that
it takes: a line of types, then, indented, layer.argument of each that takes them. Of float32 and
float64 one stands for both, so of int32 and int64: hpcdist's kernels take either.
"""

import ast
import os
import textwrap

import paddle.fluid as fluid
from paddle.fluid.layers import ops

ROOT = os.path.dirname(fluid.__file__)
FLOATS, INTS = {"float32", "float64"}, {"int32", "int64"}
# Layers that Fluid makes from one function, and `matmul`, which checks in a loop over names.
ACTIVATIONS = ops.__activations_noattr__
NOT_OF_INTS = ["float16", "float32", "float64"]
NUMBERS = [*NOT_OF_INTS, "int32", "int64"]
TAKEN_ANYWAY = {
    "sequence_unpad.length",  # also whole numbers in floats, as sums of a mask are
    "log_softmax.input",  # Fluid looks at it only without `dtype`: the layer does it
    "stack.x",  # Fluid looks at arrays only
}
MADE = {
    "_elementwise_op": "add sub mul div max min pow mod floordiv",
    "_logical_op": "and or xor not",
}


def literal(node):
    try:
        found = ast.literal_eval(node)
    except ValueError:
        return None
    return [found] if isinstance(found, str) else list(found)


def checks(function):
    """Yield (argument, element types); of an argument that a loop goes through, its elements'."""
    elements = {a.arg: a.arg for a in function.args.args}
    calls = [node for node in ast.walk(function) if isinstance(node, (ast.For, ast.Call))]
    for node in calls:
        if isinstance(node, ast.For):
            over, target = node.iter, node.target
            if isinstance(over, ast.Call) and getattr(over.func, "id", "") == "enumerate":
                over, target = over.args[0], target.elts[1]
            if isinstance(over, ast.Name) and over.id in elements:
                elements[getattr(target, "id", None)] = over.id
    for node in calls:
        if (
            isinstance(node, ast.Call)
            and getattr(node.func, "id", "") == "check_variable_and_dtype"
        ):
            argument = elements.get(getattr(node.args[0], "id", None))
            types = literal(node.args[2])
            if argument is not None and types:
                yield argument, types


def functions(path):
    with open(path) as file:
        return [n for n in ast.parse(file.read()).body if isinstance(n, ast.FunctionDef)]


def all_checks():
    for folder, _, files in os.walk(ROOT):
        for name in sorted(files):
            path = os.path.join(folder, name)
            if os.path.basename(folder) == "layers" and name.endswith(".py"):
                for node in functions(path):
                    for argument, types in checks(node):
                        for made in MADE.get(node.name, node.name).split():
                            start = node.name[1:-2] if node.name in MADE else ""
                            yield start + made + "." + argument, types
    for name in ACTIVATIONS:
        yield name + ".x", NUMBERS if name in ("abs", "exp", "square") else NOT_OF_INTS
    for argument in "xy":
        yield "matmul." + argument, NOT_OF_INTS
        for made in MADE["_elementwise_op"].split():
            yield "elementwise_" + made + "." + argument, NUMBERS
    for node in functions(os.path.join(ROOT, "input.py")):
        for argument, types in checks(node):
            yield node.name + "_v2." + argument, types


def main():
    taken = {}
    for what, types in all_checks():
        known = taken.setdefault(what, set())
        known.update(types)
        known.update(*(alike for alike in (FLOATS, INTS) if known & alike))
    of_types = {}
    for what, types in taken.items():
        layer = what.split(".")[0]
        there = hasattr(fluid.layers, layer) or layer.endswith("_v2")
        if there and what not in TAKEN_ANYWAY:
            of_types.setdefault(" ".join(sorted(types)), []).append(what)
    for types in sorted(of_types):
        print(types)
        words = " ".join(sorted(of_types[types]))
        print(textwrap.fill(words, 100, initial_indent="    ", subsequent_indent="    "))


main()
