"""The number of local steps of adaptive local SGD."""

from __future__ import annotations

import math

import numpy as np

from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import not_on_rows
from hpcdist.ops.types import ArrayModule

INTERVAL_OP = "local_sgd_interval"
MOST = 16  # steps between two averages


def interval(loss: float, rate: float, loss_0: float, rate_0: float, init_k_steps: int) -> int:
    """Return ceil(sqrt(init_k_steps rate_0 loss / (rate loss_0))), from 1 to 16.

    After Wang and Joshi (AdaComm, 2019), as fleet 2.0 computes it. 1 if that is no number.
    """
    with np.errstate(all="ignore"):
        ratio = np.float32(rate_0) * np.float32(loss) / (np.float32(rate) * np.float32(loss_0))
        steps = np.sqrt(ratio * np.float32(init_k_steps))
    return min(max(math.ceil(steps), 1), MOST) if np.isfinite(steps) else 1


def _kernel(
    xp: ArrayModule,
    loss,
    rate,
    start,
    steps,
    start_out,
    steps_out,
    init_k_steps: int,
    begin_step: int,
) -> None:
    """Note where the loss and the rate start; from then on choose the steps to the next average.

    ``start`` is [averages so far, loss, rate]; ``steps`` one integer. Both are moved in place.
    """
    calls, loss_0, rate_0 = (float(value) for value in start)
    if calls < begin_step:
        start_out[1:2] = loss.reshape(-1)
        start_out[2:] = rate.reshape(-1)
    else:
        got, now = float(loss.reshape(-1)[0]), float(rate.reshape(-1)[0])
        steps_out.fill(interval(got, now, loss_0, rate_0, init_k_steps))
    start_out[:1] = calls + 1


define(
    INTERVAL_OP,
    "Loss, LearningRate, Start, Steps -> StartOut, StepsOut",
    rows=not_on_rows,
    attrs={"init_k_steps": 1, "begin_step": 1},
    infer=lambda loss, rate, start, steps, **_: (Meta((3,), "float32"), Meta((1,), "int64")),
    kernel=_kernel,
    inplace={"StartOut": "Start", "StepsOut": "Steps"},
)
