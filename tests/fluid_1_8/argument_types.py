"""This made hpcdist/fluid/layers/argument_types.txt: run by PaddlePaddle Fluid 1.8.5 on Python 3.7.

    python argument_types.py > argument_types.txt

For each argument of a layer that Fluid checks with check_type, or by `if not isinstance(...):
raise TypeError`, the types of Python that it takes; for each that is an element type, or whose
element type is looked at (check_dtype), these, marked with "of:". A line of types, then, indented,
layer.argument of each that takes them. Of float32 and float64 one stands for both, so of int32 and
int64.
"""

import ast
import os
import textwrap

import paddle.fluid as fluid

ROOT = os.path.join(os.path.dirname(fluid.__file__), "layers")
FLOATS, INTS = {"float32", "float64"}, {"int32", "int64"}
NAMES = {"Variable", "int", "float", "bool", "str", "list", "tuple", "dict", "None", "ndarray"}
MADE = {"_logical_op": ["logical_" + name for name in ["and", "or", "xor", "not"]]}
TAKEN_ANYWAY = {
    "data.shape",  # the layer looks itself
    "flip.dims",  # one number becomes a list before Fluid looks at it
    "roll.dims",
    "roll.shifts",
    "assign.input",  # also lists of numbers
    "create_parameter.attr",  # also a name, an initializer, or a regularizer
}


def words(node):
    """Return names of types in `int` or `(list, tuple, type(None))`; None if there is another."""
    several = node.elts if isinstance(node, ast.Tuple) else [node]
    found = []
    for one in several:
        if isinstance(one, ast.Call) and getattr(one.func, "id", "") == "type":
            found.append("None")
        else:
            found.append(getattr(one, "id", getattr(one, "attr", "")))
    return found if set(found) <= NAMES else None


def literal(node):
    try:
        found = ast.literal_eval(node)
    except ValueError:
        return None
    names = {found} if isinstance(found, str) else set(found)
    names.update(*(alike for alike in (FLOATS, INTS) if names & alike))
    return ["of:" + name for name in names if name != "int"]  # which is no element type


def refusals(function):
    """Yield (argument, types) of `if not isinstance(argument, types): raise TypeError`.

    Such conditions may be joined, with others, as those of an argument that may be None are.
    """
    for node in ast.walk(function):
        if not isinstance(node, ast.If) or not isinstance(node.body[0], ast.Raise):
            continue
        called = getattr(node.body[0].exc, "func", None)
        questions = [n.operand for n in ast.walk(node.test) if isinstance(n, ast.UnaryOp)]
        found = {}
        for question in questions:
            if getattr(getattr(question, "func", None), "id", "") == "isinstance":
                name = getattr(question.args[0], "id", "")
                found.setdefault(name, []).extend(words(question.args[1]) or [""])
        for argument, types in found.items():
            if getattr(called, "id", "") == "TypeError" and "" not in types:
                none = any(isinstance(n, ast.IsNot) for n in ast.walk(node.test))
                yield argument, types + ["None"] * none


def checks(function, of_class):
    """Yield (argument, types) of the checks that a function makes of its own arguments.

    ``of_class``: also of the Variables whose element types a method looks at.
    """
    arguments = {a.arg for a in function.args.args}
    for argument, types in refusals(function):
        if argument in arguments:
            yield argument, types
    for node in ast.walk(function):
        called = getattr(getattr(node, "func", None), "id", "")
        looked_at = called == "check_variable_and_dtype" and getattr(node.args[0], "id", None)
        if of_class and looked_at in arguments:
            yield looked_at, ["Variable"]
        if called not in ("check_type", "check_dtype"):
            continue
        checked = node.args[0]
        types = words(node.args[2]) if called == "check_type" else literal(node.args[2])
        if isinstance(checked, ast.Attribute) and checked.attr == "dtype":
            checked = checked.value
        if types and getattr(checked, "id", None) in arguments:
            yield checked.id, types


def main():
    taken = {}
    for name in sorted(os.listdir(ROOT)):
        if not name.endswith(".py"):
            continue
        with open(os.path.join(ROOT, name)) as file:
            nodes = ast.parse(file.read()).body
        classes = [n for n in nodes if isinstance(n, ast.ClassDef)]
        named = [(n.name, n) for n in nodes if isinstance(n, ast.FunctionDef)]
        for kind in classes:
            methods = [n for n in kind.body if isinstance(n, ast.FunctionDef)]
            named += [(kind.name + "." + n.name, n) for n in methods if not n.name.startswith("_")]
            named += [(kind.name, n) for n in methods if n.name == "__init__"]
        for name, node in named:
            for argument, types in checks(node, of_class="self" in [a.arg for a in node.args.args]):
                for layer in MADE.get(name, [name]):
                    taken.setdefault(layer + "." + argument, set()).update(types)
    of_types = {}
    for what, types in taken.items():
        if hasattr(fluid.layers, what.split(".")[0]) and what not in TAKEN_ANYWAY:
            of_types.setdefault(" ".join(sorted(types)), []).append(what)
    for types in sorted(of_types):
        print(types)
        text = " ".join(sorted(of_types[types]))
        print(textwrap.fill(text, 100, initial_indent="    ", subsequent_indent="    "))


main()
