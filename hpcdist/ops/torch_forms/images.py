"""Forms of convolutions and pools of images."""

from __future__ import annotations

from functools import partial

from hpcdist.ops.convolution.conv import correlation, transposed
from hpcdist.ops.convolution.correlate_torch import Convolution, is_alike, padding_after
from hpcdist.ops.convolution.interpolate import interpolation, mixed
from hpcdist.ops.convolution.windows import lay_windows
from hpcdist.ops.torch_forms import by_autograd, form
from hpcdist.ops.torch_forms.layouts import back, first


# -- convolutions ----------------------------------------------------------------------------------
@form("conv2d", "depthwise_conv2d")
def conv2d(torch, x, w, data_format, **facts):
    x = first(x, data_format)
    y = Convolution(torch, correlation(x, w, **facts)).forward(x, w)
    return back(y, data_format)


@form("conv2d_grad", "depthwise_conv2d_grad", wanted=True)
def conv2d_grad(torch, x, w, dy, data_format, wanted, **facts):
    x, dy = first(x, data_format), first(dy, data_format)
    dx, dw = Convolution(torch, correlation(x, w, **facts)).back(dy, x, w, wanted)
    return back(dx, data_format), dw


@form("conv2d_transpose", "depthwise_conv2d_transpose", outs=True)
def conv2d_transpose(torch, x, w, data_format, outs, **facts):
    """The gradient, by its input, of the convolution that leads from the result to x."""
    x = first(x, data_format)
    y = first(x.new_empty(outs[0].shape), data_format)
    c = transposed(x, y, w, **facts)
    return back(Convolution(torch, c).back(x, y, w, (True, False))[0], data_format)


@form("conv2d_transpose_grad", "depthwise_conv2d_transpose_grad", wanted=True)
def conv2d_transpose_grad(torch, x, w, dy, data_format, wanted, **facts):
    x, dy = first(x, data_format), first(dy, data_format)
    f = Convolution(torch, transposed(x, dy, w, **facts))
    dx = back(f.forward(dy, w), data_format) if wanted[0] else None
    return dx, f.back(x, dy, w, (False, True))[1] if wanted[1] else None


# -- pools -----------------------------------------------------------------------------------------
def _windows(x, ksize, strides, paddings, padding_algorithm, ceil_mode):
    return lay_windows(x.shape[2:], ksize, strides, (1, 1), paddings, padding_algorithm, ceil_mode)


def _sides(axes):
    """Return the padding of the last two dimensions that spares windows their own."""
    return [side for axis in axes[::-1] for side in (axis.before, padding_after(axis))]


def _is_plain(axis):
    """Return whether torch takes the padding itself: both sides alike, at most half a window."""
    return is_alike(axis) and 2 * axis.before <= axis.taps


def _max_pool(torch, x, axes):
    """Return maxima and where they are: the first of several, row by row."""
    taps, strides = [a.taps for a in axes], [a.stride for a in axes]
    if all(map(_is_plain, axes)):
        padding = [axis.before for axis in axes]
    else:
        x, padding = torch.nn.functional.pad(x, _sides(axes), value=float("-inf")), [0, 0]
    return torch.ops.aten.max_pool2d_with_indices(x, taps, strides, padding)


def _mean_pool(torch, x, axes, exclusive):
    taps, strides = [a.taps for a in axes], [a.stride for a in axes]
    means = torch.nn.functional.avg_pool2d
    if all(map(_is_plain, axes)):
        return means(x, taps, strides, [a.before for a in axes], False, not exclusive)
    padded = torch.nn.functional.pad(x, _sides(axes))
    if not exclusive:
        return means(padded, taps, strides)
    counted = torch.nn.functional.pad(x.new_ones((1, 1, *x.shape[2:])), _sides(axes))
    return means(padded, taps, strides) / means(counted, taps, strides)


@form("pool2d")
def pool2d(
    torch, x, pooling_type, data_format, global_pooling, adaptive, ksize, exclusive, **windows
):
    x = first(x, data_format)
    functions = torch.nn.functional
    largest = pooling_type == "max"
    if adaptive:
        pool = functions.adaptive_max_pool2d if largest else functions.adaptive_avg_pool2d
        y = pool(x, list(x.shape[2:] if global_pooling else ksize))
    elif global_pooling:
        y = torch.amax(x, (2, 3), keepdim=True) if largest else x.mean((2, 3), keepdim=True)
    else:
        axes = _windows(x, ksize, **windows)
        y = _max_pool(torch, x, axes)[0] if largest else _mean_pool(torch, x, axes, exclusive)
    return back(y, data_format)


@form("pool2d_grad")
def pool2d_grad(torch, x, out, dout, pooling_type, global_pooling, **facts):
    if (
        pooling_type == "max" and global_pooling and not facts["adaptive"]
    ):  # not amax, which shares among equal ones
        facts |= {"adaptive": True, "ksize": (1, 1)}
        global_pooling = False
    facts |= {"pooling_type": pooling_type, "global_pooling": global_pooling}
    _, pulled = torch.func.vjp(lambda x: pool2d(torch, x, **facts), x)
    return pulled(dout)[0]


_PLAIN = {"padding_algorithm": "EXPLICIT", "ceil_mode": False}


@form("max_pool2d_with_index")
def max_pool2d_with_index(torch, x, global_pooling, adaptive, ksize, **windows):
    if adaptive or global_pooling:
        every = x.shape[2:] if adaptive else [1, 1]
        sizes = list(every if global_pooling else ksize)
        y, index = torch.ops.aten.adaptive_max_pool2d(x, sizes)
        return y, index.to(torch.int32)
    axes = _windows(x, ksize, **windows, **_PLAIN)
    y, index = _max_pool(torch, x, axes)
    if not all(map(_is_plain, axes)):  # places in the padded image
        before, width = axes[1].before, x.shape[3] + axes[1].before + padding_after(axes[1])
        rows = torch.div(index, width, rounding_mode="floor") - axes[0].before
        index = rows * x.shape[3] + index % width - before
    return y, index.to(torch.int32)


@form("max_pool2d_with_index_grad")
def max_pool2d_with_index_grad(torch, x, index, dout, **_):
    places = index.reshape(*index.shape[:2], -1).to(torch.int64)
    flat = torch.zeros_like(x).reshape(*x.shape[:2], -1)
    return flat.scatter_add(2, places, dout.reshape(*dout.shape[:2], -1)).reshape(x.shape)


# -- another size ----------------------------------------------------------------------------------
def _resized(kind):
    def form_function(torch, x, data_layout, outs, **how):
        of_bytes, dtype = kind == "linear" and not x.dtype.is_floating_point, x.dtype
        x = x.to(torch.float32) if of_bytes else x
        for axis, taps in interpolation(x, outs[0], kind, data_layout, **how):
            here = partial(torch.tensor, device=x.device)
            shape = [-1 if i == axis else 1 for i in range(x.ndim)]
            weights = taps.weights(str(x.dtype).removeprefix("torch.")) if kind != "nearest" else ()
            parts = [torch.index_select(x, axis, here(places)) for places in taps.places]
            x = mixed(parts, [here(weight).reshape(shape) for weight in weights])
        return x.to(dtype) if of_bytes else x

    return form_function


_KINDS = {
    "nearest_interp": "nearest",
    "bilinear_interp": "linear",
    "bicubic_interp": "cubic",
    "trilinear_interp": "linear",
}
for _type, _kind in _KINDS.items():
    form(_type, family="images", outs=True)(_resized(_kind))
by_autograd(*_KINDS)
