"""Long short-term memory over sequences, with or without a projection, and its single step.

Weights and gates have Fluid's order: candidate, input, forget, output; those of ``lstm_unit`` are
input, forget, output, candidate.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta
from hpcdist.graph.rows import by_row
from hpcdist.ops.common import define_with_grad
from hpcdist.ops.formulas import sigmoid
from hpcdist.ops.host_loops import run_on_host
from hpcdist.ops.recurrent.time_steps import (
    Steps,
    by_place,
    check_shapes,
    kind_of,
    like_forward,
    rows_of_steps,
)
from hpcdist.ops.scratch import scratch
from hpcdist.ops.sequence.pool_softmax_conv import rowwise, sequences_of
from hpcdist.ops.shape_patterns import shaped
from hpcdist.ops.types import Array, ArrayModule, Call, Lods, Metas, Operands

LSTM = {
    "use_peepholes": True,
    "is_reverse": False,
    "gate_activation": "sigmoid",
    "cell_activation": "tanh",
    "candidate_activation": "tanh",
}
_PROJECTED = {**LSTM, "proj_activation": "tanh", "cell_clip": 0.0, "proj_clip": 0.0}


# -- shapes ----------------------------------------------------------------------------------------
def _check(
    type: str, x: Meta, h0, c0, weight: Meta, fed: int, width: int, bias: Meta, **attrs
) -> None:
    biases = (7 if attrs["use_peepholes"] else 4) * width
    sequences = sequences_of(x, type, "Input").sequences
    expected = [
        ("Input", x, (x.shape[0], 4 * width)),
        ("Weight", weight, (fed, 4 * width)),
        ("Bias", bias, (1, biases)),
        ("H0", h0, (sequences, fed)),
        ("C0", c0, (sequences, width)),
    ]
    check_shapes(type, expected)
    if (h0 is None) is not (c0 is None):
        raise GraphError(f"{type}: give both of h_0 and c_0, or none")
    for name in ("gate", "cell", "candidate", "proj"):
        kind_of(attrs.get(f"{name}_activation", "identity"), type)


def lstm_infer(x: Meta, h0, c0, weight: Meta, bias: Meta, **attrs) -> Metas:
    """Shape rule of ``lstm``."""
    width = weight.shape[0]
    _check("lstm", x, h0, c0, weight, width, width, bias, **attrs)
    hidden = Meta((x.shape[0], width), x.dtype, lod=x.lod)
    return hidden, hidden, rowwise(x), rowwise(hidden)


def _infer_projected(x: Meta, h0, c0, weight: Meta, projection: Meta, bias: Meta, **attrs) -> Metas:
    width, fed = projection.shape
    _check("lstmp", x, h0, c0, weight, fed, width, bias, **attrs)
    cell = Meta((x.shape[0], width), x.dtype, lod=x.lod)
    projected = Meta((x.shape[0], fed), x.dtype, lod=x.lod)
    return projected, cell, rowwise(cell), rowwise(x), rowwise(cell)


# -- loops over steps ------------------------------------------------------------------------------
def _settings(dtype, attrs) -> tuple[Any, Any]:
    """Return activations and clips as the kernels take them."""
    # Fluid activates a projection as it does a cell, whatever proj_activation says, if it says any.
    projection = attrs.get("proj_activation", "identity")
    names = [attrs[f"{name}_activation"] for name in ("gate", "cell", "candidate")]
    names.append(projection if projection == "identity" else names[1])
    clips = [dtype.type(attrs.get(f"{name}_clip", 0.0)) for name in ("cell", "proj")]
    return tuple(kind_of(name, "lstm") for name in names), tuple(clips)


def _biases(bias, width: int) -> tuple[Array, Array]:
    """Return the biases of the gates, and the peepholes [3, width], or [0, width] for none."""
    flat = bias.reshape(-1)
    return flat[: 4 * width], flat[4 * width :].reshape(-1, width)


def _forward(steps: Steps, attrs, inputs: Operands, outputs: Operands) -> None:
    """Inputs and outputs are those of lstmp; of lstm, ProjWeight and BatchHidden are None."""
    from hpcdist.ops.recurrent.lstm_kernels import lstm_forward

    x, h0, c0, weight, projection, bias = inputs
    out, cell, hidden, gates, active = outputs
    dtype, rows, width = x.dtype, len(steps.rows), cell.shape[1]
    kinds, clips = _settings(dtype, attrs)
    room = partial(scratch, dtype=dtype)
    all_fed = by_place("fed", steps, h0, None, out.shape[1], dtype)
    all_cells = by_place("cells", steps, c0, None, width, dtype)
    lstm_forward(
        x,
        weight,
        *_biases(bias, width),
        np.empty((0, 0), dtype) if projection is None else projection,
        h0 is not None,
        steps.starts,
        steps.rows,
        steps.befores,
        kinds,
        clips,
        all_fed,
        all_cells,
        room("lstm gates", (rows, 4 * width)) if gates is None else gates,
        room("lstm active", (rows, width)) if active is None else active,
        room("lstm hidden", (rows, width)) if hidden is None else hidden,
    )
    out[steps.rows] = all_fed[len(steps.order) :]
    cell[steps.rows] = all_cells[len(steps.order) :]


def _backward(steps: Steps, attrs, inputs: Operands, outputs: Operands) -> None:
    """Inputs and outputs are those of lstmp_grad; of lstm_grad, some are None."""
    from hpcdist.ops.recurrent.lstm_kernels import lstm_backward

    h0, c0, weight, projection, bias, out, cell, hidden, gates, active, dout, dcell = inputs
    dx, dh0, dc0, dweight, dprojection, dbias = outputs
    dtype, count, rows, width = gates.dtype, len(steps.order), len(steps.rows), cell.shape[1]
    kinds, clips = _settings(dtype, attrs)
    _, peepholes = _biases(bias, width)
    all_fed = by_place("fed", steps, h0, out, out.shape[1], dtype)
    all_cells = by_place("cells", steps, c0, cell, width, dtype)
    all_dfed = by_place("dfed", steps, None, dout, out.shape[1], dtype)
    all_dcells = by_place("dcells", steps, None, dcell, width, dtype)
    if dcell is None:
        all_dcells.fill(0)
    dgates = scratch("lstm dgates", (rows, 4 * width), dtype)
    dpeepholes = np.zeros_like(peepholes)
    lstm_backward(
        weight,
        peepholes,
        np.empty((0, 0), dtype) if projection is None else projection,
        steps.starts,
        steps.befores,
        kinds,
        clips,
        all_fed,
        all_cells,
        gates,
        active,
        all_dfed,
        all_dcells,
        dgates,
        scratch("lstm dhidden", (rows, width), dtype),
        scratch("lstm carry", (count, out.shape[1]), dtype),
        dpeepholes,
    )
    if dx is not None:
        dx[steps.rows] = dgates
    if dh0 is not None:
        dh0[steps.order] = all_dfed[:count]
    if dc0 is not None:
        dc0[steps.order] = all_dcells[:count]
    if dweight is not None:
        before = scratch("lstm before", (rows, out.shape[1]), dtype)
        np.take(all_fed, steps.befores, axis=0, out=before, mode="clip")
        np.dot(before.T, dgates, out=dweight)
    if dprojection is not None:
        np.dot(hidden.T, all_dfed[count:], out=dprojection)
    if dbias is not None:
        flat = dbias.reshape(-1)
        np.sum(dgates, axis=0, out=flat[: 4 * width])
        flat[4 * width :] = dpeepholes.reshape(-1)


def _bound(loop, xp: ArrayModule, inputs: Operands, outputs: Operands, lods: Lods, attrs) -> Call:
    steps = Steps.of(lods[0], attrs["is_reverse"])
    return run_on_host(xp, partial(loop, steps, attrs), inputs, outputs)


def lstm_bind(
    xp: ArrayModule, x, h0, c0, weight, bias, hidden, cell, gates, active, lods: Lods, **attrs
) -> Call:
    """Bind ``lstm``; an absent operand, and gates that nobody reads, are None."""
    ins, outs = (x, h0, c0, weight, None, bias), (hidden, cell, None, gates, active)
    return _bound(_forward, xp, ins, outs, lods, attrs)


def _bind_projected(xp: ArrayModule, *operands, lods: Lods, **attrs) -> Call:
    return _bound(_forward, xp, operands[:6], operands[6:], lods, attrs)


def _grad_bind(xp: ArrayModule, x, *operands, lods: Lods, **attrs) -> Call:
    ins, outs = list(operands[:10]), list(operands[10:])
    for slots, missing in ((ins, 3), (ins, 7), (outs, 4)):  # ProjWeight, BatchHidden, ProjWeight
        slots.insert(missing, None)
    return _bound(_backward, xp, ins, outs, lods, attrs)


def _grad_bind_projected(xp: ArrayModule, x, *operands, lods: Lods, **attrs) -> Call:
    return _bound(_backward, xp, operands[:12], operands[12:], lods, attrs)


_SAVED = "BatchGate, BatchCellPreAct"
_GRAD = f"""Input, H0?, C0?, Weight, Bias, Hidden, Cell, {_SAVED}, Hidden@GRAD,
    Cell@GRAD? -> Input@GRAD?, H0@GRAD?, C0@GRAD?, Weight@GRAD?, Bias@GRAD?"""
define_with_grad(
    "lstm",
    f"Input, H0?, C0?, Weight, Bias -> Hidden, Cell, {_SAVED}",
    _GRAD,
    rows=rows_of_steps("Hidden", "Cell"),
    attrs=LSTM,
    infer=lstm_infer,
    bind=lstm_bind,
    lods=("Input",),
    grad_infer=lambda *metas, **_: like_forward(*metas[:5]),
    grad_bind=_grad_bind,
    grad_shape_only=("Input",),
)
_PROJECTED_GRAD = f"""Input, H0?, C0?, Weight, ProjWeight, Bias, Projection, Cell, BatchHidden,
    {_SAVED}, Projection@GRAD, Cell@GRAD? -> Input@GRAD?, H0@GRAD?, C0@GRAD?, Weight@GRAD?,
    ProjWeight@GRAD?, Bias@GRAD?"""
define_with_grad(
    "lstmp",
    f"Input, H0?, C0?, Weight, ProjWeight, Bias -> Projection, Cell, BatchHidden, {_SAVED}",
    _PROJECTED_GRAD,
    rows=rows_of_steps("Projection", "Cell"),
    attrs=_PROJECTED,
    infer=_infer_projected,
    bind=_bind_projected,
    lods=("Input",),
    grad_infer=lambda *metas, **_: like_forward(*metas[:6]),
    grad_bind=_grad_bind_projected,
    grad_shape_only=("Input",),
)


# -- a single step ---------------------------------------------------------------------------------
_UNIT = {"forget_bias": 0.0}


def _unit_infer(x: Meta, c_prev: Meta, **_) -> Metas:
    if len(x.shape) != 2 or x.shape[1] != 4 * c_prev.shape[1]:
        raise GraphError(f"lstm_unit: X {x.shape} must be 4 times as wide as C_prev {c_prev.shape}")
    return Meta(c_prev.shape, x.dtype), Meta(c_prev.shape, x.dtype)


def _unit_gates(xp: ArrayModule, x, forget_bias: float) -> tuple[Array, Array, Array, Array]:
    i, f, o, candidate = (x[:, k * x.shape[1] // 4 : (k + 1) * x.shape[1] // 4] for k in range(4))
    gates = sigmoid(xp, i), sigmoid(xp, f + x.dtype.type(forget_bias)), sigmoid(xp, o)
    return (*gates, xp.tanh(candidate))


def _unit(xp: ArrayModule, x, c_prev, c, h, forget_bias: float) -> None:
    i, f, o, candidate = _unit_gates(xp, x, forget_bias)
    new_cell = f * c_prev + i * candidate
    if c is not None:
        c[...] = new_cell
    if h is not None:
        xp.multiply(o, xp.tanh(new_cell), out=h)


def _unit_grad(xp: ArrayModule, x, c_prev, c, dc, dh, dx, dc_prev, forget_bias: float) -> None:
    i, f, o, candidate = _unit_gates(xp, x, forget_bias)
    active = xp.tanh(c)
    dcell = dc + dh * o * (1 - active * active)
    if dc_prev is not None:
        xp.multiply(dcell, f, out=dc_prev)
    if dx is not None:
        width = c.shape[1]
        dx[:, :width] = dcell * candidate * i * (1 - i)
        dx[:, width : 2 * width] = dcell * c_prev * f * (1 - f)
        dx[:, 2 * width : 3 * width] = dh * active * o * (1 - o)
        dx[:, 3 * width :] = dcell * i * (1 - candidate * candidate)


define_with_grad(
    "lstm_unit",
    "X, C_prev -> C, H",
    "X, C_prev, C, C@GRAD, H@GRAD -> X@GRAD?, C_prev@GRAD?",
    rows=by_row(),
    attrs=_UNIT,
    infer=shaped("X: n f; C_prev: n d", _unit_infer),
    kernel=_unit,
    grad_infer=lambda x, c_prev, *_, **__: (
        Meta(x.shape, x.dtype),
        Meta(c_prev.shape, c_prev.dtype),
    ),
    grad_kernel=_unit_grad,
)
