"""Trains a small network, saves it, and goes on; made state.json: Paddle 2.6.2, Python 3.10.

    python state.py > state.json

The files ``.pdparams`` and ``.pdopt`` of paddle.static.save, and the losses of steps behind them.
"""

import base64
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["FLAGS_enable_pir_api"] = "0"

import numpy as np

STEPS = 3
FILES = (".pdparams", ".pdopt")


def feed():
    """Return a batch."""
    rng = np.random.RandomState(0)
    return {"x": rng.rand(8, 3).astype("float32"), "y": rng.randint(0, 2, (8, 1))}


def built(paddle):
    """Return a program that trains with Adam and batch normalization, and its loss."""
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.utils.unique_name.guard(), paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [None, 3], "float32")
        y = paddle.static.data("y", [None, 1], "int64")
        hidden = paddle.nn.BatchNorm1D(4)(paddle.nn.Linear(3, 4)(x))
        scores = paddle.nn.Linear(4, 2)(paddle.nn.functional.relu(hidden))
        loss = paddle.nn.functional.cross_entropy(scores, y)
        paddle.optimizer.Adam(0.1).minimize(loss)
    return main, startup, loss


def losses(exe, main, loss):
    """Return the losses of some steps."""
    return [float(exe.run(main, feed=feed(), fetch_list=[loss])[0]) for _ in range(STEPS)]


def main():
    """Print the files and the losses."""
    import paddle

    paddle.enable_static()
    program, startup, loss = built(paddle)
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(startup)
    losses(exe, program, loss)
    with tempfile.TemporaryDirectory() as folder:
        paddle.static.save(program, str(Path(folder) / "model"))
        files = {end: (Path(folder) / f"model{end}").read_bytes() for end in FILES}
    found = {end: base64.b64encode(data).decode() for end, data in files.items()}
    json.dump({**found, "losses": losses(exe, program, loss)}, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
