"""Saves objects by paddle.save; made objects.json: Paddle 2.6.2, Python 3.10.

    python objects.py > objects.json

The bytes of each file, by the name of the object.
"""

import base64
import json
import os
import sys
import tempfile
from collections import OrderedDict
from pathlib import Path

os.environ["FLAGS_enable_pir_api"] = "0"

import numpy as np


def built(paddle):
    """Return a Program with parameters of known values, which are in the scope, and what it was
    before it trained."""
    static = paddle.static
    main, startup = static.Program(), static.Program()
    with paddle.utils.unique_name.guard(), static.program_guard(main, startup):
        x = static.data("x", [None, 3], "float32")
        loss = paddle.mean(paddle.nn.Linear(3, 2)(x))
        forward = main.clone(for_test=True)
        paddle.optimizer.Adam(0.1).minimize(loss)
    exe = static.Executor(paddle.CPUPlace())
    exe.run(startup)
    weights = np.arange(6, dtype="float32").reshape(3, 2)
    static.set_program_state(main, {"linear_0.w_0": weights})
    return main, forward


def objects(main, forward):
    """Return what is saved, by name, and how."""
    tensor = main.all_parameters()[0].get_value()
    nested = {
        "model": main.state_dict("param"), "epoch": 3, "rate": 0.5, "big": 1 << 70, "minus": -7,
        "list": [1, "a", None, True, tensor], "tuple": (1, 2.5, (), ("b",)),
        "array": np.arange(3), "number": np.float32(2.5), "empty": {},
        "ordered": OrderedDict([("b", 1), ("a", [False])]),
    }  # fmt: skip
    return {
        "state": (main.state_dict(), {}),
        "optimizer": (main.state_dict("opt"), {}),
        "nested": (nested, {}),
        "nested in protocol 2": (nested, {"protocol": 2}),
        "plain": ({"a": {"b": 1, 2: {1.5}}}, {}),
        "list": ([1, {"x": np.ones((2, 2))}], {}),
        "tensor": (tensor, {}),
        "tensor in binary": (tensor, {"use_binary_format": True}),
        "program": (forward, {}),
    }


def main():
    """Print the files."""
    import paddle

    paddle.enable_static()
    files = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (value, how) in objects(*built(paddle)).items():
            paddle.save(value, str(Path(folder) / "file"), **how)
            files[name] = base64.b64encode((Path(folder) / "file").read_bytes()).decode()
    json.dump(files, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
