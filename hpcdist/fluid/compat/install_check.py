"""Fluid's module ``install_check``: a small training to see that hpcdist works here."""

from __future__ import annotations

import numpy as np

from hpcdist.base.errors import NotFiniteError
from hpcdist.executor.backend import CPUPlace
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope, scope_guard
from hpcdist.fluid import layers, optimizer
from hpcdist.graph import Program, names, program_guard

__all__ = ["run_check"]


def run_check() -> None:
    """Train a line for a step, in this process, and print that it works."""
    print("Running Verify Fluid Program ... ")
    main, startup = Program(), Program()
    main.random_seed = startup.random_seed = 1
    with program_guard(main, startup), names.guard():
        x = layers.data(name="inp", shape=[2], dtype="float32")
        loss = layers.mean(layers.fc(x, size=3))
        optimizer.SGD(learning_rate=0.01).minimize(loss)
    feed = {"inp": np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)}
    with scope_guard(Scope()):
        executor = Executor(CPUPlace())
        executor.run(startup)
        first, second = (executor.run(main, feed=feed, fetch_list=[loss])[0] for _ in range(2))
    if not second < first:
        raise NotFiniteError(f"run_check: the loss went from {first} to {second} in a step")
    print("Your Paddle Fluid works well on SINGLE GPU or CPU.")
    print("Your Paddle Fluid is installed successfully! Let's start deep Learning with it now")
