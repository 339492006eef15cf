"""Forms of functions of one value, element by element."""

from __future__ import annotations

import math

from hpcdist.ops.torch_forms import by_autograd, form


# -- functions that torch has under one name -------------------------------------------------------
def _named(name):
    return lambda torch, x: getattr(torch, name)(x)


for _type, _name in {
    **{t: t for t in ("abs", "acos", "asin", "atan", "ceil", "cos", "erf", "exp", "floor", "log")},
    **{t: t for t in ("log1p", "reciprocal", "relu", "round", "rsqrt", "sigmoid", "sign", "sin")},
    **{t: t for t in ("sqrt", "square", "tanh")},
}.items():
    form(_type, family="activation")(_named(_name))


@form("ceil_grad", "floor_grad", "round_grad")
def flat_grad(torch, dout):
    return torch.zeros_like(dout)


@form("exp_grad")
def exp_grad(torch, out, dout):
    return out * dout


@form("log_grad")
def log_grad(torch, x, dout):
    return dout / x


@form("log1p_grad")
def log1p_grad(torch, x, dout):
    return dout / (1 + x)


@form("abs_grad")
def abs_grad(torch, x, dout):
    return torch.sign(x) * dout


@form("sin_grad")
def sin_grad(torch, x, dout):
    return torch.cos(x) * dout


@form("cos_grad")
def cos_grad(torch, x, dout):
    return -(torch.sin(x) * dout)


@form("acos_grad")
def acos_grad(torch, x, dout):
    return -dout / torch.sqrt(1 - x * x)


@form("asin_grad")
def asin_grad(torch, x, dout):
    return dout / torch.sqrt(1 - x * x)


@form("atan_grad")
def atan_grad(torch, x, dout):
    return dout / (1 + x * x)


@form("erf_grad")
def erf_grad(torch, x, dout):
    return 2 / math.sqrt(math.pi) * torch.exp(-x * x) * dout


@form("relu_grad")
def relu_grad(torch, out, dout):
    return torch.ops.aten.threshold_backward(dout, out, 0)


@form("tanh_grad")
def tanh_grad(torch, out, dout):
    return torch.ops.aten.tanh_backward(dout, out)


@form("sigmoid_grad")
def sigmoid_grad(torch, out, dout):
    return torch.ops.aten.sigmoid_backward(dout, out)


@form("square_grad")
def square_grad(torch, x, dout):
    return 2 * x * dout


@form("sqrt_grad")
def sqrt_grad(torch, out, dout):
    return dout / out * 0.5


@form("rsqrt_grad")
def rsqrt_grad(torch, out, dout):
    return out * out * out * dout * -0.5


@form("reciprocal_grad")
def reciprocal_grad(torch, out, dout):
    return -(out * out * dout)


@form("pow")
def pow(torch, x, factor):
    return torch.pow(x, factor)


@form("pow_grad")
def pow_grad(torch, x, dout, factor):
    return torch.pow(x, factor - 1) * dout * factor


# -- of sigmoid and softplus -----------------------------------------------------------------------
@form("logsigmoid")
def logsigmoid(torch, x):
    return -softplus(torch, -x)


@form("logsigmoid_grad")
def logsigmoid_grad(torch, x, dout):
    return torch.sigmoid(-x) * dout


@form("softplus")
def softplus(torch, x):
    return torch.log1p(torch.exp(-torch.abs(x))) + torch.relu(x)


@form("softplus_grad")
def softplus_grad(torch, x, dout):
    return torch.sigmoid(x) * dout


@form("swish")
def swish(torch, x, beta):
    return torch.sigmoid(x * beta) * x


@form("swish_grad")
def swish_grad(torch, x, dout, beta):
    gate = torch.sigmoid(x * beta)
    return (gate + beta * x * gate * (1 - gate)) * dout


@form("gelu")
def gelu(torch, x, approximate):
    return torch.nn.functional.gelu(x, approximate="tanh" if approximate else "none")


by_autograd("gelu")


# -- pieces of lines -------------------------------------------------------------------------------
@form("softsign")
def softsign(torch, x):
    return x / (torch.abs(x) + 1)


@form("softsign_grad")
def softsign_grad(torch, x, dout):
    return dout / torch.square(torch.abs(x) + 1)


@form("leaky_relu")
def leaky_relu(torch, x, alpha):
    return torch.maximum(x, x * alpha) if alpha <= 1 else torch.minimum(x, x * alpha)


@form("leaky_relu_grad")
def leaky_relu_grad(torch, out, dout, alpha):
    return torch.where(out > 0, dout, dout * alpha)


@form("relu6")
def relu6(torch, x, threshold):
    return torch.clamp(x, 0, threshold)


@form("relu6_grad")
def relu6_grad(torch, out, dout, threshold):
    return dout * ((out > 0) & (out < threshold))


