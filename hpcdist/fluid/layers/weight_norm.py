"""Weight normalization: a parameter as a direction and a learned length (Salimans, 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid.initializer import Initializer
from hpcdist.fluid.layers.activation import sqrt, square
from hpcdist.fluid.layers.helper import MAKERS
from hpcdist.fluid.layers.math import elementwise_div, elementwise_mul, reduce_sum
from hpcdist.fluid.layers.param_attr import ParamAttr, WeightNormParamAttr
from hpcdist.fluid.layers.tensor import assign, reshape
from hpcdist.graph.block import Block
from hpcdist.graph.dtypes import DTypeLike
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import program_guard, program_of
from hpcdist.graph.variable import Variable


def weight_normalized(
    helper: Any,
    attr: WeightNormParamAttr,
    name: str,
    initializer: Any,
    shape: Sequence[int],
    dtype: DTypeLike,
) -> Variable:
    """Return ``g v / |v|``, the norm of each part along dimension ``attr.dim``, or of all.

    ``<name>_v`` is initialized as the parameter would be, ``<name>_g`` with its norms.
    """
    dim = attr.dim
    if dim is not None and not 0 <= dim < len(shape):
        raise GraphError(f"WeightNormParamAttr(dim={dim}): the parameter has shape {tuple(shape)}")
    lengths = [extent if axis == dim else 1 for axis, extent in enumerate(shape)]
    v = helper.create_parameter(_part(attr, f"{name}_v", initializer), shape, dtype)
    g = helper.create_parameter(_part(attr, f"{name}_g", _NormsOf(v.name, dim)), lengths, dtype)
    scale = elementwise_div(g, _norms(v, dim, lengths))
    if dim is not None:
        scale = reshape(scale, [shape[dim]])
    w = elementwise_mul(v, scale, axis=-1 if dim is None else dim)
    WeightNormParamAttr.params_with_weight_norm.append(w)
    return w


def _part(attr: WeightNormParamAttr, name: str, initializer: Any) -> ParamAttr:
    facts = attr.learning_rate, attr.regularizer, attr.trainable
    part = ParamAttr(name, initializer, *facts, do_model_average=attr.do_model_average)
    part.need_clip = attr.need_clip
    return part


def _norms(v: Variable, dim: int | None, lengths: Sequence[int]) -> Variable:
    other_axes = [axis for axis in range(len(v.shape)) if axis != dim]
    squares = reduce_sum(square(v), dim=other_axes or None, keep_dim=True)
    return reshape(sqrt(squares), lengths)


class _NormsOf(Initializer):
    """Initializes the lengths as the norms of a parameter that is initialized before."""

    def __init__(self, source: str, dim: int | None) -> None:
        self._source = source
        self._dim = dim

    def __call__(self, var: Variable, block: Block) -> Operator:
        """Append what computes the norms to the startup program, after all initializers."""
        with program_guard(program_of(block), program_of(block)):
            norms = _norms(block.var(self._source), self._dim, var.shape)
            assign(norms, output=var)
        return block.ops[-1]


MAKERS[WeightNormParamAttr] = weight_normalized
