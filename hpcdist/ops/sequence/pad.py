"""Between sequences and arrays padded to one length: pad, unpad, and masks of lengths."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.graph.lod import Lod
from hpcdist.graph.registry import Given, Meta, define
from hpcdist.graph.rows import Applied, How, OfRows, common_rows
from hpcdist.graph.sequence_rows import expect_ragged
from hpcdist.ops.common import define_with_grad, in_sequence
from hpcdist.ops.sequence.pool_softmax_conv import like_first, rowwise, sequences_of
from hpcdist.ops.sequence.regroup import gather, owners, scatter
from hpcdist.ops.types import ArrayModule, Call, DeviceArray, Lods, Metas


def _padded_rows(op: Applied) -> dict[str, OfRows]:
    (x,), padded = op.inputs["X"], op.attrs["padded_length"] != -1
    expect_ragged(x, nested=False)
    return {"Out": OfRows(How.ROWS if padded else How.PADDED), "Length": OfRows(How.ROWS)}


def _unpadded_rows(op: Applied) -> OfRows:
    (x,), (length,) = op.inputs["X"], op.inputs["Length"]
    common_rows(op, [x, length], {How.ROWS, How.PADDED})
    return OfRows(How.RAGGED, op.outputs["Out"][0].name)


def _mask_rows(op: Applied) -> OfRows:
    of = common_rows(op, op.inputs["X"], {How.ROWS})
    maxlen = op.attrs["maxlen"]
    return of if maxlen is None or maxlen > 0 else replace(of, how=How.PADDED)


_PAD = {"padded_length": -1}


def _pad_infer(x: Meta, pad_value: Meta, padded_length: int) -> Metas:
    lod = sequences_of(x, "sequence_pad", "X")
    if pad_value.size != 1 and pad_value.shape != x.shape[1:]:
        raise GraphError(
            f"sequence_pad: pad_value must be [1] or {x.shape[1:]}, as a row, got {pad_value.shape}"
        )
    longest = int(lod.lengths.max(initial=0)) if lod.known else -1
    if 0 <= padded_length < longest:
        raise GraphError(
            f"sequence_pad: maxlen {padded_length} is shorter than a sequence of {longest} rows"
        )
    length = longest if padded_length == -1 else padded_length
    shape = (lod.sequences, length, *x.shape[1:])
    return Meta(shape, x.dtype), Meta((lod.sequences,), "int64", lengths=lod)


def _slots(lod: Lod, length: int) -> np.ndarray:
    """Return where each row lies among [sequences * length] padded rows."""
    return owners(lod) * length + np.arange(lod.rows) - np.repeat(lod.last[:-1], lod.lengths)


def _slots_view(padded) -> DeviceArray:
    return padded.reshape(padded.shape[0] * padded.shape[1], *padded.shape[2:])


def _pad_bind(xp: ArrayModule, x, pad_value, out, length, lods: Lods, **_) -> Call:
    (lod,) = lods
    value = pad_value.reshape(()) if pad_value.size == 1 else pad_value
    calls: list[Call] = [
        partial(xp.copyto, out, value),
        scatter(xp, x, _slots(lod, out.shape[1]), _slots_view(out)),
    ]
    if length is not None:
        calls.append(partial(xp.copyto, length, xp.asarray(lod.lengths)))
    return in_sequence(*calls)


def _pad_grad_bind(xp: ArrayModule, x, dout, dx, lods: Lods, **_) -> Call:
    return gather(xp, _slots_view(dout), _slots(lods[0], dout.shape[1]), dx)


define_with_grad(
    "sequence_pad",
    "X, PadValue -> Out, Length",
    "X, Out@GRAD -> X@GRAD",
    rows=_padded_rows,
    attrs=_PAD,
    infer=_pad_infer,
    bind=_pad_bind,
    lods=("X",),
    grad_infer=like_first,
    grad_bind=_pad_grad_bind,
    grad_shape_only=("X",),
)


def _unpad_infer(x: Meta, length: Meta) -> Meta:
    if len(x.shape) < 2 or (-1 not in (x.shape[0], length.size) and x.shape[0] != length.size):
        raise GraphError(f"sequence_unpad: X {x.shape} needs one length per row, got {length.size}")
    inner = x.shape[2:] or (1,)
    lod = length.lengths
    if lod is None:
        return Meta((-1, *inner), x.dtype, lod=Lod(1))
    longest = int(lod.lengths.max(initial=0))
    if longest > x.shape[1]:
        raise GraphError(f"sequence_unpad: X {x.shape} has no sequence of {longest} rows")
    return Meta((lod.rows, *inner), x.dtype, lod=lod)


def _unpad_grad_bind(xp: ArrayModule, x, length, dout, dx, lods: Lods) -> Call:
    put = scatter(xp, dout, _slots(lods[0], x.shape[1]), _slots_view(dx))
    return in_sequence(partial(dx.fill, 0), put)


define_with_grad(
    "sequence_unpad",
    "X, Length -> Out",
    "X, Length, Out@GRAD -> X@GRAD",
    rows=_unpadded_rows,
    infer=_unpad_infer,
    bind=lambda xp, x, length, out, lods: gather(
        xp, _slots_view(x), _slots(lods[0], x.shape[1]), out
    ),
    shape_only=("Length",),
    measures=("Length",),
    grad_infer=lambda x, length, dout: rowwise(x),
    grad_bind=_unpad_grad_bind,
    grad_shape_only=("X", "Length"),
    grad_measures=("Length",),
)


def _mask_infer(x: Meta, maxlen: int | None, out_dtype: str) -> Meta:
    if maxlen is None:
        maxlen = -1
    elif maxlen < 0:
        maxlen = -1 if x.lengths is None else int(x.lengths.lengths.max(initial=0))
    return Meta((*x.shape, maxlen), out_dtype)


def _mask_bind(xp: ArrayModule, x, out, **_) -> Call:
    places = xp.arange(out.shape[-1])
    return partial(xp.less, places, x[..., None], out, casting="unsafe")


define(
    "sequence_mask",
    "X, MaxLenTensor? -> Y",
    rows=_mask_rows,
    attrs={"maxlen": -1, "out_dtype": "int64"},
    given={"maxlen": Given("MaxLenTensor")},
    infer=_mask_infer,
    bind=_mask_bind,
    measures=("X",),
)
