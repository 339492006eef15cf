"""The table of optimizer updates, each one pass over memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.ops.types import Array, ArrayModule, Attrs, Call, Operands

Hyper = Callable[[Attrs, Array], Sequence[float]]  # (attrs, float type) -> constants


@dataclass(frozen=True)
class Update:
    """How one type of optimizer moves a parameter.

    ``state`` maps input slots to output slots (None: only read). ``rule(attrs)`` names the rule
    in `update_rules`. ``sparse(attrs)`` says which rows a sparse gradient moves: ``each``
    listed row on its own, the ``listed`` ones after merging repeats, ``all``; None: it is refused.
    """

    state: Mapping[str, str | None]
    attrs: Attrs
    rule: Callable[[Attrs], str]
    hyper: Hyper
    sparse: Callable[[Attrs], str | None] = lambda attrs: None
    has_rate: bool = True

    @property
    def written(self) -> dict[str, str]:
        """Output slots by the input slots whose values they replace."""
        return {"Param": "ParamOut", **{s: o for s, o in self.state.items() if o is not None}}


def _always(value: str) -> Callable[[Attrs], str]:
    return lambda attrs: value


def _adam_hyper(a: Attrs, f) -> Sequence[float]:
    beta1, beta2 = f(a["beta1"]), f(a["beta2"])
    return beta1, f(1) - beta1, beta2, f(1) - beta2, a["epsilon"]


def _adamax_hyper(a: Attrs, f) -> Sequence[float]:
    return f(a["beta1"]), f(1) - f(a["beta1"]), a["beta2"], a["epsilon"]


def _rmsprop_hyper(a: Attrs, f) -> Sequence[float]:
    return a["decay"], f(1) - f(a["decay"]), a["epsilon"], a["momentum"]


def _ftrl_hyper(a: Attrs, f) -> Sequence[float]:
    constants = a["l1"], f(2) * f(a["l2"])
    return constants if a["lr_power"] == -0.5 else (*constants, -a["lr_power"])


_ADAM_STATE = {
    "Moment1": "Moment1Out",
    "Moment2": "Moment2Out",
    "Beta1Pow": "Beta1PowOut",
    "Beta2Pow": "Beta2PowOut",
}
_ADAM_ATTRS = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}

UPDATES: dict[str, Update] = {
    "sgd": Update({}, {}, _always("sgd"), lambda a, f: (), _always("each")),
    "momentum": Update(
        {"Velocity": "VelocityOut"},
        {"mu": 0.9, "use_nesterov": False},
        lambda a: "nesterov" if a["use_nesterov"] else "momentum",
        lambda a, f: (a["mu"],),
        _always("all"),
    ),
    "lars_momentum": Update(
        {"Velocity": "VelocityOut"},
        {"mu": 0.9, "lars_coeff": 0.001, "lars_weight_decay": 0.0005},
        _always("lars_momentum"),
        lambda a, f: (a["mu"], a["lars_coeff"], a["lars_weight_decay"]),
    ),
    "adagrad": Update(
        {"Moment": "MomentOut"},
        {"epsilon": 1e-6},
        _always("adagrad"),
        lambda a, f: (a["epsilon"],),
        _always("listed"),
    ),
    "decayed_adagrad": Update(
        {"Moment": "MomentOut"},
        {"decay": 0.95, "epsilon": 1e-6},
        _always("decayed_adagrad"),
        lambda a, f: (a["decay"], f(1) - f(a["decay"]), a["epsilon"]),
    ),
    "adam": Update(
        _ADAM_STATE,
        {
            **_ADAM_ATTRS,
            "lazy_mode": False,
            "min_row_size_to_use_multithread": 1000,
            "scaled_epsilon": False,
        },
        lambda a: "scaled_adam" if a["scaled_epsilon"] else "adam",
        _adam_hyper,
        lambda a: "listed" if a["lazy_mode"] else "all",
    ),
    "adamax": Update(
        {"Moment": "MomentOut", "InfNorm": "InfNormOut", "Beta1Pow": None},
        _ADAM_ATTRS,
        _always("adamax"),
        _adamax_hyper,
    ),
    "rmsprop": Update(
        {"Moment": "MomentOut", "MeanSquare": "MeanSquareOut", "MeanGrad": "MeanGradOut"},
        {"epsilon": 1e-6, "decay": 0.95, "momentum": 0.0, "centered": False},
        lambda a: "centered_rmsprop" if a["centered"] else "rmsprop",
        _rmsprop_hyper,
        _always("all"),
    ),
    "ftrl": Update(
        {"SquaredAccumulator": "SquaredAccumOut", "LinearAccumulator": "LinearAccumOut"},
        {"l1": 0.0, "l2": 0.0, "lr_power": -0.5},
        lambda a: "sqrt_ftrl" if a["lr_power"] == -0.5 else "ftrl",
        _ftrl_hyper,
    ),
    "adadelta": Update(
        {"AvgSquaredGrad": "AvgSquaredGradOut", "AvgSquaredUpdate": "AvgSquaredUpdateOut"},
        {"epsilon": 1e-6, "rho": 0.95},
        _always("adadelta"),
        lambda a, f: (a["rho"], f(1) - f(a["rho"]), a["epsilon"]),
        has_rate=False,
    ),
    "lamb": Update(
        {**_ADAM_STATE, "Beta1Pow": None, "Beta2Pow": None},
        {**_ADAM_ATTRS, "epsilon": 1e-6, "weight_decay": 0.01},
        _always("lamb"),
        lambda a, f: (*_adam_hyper(a, f), a["weight_decay"]),
        _always("all"),
    ),
}


def bind_update(
    xp: ArrayModule,
    type: str,
    attrs: Attrs,
    param,
    rate,
    state: Operands,
    grads,
    contributors: Sequence[int] = (0,),
    scale: float = 1.0,
) -> Call:
    """Return the update of ``param`` by ``scale`` times the sum of rows of ``grads``, in one pass.

    ``grads`` is [anybody, *param.shape], each row contiguous, wherever it lies; the rows of
    ``contributors`` are added in that order. ``state`` holds the arrays of ``UPDATES[type].state``
    in order; ``rate`` is the learning rate, one element. Arrays are read and written in place.
    """
    from hpcdist.base import jit
    from hpcdist.ops.optimize import update_device, update_kernels
    from hpcdist.ops.optimize.update_calls import update_calls

    update = UPDATES[type]
    rule = update.rule(attrs)
    hyper = np.array([scale, *update.hyper(attrs, param.dtype.type)], param.dtype)
    if xp is not np:
        rows = [grads[k] for k in contributors]
        return update_device.bind(xp, rule, param, rate, state, hyper, rows)
    stride, rest = divmod(grads.strides[0], grads.itemsize)
    if rest or not all(row.flags.c_contiguous for row in grads):
        raise GraphError(f"{type}: the rows of its gradients must be contiguous and aligned")
    stride = stride if len(grads) > 1 else param.size
    span = (len(grads) - 1) * stride + param.size
    flat = np.lib.stride_tricks.as_strided(grads, (span,), (grads.itemsize,))
    starts = np.array([k * stride for k in contributors], np.int64)
    states = tuple(s.reshape(-1) for s in state)
    kernel = update_kernels.PASSES[rule]
    call = jit.bound(kernel, param.reshape(-1), flat, starts, rate.reshape(-1), hyper, states)
    rows = [grads[k].reshape(-1) for k in contributors]
    parts = update_calls(rule, param.reshape(-1), rows, rate.reshape(-1), hyper, states)
    if parts is not None:
        call.parts = parts  # type: ignore[attr-defined]
    return call


def is_plain(type: str, attrs: Attrs) -> bool:
    """Return whether each element moves by itself, so that several parameters may move as one."""
    from hpcdist.base.update_rules import RULES

    return UPDATES[type].rule(attrs) in RULES


def bind_updates(
    xp: ArrayModule,
    type: str,
    attrs: Attrs,
    params: Operands,
    rate,
    states: Sequence[Sequence[Array]],
    grads: Sequence[Array],
) -> Call:
    """Return the update of several parameters on a GPU, each with its states and gradient.

    They lie as `update_device.bind_run` says.
    """
    from hpcdist.ops.optimize import update_device

    update = UPDATES[type]
    dtype = params[0].dtype
    hyper = np.array([1.0, *update.hyper(attrs, dtype.type)], dtype)
    rule = update.rule(attrs)
    return update_device.bind_run(xp, rule, params, rate, states, hyper, grads)
