# ruff: noqa: E501 - a table has one line for each function
"""``paddle.tensor``: functions of Variables, which ``paddle`` and Variables' methods have, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import composed, creation, declare, reductions
from hpcdist.fluid.compat.paddle2.declare import Extents
from hpcdist.fluid.layers import (  # noqa: F401 - which paddle.tensor has, though paddle has not
    array_length,
    array_read,
    array_write,
    create_array,
    create_parameter,
    create_tensor,
    fill_constant,
)
from hpcdist.graph.dtypes import canonical
from hpcdist.graph.variable import Variable

DECLARED = declare.functions(
    "paddle",
    """
    # of one value, element by element
    abs(x)                                      abs X=x
    acos(x)                                     acos X=x
    acosh(x)                                    acosh X=x
    asin(x)                                     asin X=x
    asinh(x)                                    asinh X=x
    atan(x)                                     atan X=x
    atanh(x)                                    atanh X=x
    ceil(x)                                     ceil X=x
    cos(x)                                      cos X=x
    cosh(x)                                     cosh X=x
    erf(x)                                      erf X=x
    exp(x)                                      exp X=x
    expm1(x)                                    expm1 X=x
    floor(x)                                    floor X=x
    log(x)                                      log X=x
    log10(x)                                    log10 X=x
    log1p(x)                                    log1p X=x
    log2(x)                                     log2 X=x
    neg(x)                                      scale X=x scale=-1.0
    reciprocal(x)                               reciprocal X=x
    rsqrt(x)                                    rsqrt X=x
    sign(x)                                     sign X=x
    sin(x)                                      sin X=x
    sinh(x)                                     sinh X=x
    sqrt(x)                                     sqrt X=x
    square(x)                                   square X=x
    stanh(x, scale_a: float = 0.67, scale_b: float = 1.7159)   stanh X=x scale_a=scale_a scale_b=scale_b
    tan(x)                                      tan X=x
    tanh(x)                                     tanh X=x
    logical_not(x, out=None)                    logical_not X=x
    lgamma(x)                                   lgamma X=x
    digamma(x)                                  digamma X=x
    erfinv(x)                                   erfinv X=x
    i0(x)                                       i0 X=x
    i0e(x)                                      i0e X=x
    i1(x)                                       i1 X=x
    i1e(x)                                      i1e X=x
    polygamma(x, n: int)                        polygamma X=x n=n
    inverse(x)                                  inverse Input=x
    cholesky(x, upper: bool = False)            cholesky X=x upper=upper
    sgn(x)                                      sign X=x as sgn

    # of two, broadcast by numpy's rules
    add(x, y)                                   elementwise_add X=x Y=y
    subtract(x, y)                              elementwise_sub X=x Y=y
    multiply(x, y)                              elementwise_mul X=x Y=y
    divide(x, y)                                elementwise_div X=x Y=y
    maximum(x, y)                               elementwise_max X=x Y=y
    minimum(x, y)                               elementwise_min X=x Y=y
    bitwise_and(x, y)                           bitwise_and X=x Y=y
    bitwise_or(x, y)                            bitwise_or X=x Y=y
    bitwise_xor(x, y)                           bitwise_xor X=x Y=y
    gcd(x, y)                                   gcd X=x Y=y
    lcm(x, y)                                   lcm X=x Y=y
    floor_divide(x, y)                          elementwise_floordiv X=x Y=y
    equal(x, y)                                 equal X=x Y=y
    not_equal(x, y)                             not_equal X=x Y=y
    less_than(x, y)                             less_than X=x Y=y
    less_equal(x, y)                            less_equal X=x Y=y
    greater_than(x, y)                          greater_than X=x Y=y
    greater_equal(x, y)                         greater_equal X=x Y=y
    logical_and(x, y, out=None)                 logical_and X=x Y=y
    logical_or(x, y, out=None)                  logical_or X=x Y=y
    logical_xor(x, y, out=None)                 logical_xor X=x Y=y
    atan2(x, y)                                 atan2 X1=x X2=y
    fmax(x, y)                                  elementwise_fmax X=x Y=y
    fmin(x, y)                                  elementwise_fmin X=x Y=y
    allclose(x, y, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False)   allclose Input=x Other=y rtol=rtol atol=atol equal_nan=equal_nan -> Out[]

    # algebra
    bmm(x, y)                                   bmm X=x Y=y
    mm(input, mat2)                             matmul X=input Y=mat2 as mm
    addmm(input, x, y, beta: float = 1.0, alpha: float = 1.0)   addmm Input=input X=x Y=y Alpha=alpha Beta=beta
    kron(x, y)                                  kron X=x Y=y
    dist(x, y, p: float = 2.0)                  dist X=x Y=y p=p -> Out[]
    tril(x, diagonal: int = 0)                  tril_triu X=x diagonal=diagonal lower=True
    triu(x, diagonal: int = 0)                  tril_triu X=x diagonal=diagonal lower=False
    diag_embed(input, offset: int = 0, dim1: int = -2, dim2: int = -1)   diag_embed Input=input offset=offset dim1=dim1 dim2=dim2
    diagonal(x, offset: int = 0, axis1: int = 0, axis2: int = 1)   diagonal Input=x offset=offset axis1=axis1 axis2=axis2
    renorm(x, p: float, axis: int, max_norm: float)   renorm X=x p=p axis=axis max_norm=max_norm
    add_n(inputs)                               sum X=inputs as add_n

    # shapes and places
    reshape(x, shape: extents)                  reshape2 X=x shape=shape
    squeeze(x, axis: ints = None)               squeeze2 X=x axes=axis as squeeze
    unsqueeze(x, axis: extents)                 unsqueeze2 X=x axes=axis
    transpose(x, perm: ints)                    transpose2 X=x axis=perm as transpose
    concat(x, axis: extent = 0)                 concat X=x axis=axis
    stack(x, axis: int = 0)                     stack X=x axis=axis -> Y
    slice(input, axes: ints, starts: extents, ends: extents)   slice Input=input axes=axes starts=starts ends=ends
    strided_slice(x, axes: ints, starts: extents, ends: extents, strides: extents)   strided_slice Input=x axes=axes starts=starts ends=ends strides=strides
    flip(x, axis: ints)                         flip X=x dims=axis
    reverse(x, axis: ints)                      flip X=x dims=axis
    gather_nd(x, index)                         gather_nd X=x Index=index
    index_select(x, index, axis: int = 0)       index_select X=x Index=index dim=axis
    index_sample(x, index)                      index_sample X=x Index=index
    scatter(x, index, updates, overwrite: bool = True)   scatter X=x Ids=index Updates=updates overwrite=overwrite
    scatter_nd_add(x, index, updates)           scatter_nd_add X=x Index=index Updates=updates
    argsort(x, axis: int = -1, descending: bool = False)   argsort X=x axis=axis descending=descending -> Indices
    sort(x, axis: int = -1, descending: bool = False)   argsort X=x axis=axis descending=descending -> Out as sort
    shape(input)                                shape Input=input
    numel(x)                                    size Input=x -> Out[] as numel
    is_empty(x)                                 is_empty X=x -> Out[]
    shard_index(input, index_num: int, nshards: int, shard_id: int, ignore_value: int = -1)   shard_index X=input index_num=index_num nshards=nshards shard_id=shard_id ignore_value=ignore_value

    # like another
    zeros_like(x, dtype: dtype = None)          fill_any_like X=x value=0.0 dtype=dtype as zeros_like
    ones_like(x, dtype: dtype = None)           fill_any_like X=x value=1.0 dtype=dtype as full_like
    full_like(x, fill_value: float, dtype: dtype = None)   fill_any_like X=x value=fill_value dtype=dtype as full_like
    """,
)

globals().update(DECLARED)
for _module in (creation, reductions, composed):
    globals().update({name: getattr(_module, name) for name in _module.__all__})

IN_PLACE = declare.in_place("paddle", globals())
globals().update(IN_PLACE)

__all__ = sorted({*DECLARED, *IN_PLACE, *creation.__all__, *reductions.__all__, *composed.__all__})


@declare.composed("paddle.tensor.random")
def gaussian(
    shape: Extents,
    mean: float = 0.0,
    std: float = 1.0,
    seed: int = 0,
    dtype: Any = None,
    name: str | None = None,
) -> Variable:
    """Draw from the normal distribution; ``paddle.tensor.random`` is this module, too."""
    kind = creation.get_default_dtype() if dtype is None else canonical(dtype)
    return layers.gaussian_random(shape, mean, std, seed, kind)


if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
