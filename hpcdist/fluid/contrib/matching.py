"""Two texts word against word, and trees: of words, and of classes to retrieve from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.initializer import Constant
from hpcdist.fluid.layers.helper import LayerHelper
from hpcdist.fluid.layers.param_attr import ParamLike
from hpcdist.fluid.layers.structure import convert_to_list
from hpcdist.graph.variable import Variable

__all__ = [
    "match_matrix_tensor",
    "sequence_topk_avg_pooling",
    "tdm_child",
    "tdm_sampler",
    "tree_conv",
    "var_conv_2d",
]


def match_matrix_tensor(
    x: Variable,
    y: Variable,
    channel_num: int,
    act: str | None = None,
    param_attr: ParamLike = None,
    dtype: str = "float32",
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """Return how words of two texts match, x W y' in each channel, and x W.

    x, y: words in sequences, one per text. The first result has a sequence of numbers for each
    pair: channels, words of x, words of y.
    """
    helper = LayerHelper("match_matrix_tensor", name)
    w = helper.create_parameter(param_attr, [x.shape[1], channel_num, y.shape[1]], dtype)
    inputs, outputs = {"X": x, "Y": y, "W": w}, dict.fromkeys(("Out", "Tmp"), dtype)
    kind, attrs = helper.layer_type, {"dim_t": channel_num}
    out, tmp = helper.apply_all(kind, inputs, outputs, attrs, constant=("Tmp",))
    return helper.activate(out, act), tmp


def sequence_topk_avg_pooling(
    input: Variable, row: Variable, col: Variable, topks: Sequence[int], channel_num: int
) -> Variable:
    """Return for each word of ``row`` its best matches, added up and divided by k.

    input: as `match_matrix_tensor` gives. The result is [words of row, channels * topks].
    """
    helper = LayerHelper("sequence_topk_avg_pooling")
    attrs = {"topks": [int(k) for k in topks], "channel_num": channel_num}
    inputs = {"X": input, "ROW": row, "COLUMN": col}
    return helper.apply(helper.layer_type, inputs, attrs, dtype=input.dtype)


def var_conv_2d(
    input: Variable,
    row: Variable,
    col: Variable,
    input_channel: int,
    output_channel: int,
    filter_size: Any,
    stride: Any = 1,
    param_attr: ParamLike = None,
    act: str | None = None,
    dtype: str = "float32",
    name: str | None = None,
) -> Variable:
    """Convolve the matrix of each pair, whatever its size; what lies around counts as 0."""
    helper = LayerHelper("var_conv_2d", name)
    taps = convert_to_list(filter_size, 2, "filter_size")
    strides = convert_to_list(stride, 2, "stride")
    w = helper.create_parameter(
        param_attr, [output_channel, input_channel * taps[0] * taps[1]], dtype
    )
    attrs = {
        "InputChannel": input_channel,
        "OutputChannel": output_channel,
        "StrideH": strides[0],
        "StrideW": strides[1],
        "KernelH": taps[0],
        "KernelW": taps[1],
    }
    inputs = {"X": input, "ROW": row, "COLUMN": col, "W": w}
    return helper.activate(helper.apply(helper.layer_type, inputs, attrs, dtype=dtype), act)


# -- trees -----------------------------------------------------------------------------------------
def tree_conv(
    nodes_vector: Variable,
    edge_set: Variable,
    output_size: int,
    num_filters: int = 1,
    max_depth: int = 2,
    act: str | None = "tanh",
    param_attr: ParamLike = None,
    bias_attr: ParamLike = None,
    name: str | None = None,
) -> Variable:
    """Convolve trees: each node with those below it, ``max_depth`` levels of them.

    nodes_vector: [N, nodes, features]; edge_set: [N, edges, 2] int32, (parent, child) from 1 on,
    then (0, 0). The result is [N, nodes, output_size, num_filters].
    """
    helper = LayerHelper("tree_conv", name)
    shape = [nodes_vector.shape[2], 3, output_size, num_filters]
    w = helper.create_parameter(param_attr, shape, nodes_vector.dtype)
    inputs = {"NodesVector": nodes_vector, "EdgeSet": edge_set, "Filter": w}
    attrs, dtype = {"max_depth": max_depth}, nodes_vector.dtype
    out = helper.apply(helper.layer_type, inputs, attrs, dtype=dtype)
    return helper.activate(helper.add_bias(out, bias_attr), act)


def tdm_child(
    x: Variable, node_nums: int, child_nums: int, param_attr: ParamLike = None, dtype: str = "int32"
) -> tuple[Variable, ...]:
    """Return the children of nodes ``x`` of a tree [..., child_nums], and 1 where one is a leaf.

    The parameter has of each node: its item (0: it is no leaf), layer, parent, children (0: none).
    """
    helper = LayerHelper("tdm_child")
    zero, shape = Constant(0), [node_nums, 3 + child_nums]
    info = helper.create_parameter(param_attr, shape, dtype, default_initializer=zero)
    info.stop_gradient = True
    outputs = dict.fromkeys(("Child", "LeafMask"), dtype)
    inputs, attrs = {"X": x, "TreeInfo": info}, {"child_nums": child_nums, "dtype": dtype}
    return helper.apply_all(helper.layer_type, inputs, outputs, attrs, constant=outputs)


def tdm_sampler(
    x: Variable,
    neg_samples_num_list: Sequence[int],
    layer_node_num_list: Sequence[int],
    leaf_node_num: int,
    tree_travel_attr: Any = None,
    tree_layer_attr: Any = None,
    output_positive: bool = True,
    output_list: bool = True,
    seed: int = 0,
    tree_dtype: str = "int32",
    dtype: str = "int32",
) -> tuple[Any, Any, Any]:
    """Return nodes of each layer of a tree, the one above class ``x`` and others drawn at random.

    Then which of them is above it, and which there are. ``output_list``: a value
    [N, nodes, 1] for each layer, not one for all. The parameters: of each class the nodes above it,
    a layer each; and all nodes, layer after layer.
    """
    counts = list(zip(neg_samples_num_list, layer_node_num_list))
    wrong = [pair for pair in counts if not 0 <= pair[0] < pair[1]]
    if wrong or len(neg_samples_num_list) != len(layer_node_num_list):
        raise GraphError(
            f"tdm_sampler: from layers of {list(layer_node_num_list)} nodes "
            f"{list(neg_samples_num_list)} cannot be drawn beside the one above the class"
        )
    helper, total = LayerHelper("tdm_sampler"), sum(layer_node_num_list)
    if not 0 < leaf_node_num < total:
        raise GraphError(f"tdm_sampler: {leaf_node_num} leaves of {total} nodes")
    depth, trees = len(counts), []
    for attr, shape in ((tree_travel_attr, [leaf_node_num, depth]), (tree_layer_attr, [total, 1])):
        zero = Constant(0)
        trees.append(helper.create_parameter(attr, shape, tree_dtype, default_initializer=zero))
    ends = [sum(layer_node_num_list[:k]) for k in range(depth + 1)]
    attrs = {
        "neg_samples_num_list": [int(count) for count in neg_samples_num_list],
        "output_positive": output_positive,
        "layer_offset_lod": ends,
        "seed": seed,
        "dtype": dtype,
    }
    inputs = {"X": x, "Travel": trees[0], "Layer": trees[1]}
    outputs = dict.fromkeys(("Out", "Labels", "Mask"), dtype)
    outs = helper.apply_all(helper.layer_type, inputs, outputs, attrs, constant=outputs)
    if not output_list:
        return outs[0], outs[1], outs[2]
    widths = [int(count) + output_positive for count in neg_samples_num_list]
    by_layer: list[list[Variable]] = []
    for value in outs:
        parts = layers.split(value, widths, dim=1) if depth > 1 else [value]
        shaped = [layers.reshape(part, [-1, w, 1]) for part, w in zip(parts, widths)]
        for part in shaped:
            part.stop_gradient = True
        by_layer.append(shaped)
    return by_layer[0], by_layer[1], by_layer[2]
