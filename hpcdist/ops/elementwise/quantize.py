"""Values rounded to few bits, as Fluid's operators for quantized networks do it, and back.

A scale is the largest magnitude, of all elements or of a channel: ``(1 << bits - 1) - 1`` steps.
Programs and stored models that were quantized contain them. As in Fluid none has a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hpcdist.base.errors import FeedError, GraphError
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import Applied, MixesRows, by_row
from hpcdist.ops.common import fits, same
from hpcdist.ops.types import Array, ArrayModule, Metas

_ONE = (1,)
_MOVING = {"moving_rate": 0.9, "is_test": False}


def _over_all(op: Applied) -> Any:
    raise MixesRows("its scale is the largest element of all rows")


def _range(bits: int) -> int:
    return (1 << (bits - 1)) - 1


def _largest(xp: ArrayModule, x) -> Array:
    return xp.abs(x).max()


def _rounded(xp: ArrayModule, x, scale, bits: int) -> Array:
    """Return x in steps of scale / range, as whole numbers; half a step is rounded away from 0."""
    inverse = xp.where(scale <= 1e-30, 1 / (scale + x.dtype.type(1e-6)), 1 / scale)
    steps = xp.clip(x, -scale, scale) * (x.dtype.type(_range(bits)) * inverse)
    return xp.copysign(xp.floor(xp.abs(steps) + 0.5), steps)


def _back(xp: ArrayModule, x, scale, bits: int) -> Array:
    return _rounded(xp, x, scale, bits) * scale / x.dtype.type(_range(bits))


def _per_channel(x) -> tuple[int, ...]:
    return (-1, *(1 for _ in x.shape[1:]))


# -- the scale is that of the value itself ---------------------------------------------------------
def _abs_max(xp: ArrayModule, x, out, out_scale, bit_length: int) -> None:
    out_scale[...] = _largest(xp, x)
    out[...] = _rounded(xp, x, out_scale.reshape(()), bit_length)


def _channel_wise(xp: ArrayModule, x, out, out_scale, bit_length: int) -> None:
    out_scale[...] = xp.abs(x.reshape(len(x), -1)).max(1)
    out[...] = _rounded(xp, x, out_scale.reshape(_per_channel(x)), bit_length)


define(
    "fake_quantize_abs_max",
    "X -> Out, OutScale",
    rows=_over_all,
    attrs={"bit_length": 8},
    infer=lambda x, **_: (same(x), Meta(_ONE, x.dtype)),
    kernel=_abs_max,
)
define(
    "fake_channel_wise_quantize_abs_max",
    "X -> Out, OutScale",
    rows=by_row(),
    attrs={"bit_length": 8},
    infer=lambda x, **_: (same(x), Meta(x.shape[:1], x.dtype)),
    kernel=_channel_wise,
)


# -- the scale is kept from step to step -----------------------------------------------------------
def _in_range(
    xp: ArrayModule,
    x,
    in_scale,
    iteration,
    out,
    out_scale,
    out_scales,
    window_size: int,
    bit_length: int,
    is_test: bool,
) -> None:
    """The scale is the largest of the last ``window_size`` steps."""
    scale = in_scale.reshape(()).copy()
    if not is_test:
        if iteration is None or out_scales is None:
            raise GraphError("fake_quantize_range_abs_max needs Iter and OutScales to train")
        step = int(iteration.reshape(-1)[0])
        place, current = step % window_size, _largest(xp, x)
        removed = out_scales[place].copy()
        out_scales[place] = current
        if scale < current:
            scale = current
        elif abs(removed - scale) < 1e-6:
            scale = out_scales[: max(min(step, window_size), 1)].max()
        out_scale[...] = scale
    elif out_scale is not None:
        out_scale[...] = scale
    out[...] = _rounded(xp, x, scale, bit_length)


define(
    "fake_quantize_range_abs_max",
    "X, InScale, Iter? -> Out, OutScale?, OutScales?",
    rows=_over_all,
    attrs={"window_size": 10000, "bit_length": 8, "is_test": False},
    infer=lambda x, *_, window_size, **__: (
        same(x),
        Meta(_ONE, x.dtype),
        Meta((window_size,), x.dtype),
    ),
    kernel=_in_range,
    inplace={"OutScale": "InScale"},
)


def _moving_scale(
    xp: ArrayModule, x, accum, state, out_scale, out_state, out_accum, moving_rate: float
) -> None:
    """The scale is a mean of the largest elements, in which older ones count less and less."""
    if any(a is None for a in (accum, state, out_state, out_accum)):
        raise GraphError("a moving scale needs InAccum, InState, OutAccum and OutState to train")
    rate = x.dtype.type(moving_rate)
    out_state[...] = rate * state + 1
    out_accum[...] = rate * accum + _largest(xp, x)
    out_scale[...] = out_accum / out_state


def _moving(
    becomes: Callable[..., Array],
    xp: ArrayModule,
    x,
    in_scale,
    accum,
    state,
    out,
    out_scale,
    out_state,
    out_accum,
    moving_rate: float,
    bit_length: int,
    is_test: bool,
) -> None:
    scale = in_scale
    if not is_test:
        scale = xp.empty_like(in_scale)
        _moving_scale(xp, x, accum, state, scale, out_state, out_accum, moving_rate)
    if out_scale is not None:
        out_scale[...] = scale
    out[...] = becomes(xp, x, scale.reshape(()), bit_length)


_SIGNATURE = "X, InScale, InAccum?, InState? -> Out, OutScale?, OutState?, OutAccum?"
_KEPT = {"OutScale": "InScale", "OutState": "InState", "OutAccum": "InAccum"}


def _moving_infer(x: Meta, *_, **__) -> Metas:
    return same(x), *[Meta(_ONE, x.dtype)] * 3


define(
    "fake_quantize_moving_average_abs_max",
    _SIGNATURE,
    rows=_over_all,
    attrs={**_MOVING, "bit_length": 8},
    infer=_moving_infer,
    kernel=partial(_moving, _rounded),
    inplace=_KEPT,
)


define(
    "fake_quantize_dequantize_moving_average_abs_max",
    _SIGNATURE,
    rows=_over_all,
    attrs={**_MOVING, "bit_length": 8},
    infer=_moving_infer,
    kernel=partial(_moving, _back),
    inplace=_KEPT,
)


def _watched(
    xp: ArrayModule,
    x,
    accum,
    state,
    out,
    out_scale,
    out_state,
    out_accum,
    moving_rate: float,
    is_test: bool,
) -> None:
    if out is not None:
        out[...] = x
    if not is_test:
        scale = xp.empty(_ONE, x.dtype)
        _moving_scale(xp, x, accum, state, scale, out_state, out_accum, moving_rate)
        if out_scale is not None:
            out_scale[...] = scale


define(
    "moving_average_abs_max_scale",
    "X, InAccum?, InState? -> Out?, OutScale?, OutState?, OutAccum?",
    rows=_over_all,
    attrs=_MOVING,
    infer=_moving_infer,
    kernel=_watched,
    inplace={"OutState": "InState", "OutAccum": "InAccum"},
)


# -- and back --------------------------------------------------------------------------------------
def _dequantize(xp: ArrayModule, x, scale, out, max_range: float) -> None:
    out[...] = x.astype(out.dtype) * (scale.reshape(()) / out.dtype.type(max_range))


def _channels_back(
    xp: ArrayModule, x, scales: Sequence[Any], out, quant_bits: Sequence[int]
) -> None:
    """One scale: for each row. Two: for each channel, and for all."""
    if len(scales) == 1:
        factor = scales[0].reshape(_per_channel(x))
    else:
        factor = scales[0].reshape((1, *_per_channel(x)[:-1])) * scales[1].reshape(())
    out[...] = x * (factor / out.dtype.type(np.prod([_range(bits) for bits in quant_bits])))


def _channels_infer(x: Meta, scales: Sequence[Meta], quant_bits: Sequence[int]) -> Meta:
    if len(scales) not in (1, 2) or len(quant_bits) < len(scales):
        raise GraphError(f"{len(scales)} scales and {len(quant_bits)} quant_bits: expected 1 or 2")
    channels = [x.shape[:1]] if len(scales) == 1 else [x.shape[1:2], _ONE]
    if not all(fits(scale.shape, extents) for scale, extents in zip(scales, channels)):
        raise GraphError(f"expected Scales {channels}, got {[scale.shape for scale in scales]}")
    return same(x)


def _looked_up(xp: ArrayModule, x, dictionary, out) -> None:
    wide = x.astype("int64")
    out[...] = xp.where(wide < 0, -dictionary[(wide + 128) % 128], dictionary[wide % 128])


define(
    "fake_dequantize_max_abs",
    "X, Scale -> Out",
    rows=by_row("X"),
    attrs={"max_range": 127.0},
    infer=lambda x, *_, **__: same(x),
    kernel=_dequantize,
)
define(
    "dequantize_abs_max",
    "X, Scale -> Out",
    rows=by_row("X"),
    attrs={"max_range": 127.0},
    infer=lambda x, scale, **_: Meta(x.shape, scale.dtype),
    kernel=_dequantize,
)
define(
    "fake_channel_wise_dequantize_max_abs",
    "X, Scales* -> Out",
    rows=by_row("X"),
    attrs={"quant_bits": (8,)},
    infer=_channels_infer,
    kernel=_channels_back,
)
define(
    "dequantize_log",
    "X, Dict -> Out",
    rows=by_row("X"),
    infer=lambda x, dictionary: Meta(x.shape, dictionary.dtype),
    kernel=_looked_up,
)


def _rows_infer(table: Meta, ids: Meta, padding_idx: int) -> Meta:
    if len(table.shape) != 2 or table.shape[1] < 3 or table.dtype != "float32":
        raise GraphError(
            f"lookup_table_dequant: expected a table of float32 [rows, 2 + n], the least and the "
            f"largest value of a row before its bytes; got {table.dtype}{list(table.shape)}"
        )
    shape = ids.shape[:-1] if ids.shape[-1] == 1 else ids.shape
    return Meta((*shape, (table.shape[1] - 2) * 4), table.dtype)


def _rows_of_bytes(xp: ArrayModule, table, ids, out, padding_idx: int) -> None:
    flat = ids.reshape(-1)
    wrong = (flat < 0) | (flat >= len(table))
    if padding_idx >= 0:
        wrong &= flat != padding_idx
    if wrong.any():
        raise FeedError(f"lookup_table_dequant: id {flat[wrong][0]} is not in [0, {len(table)})")
    found = table[flat]
    least, largest = found[:, :1], found[:, 1:2]
    steps = xp.ascontiguousarray(found[:, 2:]).view("uint8").astype("float32")
    values = steps * ((largest - least) / np.float32(256)) + least
    if padding_idx >= 0:
        values[flat == padding_idx] = 0
    out[...] = values.reshape(out.shape)


define(
    "lookup_table_dequant",
    "W, Ids -> Out",
    rows=by_row("Ids"),
    attrs={"padding_idx": -1},
    infer=_rows_infer,
    kernel=_rows_of_bytes,
)
