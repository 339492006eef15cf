"""Forms of gelu, prelu and maxout."""

from __future__ import annotations

from hpcdist.ops.elementwise.rare_activation import slopes_of
from hpcdist.ops.torch_forms import by_autograd, form


@form("gelu")
def gelu(torch, x, approximate):
    return torch.nn.functional.gelu(x, approximate="tanh" if approximate else "none")


@form("prelu")
def prelu(torch, x, alpha, mode):
    return torch.where(x > 0, x, x * slopes_of(x, alpha, mode))


@form("maxout")
def maxout(torch, x, groups, axis):
    """The gradient goes to the first of the largest, which is one, not shared as amax has it."""
    axis %= x.ndim
    return torch.max(x.unflatten(axis, (-1, groups)), axis + 1).values


by_autograd("gelu", "prelu", "maxout")
