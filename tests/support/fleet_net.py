"""A small net that fleet's tests train on ranks, and in one process."""

from __future__ import annotations

import numpy as np

import hpcdist as fluid
from hpcdist.graph import names

STEPS, ROWS, FEATURES = 6, 12, 5


def net():
    """Return the loss of a small net, in the default programs."""
    x, y = fluid.layers.data("x", [FEATURES]), fluid.layers.data("y", [1])
    hidden = fluid.layers.fc(x, 4, act="tanh")
    guess = fluid.layers.fc(hidden, 1)
    return fluid.layers.mean(fluid.layers.square_error_cost(guess, y))


def rows_of(step, worker, workers):
    random = np.random.RandomState(step)
    x = random.uniform(-1, 1, [ROWS, FEATURES]).astype("float32")
    return {"x": x[worker::workers], "y": x.sum(1, keepdims=True)[worker::workers]}


def trained(main, startup, loss, worker, workers, exe=None, steps=STEPS, begin=lambda: None):
    exe = exe or fluid.Executor()
    exe.run(startup)
    begin()
    fed = (rows_of(step, worker, workers) for step in range(steps))
    return [float(exe.run(main, feed=feed, fetch_list=[loss])[0][0]) for feed in fed]


def own_programs():
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    return fluid.program_guard(main, startup)


def in_one_process(begin=lambda: None):
    """Return the losses of one process on whole batches; ``begin``: after the startup program."""
    with own_programs(), names.guard(), fluid.scope_guard(fluid.Scope()):
        loss = net()
        fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
        main, startup = fluid.default_main_program(), fluid.default_startup_program()
        return trained(main, startup, loss, 0, 1, begin=begin)


def results(outcomes):
    for outcome in outcomes:
        assert not outcome.error, f"{outcome.role}: {outcome.trace}"
    return [outcome.value for outcome in outcomes]
