"""Layers in one operator: what Fluid's passes put in place of several, in stored models.

As in Fluid they have no gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import Applied, How, MixesRows, OfRows, by_row
from hpcdist.graph.sequence_rows import by_row_of_sequence, by_sequence, expect_ragged
from hpcdist.ops.common import in_sequence
from hpcdist.ops.loss.pair_loss import with_click_rate
from hpcdist.ops.sequence.pool_softmax_conv import (
    CONV,
    conv_bind,
    conv_infer,
    pool_bind,
    sequences_of,
)
from hpcdist.ops.sequence.regroup import owners
from hpcdist.ops.types import Array, ArrayModule, Call, Lods, Metas, Operands


# -- full layers -----------------------------------------------------------------------------------
def _fc_infer(
    x: Meta, w: Meta, bias: Meta | None, in_num_col_dims: int, activation_type: str, **_
) -> Meta:
    width = Meta(x.shape[in_num_col_dims:], x.dtype).size
    if not 0 < in_num_col_dims < len(x.shape) or len(w.shape) != 2 or width not in (-1, w.shape[0]):
        raise GraphError(
            f"fc: an input of {x.shape} with in_num_col_dims={in_num_col_dims} has {width} numbers "
            f"in a row, and the weights are {w.shape}"
        )
    if bias is not None and bias.size != w.shape[1]:
        raise GraphError(f"fc: weights of {w.shape} need {w.shape[1]} biases, got {bias.shape}")
    if activation_type not in ("", "relu"):
        raise GraphError(f"fc: activation_type must be '' or 'relu', got {activation_type!r}")
    return Meta((*x.shape[:in_num_col_dims], w.shape[1]), x.dtype)


def _full(xp: ArrayModule, x, w, bias, relu: bool) -> Array:
    total = xp.matmul(x, w)
    if bias is not None:
        total = total + bias.reshape(-1)
    return xp.maximum(total, 0) if relu else total


def _fc(xp: ArrayModule, x, w, bias, out, activation_type: str, **_) -> None:
    rows = x.reshape(-1, len(w))
    out[...] = _full(xp, rows, w, bias, activation_type == "relu").reshape(out.shape)


define(
    "fc",
    "Input, W, Bias? -> Out",
    rows=by_row("Input"),
    attrs={"in_num_col_dims": 1, "activation_type": ""},
    infer=_fc_infer,
    kernel=_fc,
)


def _repeated_infer(x: Meta, ws: Sequence[Meta], biases: Sequence[Meta]) -> Metas:
    if len(ws) < 2 or len(ws) != len(biases):
        raise GraphError(f"fusion_repeated_fc_relu: {len(ws)} weights and {len(biases)} biases")
    layers = [x]
    for w, bias in zip(ws, biases):
        layers.append(_fc_infer(layers[-1], w, bias, 1, "relu"))
    return layers[1:-1], layers[-1]


def _repeated(xp: ArrayModule, x, ws: Operands, biases: Operands, inner: Operands, out) -> None:
    value = x.reshape(len(x), -1)
    for w, bias, target in zip(ws, biases, [*inner, out]):
        target[...] = value = _full(xp, value, w, bias, relu=True)


define(
    "fusion_repeated_fc_relu",
    "X, W*, Bias* -> ReluOut*, Out",
    rows=by_row("X"),
    infer=_repeated_infer,
    kernel=_repeated,
)


def _squared_infer(x: Meta, y: Meta, **_) -> Metas:
    if len(x.shape) != 2 or len(y.shape) != 2 or x.shape[1] != y.shape[0]:
        raise GraphError(f"fusion_squared_mat_sub: cannot multiply {x.shape} by {y.shape}")
    out = Meta((x.shape[0], y.shape[1]), x.dtype)
    return Meta(x.shape, x.dtype), Meta(y.shape, y.dtype), out, out


def _squared(xp: ArrayModule, x, y, *outs: Any, scalar: float) -> None:
    """(x y)^2 - x^2 y^2, as of factorization machines."""
    squares = x * x, y * y, xp.square(xp.matmul(x, y))
    out = (squares[2] - xp.matmul(squares[0], squares[1])) * x.dtype.type(scalar)
    for target, value in zip(outs, (*squares, out)):
        if target is not None:
            target[...] = value


define(
    "fusion_squared_mat_sub",
    "X, Y -> SquaredX?, SquaredY?, SquaredXY?, Out",
    rows=by_row("X"),
    attrs={"scalar": 1.0},
    infer=_squared_infer,
    kernel=_squared,
)


# -- layers of sequences ---------------------------------------------------------------------------
_POOLED = {"pooltype": "SUM", "axis": 1}


def _pooled_infer(type: str, xs: Sequence[Meta], less: int, pooltype: str, axis: int) -> Meta:
    if pooltype not in ("SUM", "AVERAGE", "SQRT") or axis != 1:
        raise GraphError(
            f"{type}: pooltype {pooltype!r}, axis {axis}: expected SUM, AVERAGE or SQRT along 1"
        )
    counts = {sequences_of(x, type, "X").sequences for x in xs}
    if len(counts) != 1:
        raise GraphError(f"{type}: inputs of {sorted(counts)} sequences, expected as many of each")
    return Meta((counts.pop(), sum(x.shape[1] - less for x in xs)), xs[0].dtype)


def _pooled_bind(
    xp: ArrayModule,
    xs: Operands,
    out,
    lods: Lods,
    pooltype: str,
    becomes: Callable[..., object],
    less: int = 0,
) -> Call:
    calls: list[Call] = []
    begin = 0
    for x, lod in zip(xs, lods[0]):
        width = math.prod(x.shape[1:])
        pool = xp.empty((len(out), width), x.dtype)
        calls.append(pool_bind(xp, x, pool, None, pooltype, 0.0, [lod]))
        part = out[:, begin : begin + width - less]
        calls.append(partial(becomes, pool, part))
        begin += width - less
    return in_sequence(*calls)


def _put(pool, part) -> None:
    part[...] = pool


define(
    "fusion_seqpool_concat",
    "X* -> Out",
    rows=by_sequence,
    attrs=_POOLED,
    infer=lambda xs, **attrs: _pooled_infer("fusion_seqpool_concat", xs, 0, **attrs),
    bind=lambda xp, xs, out, lods, pooltype, **_: _pooled_bind(xp, xs, out, lods, pooltype, _put),
    lods=("X",),
)


def _cvm_infer(xs: Sequence[Meta], cvm: Meta, use_cvm: bool, **attrs: Any) -> Meta:
    return _pooled_infer("fusion_seqpool_cvm_concat", xs, 0 if use_cvm else 2, **attrs)


def _cvm_bind(
    xp: ArrayModule, xs: Operands, cvm, out, lods: Lods, pooltype: str, use_cvm: bool, **_
) -> Call:
    def become(pool, part) -> None:
        with_click_rate(xp, pool, None, part, use_cvm)

    return _pooled_bind(xp, xs, out, lods, pooltype, become, 0 if use_cvm else 2)


define(
    "fusion_seqpool_cvm_concat",
    "X*, CVM -> Out",
    rows=by_sequence,
    attrs={**_POOLED, "use_cvm": True},
    infer=_cvm_infer,
    bind=_cvm_bind,
    lods=("X",),
)


def _conv_relu_bind(xp: ArrayModule, x, filter, bias, out, rows, lods: Lods, **attrs: Any) -> Call:
    conv = conv_bind(xp, x, filter, out, lods=lods, **attrs)

    def activate() -> None:
        xp.add(out, bias.reshape(-1), out=out)
        xp.maximum(out, 0, out=out)

    return in_sequence(conv, activate)


def _conv_relu_infer(x: Meta, filter: Meta, bias: Meta, **attrs: Any) -> Metas:
    out = conv_infer(x, filter, **attrs)
    if bias.size != out.shape[1]:
        raise GraphError(f"{out.shape[1]} filters need as many biases, got {bias.shape}")
    return out, Meta((0,), x.dtype)


define(
    "fusion_seqconv_eltadd_relu",
    "X, Filter, Bias -> Out, ColMat?",
    rows=by_row_of_sequence,
    attrs=CONV,
    infer=_conv_relu_infer,
    bind=_conv_relu_bind,
    lods=("X",),
)


# -- a full layer of sequences and of what is said once for each -----------------------------------
_ACTIVATE: Mapping[str, Callable[[ArrayModule, Any], Any]] = {
    "identity": lambda xp, out: out,
    "sigmoid": lambda xp, out: 1 / (1 + xp.exp(-out)),
    "tanh": lambda xp, out: xp.tanh(out),
    "relu": lambda xp, out: xp.maximum(out, 0),
}


def _expanded_infer(xs: Sequence[Meta], w: Meta, bias: Meta | None, fc_activation: str) -> Metas:
    type = "fusion_seqexpand_concat_fc"
    if len(xs) < 2 or any(len(x.shape) != 2 for x in xs):
        raise GraphError(f"{type}: expected two matrices or more, got {[x.shape for x in xs]}")
    lod = sequences_of(xs[0], type, "the first X")
    for x in xs[1:]:
        if lod.known and x.shape[0] != lod.sequences:
            raise GraphError(
                f"{type}: {x.shape[0]} rows for {lod.sequences} sequences of the first X"
            )
    width = sum(x.shape[1] for x in xs)
    if w.shape[0] != width or (bias is not None and bias.size != w.shape[1]):
        told = "none" if bias is None else bias.shape
        raise GraphError(f"{type}: rows of {width} numbers, weights {w.shape}, biases {told}")
    if fc_activation not in _ACTIVATE:
        raise GraphError(
            f"{type}: fc_activation must be one of {[*_ACTIVATE]}, got {fc_activation!r}"
        )
    return Meta((xs[0].shape[0], w.shape[1]), xs[0].dtype, lod=xs[0].lod), Meta((0,), xs[0].dtype)


def _expanded_bind(
    xp: ArrayModule, xs: Operands, w, bias, out, rows, lods: Lods, fc_activation: str
) -> Call:
    owner = xp.asarray(owners(lods[0][0]))
    first, *others = xs
    split = first.shape[1]

    def run() -> None:
        each = xp.concatenate(others, axis=1) @ w[split:]
        total = first @ w[:split] + each[owner]
        if bias is not None:
            total = total + bias.reshape(-1)
        out[...] = _ACTIVATE[fc_activation](xp, total)

    return run


def _of_all(op: Applied) -> OfRows:
    """Rows of the first X; the others have one for each of its sequences."""
    first, *others = op.inputs["X"]
    expect_ragged(first, nested=False)
    for operand in others:
        if operand.of.how not in (How.ROWS, How.RAGGED):
            raise MixesRows(f"{operand.name!r} is {operand.of.how.value}")
    return first.of


define(
    "fusion_seqexpand_concat_fc",
    "X*, FCWeight, FCBias? -> Out, FCOut?",
    rows=_of_all,
    attrs={"fc_activation": "identity"},
    infer=_expanded_infer,
    bind=_expanded_bind,
    lods=("X",),
)
