"""Forms of normalizations."""

from __future__ import annotations

from hpcdist.ops.algebra.matmul import flat2d
from hpcdist.ops.normalization.layer_norm import SHORTEST
from hpcdist.ops.torch_forms import by_autograd, form
from hpcdist.ops.torch_forms.layouts import back, first


# -- batch_norm ------------------------------------------------------------------------------------
def _channels(values, x):
    """View one value for each channel as values like x, channels first."""
    return values.reshape(1, -1, *(1,) * (x.ndim - 2))


@form("batch_norm")
def batch_norm(
    torch,
    x,
    scale,
    bias,
    mean,
    variance,
    momentum,
    epsilon,
    data_layout,
    is_test,
    use_global_stats,
):
    """SavedVariance is 1 / sqrt(variance + epsilon), as in Fluid."""
    if is_test or use_global_stats:
        deviation = torch.rsqrt(variance + epsilon)
        x_first = first(x, data_layout)
        factor = _channels(scale * deviation, x_first)
        y = (x_first - _channels(mean, x_first)) * factor + _channels(bias, x_first)
        return back(y, data_layout), mean, variance, mean, deviation
    if x.numel() == scale.numel():  # one element of each channel: as in Fluid, left alone
        return x, mean, variance, x.reshape(-1), torch.zeros_like(scale)
    x_first = first(x, data_layout)
    count = x.numel() // scale.numel()
    y, saved_mean, deviation, new_mean, moved = torch.ops.aten._native_batch_norm_legit_functional(
        x_first, scale, bias, mean, variance, True, 1 - momentum, epsilon
    )
    # torch moves it towards the variance times count / (count - 1).
    decayed = variance * momentum
    new_variance = decayed + (moved - decayed) * ((count - 1) / count)
    return back(y, data_layout), new_mean, new_variance, saved_mean, deviation


@form("batch_norm_grad", wanted=True)
def batch_norm_grad(
    torch,
    x,
    scale,
    bias,
    saved_mean,
    deviation,
    mean,
    variance,
    dy,
    momentum,
    epsilon,
    data_layout,
    is_test,
    use_global_stats,
    wanted,
):
    of_batch = not (is_test or use_global_stats)
    if of_batch and x.numel() == scale.numel():
        return dy, torch.zeros_like(scale), torch.zeros_like(scale)
    x_first, slope = first(x, data_layout), first(dy, data_layout)
    if of_batch:
        dx, dscale, dbias = torch.ops.aten.native_batch_norm_backward(
            slope, x_first, scale, None, None, saved_mean, deviation, True, epsilon, list(wanted)
        )
        return back(dx, data_layout), dscale, dbias
    other_axes = [i for i in range(x_first.ndim) if i != 1]
    normed = (x_first - _channels(saved_mean, x_first)) * _channels(deviation, x_first)
    dx = slope * _channels(scale * deviation, x_first)
    return back(dx, data_layout), (slope * normed).sum(other_axes), slope.sum(other_axes)


# -- layer_norm ------------------------------------------------------------------------------------
@form("layer_norm")
def layer_norm(torch, x, scale, bias, epsilon, begin_norm_axis):
    rows = flat2d(x, begin_norm_axis)
    y, mean, _ = torch.native_layer_norm(rows, [rows.shape[1]], scale, bias, epsilon)
    return y.reshape(x.shape), mean.reshape(-1), torch.var(rows, 1, correction=0)


@form("layer_norm_grad", wanted=True)
def layer_norm_grad(torch, x, scale, bias, mean, variance, dy, epsilon, begin_norm_axis, wanted):
    rows, slopes = flat2d(x, begin_norm_axis), flat2d(dy, begin_norm_axis)
    deviation = torch.rsqrt(variance + epsilon).reshape(-1, 1)
    moments = mean.reshape(-1, 1), deviation
    dx, dscale, dbias = torch.ops.aten.native_layer_norm_backward(
        slopes, rows, [rows.shape[1]], *moments, scale, bias, list(wanted)
    )
    return dx.reshape(x.shape) if wanted[0] else None, dscale, dbias


