"""Operators that move elements: flip, shift, pad, crop, slice, regroup.

Each is one function of arrays; applied to the numbers 1, 2, 3, ... it tells the gradient where
every element went (0: nowhere, padding).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Given, Meta, operand_slots, parse_signature
from hpcdist.graph.rows import Applied, Treatment, by_row, linear, off_rows
from hpcdist.ops.common import define_with_grad, open_shape, resolve_axis
from hpcdist.ops.embedding.run_kernels import add_at
from hpcdist.ops.types import ArrayModule, Call, DeviceArray

Function = Callable[..., Any]  # (xp, x, shapes of the other inputs, **attrs) -> what x becomes
# Extents to try where one is not known: those of a result that differ are not known either.
_TRIED = (24, 48)


def _move(
    type: str,
    function: Function,
    rows: Treatment,
    signature: str = "X -> Out",
    moves: str = "X",
    rule: Callable[..., Meta] | None = None,
    given: Mapping[str, Given] | None = None,
    ranges: Mapping[str, str] | None = None,
    **attrs,
) -> None:
    """Enter an operator that moves the elements of ``moves``; of other inputs it reads shapes.

    ``rule``: its shape rule, if to try it out does not tell what there is to know.
    """
    all_inputs, outputs = parse_signature(signature)
    inputs = operand_slots(all_inputs, given or {})
    names = [slot.name for slot in inputs]
    (out,) = (slot.name for slot in outputs)
    at = names.index(moves)

    def infer(*metas: Meta | None, **attributes) -> Meta:
        shapes_tried = [_tried(function, at, metas, extent, attributes) for extent in _TRIED]
        if len(shapes_tried[0]) != len(shapes_tried[1]):
            raise GraphError("the number of dimensions of the result depends on the batch")
        x = metas[at]
        assert x is not None
        return Meta(tuple(a if a == b else -1 for a, b in zip(*shapes_tried)), x.dtype)

    def bind(xp: ArrayModule, *arrays, **attributes) -> Call:
        *values, target = arrays
        shapes = [None if v is None else v.shape for i, v in enumerate(values) if i != at]

        def run() -> None:
            target[...] = function(xp, values[at], *shapes, **attributes)

        return run

    grad_signature = f"{', '.join(map(str, inputs))}, {out}@GRAD -> {moves}@GRAD"

    def grad_bind(xp: ArrayModule, *arrays, **attributes) -> Call:
        *values, dout, dx = arrays
        shapes = [None if v is None else v.shape for i, v in enumerate(values) if i != at]
        attributes = {**attributes, "pad_value": 0} if "pad_value" in attributes else attributes
        numbers = xp.arange(1, dx.size + 1).reshape(dx.shape)
        where = xp.ascontiguousarray(function(xp, numbers, *shapes, **attributes)).reshape(-1)
        sources = where[where > 0]
        once = len(xp.unique(sources)) == len(sources)
        sums = xp.empty(dx.size + 1, dx.dtype)

        def run() -> None:
            sums.fill(0)
            if once:
                sums[where] = dout.reshape(-1)
            else:
                add_at(xp, sums, (where,), dout.reshape(-1))
            dx.reshape(-1)[...] = sums[1:]

        return run

    define_with_grad(
        type,
        signature,
        grad_signature,
        rows=rows,
        attrs=attrs,
        given=given or {},
        ranges=ranges or {},
        infer=rule or infer,
        bind=bind,
        shape_only=[name for name in names if name != moves],
        grad_infer=lambda *metas, **_: Meta(metas[at].shape, metas[at].dtype),
        grad_bind=grad_bind,
        grad_shape_only=names,
    )


def _tried(
    function: Function, at: int, metas: Sequence[Meta | None], extent: int, attrs
) -> tuple[int, ...]:
    """Return the shape of the result, where extents that are not known are ``extent``."""
    shapes = [
        None if meta is None else tuple(extent if d < 0 else d for d in meta.shape)
        for meta in metas
    ]
    shape = shapes[at]
    assert shape is not None
    dummy = np.zeros(shape, np.int8)
    try:
        return function(np, dummy, *(s for i, s in enumerate(shapes) if i != at), **attrs).shape
    except (ValueError, IndexError) as error:
        raise GraphError(f"a value of shape {list(shape)} does not fit: {error}") from None


def _beyond_rows(op: Applied) -> bool:
    """Return whether it works on the last two dimensions of more than two."""
    return op.rank > 2


# -- turned and shifted ----------------------------------------------------------------------------
def _roll(xp: ArrayModule, x, shifts: Sequence[int], dims: Sequence[int]) -> DeviceArray:
    return xp.roll(x, tuple(shifts), tuple(dims)) if dims else xp.roll(x, shifts[0])


def _flip(xp: ArrayModule, x, dims: Sequence[int]) -> DeviceArray:
    return xp.flip(x, tuple(dims))


def _temporal_shift(xp: ArrayModule, x, seg_num: int, shift_ratio: float) -> DeviceArray:
    """Shift some channels one frame forth, as many one frame back (Lin et al., 2019)."""
    _, channels, *image = x.shape
    video = x.reshape(-1, seg_num, channels, *image)
    first, second = int(channels * shift_ratio), int(channels * 2 * shift_ratio)
    out = xp.zeros_like(video)
    out[:, 1:, :first] = video[:, :-1, :first]
    out[:, :-1, first:second] = video[:, 1:, first:second]
    out[:, :, second:] = video[:, :, second:]
    return out.reshape(x.shape)


def _roll_rows(op: Applied) -> bool:
    return bool(op.attrs["dims"]) and off_rows("dims")(op)


def _frames_apart(op: Applied) -> bool:
    return op.attrs["seg_num"] == 1  # else neighbours in the batch are frames of one video


_move("roll", _roll, by_row(apart=_roll_rows), shifts=(), dims=())
_move("flip", _flip, by_row(apart=off_rows("dims")), dims=())
_move(
    "temporal_shift",
    _temporal_shift,
    by_row(apart=_frames_apart),
    ranges={"seg_num": "at least 1", "shift_ratio": "[0, 0.5]"},
    seg_num=1,
    shift_ratio=0.25,
)


# -- triangles and diagonals -----------------------------------------------------------------------
def _tril_triu(xp: ArrayModule, x, diagonal: int, lower: bool) -> DeviceArray:
    if x.ndim < 2:
        raise GraphError(f"a triangle of a value of shape {x.shape}: expected 2 dimensions or more")
    return (xp.tril if lower else xp.triu)(x, diagonal)


def _diag(xp: ArrayModule, x) -> DeviceArray:
    return xp.diag(x)


def _diag_embed(xp: ArrayModule, x, offset: int, dim1: int, dim2: int) -> DeviceArray:
    """Write the last dimension into the diagonal of matrices in dimensions dim1 and dim2."""
    size = x.shape[-1] + abs(offset)
    places = xp.arange(x.shape[-1])
    out = xp.zeros((*x.shape[:-1], size, size), x.dtype)
    out[..., places + max(-offset, 0), places + max(offset, 0)] = x
    rank = x.ndim + 1
    return xp.moveaxis(out, (-2, -1), (resolve_axis(dim1, rank), resolve_axis(dim2, rank)))


def _diagonal_apart(op: Applied) -> bool:
    return op.rank > 1 and all(op.attrs[d] % (op.rank + 1) for d in ("dim1", "dim2"))


_move("tril_triu", _tril_triu, by_row(apart=_beyond_rows), diagonal=0, lower=True)
_move("diag", _diag, by_row(apart=lambda op: False, totals=linear), "Diagonal -> Out", "Diagonal")
_move(
    "diag_embed",
    _diag_embed,
    by_row(apart=_diagonal_apart),
    "Input -> Out",
    "Input",
    offset=0,
    dim1=-2,
    dim2=-1,
)


# -- padded and cropped ----------------------------------------------------------------------------
def _pairs(flat: Sequence[int]) -> list[tuple[int, int]]:
    if any(padding < 0 for padding in flat):
        raise GraphError(
            f"expected paddings of 0 or more, got {list(flat)}; layers.slice cuts elements off"
        )
    return list(zip(flat[::2], flat[1::2]))


def _pad(xp: ArrayModule, x, paddings: Sequence[int], pad_value: float) -> DeviceArray:
    if len(paddings) != 2 * x.ndim:
        raise GraphError(f"expected 2 paddings for each dimension of {x.shape}, got {paddings}")
    return xp.pad(x, _pairs(paddings), constant_values=pad_value)


def _pad2d(
    xp: ArrayModule, x, paddings: Sequence[int], mode: str, pad_value: float, data_format: str
) -> DeviceArray:
    pairs = [(0, 0), (0, 0), *_pairs(paddings)]
    if data_format == "NHWC":
        pairs = [(0, 0), *_pairs(paddings), (0, 0)]
    _expect_room(mode, x.shape, pairs)
    if mode == "constant":
        return xp.pad(x, pairs, constant_values=pad_value)
    return xp.pad(x, pairs, mode={"reflect": "reflect", "edge": "edge"}[mode])


def _expect_room(mode: str, shape: Sequence[int], pairs: Sequence[tuple[int, int]]) -> None:
    """Raise GraphError if more is to be reflected than there is beside the edge."""
    if mode == "reflect" and any(0 <= d <= max(pair) for d, pair in zip(shape, pairs) if any(pair)):
        raise GraphError(
            f"reflect: paddings {list(pairs)} must be smaller than the extents of {shape}"
        )


def _pad_constant_like(xp: ArrayModule, y, like: Sequence[int], pad_value: float) -> DeviceArray:
    pairs = [(0, a - b) for a, b in zip(like, y.shape)]
    return xp.pad(y, pairs, constant_values=pad_value)


def _crop(
    xp: ArrayModule, x, like: Sequence[int] | None, offsets: Sequence[int], shape: Sequence[int]
) -> DeviceArray:
    """Cut a piece of a shape (-1: all that is left) out at offsets."""
    extents = like if like is not None else shape
    begins = list(offsets) or [0] * x.ndim
    ends = [x.shape[i] if d == -1 else begins[i] + d for i, d in enumerate(extents)]
    for i, end in enumerate(ends):
        if end > x.shape[i]:
            raise GraphError(f"cannot crop {list(extents)} at {begins} from shape {x.shape}")
    return x[tuple(map(slice, begins, ends))]


def _pad_like_rule(like: Meta, y: Meta, pad_value: float) -> Meta:
    larger = [a >= b or a < 0 for a, b in zip(like.shape, y.shape)]
    if len(like.shape) != len(y.shape) or not all(larger):
        raise GraphError(
            "expected X to have as many dimensions as Y, none of them smaller, got X "
            f"{list(like.shape)}, Y {list(y.shape)}"
        )
    return Meta(like.shape, y.dtype)


def _pad2d_rule(x: Meta, paddings, mode, pad_value, data_format) -> Meta:
    if len(x.shape) != 4 or (None not in paddings and len(paddings) != 4):
        raise GraphError(f"expected images and 4 paddings, got {x.shape} and {list(paddings)}")
    first = 1 if data_format == "NHWC" else 2
    shape = list(x.shape)
    pairs = [] if None in paddings else _pairs(paddings)
    _expect_room(mode, shape[first:], pairs)
    for axis, pair in enumerate(pairs or [None, None]):
        extent = shape[first + axis]
        shape[first + axis] = -1 if pair is None or extent < 0 else extent + sum(pair)
    return Meta(tuple(shape), x.dtype)


def _crop_rule(x: Meta, like: Meta | None, offsets, shape: Sequence[int | None]) -> Meta:
    extents = open_shape(shape) if like is None else like.shape
    begins = list(offsets) or [0] * len(x.shape)
    if not len(extents) == len(begins) == len(x.shape):
        raise GraphError(f"cannot crop {list(extents)} at {begins} from shape {x.shape}")
    left = [-1 if b is None or d < 0 else d - b for d, b in zip(x.shape, begins)]
    wanted = [None] * len(left) if like is not None else list(shape)
    for extent, rest, whole in zip(extents, left, x.shape):
        if extent > (rest if rest >= 0 else whole) >= 0:
            raise GraphError(f"cannot crop {list(extents)} at {begins} from shape {x.shape}")
    return Meta(tuple(r if w == -1 else e for e, r, w in zip(extents, left, wanted)), x.dtype)


def _no_padded_rows(op: Applied) -> bool:
    return not any(op.attrs["paddings"][:2])


def _all_rows(op: Applied) -> bool:
    first = (list(op.attrs["offsets"]) or [0])[0]
    every = list(op.attrs["shape"])[:1] == [-1]
    return first == 0 and op.inputs.get("Y") is None and every


_move("pad", _pad, by_row(apart=_no_padded_rows), paddings=(), pad_value=0.0)
_move(
    "pad2d",
    _pad2d,
    by_row(),
    "X, Paddings? -> Out",
    rule=_pad2d_rule,
    given={"paddings": Given("Paddings")},
    paddings=(0, 0, 0, 0),
    mode="constant",
    pad_value=0.0,
    data_format="NCHW",
)
_move(
    "pad_constant_like",
    _pad_constant_like,
    by_row(),
    "X, Y -> Out",
    "Y",
    rule=_pad_like_rule,
    pad_value=0.0,
)
_move(
    "crop",
    _crop,
    by_row(apart=_all_rows),
    "X, Y?, Offsets? -> Out",
    rule=_crop_rule,
    given={"offsets": Given("Offsets")},
    offsets=(),
    shape=(),
)
_move(
    "crop_tensor",
    lambda xp, x, offsets, shape: _crop(xp, x, None, offsets, shape),
    by_row(apart=_all_rows),
    "X, Shape?, Offsets?, ShapeTensor*, OffsetsTensor* -> Out",
    rule=lambda x, offsets, shape: _crop_rule(x, None, offsets, shape),
    given={
        "shape": Given("Shape", "ShapeTensor", mark=0),
        "offsets": Given("Offsets", "OffsetsTensor"),
    },
    offsets=(),
    shape=(),
)


def _expand_as(xp: ArrayModule, x, like: Sequence[int]) -> DeviceArray:
    if len(like) != x.ndim or any(b % a for a, b in zip(x.shape, like)):
        raise GraphError(f"cannot repeat {x.shape} to make {tuple(like)}")
    return xp.tile(x, tuple(b // a for a, b in zip(x.shape, like)))


def _expand_as_rule(x: Meta, like: Meta) -> Meta:
    pairs = [(a, b) for a, b in zip(x.shape, like.shape) if -1 not in (a, b)]
    if len(like.shape) != len(x.shape) or any(b % a for a, b in pairs if a):
        raise GraphError(f"cannot repeat {x.shape} to make {like.shape}")
    return Meta(like.shape, x.dtype)


_move("expand_as", _expand_as, by_row(), "X, target_tensor -> Out", rule=_expand_as_rule)


# -- pixels and channels ---------------------------------------------------------------------------
def _pixel_shuffle(xp: ArrayModule, x, upscale_factor: int) -> DeviceArray:
    """Make r x r pixels of r^2 channels (Shi et al., 2016)."""
    n, c, h, w = x.shape
    r = upscale_factor
    blocks = x.reshape(n, c // (r * r), r, r, h, w)
    return blocks.transpose(0, 1, 4, 2, 5, 3).reshape(n, c // (r * r), h * r, w * r)


def _shuffle_channel(xp: ArrayModule, x, group: int) -> DeviceArray:
    """Take channels of all groups in turn (Zhang et al., 2018)."""
    n, c, *image = x.shape
    return x.reshape(n, group, c // group, *image).swapaxes(1, 2).reshape(x.shape)


def _space_to_depth(xp: ArrayModule, x, blocksize: int) -> DeviceArray:
    """Make channels of pixels, as Fluid does: blocks of channels become pixels, seen anew."""
    n, c, h, w = x.shape
    b = blocksize
    blocks = x.reshape(n, b, b, c // (b * b), h, w).transpose(0, 3, 4, 1, 5, 2)
    return blocks.reshape(n, c * b * b, h // b, w // b)


def _unfold(
    xp: ArrayModule,
    x,
    kernel_sizes: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[int],
    dilations: Sequence[int],
) -> DeviceArray:
    """Write every window of an image as a column: [N, C kh kw, windows]."""
    top, left, bottom, right = paddings
    padded = xp.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    sizes = [
        (padded.shape[2 + i] - dilations[i] * (kernel_sizes[i] - 1) - 1) // strides[i] + 1
        for i in range(2)
    ]
    if min(sizes) < 1:
        raise GraphError(f"windows {list(kernel_sizes)} are larger than an image {x.shape}")
    pieces = [
        padded[
            :,
            :,
            i * dilations[0] : i * dilations[0] + strides[0] * (sizes[0] - 1) + 1 : strides[0],
            j * dilations[1] : j * dilations[1] + strides[1] * (sizes[1] - 1) + 1 : strides[1],
        ]
        for i in range(kernel_sizes[0])
        for j in range(kernel_sizes[1])
    ]
    columns = xp.stack(pieces, 2)
    return columns.reshape(len(x), x.shape[1] * len(pieces), math.prod(sizes))


_move("pixel_shuffle", _pixel_shuffle, by_row(), upscale_factor=1)
_move("shuffle_channel", _shuffle_channel, by_row(), group=1)
_move("space_to_depth", _space_to_depth, by_row(), blocksize=1)
_move(
    "unfold",
    _unfold,
    by_row(),
    "X -> Y",
    kernel_sizes=(),
    strides=(1, 1),
    paddings=(0, 0, 0, 0),
    dilations=(1, 1),
)
