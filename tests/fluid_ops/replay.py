"""Runs one layer and its gradient, with whatever framework it is given: Fluid 1.8.5 or this one.

Python 3.7 runs this too, for Fluid's sake. A case is ``(expression, inputs, choices)``: Python
text that calls layers, what is fed under which name, and lists from which each ``{name}`` in the
expression is drawn. Inputs are texts: a kind and a shape, then perhaps ``lod`` and lengths.

    f 2 3        normal numbers           p 2 3   numbers in [0.2, 2]
    u 2 3        numbers in [0.05, 0.95]  a 2 3   numbers that lie apart: nothing ties
    i7 2 1       whole numbers below 7    b 2 3   truth values
    j7 2 1       the same, as int32       h 2 3   -2, -1.5, ..., 2
    n 2 3        the numbers 2 and 3, as int32; m 2 3 as int64; e 0.5 as float32
"""

from __future__ import annotations

import importlib
import itertools
import json
import os

import numpy as np

FOLDER = os.path.dirname(os.path.abspath(__file__))
MANY = 16  # numbers of a value that are kept as they are; of a larger one its sums
SUMS = 4


def families():
    """Names of the modules of cases."""
    names = sorted(os.listdir(os.path.join(FOLDER, "families")))
    return [n[:-3] for n in names if n.endswith(".py") and not n.startswith("_")]


def cases(family):
    """All cases of a family, choices made: (expression, inputs)."""
    module = importlib.import_module("tests.fluid_ops.families." + family)
    drawn = []
    for position, case in enumerate(module.CASES):
        expression, inputs, choices = (*case, {})[:3] if len(case) == 2 else case
        whole = list(itertools.product(*(choices[name] for name in sorted(choices))))
        rng = np.random.RandomState(position)
        few = [whole[i] for i in rng.permutation(len(whole))[: module.DRAWN]]
        for values in few:
            text = expression
            for name, value in zip(sorted(choices), values):
                text = text.replace("{" + name + "}", repr(value))
            drawn.append((text, inputs))
    return drawn


def needs_torch(family):
    """Tell whether torch computes the layers of a family."""
    module = importlib.import_module("tests.fluid_ops.families." + family)
    return getattr(module, "NEEDS_TORCH", False)