# -- to unit length, cosines -----------------------------------------------------------------------
@form("norm")
def norm(torch, x, axis, epsilon):
    length = torch.sqrt(torch.square(x).sum(axis, keepdim=True) + epsilon)
    return x / length, length


@form("norm_grad")
def norm_grad(torch, x, length, dout, axis, epsilon):
    along = (x * dout).sum(axis, keepdim=True) / length / length
    return (dout - x * along) / length


@form("cos_sim")
def cos_sim(torch, x, y):
    x2, y2 = flat2d(x, 1), flat2d(y, 1)
    squares = (torch.square(v).sum(1, keepdim=True) for v in (x2, y2))
    x_norm, y_norm = (torch.sqrt(square).clamp(min=SHORTEST) for square in squares)
    return (x2 * y2).sum(1, keepdim=True) / x_norm / y_norm, x_norm, y_norm


@form("cos_sim_grad")
def cos_sim_grad(torch, x, y, out, x_norm, y_norm, dout):
    x2, y2 = flat2d(x, 1), flat2d(y, 1)
    per_row = dout / (x_norm * y_norm)
    dx = y2 * per_row - x2 * (dout * out / (x_norm * x_norm))
    dy = x2 * per_row - y2 * (dout * out / (y_norm * y_norm))
    dy = dy if len(y2) == len(x2) else dy.sum(0, keepdim=True)
    return dx.reshape(x.shape), dy.reshape(y.shape)


# -- lrn: by neighbouring channels -----------------------------------------------------------------
def _neighbours(torch, x, n):
    """Return for each channel the sum of the n channels around it."""
    padded = torch.nn.functional.pad(x, (0, 0, 0, 0, n // 2, n // 2))
    return sum(padded.narrow(1, i, x.shape[1]) for i in range(n))


@form("lrn")
def lrn(torch, x, n, k, alpha, beta, data_format):
    x_first = first(x, data_format)
    mid = _neighbours(torch, x_first * x_first, n) * alpha + k
    return back(x_first * mid**-beta, data_format), back(mid, data_format)


@form("lrn_grad")
def lrn_grad(torch, x, out, mid, dout, n, k, alpha, beta, data_format):
    x, out, mid, dout = (first(value, data_format) for value in (x, out, mid, dout))
    through_mid = _neighbours(torch, dout * out / mid, n) * x * (-2 * alpha * beta)
    return back(through_mid + dout * mid**-beta, data_format)


# -- by group, by image ----------------------------------------------------------------------------
def _grouped(torch, x, scale, bias, groups, epsilon):
    """Return values, means and 1 / deviations [images, groups]; channels are in dimension 1."""
    n, channels = x.shape[:2]
    sizes = n, channels, x[0, 0].numel(), groups
    return torch.native_group_norm(x.contiguous(), scale, bias, *sizes, epsilon)


@form("group_norm")
def group_norm(torch, x, scale, bias, epsilon, groups, data_layout):
    x_first = first(x, data_layout)
    y, mean, _ = _grouped(torch, x_first, scale, bias, groups, epsilon)
    variance = torch.var(x_first.reshape(len(x_first), groups, -1), 2, correction=0)
    return back(y, data_layout), mean, variance


by_autograd("group_norm")


@form("instance_norm")
def instance_norm(torch, x, scale, bias, epsilon):
    """SavedVariance is 1 / deviation, as Fluid has it."""
    y, mean, deviation = _grouped(torch, x, scale, bias, x.shape[1], epsilon)
    return y, mean.reshape(-1), deviation.reshape(-1)


@form("instance_norm_grad")
def instance_norm_grad(torch, x, scale, dy, epsilon):
    def run(x, scale, bias):
        return instance_norm(torch, x, scale, bias, epsilon)[0]

    _, pulled = torch.func.vjp(run, x, scale, torch.zeros_like(scale))
    return pulled(dy)
