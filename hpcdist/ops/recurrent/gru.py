"""Gated recurrent units over sequences, and a single step of one.

Gates have Fluid's order: update, reset, candidate. Weight [D, 3 D] is, as in Fluid, two matrices
one after the other in memory: [D, 2 D] of the gates, then [D, D] of the candidate.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta
from hpcdist.graph.rows import by_row
from hpcdist.ops.common import define_with_grad
from hpcdist.ops.host_loops import run_on_host
from hpcdist.ops.recurrent.time_steps import (
    RELU,
    Steps,
    by_place,
    check_shapes,
    kind_of,
    like_forward,
    rows_of_steps,
)
from hpcdist.ops.scratch import scratch
from hpcdist.ops.sequence.pool_softmax_conv import rowwise, sequences_of
from hpcdist.ops.types import Array, ArrayModule, Call, Lods, Metas, Operands

GRU = {
    "is_reverse": False,
    "gate_activation": "sigmoid",
    "activation": "tanh",
    "origin_mode": False,
}
_UNIT = {"gate_activation": 1, "activation": 2, "origin_mode": False}


# -- shapes ----------------------------------------------------------------------------------------
def _check(type: str, x: Meta, first, weight: Meta, bias, rows: int) -> int:
    width = weight.shape[0]
    expected = [
        ("Input", x, (x.shape[0], 3 * width)),
        ("Weight", weight, (width, 3 * width)),
        ("Bias", bias, (1, 3 * width)),
        ("the initial state", first, (rows, width)),
    ]
    check_shapes(type, expected)
    return width


def gru_infer(x: Meta, h0, weight: Meta, bias, **attrs) -> Metas:
    """Shape rule of ``gru``."""
    sequences = sequences_of(x, "gru", "Input").sequences
    width = _check("gru", x, h0, weight, bias, sequences)
    kind_of(attrs["gate_activation"], "gru")
    kind_of(attrs["activation"], "gru")
    hidden = Meta((x.shape[0], width), x.dtype, lod=x.lod)
    return hidden, rowwise(x), rowwise(hidden), rowwise(hidden)


def _unit_infer(
    x: Meta, last: Meta, weight: Meta, bias, activation: int, gate_activation: int, **_
) -> Metas:
    if not {activation, gate_activation} <= set(range(RELU + 1)):
        raise GraphError(
            "gru_unit: activations must be 0 (identity), 1 (sigmoid), 2 (tanh) or 3 (relu), got "
            f"{activation} and {gate_activation}"
        )
    width = _check("gru_unit", x, last, weight, bias, x.shape[0])
    hidden = Meta((x.shape[0], width), x.dtype)
    return Meta(x.shape, x.dtype), hidden, hidden


# -- loops over steps ------------------------------------------------------------------------------
def weights_of(weight) -> tuple[Array, Array]:
    """View Weight as the two matrices that it is."""
    width = len(weight)
    flat = weight.reshape(-1)
    split = 2 * width * width
    return flat[:split].reshape(width, 2 * width), flat[split:].reshape(width, width)


def _forward(steps: Steps, kinds, origin: bool, inputs: Operands, outputs: Operands) -> None:
    """Inputs: Input, H0, Weight, Bias; outputs: Hidden, and by place gates, resets and Hidden."""
    from hpcdist.ops.recurrent.gru_kernels import gru_forward

    x, h0, weight, bias = inputs
    out, gates, resets, by_steps = outputs
    dtype, count, rows, width = x.dtype, len(steps.order), len(steps.rows), len(weight)
    room = partial(scratch, dtype=dtype)
    all_hidden = by_place("hidden", steps, h0, None, width, dtype)
    gru_forward(
        x,
        *weights_of(weight),
        np.zeros(3 * width, dtype) if bias is None else bias.reshape(-1),
        h0 is not None,
        origin,
        steps.starts,
        steps.rows,
        steps.befores,
        kinds,
        all_hidden,
        room("gru gates", (rows, 3 * width)) if gates is None else gates,
        room("gru resets", (rows, width)) if resets is None else resets,
        room("gru products", (count, 2 * width)),
        room("gru candidates", (count, width)),
    )
    if out is not None:
        out[steps.rows] = all_hidden[count:]
    if by_steps is not None:
        by_steps[...] = all_hidden[count:]


def _backward(steps: Steps, kinds, origin: bool, inputs: Operands, outputs: Operands) -> None:
    from hpcdist.ops.recurrent.gru_kernels import gru_backward

    h0, weight, _, hidden, gates, resets, dhidden = inputs
    dx, dh0, dweight, dbias = outputs
    dtype, count, rows, width = gates.dtype, len(steps.order), len(steps.rows), len(weight)
    all_hidden = by_place("hidden", steps, h0, hidden, width, dtype)
    all_dhidden = by_place("dhidden", steps, None, dhidden, width, dtype)
    dgates = scratch("gru dgates", (rows, 2 * width), dtype)
    dcandidates = scratch("gru dcandidates", (rows, width), dtype)
    gru_backward(
        *weights_of(weight),
        origin,
        steps.starts,
        steps.befores,
        kinds,
        all_hidden,
        gates,
        all_dhidden,
        dgates,
        dcandidates,
        scratch("gru products", (count, width), dtype),
    )
    if dx is not None:
        dx[steps.rows, : 2 * width] = dgates
        dx[steps.rows, 2 * width :] = dcandidates
    if dh0 is not None:
        dh0[steps.order] = all_dhidden[:count]
    if dweight is not None:
        before = scratch("gru before", (rows, width), dtype)
        np.take(all_hidden, steps.befores, axis=0, out=before, mode="clip")
        of_gates, of_candidate = weights_of(dweight)
        np.dot(before.T, dgates, out=of_gates)
        np.dot(resets.T, dcandidates, out=of_candidate)
    if dbias is not None:
        flat = dbias.reshape(-1)
        np.sum(dgates, axis=0, out=flat[: 2 * width])
        np.sum(dcandidates, axis=0, out=flat[2 * width :])


def _bound(
    loop,
    xp: ArrayModule,
    inputs: Operands,
    outputs: Operands,
    lods: Lods,
    is_reverse: bool,
    gate_activation: str,
    activation: str,
    origin_mode: bool,
) -> Call:
    kinds = kind_of(gate_activation, "gru"), kind_of(activation, "gru")
    steps = Steps.of(lods[0], is_reverse)
    return run_on_host(xp, partial(loop, steps, kinds, origin_mode), inputs, outputs)


def gru_bind(xp: ArrayModule, *operands, **attrs) -> Call:
    """Bind ``gru``; an absent operand, and gates that nobody reads, are None."""
    return _bound(_forward, xp, operands[:4], operands[4:], **attrs)


def _grad_bind(xp: ArrayModule, x, *operands, **attrs) -> Call:
    return _bound(_backward, xp, operands[:7], operands[7:], **attrs)


_GRAD = """Input, H0?, Weight, Bias?, Hidden, BatchGate, BatchResetHiddenPrev, Hidden@GRAD ->
    Input@GRAD?, H0@GRAD?, Weight@GRAD?, Bias@GRAD?"""
define_with_grad(
    "gru",
    "Input, H0?, Weight, Bias? -> Hidden, BatchGate, BatchResetHiddenPrev, BatchHidden",
    _GRAD,
    rows=rows_of_steps("Hidden"),
    attrs=GRU,
    infer=gru_infer,
    bind=gru_bind,
    lods=("Input",),
    grad_infer=lambda *metas, **_: like_forward(*metas[:4]),
    grad_bind=_grad_bind,
    grad_shape_only=("Input",),
)


# -- a single step ---------------------------------------------------------------------------------
def _unit_bound(
    loop, xp: ArrayModule, rows: int, inputs: Operands, outputs: Operands, **attrs
) -> Call:
    kinds = attrs["gate_activation"], attrs["activation"]
    run = partial(loop, Steps.single(rows), kinds, attrs["origin_mode"])
    return run_on_host(xp, run, inputs, outputs)


def _unit_bind(xp: ArrayModule, x, *operands, **attrs) -> Call:
    inputs, outputs = (x, *operands[:3]), (None, *operands[3:])
    return _unit_bound(_forward, xp, len(x), inputs, outputs, **attrs)


def _unit_grad_bind(xp: ArrayModule, x, *operands, **attrs) -> Call:
    inputs = (*operands[:3], None, *operands[3:6])
    return _unit_bound(_backward, xp, len(x), inputs, operands[6:], **attrs)


_UNIT_GRAD = """Input, HiddenPrev, Weight, Bias?, Gate, ResetHiddenPrev, Hidden@GRAD ->
    Input@GRAD?, HiddenPrev@GRAD?, Weight@GRAD?, Bias@GRAD?"""
define_with_grad(
    "gru_unit",
    "Input, HiddenPrev, Weight, Bias? -> Gate, ResetHiddenPrev, Hidden",
    _UNIT_GRAD,
    rows=by_row("Input", "HiddenPrev"),
    attrs=_UNIT,
    infer=_unit_infer,
    bind=_unit_bind,
    grad_infer=lambda *metas, **_: like_forward(*metas[:4]),
    grad_bind=_unit_grad_bind,
    grad_shape_only=("Input",),
)