def _array(spec, rng):
    words, _, lod = spec.partition(" lod ")
    kind, rest = words.split()[0], words.split()[1:]
    if kind in "nme":
        dtype = {"n": "int32", "m": "int64", "e": "float32"}[kind]
        return np.array([float(w) for w in rest]).astype(dtype), None
    shape = [int(w) for w in rest]
    if kind == "f":
        value = rng.normal(size=shape)
    elif kind in "pu":
        low, high = (0.2, 2) if kind == "p" else (0.05, 0.95)
        value = rng.uniform(low, high, shape)
    elif kind == "a":
        count = int(np.prod(shape))
        value = (rng.permutation(count) - count // 2).reshape(shape) * 0.1
    elif kind == "h":
        value = rng.randint(-4, 5, shape) / 2.0
    elif kind == "b":
        return rng.rand(*shape) < 0.5, None
    else:
        kept = "int64" if kind[0] == "i" else "int32"
        return rng.randint(0, int(kind[1:]), shape).astype(kept), _lengths(lod)
    return value.astype("float32"), _lengths(lod)


def _lengths(lod):
    return [[int(w) for w in lod.split()]] if lod else None


def built(fluid, expression, inputs, rng):
    """Return a case as Programs, main and startup, with its feed, outputs and gradients."""
    main, startup = fluid.Program(), fluid.Program()
    feed, values = {}, {}
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        known = {"layers": fluid.layers, "fluid": fluid, "np": np}
        for name in sorted(inputs):
            value, lengths = _array(inputs[name], rng)
            shape = ([None] if lengths else [value.shape[0]]) + list(value.shape[1:])
            known[name] = fluid.data(
                name, shape, dtype=value.dtype.name, lod_level=1 if lengths else 0
            )
            known[name].stop_gradient = value.dtype.kind != "f" or inputs[name][0] == "e"
            feed[name] = value
            if lengths:
                feed[name] = fluid.create_lod_tensor(value, lengths, fluid.CPUPlace())
            values[name] = value

        def op(type, inputs, attrs, dtype="float32", slot="Out", more=()):
            """Append an operator for which there is no layer, or none that works in Fluid.

            It has more outputs, new ones, or by "SLOT=NAME" what is fed under a name.
            """
            block = main.current_block()
            out = block.create_var(name=fluid.unique_name.generate("made"), dtype=dtype)
            slots = {n: held if isinstance(held, list) else [held] for n, held in inputs.items()}
            outputs = {slot: [out]}
            for other, _, held in (text.partition("=") for text in more):
                new = None if held else block.create_var(name=fluid.unique_name.generate("made"))
                outputs[other] = [known[held] if held else new]
            block.append_op(type=type, inputs=slots, outputs=outputs, attrs=attrs)
            return out

        known["op"] = op
        found = eval(expression, known)
        outputs = list(found) if isinstance(found, (list, tuple)) else [found]
        outputs = [v for v in outputs if v is not None]
        parts = []
        for out in outputs:
            if str(out.dtype).endswith(("float32", "FP32")) and not out.stop_gradient:
                square = fluid.layers.reduce_sum(fluid.layers.square(out))
                parts += [fluid.layers.scale(square, 0.5), fluid.layers.reduce_sum(out)]
        parameters = [p for p in main.global_block().all_parameters() if p.trainable]
        floats = [n for n in sorted(inputs) if values[n].dtype.kind == "f" and inputs[n][0] != "e"]
        wanted = [known[n] for n in floats] + parameters
        gradients = []
        if parts and wanted:
            gradients = fluid.gradients([fluid.layers.sum(parts)], wanted)
    return main, startup, feed, outputs, list(zip(wanted, gradients))


def run(fluid, expression, inputs):
    """Return what a case gives: {name: array or None}, outputs first, then gradients."""
    rng = np.random.RandomState(7)
    main, startup, feed, outputs, gradients = built(fluid, expression, inputs, rng)
    scope = fluid.Scope()
    with fluid.scope_guard(scope):
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(startup)
        for parameter in main.global_block().all_parameters():
            drawn = rng.uniform(0.1, 0.9, parameter.shape).astype("float32")
            scope.find_var(parameter.name).get_tensor().set(drawn, fluid.CPUPlace())
        names = ["out%d" % i for i in range(len(outputs))]
        fetch = list(outputs)
        for variable, gradient in gradients:
            if gradient is not None:
                fetch.append(gradient)
                names.append("grad of " + variable.name)
        tensors = executor.run(main, feed=feed, fetch_list=fetch, return_numpy=False)
    found = {name: np.array(tensor) for name, tensor in zip(names, tensors)}
    for name, tensor in list(zip(names, tensors))[: len(outputs)]:
        levels = tensor.recursive_sequence_lengths() if hasattr(tensor, "lod") else []
        # Where nothing is found, Fluid's sequences are of one image, however many there are.
        if levels and found[name].tolist() != [[-1]]:
            found["sequences of " + name] = np.concatenate(levels)
    return found


def train(fluid, expression, inputs):
    """Return the losses of some steps with an optimizer, and what the parameters are in the end.

    ``inputs`` may say what averages the parameters: they are fetched with the averages applied.
    """
    rng = np.random.RandomState(7)
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x, y = fluid.data("x", [None, 4]), fluid.data("y", [None, 1])
        hidden = fluid.layers.fc(x, 3, act="tanh")
        if "error_clip" in inputs:
            hidden.error_clip = eval(inputs["error_clip"], {"fluid": fluid})
        out = fluid.layers.fc(hidden, 1)
        loss = fluid.layers.mean(fluid.layers.square_error_cost(out, y))
        eval(expression, {"fluid": fluid}).minimize(loss)
        average = None
        if "average" in inputs:
            average = eval(inputs["average"], {"fluid": fluid})
            if hasattr(average, "update"):
                average.update()
    parameters = [p.name for p in main.global_block().all_parameters()]
    scope, found = fluid.Scope(), {}
    with fluid.scope_guard(scope):
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(startup)

        def values():
            held = [np.array(scope.find_var(n).get_tensor()) for n in sorted(parameters)]
            return np.concatenate([v.reshape(-1) for v in held])

        for name in parameters:
            shape = np.array(scope.find_var(name).get_tensor()).shape
            start = rng.uniform(-0.9, 0.9, shape).astype("float32")
            for held in (name, name + "@SLOW"):  # a slow copy begins where the parameter does
                if scope.find_var(held) is not None:
                    scope.find_var(held).get_tensor().set(start, fluid.CPUPlace())
        losses = []
        for _ in range(7):
            feed = {"x": rng.normal(size=(5, 4)), "y": rng.normal(size=(5, 1))}
            feed = {name: value.astype("float32") for name, value in feed.items()}
            losses.append(np.array(executor.run(main, feed=feed, fetch_list=[loss])[0]))
        found["losses"] = np.concatenate([v.reshape(-1) for v in losses])
        found["parameters"] = values()
        if average is not None:
            with average.apply(executor):
                found["averages"] = values()
            found["restored"] = values()
    return found


def runner(family):
    """What runs the cases of a family."""
    module = importlib.import_module("tests.fluid_ops.families." + family)
    return train if getattr(module, "TRAINING", False) else run


def kept(array):
    """What is kept of a value: its shape, and its numbers or sums of them."""
    flat = np.asarray(array).reshape(-1).astype("float64")
    if flat.size <= MANY:
        numbers = flat
    else:
        numbers = _weights(flat.size).dot(flat)
    return [list(np.shape(array)), [float("%.7g" % v) for v in numbers]]


def differs(array, wanted, tolerance=3e-5):
    """Say in what a value differs from what was kept; "" if it does not."""
    shape, numbers = wanted
    array = np.asarray(array)
    if array.size == 0 and not numbers:  # Fluid may show these as [0]
        return ""
    if list(array.shape) != shape and array.size != 1:
        return "shape %s, expected %s" % (list(array.shape), shape)
    flat = array.reshape(-1).astype("float64")
    scale = max(1.0, float(np.abs(flat).max())) if flat.size else 1.0
    if flat.size > MANY:
        scale *= flat.size**0.5
    found, numbers = (np.array(held, "float64") for held in (kept(array)[1], numbers))
    alike = (found == numbers) | (np.isnan(found) & np.isnan(numbers))
    near = np.abs(found - numbers) <= tolerance * scale  # false where one of them is NaN
    if not (alike | near).all():
        return "got %s, expected %s" % (found.tolist(), numbers.tolist())
    return ""


def _weights(size):
    """Weights of the sums that are kept: fixed, and different for every place."""
    places = np.arange(1, size + 1)
    return np.array([np.cos(places * (0.7 + 0.31 * k) + k) for k in range(SUMS)])


def path(family):
    """Where the values of a family are kept."""
    return os.path.join(FOLDER, "data", family + ".json.gz")


def text_of(found):
    """One line per case."""
    return "".join(json.dumps(line) + "\n" for line in found)
