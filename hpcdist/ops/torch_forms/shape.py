"""Forms of operators that change shape or order, join values, or take parts of them."""

from __future__ import annotations

from hpcdist.ops.common import resolve_axis
from hpcdist.ops.tensor.concat_split import split_extents
from hpcdist.ops.tensor.slice import slices
from hpcdist.ops.torch_forms import by_autograd, expressions, form


# XShape has no elements, and nobody reads it.
def _xshape(torch, x, outs):
    return None if outs[1] is None else x.new_empty(outs[1].shape)


@form("reshape2", "flatten2", "squeeze2", "unsqueeze2", outs=True)
def reshaped(torch, x, outs, **_):
    return x.reshape(outs[0].shape), _xshape(torch, x, outs)


@form("reshape2_grad", "flatten2_grad", "squeeze2_grad", "unsqueeze2_grad", outs=True)
def reshaped_back(torch, *operands, outs, **_):
    return operands[-1].reshape(outs[0].shape)


@form("transpose2", outs=True)
def transpose2(torch, x, axis, outs):
    return x.permute(tuple(axis)), _xshape(torch, x, outs)


@form("transpose2_grad")
def transpose2_grad(torch, xshape, dout, axis):
    places = [resolve_axis(a, dout.ndim) for a in axis]
    return dout.permute([places.index(i) for i in range(dout.ndim)])


@form("concat")
def concat(torch, xs, axis):
    return torch.cat(xs, axis)


@form("concat_grad")
def concat_grad(torch, xs, dout, axis):
    return (list(torch.split(dout, [x.shape[axis] for x in xs], axis)),)


@form("split")
def split(torch, x, num, sections, axis):
    return (list(torch.split(x, split_extents(x.shape[axis], num, sections), axis)),)


# -- stack, expand ---------------------------------------------------------------------------------
@form("stack")
def stack(torch, xs, axis):
    return torch.stack(xs, axis)


@form("stack_grad", "unstack")
def unstack(torch, y, axis, num=0):
    return (list(torch.unbind(y, axis)),)


@form("unstack_grad")
def unstack_grad(torch, douts, axis, num):
    return torch.stack(douts, axis)


