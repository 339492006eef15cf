"""Evaluates the expressions of functions.txt; made expected.json: Paddle 2.6.2, Python 3.10.

    python functions.py > expected.json

For each expression the value, the shape, the parameters that it has made, and the gradients of
the sum of its squares.
"""

import json
import os
import sys
from pathlib import Path

os.environ["FLAGS_enable_pir_api"] = "0"

import numpy as np

HERE = Path(__file__).parent
DIGITS = 7
WITH_GRADIENT = ("x", "x3", "img", "p1")


def feeds():
    """Return the arrays that expressions name."""
    rng = np.random.RandomState(0)

    def floats(*shape):
        return rng.uniform(-1, 1, shape).astype("float32")

    def integers(low, high, *shape):
        return rng.randint(low, high, shape).astype("int64")

    return {
        "x": floats(4, 3), "y": floats(4, 3), "v": floats(3), "m": floats(2, 3, 4),
        "x3": floats(2, 3, 4), "m3": floats(2, 4, 3), "b3": floats(3, 4),
        "p": np.abs(floats(4, 3)) + np.float32(0.1), "k": floats(4, 4),
        "i": integers(1, 9, 4, 3), "j": integers(1, 5, 4, 3), "c": floats(4, 1, 2),
        "idx": np.array([2, 0]), "nd": np.array([[1, 2], [0, 0]]), "idx2": integers(0, 3, 4, 2),
        "y2": floats(2, 3), "v2": floats(2), "i1": np.array([3, 1, 3, 2]),
        "mi": np.array([[0], [1], [0], [1]], "int32"), "img": floats(2, 4, 5, 5),
        "w4": floats(4), "w": floats(3, 2), "bias": floats(2), "table": floats(5, 2),
        "oh": np.eye(4, dtype="float32"), "oh3": np.eye(3, dtype="float32")[[0, 1, 2, 1]],
        "lens": np.array([2, 4, 1]), "lens2": np.array([3, 2]),
        "lab": np.array([[0], [2], [1], [1]]), "lab1": np.array([0, 2, 1, 1]),
        "w3": np.array([0.5, 1.0, 2.0], "float32"),
        "p1": np.abs(floats(4, 1)) * np.float32(0.9) + np.float32(0.05),
        "y1": np.array([[0], [1], [1], [0]], "float32"),
        "b2": (floats(4, 3) > 0).astype("float32"), "sg": np.sign(floats(4, 3)),
        "sg1": np.array([1, -1, 1, -1]), "k4": floats(2, 4, 3, 3), "bias2": floats(2),
        "k3": floats(2, 3, 3), "kt": floats(4, 2, 3, 3), "w333": floats(2, 3, 3),
        "one": np.array([1.5], "float32"), "t3": floats(4, 3), "t3b": floats(4, 3),
        "k2": floats(4, 2), "lab2": np.array([[0], [1], [1], [0]]),
    }  # fmt: skip


def expressions():
    """Return the lines of functions.txt."""
    return (HERE / "functions.txt").read_text().splitlines()


def evaluated(paddle, expression, arrays):
    """Return what an expression is, as plain data."""
    static = paddle.static
    main, startup, scope = static.Program(), static.Program(), paddle.base.Scope()
    with (
        paddle.utils.unique_name.guard(),
        static.program_guard(main, startup),
        static.scope_guard(scope),
    ):
        names = {
            name: static.data(name, list(array.shape), str(array.dtype))
            for name, array in arrays.items()
        }
        for name in WITH_GRADIENT:
            names[name].stop_gradient = False
        attr = paddle.ParamAttr(initializer=paddle.nn.initializer.Constant(0.1))
        known = {"paddle": paddle, "nn": paddle.nn, "F": paddle.nn.functional, "np": np, "C": attr}
        out = eval(expression, known, names)
        gradients = []
        used = [name for name in WITH_GRADIENT if name in expression]
        if used and "FP32" in str(out.dtype).replace("float32", "FP32"):
            found = static.gradients([paddle.sum(out * out)], [names[name] for name in used])
            gradients = [gradient for gradient in found if gradient is not None]
        exe = static.Executor(paddle.CPUPlace())
        exe.run(startup)
        values = exe.run(main, feed=arrays, fetch_list=[out, *gradients])
        parameters = {p.name: list(p.shape) for p in main.all_parameters()}
    plain = [np.round(np.asarray(v).astype("float64"), DIGITS).reshape(-1).tolist() for v in values]
    shape = list(np.asarray(values[0]).shape)
    return {"value": plain[0], "shape": shape, "gradients": plain[1:], "parameters": parameters}


def main():
    """Print what all expressions are."""
    import paddle

    paddle.enable_static()
    arrays = feeds()
    results = {line: evaluated(paddle, line, arrays) for line in expressions()}
    lines = [f"{json.dumps(line)}: {json.dumps(result)}" for line, result in results.items()]
    sys.stdout.write("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
