"""Programs whose operators stand in other orders than forward, backward, updates.

Each function builds a network, minimizes, and returns what to fetch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import hpcdist as fluid
from hpcdist import layers
from hpcdist.clip import GradientClipByGlobalNorm
from hpcdist.executor.executor import Executor
from hpcdist.graph import Program, Variable

make = fluid.optimizer
Built = tuple[Program, Program, list[Variable]]  # main, startup, what to fetch
ROWS = [6, 8, 4, 6]
HIDDEN = "fc_0.tmp_1"  # where a pipeline may be cut
SPARSE = {"is_sparse": True}
DISTRIBUTED = {"is_sparse": True, "is_distributed": True}


def _net(table: dict[str, bool] | None = None) -> tuple[Variable, Variable, Variable]:
    """Return label, hidden values and loss."""
    hidden, y = layers.data("x", [5]), layers.data("y", [1])
    if table is not None:
        word = layers.data("word", [1], dtype="int64")
        rows = layers.embedding(word, [20, 3], param_attr="table", **table)
        hidden = layers.concat([hidden, rows], axis=1)
    hidden = _fc(hidden, 4, "lower", "tanh")
    return y, hidden, layers.mean(layers.square_error_cost(_fc(hidden, 1, "upper"), y))


def _fc(x: Variable, size: int, name: str, act: str | None = None) -> Variable:
    return layers.fc(x, size, act=act, param_attr=name, bias_attr=False)


def _sgd(loss: Variable, *parameters: str) -> None:
    make.SGD(0.5).minimize(loss, parameter_list=list(parameters) or None)


def _parameter(name: str) -> Variable:
    return fluid.default_main_program().global_block().var(name)


# -- several minimize ------------------------------------------------------------------------------
def the_upper_layer_first() -> list[Variable]:
    *_, loss = _net()
    _sgd(loss, "upper")
    _sgd(loss, "lower")
    return [loss]


def the_lower_layer_first() -> list[Variable]:
    *_, loss = _net()
    _sgd(loss, "lower")
    _sgd(loss, "upper")
    return [loss]


def two_losses() -> list[Variable]:
    y, hidden, loss = _net()
    other = layers.mean(layers.square_error_cost(_fc(hidden, 1, "other"), y))
    make.Adam(0.1).minimize(loss, parameter_list=["upper", "lower"])
    _sgd(other, "other")
    return [loss, other]


def both_backward_first() -> list[Variable]:
    *_, loss = _net()
    one, two = make.SGD(0.5), make.Momentum(0.1, 0.9)
    pairs = one.backward(loss, parameter_list=["upper"])
    others = two.backward(loss, parameter_list=["lower"])
    one.apply_gradients(pairs)
    two.apply_gradients(others)
    return [loss]


def two_clips_and_schedules() -> list[Variable]:
    *_, loss = _net()
    clip = GradientClipByGlobalNorm(0.1)
    rates = [layers.exponential_decay(0.5, steps, 0.5) for steps in (1, 2)]
    make.SGD(rates[0], grad_clip=clip).minimize(loss, parameter_list=["lower"])
    make.Adamax(rates[1], grad_clip=clip).minimize(loss, parameter_list=["upper"])
    return [loss]


def a_generator_and_its_critic() -> list[Variable]:
    _, hidden, _ = _net()
    critic = layers.mean(layers.square(_fc(hidden, 1, "critic") - 1.0))
    _sgd(critic, "critic")
    loss = layers.mean(layers.square(_fc(hidden, 1, "critic")))
    _sgd(loss, "lower")
    return [critic, loss]


def through_a_branch() -> list[Variable]:
    _, hidden, loss = _net()
    one = layers.fill_constant([1], "float32", 1.0)
    inner = layers.create_parameter([4, 1], "float32", name="inner")
    branch = layers.cond(
        one < 2.0,
        lambda: layers.mean(layers.square(layers.mul(hidden, inner))),
        lambda: layers.mean(hidden),
    )
    _sgd(loss, "upper")
    _sgd(layers.elementwise_add(loss, branch), "lower", "inner")
    return [loss, branch]


def within_a_branch() -> list[Variable]:
    *_, loss = _net()
    one = layers.fill_constant([1], "float32", 1.0)
    with layers.Switch() as switch, switch.case(one < 2.0):
        _sgd(loss, "lower")
    _sgd(loss, "upper")
    return [loss]


def sparse_rows_first() -> list[Variable]:
    *_, loss = _net(SPARSE)
    _sgd(loss, "table")
    _sgd(loss, "lower", "upper")
    return [loss]


def sparse_rows_last() -> list[Variable]:
    *_, loss = _net(SPARSE)
    _sgd(loss, "lower", "upper")
    _sgd(loss, "table")
    return [loss]


def distributed_rows_first() -> list[Variable]:
    *_, loss = _net(DISTRIBUTED)
    _sgd(loss, "table")
    _sgd(loss, "lower", "upper")
    return [loss]


def distributed_rows_last() -> list[Variable]:
    *_, loss = _net(DISTRIBUTED)
    _sgd(loss, "lower", "upper")
    _sgd(loss, "table")
    return [loss]


# -- what stands behind updates --------------------------------------------------------------------
def a_norm_behind() -> list[Variable]:
    *_, loss = _net()
    _sgd(loss)
    return [loss, layers.reduce_sum(layers.square(_parameter("upper")))]


def a_network_behind() -> list[Variable]:
    y, hidden, loss = _net()
    make.Adam(0.1).minimize(loss)
    return [loss, layers.mean(layers.square_error_cost(_fc(hidden, 1, "upper"), y))]


def a_branch_behind() -> list[Variable]:
    *_, loss = _net()
    _sgd(loss)
    one = layers.fill_constant([1], "float32", 1.0)
    branch = layers.cond(
        one < 2.0, lambda: layers.reduce_sum(_parameter("upper")), lambda: one * 0.0
    )
    return [loss, branch]


def gradients_behind() -> list[Variable]:
    _, hidden, loss = _net()
    _sgd(loss)
    (gradient,) = fluid.gradients([loss], [hidden])
    return [loss, layers.reduce_sum(layers.abs(gradient))]


def rows_behind() -> list[Variable]:
    *_, loss = _net(SPARSE)
    _sgd(loss)
    rows = layers.embedding(_parameter("word"), [20, 3], param_attr="table", is_sparse=True)
    return [loss, layers.reduce_mean(rows)]


def training_by_what_stands_behind() -> list[Variable]:
    *_, loss = _net(SPARSE)
    _sgd(loss)
    rows = layers.embedding(_parameter("word"), [20, 3], param_attr="table", is_sparse=True)
    rows.stop_gradient = True
    other = layers.mean(layers.square(_fc(rows, 2, "third")))
    _sgd(other, "third")
    return [loss, other]


# -- state -----------------------------------------------------------------------------------------
def a_rate_that_moves_behind() -> list[Variable]:
    *_, loss = _net()
    rate = layers.create_global_var([1], 0.1, "float32", persistable=True, name="rate")
    make.SGD(rate).minimize(loss)
    with fluid.default_main_program()._lr_schedule_guard():
        layers.assign(rate * 0.5, rate)
    return [loss]


def a_counter_of_all_updates() -> list[Variable]:
    main, (*_, loss) = fluid.default_main_program(), _net()
    count = layers.create_global_var([1], 1.0, "float32", persistable=True, name="count")
    pairs = []
    for parameter, gradient in make.SGD(0.5).backward(loss):
        with main._optimized_guard([parameter, gradient]):
            layers.increment(count)
            pairs.append((parameter, gradient * count))
    make.SGD(0.05).apply_gradients(pairs)
    return [loss]


def a_constant_times_gradients() -> list[Variable]:
    main, (*_, loss) = fluid.default_main_program(), _net()
    pairs = []
    for parameter, gradient in make.SGD(0.5).backward(loss):
        with main._optimized_guard([parameter, gradient]):
            pairs.append((parameter, gradient * layers.fill_constant([1], "float32", 0.5)))
    make.SGD(0.5).apply_gradients(pairs)
    return [loss]


def a_velocity_read() -> list[Variable]:
    *_, loss = _net()
    momentum = make.Momentum(0.1, 0.9)
    momentum.minimize(loss)
    velocity = momentum._get_accumulator("velocity", _parameter("upper"))
    return [loss, layers.reduce_sum(velocity)]


def a_penalized_gradient_read() -> list[Variable]:
    *_, loss = _net()
    decay = fluid.regularizer.L2Decay(0.1)
    _, pairs = make.SGD(0.1, regularization=decay).minimize(loss)
    return [loss, layers.reduce_sum(layers.square(pairs[0][1]))]


def an_average_between() -> list[Variable]:
    *_, loss = _net()
    _sgd(loss, "lower")
    make.ExponentialMovingAverage(0.5).update()
    _sgd(loss, "upper")
    return [loss]


# -- running them ----------------------------------------------------------------------------------
def build(make_one: Callable[[], list[Variable]]) -> Built:
    """Return main and startup Program, and what to fetch."""
    main, startup = Program(), Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        fetch = make_one()
    return main, startup, fetch


def batch(program: Program, step: int) -> dict[str, Any]:
    """Return what a step is fed."""
    rng, rows = np.random.RandomState(step), ROWS[step]
    made = {
        "x": rng.rand(rows, 5).astype(np.float32),
        "y": rng.rand(rows, 1).astype(np.float32),
        "word": rng.randint(0, 20, (rows, 1)),
    }
    return {name: value for name, value in made.items() if program.global_block().has_var(name)}


def steps(exe: Executor, run: Any, main: Program, fetch: list[Variable]) -> list[list[np.ndarray]]:
    """Return what every step fetches; ``run`` stands for ``main``."""
    return [
        [np.asarray(v) for v in exe.run(run, feed=batch(main, step), fetch_list=fetch)]
        for step in range(len(ROWS))
    ]


def train(main: Program, startup: Program, fetch: list[Variable]) -> list[list[np.ndarray]]:
    """The plain script."""
    exe = Executor()
    exe.run(startup)
    return steps(exe, main, main, fetch)
