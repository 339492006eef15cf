"""Forms of arithmetic on two values, of sums, constants and casts."""

from __future__ import annotations

import numpy as np

from hpcdist.ops.elementwise.binary import broadcast_shapes, operand_views
from hpcdist.ops.tensor.constant import VALUE_ATTRS
from hpcdist.ops.torch_forms import expressions, form


# -- two values, one broadcast to the other --------------------------------------------------------
def _summed(torch, full, like, view):
    """Add up a gradient of the result's shape over what was broadcast; ``view``: of ``like``."""
    axes = [i for i, (a, b) in enumerate(zip(view, full.shape)) if a != b]
    return (full.sum(axes) if axes else full).reshape(like.shape)


def _binary(function):
    """Return the form of a function of two values whose shapes fit."""

    def form_function(torch, x, y, axis):
        return function(torch, *operand_views(x, y, axis)).to(x.dtype)

    return form_function


def _binary_grad(function):
    """Return the form of a gradient; ``function`` gives the parts that are to be added up."""

    def form_function(torch, x, y, dout, axis, wanted):
        x_view, y_view, _ = broadcast_shapes(x.shape, y.shape, axis)
        parts = function(torch, x.reshape(x_view), y.reshape(y_view), dout)
        likes = ((x, x_view), (y, y_view))
        return tuple(
            _summed(torch, part(), *like) if want else None
            for part, like, want in zip(parts, likes, wanted)
        )

    return form_function


def _truncated(torch, x, y):
    if not x.dtype.is_floating_point:
        return torch.div(x, y, rounding_mode="trunc")
    return torch.div(x - torch.fmod(x, y), y, rounding_mode="floor")


def _remainder(torch, x, y):
    rest = torch.fmod(x, y)
    return torch.fmod(rest + y, y) if x.dtype.is_floating_point else rest


def _quotient(torch, x, y):
    return x / y if x.dtype.is_floating_point else _truncated(torch, x, y)


def _pow_grad(torch, x, y, d):
    return lambda: d * (y * torch.pow(x, y - 1)), lambda: d * (torch.log(x) * torch.pow(x, y))


for _name, _function in {
    "add": lambda torch, x, y: x + y,
    "sub": lambda torch, x, y: x - y,
    "mul": lambda torch, x, y: x * y,
    "div": _quotient,
    "max": lambda torch, x, y: torch.maximum(x, y),
    "min": lambda torch, x, y: torch.minimum(x, y),
    "pow": lambda torch, x, y: torch.pow(x, y),
    "mod": _remainder,
    "floordiv": _truncated,
}.items():
    form(f"elementwise_{_name}", family="arithmetic")(_binary(_function))

for _name, _parts in {
    "add": lambda torch, x, y, d: (lambda: d, lambda: d),
    "sub": lambda torch, x, y, d: (lambda: d, lambda: -d),
    "mul": lambda torch, x, y, d: (lambda: d * y, lambda: d * x),
    "max": lambda torch, x, y, d: (lambda: d * (x > y), lambda: d * (x <= y)),
    "min": lambda torch, x, y, d: (lambda: d * (x < y), lambda: d * (x >= y)),
    "pow": _pow_grad,
}.items():
    form(f"elementwise_{_name}_grad", family="arithmetic", wanted=True)(_binary_grad(_parts))


@form("elementwise_div_grad", wanted=True)
def div_grad(torch, x, y, out, dout, axis, wanted):
    x_view, y_view, _ = broadcast_shapes(x.shape, y.shape, axis)
    by_y = dout / y.reshape(y_view)
    dx = _summed(torch, by_y, x, x_view) if wanted[0] else None
    return dx, _summed(torch, -(out * by_y), y, y_view) if wanted[1] else None


def _comparison(name):
    def form_function(torch, x, y, axis=-1, force_cpu=False):
        return getattr(torch, name)(*operand_views(x, y, axis))

    return form_function


for _type, _name in {
    "less_than": "lt",
    "less_equal": "le",
    "greater_than": "gt",
    "greater_equal": "ge",
    "equal": "eq",
    "not_equal": "ne",
    "logical_and": "logical_and",
    "logical_or": "logical_or",
    "logical_xor": "logical_xor",
}.items():
    form(_type, family="arithmetic")(_comparison(_name))


@form("logical_not")
def logical_not(torch, x):
    return torch.logical_not(x)


# -- one value, or many ----------------------------------------------------------------------------
@form("sum")
def sum(torch, xs):
    total = xs[0]
    for x in xs[1:]:  # in the order given
        total = total + x
    return total


@form("scale")
def scale(torch, x, scale, bias, bias_after_scale):
    if not x.dtype.is_floating_point:
        scale, bias = int(scale), int(bias)
    if not bias:
        return x if scale == 1 else x * scale
    return x * scale + bias if bias_after_scale else (x + bias) * scale


expressions(
    increment=lambda torch, x, step: x + (step if x.dtype.is_floating_point else int(step)),
    clip=lambda torch, x, min, max: torch.clamp(x, min, max),
    clip_grad=lambda torch, x, dout, min, max: dout * ((x > min) & (x < max)),
)


@form("clip_by_norm")
def clip_by_norm(torch, x, squared, max_norm):
    norm = torch.sqrt(torch.square(x).sum() if squared is None else squared)
    return x * (max_norm / torch.clamp(norm, min=max_norm)).to(x.dtype)


expressions(
    squared_l2_norm=lambda torch, x: torch.square(x).sum().reshape(1),
    assign=lambda torch, x: x,
    cast=lambda torch, x, in_dtype, out_dtype: x.to(getattr(torch, out_dtype)),
)


# -- made from nothing -----------------------------------------------------------------------------
# A number alone, expanded: torch puts no tensor of the host's into a trace for it.
def _full(torch, meta, value, like=None):
    device = None if like is None else like.device
    return torch.full(meta.shape, value, dtype=getattr(torch, meta.dtype), device=device)


@form("fill_zeros_like")
def fill_zeros_like(torch, x):
    return torch.zeros_like(x)


@form("fill_any_like", outs=True)
def fill_any_like(torch, x, value, dtype, outs):
    return _full(torch, outs[0], value, x)


@form("fill_constant_batch_size_like", outs=True)
def fill_constant_batch_size_like(torch, x, value, outs, **_):
    return _full(torch, outs[0], value, x)


@form("fill_constant", outs=True)
def fill_constant(torch, value, outs, **_):
    return _full(torch, outs[0], value)


def _one_number(shape, dtype, **values):
    return np.unique(values[VALUE_ATTRS[dtype]]).size == 1


@form("assign_value", when=_one_number, outs=True)
def assign_value(torch, dtype, outs, **values):
    return _full(torch, outs[0], np.ravel(values[VALUE_ATTRS[dtype]])[0].item())


# -- questions about values ------------------------------------------------------------------------
expressions(
    isfinite=lambda torch, x: torch.isfinite(x).all().reshape(1),
    isnan=lambda torch, x: torch.isnan(x).any().reshape(1),
    isinf=lambda torch, x: torch.isinf(x).any().reshape(1),
)
