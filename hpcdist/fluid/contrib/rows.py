"""Rows and columns of a batch: shuffled, taken in part, summed; tables summed by sequence."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.initializer import Constant
from hpcdist.fluid.layers.boxes import suppressed
from hpcdist.fluid.layers.helper import LayerHelper, append_all
from hpcdist.fluid.layers.param_attr import ParamAttr, ParamLike
from hpcdist.graph.program import default_main_program
from hpcdist.graph.variable import Variable

__all__ = [
    "ctr_metric_bundle",
    "fused_elemwise_activation",
    "fused_embedding_seq_pool",
    "multiclass_nms2",
    "partial_concat",
    "partial_sum",
    "shuffle_batch",
]


def shuffle_batch(x: Variable, seed: int | None = None) -> Variable:
    """Return the rows of ``x`` (all dimensions but the last) in random order, another every step.

    ``seed``: 0 or None for the Program's, or else the job's; the order is the same on all ranks.
    """
    if isinstance(seed, Variable):
        raise GraphError("shuffle_batch: seed must be a number: one order for all ranks")
    attrs = {"startup_seed": seed or default_main_program().random_seed}
    outputs = {"Out": x.dtype, "ShuffleIdx": "int64"}
    return append_all("shuffle_batch", {"X": x}, attrs, outputs, constant=("ShuffleIdx",))[0]


def _columns(layer: str, input: Any, start_index: int, length: int) -> list[Variable]:
    """Return some columns of each matrix."""
    inputs = list(input) if isinstance(input, (list, tuple)) else [input]
    columns = []
    for x in inputs:
        if len(x.shape) != 2:
            raise GraphError(f"{layer}: {x.name!r} must be a matrix, got {x.shape}")
        begin = start_index + x.shape[1] if start_index < 0 else start_index
        end = x.shape[1] if length < 0 else begin + length
        if not 0 <= begin < end <= x.shape[1]:
            raise GraphError(f"{layer}: columns {begin}:{end} of {x.name!r}, which is {x.shape}")
        columns.append(layers.slice(x, axes=[1], starts=[begin], ends=[end]))
    return columns


def partial_concat(input: Any, start_index: int = 0, length: int = -1) -> Variable:
    """Return columns ``start_index`` and ``length`` more of each matrix, side by side."""
    return layers.concat(_columns("partial_concat", input, start_index, length), axis=1)


def partial_sum(input: Any, start_index: int = 0, length: int = -1) -> Variable:
    """Return the sum of columns ``start_index`` and ``length`` more of each matrix."""
    return layers.sums(_columns("partial_sum", input, start_index, length))


def fused_embedding_seq_pool(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    padding_idx: int | None = None,
    combiner: str = "sum",
    param_attr: ParamLike = None,
    dtype: str = "float32",
) -> Variable:
    """Return the sum of the looked-up rows of each sequence of ids [n, 1]."""
    if combiner != "sum":
        raise GraphError(f"fused_embedding_seq_pool: combiner must be sum, got {combiner!r}")
    attr = copy.copy(ParamAttr.of(param_attr))
    if attr is None:
        raise GraphError("fused_embedding_seq_pool: param_attr=False, but it needs a table")
    attr.name = attr.name or f"{LayerHelper('fused_embedding_seq_pool').name}.w_0"
    rows = layers.embedding(input, size, is_sparse, False, padding_idx, attr, dtype)
    return layers.sequence_pool(rows, "sum")


_BINARY: dict[str, Callable[..., Variable]] = {
    "elementwise_add": layers.elementwise_add,
    "elementwise_mul": layers.elementwise_mul,
}
_UNARY: dict[str, Callable[..., Variable]] = {
    "gelu": layers.gelu,
    "relu": layers.relu,
    "scale": layers.scale,
    "sigmoid": layers.sigmoid,
    "tanh": layers.tanh,
}


def fused_elemwise_activation(
    x: Variable,
    y: Variable,
    functor_list: Any,
    axis: int = -1,
    scale: float = 0.0,
    save_intermediate_out: bool = True,
) -> Variable:
    """Return f(x, g(y)) of functors (f, g), or f(g(x, y)) if the second takes two values."""
    names = functor_list.split(",") if isinstance(functor_list, str) else list(functor_list)
    is_pair = len(names) == 2 and len(set(names) & _BINARY.keys()) == 1
    if not is_pair or not set(names) <= _BINARY.keys() | _UNARY.keys():
        raise GraphError(
            f"fused_elemwise_activation: expected one of {sorted(_BINARY)} and one of "
            f"{sorted(_UNARY)}, got {names}"
        )

    def unary(value: Variable) -> Variable:
        kind = names[0] if names[0] in _UNARY else names[1]
        return layers.scale(value, scale) if kind == "scale" else _UNARY[kind](value)

    if names[0] in _BINARY:
        return _BINARY[names[0]](x, unary(y), axis=axis)
    return unary(_BINARY[names[1]](x, y, axis=axis))


def multiclass_nms2(
    bboxes: Variable,
    scores: Variable,
    score_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    nms_threshold: float = 0.3,
    normalized: bool = True,
    nms_eta: float = 1.0,
    background_label: int = 0,
    return_index: bool = False,
    name: str | None = None,
) -> Any:
    """Like `layers.multiclass_nms`; if asked, return the indices of the boxes too."""
    options = score_threshold, nms_top_k, keep_top_k, nms_threshold, normalized, nms_eta
    out, index = suppressed(
        "multiclass_nms2", name, bboxes, scores, *options, background_label, Index="int32"
    )
    return (out, index) if return_index else out


def ctr_metric_bundle(input: Variable, label: Variable) -> tuple[Variable, ...]:
    """Add up, from step to step, what metrics of clicks are made of.

    Of chances ``input`` and labels [n, 1]: squared and absolute errors, chances, sigmoids of
    chances, clicks, rows; persistable variables [1], which start at 0.
    """
    if input.shape != label.shape:
        raise GraphError(f"ctr_metric_bundle: shapes {input.shape} and {label.shape} differ")
    helper = LayerHelper("ctr_metric_bundle")
    error = layers.elementwise_sub(input, label)
    one = layers.fill_constant_batch_size_like(label, [-1, 1], "float32", 1.0)
    summed = layers.square(error), layers.abs(error), input, layers.sigmoid(input), label, one
    totals = []
    for value in summed:
        total = helper.create_global_variable(
            initializer=Constant(0.0), persistable=True, dtype="float32", shape=[1]
        )
        part = layers.reduce_sum(value)
        helper.append_op("elementwise_add", {"X": part, "Y": total}, {"Out": total})
        totals.append(total)
    return tuple(totals)
