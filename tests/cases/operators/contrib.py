"""Gradient cases of what is under fluid.contrib: texts matched, trees, shuffled rows."""

from __future__ import annotations

import numpy as np

from hpcdist.lod_tensor import LoDTensor
from tests.support.ops import Case, Draw, case


def _texts(draw: Draw, width: int) -> tuple[LoDTensor, LoDTensor]:
    return draw.ragged([2, 0, 3], [width]), draw.ragged([1, 2, 2], [width])


def _matrices(draw: Draw, channels: int) -> dict[str, LoDTensor]:
    rows, columns = _texts(draw, 2)
    return {
        "X": draw.ragged([channels * n for n in (2, 0, 6)], [1]),
        "ROW": rows,
        "COLUMN": columns,
    }


@case("match_matrix_tensor")
def _match(draw: Draw) -> Case:
    x, y = _texts(draw, 3)
    w = draw.floats((3, 2, 3))
    return Case({"X": x, "Y": y, "W": w}, {"dim_t": 2}, targets=["Out"])


@case("sequence_topk_avg_pooling")
def _top(draw: Draw) -> Case:
    attrs = {"topks": draw.of([1], [1, 3]), "channel_num": 2}
    return Case(_matrices(draw, 2), attrs, wrt=["X"])


@case("var_conv_2d")
def _convolved(draw: Draw) -> Case:
    attrs = {
        "InputChannel": 2,
        "OutputChannel": 3,
        "KernelH": draw.int(1, 3),
        "KernelW": 2,
        "StrideH": draw.int(1, 2),
    }
    inputs = {**_matrices(draw, 2), "W": draw.floats((3, 4 * attrs["KernelH"]))}
    return Case(inputs, attrs, wrt=["X", "W"], targets=["Out"])


@case("tree_conv")
def _trees(draw: Draw) -> Case:
    edges = [[[1, 2], [1, 3], [2, 4], [0, 0]], [[1, 2], [2, 3], [3, 4], [1, 5]]]
    rows = draw.int(1, 2)
    inputs = {
        "NodesVector": draw.floats((rows, 5, 2)),
        "EdgeSet": np.array(edges[:rows], "int32"),
        "Filter": draw.floats((2, 3, 2, 2)),
    }
    return Case(inputs, {"max_depth": draw.int(1, 3)}, wrt=["NodesVector", "Filter"])


@case("shuffle_batch")
def _shuffled(draw: Draw) -> Case:
    return Case({"X": draw.floats((1, 3))}, {"startup_seed": 5}, targets=["Out"])