@form("brelu")
def brelu(torch, x, t_min, t_max):
    return torch.clamp(x, t_min, t_max)


@form("brelu_grad")
def brelu_grad(torch, x, dout, t_min, t_max):
    return dout * ((x > t_min) & (x < t_max))


@form("hard_sigmoid")
def hard_sigmoid(torch, x, slope, offset):
    return torch.clamp(x * slope + offset, 0, 1)


@form("hard_sigmoid_grad")
def hard_sigmoid_grad(torch, out, dout, slope, offset):
    return dout * ((out > 0) & (out < 1)) * slope


@form("elu")
def elu(torch, x, alpha):
    return torch.expm1(torch.clamp(x, max=0)) * alpha + torch.relu(x)


@form("elu_grad")
def elu_grad(torch, x, dout, alpha):
    return dout * torch.where(x > 0, 1.0, alpha * torch.exp(torch.clamp(x, max=0)))


@form("selu")
def selu(torch, x, scale, alpha):
    return scale * torch.where(x > 0, x, alpha * torch.expm1(torch.clamp(x, max=0)))


@form("selu_grad")
def selu_grad(torch, out, dout, scale, alpha):
    return dout * torch.where(out > 0, scale, out + scale * alpha)


@form("soft_relu")
def soft_relu(torch, x, threshold):
    return torch.log1p(torch.exp(torch.clamp(x, -threshold, threshold)))


@form("soft_relu_grad")
def soft_relu_grad(torch, out, dout, threshold):
    return dout * -torch.expm1(-out) * ((out > -threshold) & (out < threshold))


@form("hard_shrink")
def hard_shrink(torch, x, threshold):
    return x * (torch.abs(x) > threshold)


@form("hard_shrink_grad")
def hard_shrink_grad(torch, x, dout, threshold):
    return dout * (torch.abs(x) > threshold)


@form("softshrink")
def softshrink(torch, x, **attrs):
    return torch.sign(x) * torch.relu(torch.abs(x) - attrs["lambda"])


@form("softshrink_grad")
def softshrink_grad(torch, x, dout, **attrs):
    return dout * (torch.abs(x) > attrs["lambda"])


@form("thresholded_relu")
def thresholded_relu(torch, x, threshold):
    return x * (x > threshold)


@form("thresholded_relu_grad")
def thresholded_relu_grad(torch, x, dout, threshold):
    return dout * (x > threshold)


@form("hard_swish")
def hard_swish(torch, x, threshold, scale, offset):
    return x * (torch.clamp(x + offset, 0, threshold) / scale)


@form("hard_swish_grad")
def hard_swish_grad(torch, x, dout, threshold, scale, offset):
    above = x + offset >= threshold
    middle = (x + offset > 0) & ~above
    return dout * torch.where(middle, (2 * x + offset) / scale, above.to(x.dtype))


def _soft(torch, x, threshold):
    """Softplus as mish has it: x above the threshold, exp(x) below its negative."""
    inside = torch.log1p(torch.exp(torch.clamp(x, -threshold, threshold)))
    below = torch.where(x < -threshold, torch.exp(torch.clamp(x, max=0)), inside)
    return torch.where(x > threshold, x, below)


@form("mish")
def mish(torch, x, threshold):
    return x * torch.tanh(_soft(torch, x, threshold))


@form("mish_grad")
def mish_grad(torch, x, dout, threshold):
    soft = _soft(torch, x, threshold)
    tanh = torch.tanh(soft)
    return dout * (tanh + x * (1 - tanh * tanh) * -torch.expm1(-soft))


@form("stanh")
def stanh(torch, x, scale_a, scale_b):
    return scale_b * torch.tanh(scale_a * x)


@form("stanh_grad")
def stanh_grad(torch, x, dout, scale_a, scale_b):
    tanh = torch.tanh(scale_a * x)
    return dout * (scale_a * scale_b * (1 - tanh * tanh))


@form("tanh_shrink")
def tanh_shrink(torch, x):
    return x - torch.tanh(x)


@form("tanh_shrink_grad")
def tanh_shrink_grad(torch, x, dout):
    return dout * torch.square(torch.tanh(x))


# -- prelu, maxout ---------------------------------------------------------------------------------
def _slopes(x, alpha, mode):
    if mode == "all":
        return alpha.reshape((1,) * x.ndim)
    if mode == "channel":
        return alpha.reshape((1, -1) + (1,) * (x.ndim - 2))
    return alpha.reshape((1, *x.shape[1:]))


@form("prelu")
def prelu(torch, x, alpha, mode):
    return torch.where(x > 0, x, x * _slopes(x, alpha, mode))


@form("maxout")
def maxout(torch, x, groups, axis):
    """The gradient goes to the first of the largest, which is one, not shared as amax has it."""
    axis %= x.ndim
    return torch.max(x.unflatten(axis, (-1, groups)), axis + 1).values


by_autograd("prelu", "maxout")