@form("expand", outs=True)
def expand(torch, x, outs, **_):
    return x.repeat([n // d if d else 1 for n, d in zip(outs[0].shape, x.shape)])


@form("expand_grad")
def expand_grad(torch, x, dout, **_):
    pairs = [p for n, d in zip(dout.shape, x.shape) for p in (n // d if d else 1, d)]
    return dout.reshape(pairs).sum(tuple(range(0, len(pairs), 2)))


# -- slice, strided_slice, reverse -----------------------------------------------------------------
def _part(torch, x, places):
    for axis, place in enumerate(places):
        if place == slice(None):  # its extent may be open
            continue
        indices = range(*place.indices(x.shape[axis]))
        begin, step = indices.start, indices.step
        if step < 0:  # torch has no negative steps
            x, begin, step = torch.flip(x, (axis,)), x.shape[axis] - 1 - begin, -step
        end = begin + step * (len(indices) - 1) + 1
        x = x[(slice(None),) * axis + (slice(begin, end, step),)]
    return x


@form("slice", "strided_slice", outs=True)
def slice_(torch, x, outs, infer_flags=(), **places):
    return _part(torch, x, slices(x.ndim, **places)).reshape(outs[0].shape)


by_autograd("slice", "strided_slice")


@form("reverse")
def reverse(torch, x, axis):
    return torch.flip(x, tuple(axis))


# -- padded ----------------------------------------------------------------------------------------
def _turned(paddings):
    """Return paddings, of pairs for each dimension, as torch has them: the last one first."""
    pairs = list(zip(paddings[::2], paddings[1::2]))
    return [side for pair in reversed(pairs) for side in pair]


@form("pad")
def pad(torch, x, paddings, pad_value):
    return torch.nn.functional.pad(x, _turned(paddings), value=pad_value)


@form("pad2d")
def pad2d(torch, x, paddings, mode, pad_value, data_format):
    first = x.permute(0, 3, 1, 2) if data_format == "NHWC" else x
    torch_mode = {"edge": "replicate"}.get(mode, mode)
    value = {"value": pad_value} if mode == "constant" else {}
    padded = torch.nn.functional.pad(first, _turned(paddings), mode=torch_mode, **value)
    return padded.permute(0, 2, 3, 1) if data_format == "NHWC" else padded


@form("pad_constant_like")
def pad_constant_like(torch, like, y, pad_value):
    sides = [side for a, b in zip(like.shape, y.shape) for side in (0, a - b)]
    return torch.nn.functional.pad(y, _turned(sides), value=pad_value)


by_autograd("pad", "pad2d", "pad_constant_like")


# -- cropped, repeated -----------------------------------------------------------------------------
@form("crop", outs=True)
def crop(torch, x, like, offsets, shape, outs):
    begins = list(offsets) or [0] * x.ndim
    return x[tuple(slice(b, b + d) for b, d in zip(begins, outs[0].shape))]


@form("crop_tensor", outs=True)
def crop_tensor(torch, x, offsets, shape, outs):
    return crop(torch, x, None, offsets, shape, outs)


@form("expand_as")
def expand_as(torch, x, like):
    return x.repeat([n // d if d else 1 for n, d in zip(like.shape, x.shape)])


by_autograd("crop", "crop_tensor")


@form("expand_as_grad")
def expand_as_grad(torch, x, like, dout):
    return expand_grad(torch, x, dout)


# -- turned and shifted ----------------------------------------------------------------------------
@form("roll")
def roll(torch, x, shifts, dims):
    return torch.roll(x, tuple(shifts), tuple(dims)) if dims else torch.roll(x, shifts[0])


@form("flip", "flip_grad")
def flip(torch, *operands, dims):
    return torch.flip(operands[-1], tuple(dims))


@form("tril_triu", "tril_triu_grad")
def tril_triu(torch, *operands, diagonal, lower):
    return (torch.tril if lower else torch.triu)(operands[-1], diagonal)


@form("temporal_shift")
def temporal_shift(torch, x, seg_num, shift_ratio):
    channels = x.shape[1]
    video = x.reshape(-1, seg_num, *x.shape[1:])
    first, second = int(channels * shift_ratio), int(channels * 2 * shift_ratio)
    forth, back, rest = torch.split(video, [first, second - first, channels - second], 2)
    none = [0] * (2 * (x.ndim - 1))  # padding of all but the frames
    shifted = torch.nn.functional.pad(forth[:, :-1], [*none, 1, 0])
    before = torch.nn.functional.pad(back[:, 1:], [*none, 0, 1])
    return torch.cat([shifted, before, rest], 2).reshape(x.shape)


expressions(
    diag=lambda torch, x: torch.diag(x),
    diag_embed=lambda torch, x, offset, dim1, dim2: torch.diag_embed(x, offset, dim1, dim2),
)


by_autograd("roll", "temporal_shift", "diag", "diag_embed")


# -- pixels and channels ---------------------------------------------------------------------------
@form("pixel_shuffle")
def pixel_shuffle(torch, x, upscale_factor):
    return torch.nn.functional.pixel_shuffle(x, upscale_factor)


@form("shuffle_channel")
def shuffle_channel(torch, x, group):
    n, c, *image = x.shape
    return x.reshape(n, group, c // group, *image).swapaxes(1, 2).reshape(x.shape)


@form("space_to_depth")
def space_to_depth(torch, x, blocksize):
    n, c, h, w = x.shape
    b = blocksize
    blocks = x.reshape(n, b, b, c // (b * b), h, w).permute(0, 3, 4, 1, 5, 2)
    return blocks.reshape(n, c * b * b, h // b, w // b)


@form("unfold")
def unfold(torch, x, kernel_sizes, strides, paddings, dilations):
    top, left, bottom, right = paddings
    padded = torch.nn.functional.pad(x, [left, right, top, bottom])
    return torch.nn.functional.unfold(padded, list(kernel_sizes), list(dilations), 0, list(strides))


by_autograd("pixel_shuffle", "shuffle_channel", "space_to_depth", "unfold")


# -- numbers of shapes -----------------------------------------------------------------------------
@form("eye", outs=True)
def eye(torch, outs, **_):
    return torch.eye(*outs[0].shape, dtype=getattr(torch, outs[0].dtype))


@form("size")
def size(torch, x):
    return torch.full((1,), x.numel(), dtype=torch.int64, device=x.device)
