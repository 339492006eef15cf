"""Forms of normalizations."""

from __future__ import annotations

from hpcdist.ops.matmul import flat2d
from hpcdist.ops.torch_forms import form


# -- batch_norm ------------------------------------------------------------------------------------
def _channels(values, x):
    """View one value for each channel as values like x, channels first."""
    return values.reshape(1, -1, *(1,) * (x.ndim - 2))


def _first(x, layout):
    return x if layout in ("NCHW", "AnyLayout") else x.movedim(-1, 1)


def _back(x, layout):
    return x if layout in ("NCHW", "AnyLayout") else x.movedim(1, -1)


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
        own = _first(x, data_layout)
        factor = _channels(scale * deviation, own)
        y = (own - _channels(mean, own)) * factor + _channels(bias, own)
        return _back(y, data_layout), mean, variance, mean, deviation
    if x.numel() == scale.numel():  # one element of each channel: as in Fluid, left alone
        return x, mean, variance, x.reshape(-1), torch.zeros_like(scale)
    own = _first(x, data_layout)
    count = x.numel() // scale.numel()
    y, saved_mean, deviation, new_mean, moved = torch.ops.aten._native_batch_norm_legit_functional(
        own, scale, bias, mean, variance, True, 1 - momentum, epsilon
    )
    # torch moves it towards the variance times count / (count - 1).
    kept = variance * momentum
    new_variance = kept + (moved - kept) * ((count - 1) / count)
    return _back(y, data_layout), new_mean, new_variance, saved_mean, deviation


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
    own, slope = _first(x, data_layout), _first(dy, data_layout)
    if of_batch:
        dx, dscale, dbias = torch.ops.aten.native_batch_norm_backward(
            slope, own, scale, None, None, saved_mean, deviation, True, epsilon, list(wanted)
        )
        return _back(dx, data_layout) if wanted[0] else None, dscale, dbias
    others = [i for i in range(own.ndim) if i != 1]
    normed = (own - _channels(saved_mean, own)) * _channels(deviation, own)
    dx = slope * _channels(scale * deviation, own)
    return _back(dx, data_layout), (slope * normed).sum(others), slope.sum(others)


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
    x_norm, y_norm = (torch.sqrt(torch.square(v).sum(1, keepdim=True)) for v in (x2, y2))
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
    own = _first(x, data_format)
    mid = _neighbours(torch, own * own, n) * alpha + k
    return _back(own * mid**-beta, data_format), _back(mid, data_format)


@form("lrn_grad")
def lrn_grad(torch, x, out, mid, dout, n, k, alpha, beta, data_format):
    x, out, mid, dout = (_first(value, data_format) for value in (x, out, mid, dout))
    others = _neighbours(torch, dout * out / mid, n) * x * (-2 * alpha * beta)
    return _back(others + dout * mid**-beta, data_format)
