"""Learning-rate schedules: the rate of every step against its formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcdist
from hpcdist import layers, optimizer
from hpcdist.errors import EOFException, GraphError
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope
from hpcdist.graph.op_role import OpRole
from hpcdist.graph.program import (
    default_main_program,
    default_startup_program,
)
from hpcdist.graph.variable import Variable

STEPS = 12


pytestmark = pytest.mark.usefixtures("programs")


def rates(rate: Variable) -> list[float]:
    """Return the rate in each of the first steps of a training program."""
    loss = layers.mean(layers.fc(layers.data("x", [2]), 1))
    optimizer.SGD(rate).minimize(loss)
    scope, exe = Scope(), Executor()
    exe.run(default_startup_program(), scope=scope)
    fed = {"x": np.ones((1, 2), np.float32)}
    return [
        float(exe.run(default_main_program(), fed, [rate], scope=scope)[0][0]) for _ in range(STEPS)
    ]


def polynomial(n: int, cycle: bool) -> float:
    period = 5.0
    if cycle:
        period *= max(1, math.ceil(n / 5))
    else:
        n = min(n, 5)
    return (0.1 - 0.01) * (1 - n / period) ** 2 + 0.01


def piecewise(n: int) -> float:
    return 0.1 if n < 3 else 0.05 if n < 6 else 0.01


def warmed(n: int, after: Callable[[int], float]) -> float:
    return 0.01 + (0.1 - 0.01) * n / 4 if n < 4 else after(n)


CASES: list[tuple[str, Callable[[], Variable], Callable[[int], float]]] = [
    (
        "exponential",
        lambda: layers.exponential_decay(0.1, 3, 0.5),
        lambda n: 0.1 * 0.5 ** (n / 3),
    ),
    (
        "exponential, staircase",
        lambda: layers.exponential_decay(0.1, 3, 0.5, staircase=True),
        lambda n: 0.1 * 0.5 ** (n // 3),
    ),
    (
        "natural_exp",
        lambda: layers.natural_exp_decay(0.1, 3, 0.5),
        lambda n: 0.1 * math.exp(-0.5 * n / 3),
    ),
    (
        "natural_exp, staircase",
        lambda: layers.natural_exp_decay(0.1, 3, 0.5, staircase=True),
        lambda n: 0.1 * math.exp(-0.5 * (n // 3)),
    ),
    (
        "inverse_time",
        lambda: layers.inverse_time_decay(0.1, 3, 0.5),
        lambda n: 0.1 / (1 + 0.5 * n / 3),
    ),
    (
        "inverse_time, staircase",
        lambda: layers.inverse_time_decay(0.1, 3, 0.5, staircase=True),
        lambda n: 0.1 / (1 + 0.5 * (n // 3)),
    ),
    (
        "polynomial",
        lambda: layers.polynomial_decay(0.1, 5, 0.01, power=2.0),
        lambda n: polynomial(n, False),
    ),
    (
        "polynomial, cycle",
        lambda: layers.polynomial_decay(0.1, 5, 0.01, power=2.0, cycle=True),
        lambda n: polynomial(n, True),
    ),
    ("piecewise", lambda: layers.piecewise_decay([3, 6], [0.1, 0.05, 0.01]), piecewise),
    (
        "cosine",
        lambda: layers.cosine_decay(0.1, 2, 6),
        lambda n: 0.05 * (math.cos(n // 2 * math.pi / 6) + 1),
    ),
    (
        "noam",
        lambda: layers.noam_decay(64, 5),
        lambda n: 64**-0.5 * min((n + 1) ** -0.5, (n + 1) * 5**-1.5),
    ),
    (
        "warmup",
        lambda: layers.linear_lr_warmup(0.1, 4, 0.01, 0.1),
        lambda n: warmed(n, lambda n: 0.1),
    ),
    (
        "warmup, piecewise",
        lambda: layers.linear_lr_warmup(
            layers.piecewise_decay([3, 6], [0.1, 0.05, 0.01]), 4, 0.01, 0.1
        ),
        # each schedule advances the common counter, in Fluid too
        lambda n: warmed(n, piecewise),
    ),
]


@pytest.mark.parametrize(("make", "formula"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_rates(make: Callable[[], Variable], formula: Callable[[int], float]) -> None:
    assert rates(make()) == pytest.approx([formula(n) for n in range(STEPS)], rel=2e-6)


def test_operators_have_the_schedules_role() -> None:
    layers.piecewise_decay([3, 6], [0.1, 0.05, 0.01])
    program = default_main_program()
    assert [b.parent_idx for b in program.blocks] == [-1, 0, 0, 0]
    assert {op.role for block in program.blocks for op in block.ops} == {OpRole.LR_SCHED}


def test_the_counter_is_the_first_operator() -> None:
    rates(layers.exponential_decay(0.1, 3, 0.5))
    first = default_main_program().global_block().ops[0]
    assert (first.type, first.output("Out")) == ("increment", ["@LR_DECAY_COUNTER@"])


def test_a_test_program_has_no_schedule() -> None:
    rates(layers.exponential_decay(0.1, 3, 0.5))
    tested = default_main_program().clone(for_test=True)
    assert not any(op.role & OpRole.LR_SCHED for op in tested.global_block().ops)


def test_multiplier_of_a_parameter_on_a_schedule() -> None:
    from hpcdist.fluid.layers.param_attr import ParamAttr

    rate = layers.exponential_decay(0.1, 3, 0.5)
    hidden = layers.fc(layers.data("x", [2]), 1, param_attr=ParamAttr(learning_rate=0.5))
    optimizer.SGD(rate).minimize(layers.mean(hidden))
    ops = default_main_program().global_block().ops
    (scale,) = [op for op in ops if op.role == OpRole.LR_SCHED | OpRole.OPTIMIZE]
    assert scale.input("X") == [rate.name]


def test_refusals() -> None:
    arguments: Any = ([3, 6], [0.1, 0.05])
    with pytest.raises(GraphError, match="2 boundaries need 3 values, got 2"):
        layers.piecewise_decay(*arguments)
    with pytest.raises(TypeError, match="cosine_decay"):
        layers.cosine_decay("0.1", 2, 6)  # type: ignore[arg-type]


def test_a_schedule_does_not_count_the_end_of_a_pass():
    """Fluid counts it: its rates in the second pass would be 1/16 and 1/32."""
    x = hpcdist.data("x", [None, 2])
    reader = hpcdist.io.DataLoader.from_generator([x], capacity=2, iterable=False)
    rate = layers.exponential_decay(1.0, 1, 0.5)
    optimizer.SGD(rate).minimize(layers.mean(layers.fc(x, 1)))
    reader.set_batch_generator(lambda: iter([(np.ones((2, 2), "float32"),)] * 2))
    exe, scope, found = Executor(), Scope(), []
    exe.run(default_startup_program(), scope=scope)
    for _ in range(2):
        reader.start()
        with pytest.raises(EOFException):
            while True:
                found.append(float(exe.run(fetch_list=[rate], scope=scope)[0].item()))
        reader.reset()
    assert found == [1.0, 0.5, 0.25, 0.125]
