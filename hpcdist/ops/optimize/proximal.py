"""proximal_gd and proximal_adagrad: a step, then towards 0 by l1 and l2 (Duchi, 2009)."""

from __future__ import annotations

from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import not_on_rows
from hpcdist.ops.optimize.sparse_gradients import sparse_refusal
from hpcdist.ops.types import Array, ArrayModule, Metas


def _shrunk(xp: ArrayModule, stepped, lr, l1: float, l2: float) -> Array:
    real = stepped.dtype.type
    if l1 > 0:
        stepped = xp.sign(stepped) * xp.maximum(xp.abs(stepped) - lr * real(l1), 0)
    return stepped / (1 + lr * real(l2))


def _gd(xp: ArrayModule, param, grad, rate, out, l1: float, l2: float) -> None:
    lr = rate.reshape(())
    out[...] = _shrunk(xp, param - lr * grad, lr, l1, l2)


def _adagrad(
    xp: ArrayModule, param, moment, grad, rate, out, moment_out, l1: float, l2: float
) -> None:
    lr = rate.reshape(())
    moment_out[...] = moment + grad * grad
    out[...] = _shrunk(xp, param - lr * grad / xp.sqrt(moment_out), lr, l1, l2)


def _infer(type: str, param: Meta, grad: Meta) -> Meta:
    if grad.type == "SELECTED_ROWS":
        raise GraphError(sparse_refusal(type))
    if tuple(grad.shape) != tuple(param.shape):
        raise GraphError(f"the gradient is {grad.shape}, but the parameter is {param.shape}")
    return Meta(param.shape, param.dtype)


def _adagrad_infer(param: Meta, moment: Meta, grad: Meta, rate: Meta, **_: Any) -> Metas:
    out = _infer("proximal_adagrad", param, grad)
    return out, out


define(
    "proximal_gd",
    "Param, Grad, LearningRate -> ParamOut",
    rows=not_on_rows,
    attrs={"l1": 0.0, "l2": 0.0},
    infer=lambda param, grad, rate, **_: _infer("proximal_gd", param, grad),
    kernel=_gd,
)
define(
    "proximal_adagrad",
    "Param, Moment, Grad, LearningRate -> ParamOut, MomentOut",
    rows=not_on_rows,
    attrs={"l1": 0.0, "l2": 0.0},
    infer=_adagrad_infer,
    kernel=_adagrad,
)
