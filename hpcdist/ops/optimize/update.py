"""Optimizer updates bound to arrays, each one pass over memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.base.optimizers import FORMULAS, OPTIMIZERS
from hpcdist.ops.types import Array, ArrayModule, Attrs, Call, Operands


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
    ``contributors`` are added in that order. ``state`` holds the arrays of the declared state, in
    order; ``rate`` is the learning rate, one element. Arrays are read and written in place.
    """
    from hpcdist.base import jit
    from hpcdist.ops.optimize import update_device, update_kernels
    from hpcdist.ops.optimize.update_calls import update_calls

    update = OPTIMIZERS[type]
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
    return OPTIMIZERS[type].rule(attrs) in FORMULAS


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

    update = OPTIMIZERS[type]
    dtype = params[0].dtype
    hyper = np.array([1.0, *update.hyper(attrs, dtype.type)], dtype)
    rule = update.rule(attrs)
    return update_device.bind_run(xp, rule, params, rate, states, hyper, grads)
