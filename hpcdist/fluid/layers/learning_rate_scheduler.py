"""Learning-rate schedules: operators that compute the rate of a step from a step counter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid.layers import math_op
from hpcdist.fluid.layers.activation import ceil, cos, exp, floor
from hpcdist.fluid.layers.control_flow import Switch, autoincreased_step_counter
from hpcdist.fluid.layers.math import elementwise_min
from hpcdist.fluid.layers.tensor import assign, cast, create_global_var, fill_constant
from hpcdist.graph.program import default_main_program
from hpcdist.graph.variable import Variable

__all__ = [
    "cosine_decay",
    "exponential_decay",
    "inverse_time_decay",
    "linear_lr_warmup",
    "natural_exp_decay",
    "noam_decay",
    "piecewise_decay",
    "polynomial_decay",
]

COUNTER = "@LR_DECAY_COUNTER@"
Rate = float | Variable


def _schedule() -> Any:
    return default_main_program()._lr_schedule_guard()


def _decay_step_counter(begin: int = 0) -> Variable:
    """Return the number of the step as a float: ``begin`` in the first."""
    counter = autoincreased_step_counter(counter_name=COUNTER, begin=begin, step=1)
    return cast(counter, "float32")


def _periods(decay_steps: int, staircase: bool) -> Variable:
    """Return how many periods have passed: whole ones, or a fraction too."""
    periods = _decay_step_counter() / decay_steps
    return floor(periods) if staircase else periods


def noam_decay(d_model: int, warmup_steps: int, learning_rate: Rate = 1.0) -> Variable:
    """lr d^-0.5 min(step^-0.5, step warmup^-1.5), from step 1 on (Vaswani et al., 2017).

    Examples:
        >>> fluid.layers.noam_decay(d_model=512, warmup_steps=4000).shape
        (1,)
    """
    with _schedule():
        step = _decay_step_counter(begin=1)
        falling = step**-0.5
        rising = warmup_steps**-1.5 * step
        return learning_rate * d_model**-0.5 * elementwise_min(falling, rising)


def exponential_decay(
    learning_rate: Rate, decay_steps: int, decay_rate: float, staircase: bool = False
) -> Variable:
    """lr rate^(step / decay_steps); ``staircase`` takes whole periods only.

    Examples:
        >>> rate = fluid.layers.exponential_decay(0.1, decay_steps=1000, decay_rate=0.9)
        >>> fluid.optimizer.SGD(learning_rate=rate).type
        'sgd'
    """
    with _schedule():
        return learning_rate * (decay_rate ** _periods(decay_steps, staircase))


def natural_exp_decay(
    learning_rate: Rate, decay_steps: int, decay_rate: float, staircase: bool = False
) -> Variable:
    """lr exp(-rate step / decay_steps).

    Examples:
        >>> fluid.layers.natural_exp_decay(0.1, decay_steps=1000, decay_rate=0.9).shape
        (1,)
    """
    with _schedule():
        periods = _periods(decay_steps, staircase)
        return learning_rate * exp(-1 * decay_rate * periods)


def inverse_time_decay(
    learning_rate: Rate, decay_steps: int, decay_rate: float, staircase: bool = False
) -> Variable:
    """lr / (1 + rate step / decay_steps).

    Examples:
        >>> fluid.layers.inverse_time_decay(0.1, decay_steps=1000, decay_rate=0.9).shape
        (1,)
    """
    with _schedule():
        periods = _periods(decay_steps, staircase)
        return learning_rate / (1 + decay_rate * periods)


def polynomial_decay(
    learning_rate: Rate,
    decay_steps: int,
    end_learning_rate: float = 0.0001,
    power: float = 1.0,
    cycle: bool = False,
) -> Variable:
    """(lr - end) (1 - step / decay_steps)^power + end; ``cycle`` begins anew, each time longer.

    Examples:
        >>> fluid.layers.polynomial_decay(0.1, decay_steps=1000).shape
        (1,)
    """
    with _schedule():
        step = _decay_step_counter()
        period: Any = decay_steps
        if cycle:
            cycles = ceil(step / decay_steps)
            zero = fill_constant([1], "float32", 0.0)
            one = fill_constant([1], "float32", 1.0)
            with Switch() as switch, switch.case(math_op.equal(step, zero)):
                assign(one, cycles)
            period = decay_steps * cycles
        else:
            last = fill_constant([1], "float32", float(decay_steps))
            step = elementwise_min(step, last)
        left = (1 - step / period) ** power
        return (learning_rate - end_learning_rate) * left + end_learning_rate


def piecewise_decay(boundaries: Sequence[int], values: Sequence[float]) -> Variable:
    """``values[i]`` while the step is below ``boundaries[i]``, then the last value.

    Examples:
        >>> rate = fluid.layers.piecewise_decay([1000, 2000], values=[0.1, 0.01, 0.001])
        >>> rate.shape
        (1,)
    """
    if len(values) != len(boundaries) + 1:
        raise GraphError(
            f"piecewise_decay: {len(boundaries)} boundaries need {len(boundaries) + 1} values, "
            f"got {len(values)}"
        )
    with _schedule():
        step = _decay_step_counter()
        rate = create_global_var([1], 0.0, "float32", persistable=True, name="learning_rate")
        with Switch() as switch:
            for boundary, value in zip(boundaries, values):
                bound = fill_constant([1], "float32", float(boundary), force_cpu=True)
                chosen = fill_constant([1], "float32", float(value))
                with switch.case(step < bound):
                    assign(chosen, rate)
            last = fill_constant([1], "float32", float(values[-1]))
            with switch.default():
                assign(last, rate)
        return rate


def cosine_decay(learning_rate: Rate, step_each_epoch: int, epochs: int) -> Variable:
    """lr / 2 (cos(pi epoch / epochs) + 1), a rate per epoch (Loshchilov and Hutter, 2017).

    Examples:
        >>> fluid.layers.cosine_decay(0.1, step_each_epoch=100, epochs=10).shape
        (1,)
    """
    if not isinstance(learning_rate, (float, Variable)):
        raise GraphTypeError(
            f"cosine_decay: learning_rate must be a float or a Variable, got {learning_rate!r}"
        )
    with _schedule():
        epoch = floor(_decay_step_counter() / step_each_epoch)
        return learning_rate * 0.5 * (cos(epoch * math.pi / epochs) + 1)


def linear_lr_warmup(
    learning_rate: Rate, warmup_steps: int, start_lr: float, end_lr: float
) -> Variable:
    """From ``start_lr`` to ``end_lr`` in a line over ``warmup_steps``, then ``learning_rate``.

    Examples:
        >>> fluid.layers.linear_lr_warmup(0.1, 100, start_lr=0.0, end_lr=0.1).shape
        (1,)
    """
    dtype = learning_rate.dtype if isinstance(learning_rate, Variable) else "float32"
    slope = float(end_lr) - float(start_lr)
    with _schedule():
        rate = create_global_var([1], 0.0, dtype, persistable=True, name="learning_rate_warmup")
        step = _decay_step_counter()
        with Switch() as switch:
            with switch.case(step < warmup_steps):
                assign(start_lr + slope * (step / float(warmup_steps)), rate)
            with switch.default():
                if not isinstance(learning_rate, Variable):
                    learning_rate = fill_constant([1], dtype, float(learning_rate))
                assign(learning_rate, rate)
        return rate
