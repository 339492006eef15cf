"""Forms of functions of one value, element by element."""

from __future__ import annotations

import math

from hpcdist.ops.elementwise.rare_activation import slopes_of
from hpcdist.ops.torch_forms import by_autograd, expressions, form


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


expressions(
    exp_grad=lambda torch, out, dout: out * dout,
    log_grad=lambda torch, x, dout: dout / x,
    log1p_grad=lambda torch, x, dout: dout / (1 + x),
    abs_grad=lambda torch, x, dout: torch.sign(x) * dout,
    sin_grad=lambda torch, x, dout: torch.cos(x) * dout,
    cos_grad=lambda torch, x, dout: -(torch.sin(x) * dout),
    acos_grad=lambda torch, x, dout: -dout / torch.sqrt(1 - x * x),
    asin_grad=lambda torch, x, dout: dout / torch.sqrt(1 - x * x),
    atan_grad=lambda torch, x, dout: dout / (1 + x * x),
    erf_grad=lambda torch, x, dout: 2 / math.sqrt(math.pi) * torch.exp(-x * x) * dout,
    relu_grad=lambda torch, out, dout: torch.ops.aten.threshold_backward(dout, out, 0),
    tanh_grad=lambda torch, out, dout: torch.ops.aten.tanh_backward(dout, out),
    sigmoid_grad=lambda torch, out, dout: torch.ops.aten.sigmoid_backward(dout, out),
    square_grad=lambda torch, x, dout: 2 * x * dout,
    sqrt_grad=lambda torch, out, dout: dout / out * 0.5,
    rsqrt_grad=lambda torch, out, dout: out * out * out * dout * -0.5,
    reciprocal_grad=lambda torch, out, dout: -(out * out * dout),
    pow=lambda torch, x, factor: torch.pow(x, factor),
    pow_grad=lambda torch, x, dout, factor: torch.pow(x, factor - 1) * dout * factor,
)


# -- of sigmoid and softplus -----------------------------------------------------------------------
expressions(
    logsigmoid=lambda torch, x: -softplus(torch, -x),
    logsigmoid_grad=lambda torch, x, dout: torch.sigmoid(-x) * dout,
)


@form("softplus")
def softplus(torch, x):
    return torch.log1p(torch.exp(-torch.abs(x))) + torch.relu(x)


expressions(
    softplus_grad=lambda torch, x, dout: torch.sigmoid(x) * dout,
    swish=lambda torch, x, beta: torch.sigmoid(x * beta) * x,
)


@form("swish_grad")
def swish_grad(torch, x, dout, beta):
    gate = torch.sigmoid(x * beta)
    return (gate + beta * x * gate * (1 - gate)) * dout


@form("gelu")
def gelu(torch, x, approximate):
    return torch.nn.functional.gelu(x, approximate="tanh" if approximate else "none")


by_autograd("gelu")


# -- pieces of lines -------------------------------------------------------------------------------
expressions(
    softsign=lambda torch, x: x / (torch.abs(x) + 1),
    softsign_grad=lambda torch, x, dout: dout / torch.square(torch.abs(x) + 1),
)


@form("leaky_relu")
def leaky_relu(torch, x, alpha):
    return torch.maximum(x, x * alpha) if alpha <= 1 else torch.minimum(x, x * alpha)


expressions(
    leaky_relu_grad=lambda torch, out, dout, alpha: torch.where(out > 0, dout, dout * alpha),
    relu6=lambda torch, x, threshold: torch.clamp(x, 0, threshold),
    relu6_grad=lambda torch, out, dout, threshold: dout * ((out > 0) & (out < threshold)),
    brelu=lambda torch, x, t_min, t_max: torch.clamp(x, t_min, t_max),
    brelu_grad=lambda torch, x, dout, t_min, t_max: dout * ((x > t_min) & (x < t_max)),
    hard_sigmoid=lambda torch, x, slope, offset: torch.clamp(x * slope + offset, 0, 1),
)


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


expressions(
    hard_shrink=lambda torch, x, threshold: x * (torch.abs(x) > threshold),
    hard_shrink_grad=lambda torch, x, dout, threshold: dout * (torch.abs(x) > threshold),
    softshrink=lambda torch, x, **attrs: torch.sign(x) * torch.relu(torch.abs(x) - attrs["lambda"]),
    softshrink_grad=lambda torch, x, dout, **attrs: dout * (torch.abs(x) > attrs["lambda"]),
    thresholded_relu=lambda torch, x, threshold: x * (x > threshold),
    thresholded_relu_grad=lambda torch, x, dout, threshold: dout * (x > threshold),
)


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


expressions(
    tanh_shrink=lambda torch, x: x - torch.tanh(x),
    tanh_shrink_grad=lambda torch, x, dout: dout * torch.square(torch.tanh(x)),
)


# -- prelu, maxout ---------------------------------------------------------------------------------
@form("prelu")
def prelu(torch, x, alpha, mode):
    return torch.where(x > 0, x, x * slopes_of(x, alpha, mode))


@form("maxout")
def maxout(torch, x, groups, axis):
    """The gradient goes to the first of the largest, which is one, not shared as amax has it."""
    axis %= x.ndim
    return torch.max(x.unflatten(axis, (-1, groups)), axis + 1).values


by_autograd("prelu", "maxout")
