"""Gradient cases of operators that move elements, read at places, multiply and sum up."""

from __future__ import annotations

import numpy as np

from tests.support.ops import Case, Draw, case


# -- moved -----------------------------------------------------------------------------------------
@case("roll")
def _roll(draw: Draw) -> Case:
    shape = draw.shape()
    dims = draw.of([], [draw.int(0, len(shape) - 1)])
    return Case({"X": draw.floats(shape)}, {"shifts": [draw.int(-3, 3)], "dims": dims})


@case("flip")
def _flip(draw: Draw) -> Case:
    return Case({"X": draw.floats((2, 3, 2))}, {"dims": draw.of([0], [1], [-1, 1])})


@case("temporal_shift")
def _temporal_shift(draw: Draw) -> Case:
    frames = draw.of(1, 2, 3)
    x = draw.floats((frames * draw.int(1, 2), 4, 2, 2))
    return Case({"X": x}, {"seg_num": frames, "shift_ratio": 0.25})


@case("tril_triu")
def _tril_triu(draw: Draw) -> Case:
    return Case(
        {"X": draw.floats(draw.shape(2))}, {"diagonal": draw.int(-2, 2), "lower": draw.bool()}
    )


@case("diag")
def _diag(draw: Draw) -> Case:
    return Case({"Diagonal": draw.floats((draw.int(1, 4),))})


@case("diag_embed")
def _diag_embed(draw: Draw) -> Case:
    dims = draw.of((-2, -1), (1, 2), (0, 2))
    attrs = {"offset": draw.int(-1, 1), "dim1": dims[0], "dim2": dims[1]}
    return Case({"Input": draw.floats(draw.shape(2, 2))}, attrs)


@case("pad")
def _pad(draw: Draw) -> Case:
    shape = draw.shape(high=3)
    paddings = [draw.int(0, 2) for _ in range(2 * len(shape))]
    paddings[:2] = draw.of([0, 0], [1, 0])
    return Case({"X": draw.floats(shape)}, {"paddings": paddings, "pad_value": draw.of(0.0, 0.5)})


@case("pad2d")
def _pad2d(draw: Draw) -> Case:
    attrs = {
        "paddings": [draw.int(0, 2) for _ in range(4)],
        "mode": draw.of("constant", "reflect", "edge"),
        "data_format": draw.of("NCHW", "NHWC"),
        "pad_value": 0.5,
    }
    return Case({"X": draw.floats((draw.int(1, 3), 3, 3, 3))}, attrs)


@case("pad_constant_like")
def _pad_constant_like(draw: Draw) -> Case:
    rows = draw.int(1, 3)
    inputs = {"X": draw.floats((rows, 4, 3)), "Y": draw.floats((rows, draw.int(1, 4), 2))}
    return Case(inputs, {"pad_value": 0.5}, wrt=["Y"])


@case("crop", "crop_tensor")
def _crop(draw: Draw) -> Case:
    attrs = {"shape": [-1, 2, draw.of(-1, 1)], "offsets": [draw.of(0, 1), draw.int(0, 1), 2]}
    return Case({"X": draw.floats((draw.int(2, 4), 3, 3))}, attrs)


@case("expand_as")
def _expand_as(draw: Draw) -> Case:
    rows = draw.int(1, 3)
    shapes = (rows, draw.int(1, 2), 3), (rows, draw.of(2, 4), 6)
    return Case({"X": draw.floats(shapes[0]), "target_tensor": draw.floats(shapes[1])}, wrt=["X"])


@case("pixel_shuffle")
def _pixel_shuffle(draw: Draw) -> Case:
    return Case({"X": draw.floats((draw.int(1, 3), 8, 2, 3))}, {"upscale_factor": draw.of(1, 2)})


@case("shuffle_channel")
def _shuffle_channel(draw: Draw) -> Case:
    return Case({"X": draw.floats((draw.int(1, 3), 6, 2, 1))}, {"group": draw.of(1, 2, 3)})


@case("space_to_depth")
def _space_to_depth(draw: Draw) -> Case:
    return Case({"X": draw.floats((draw.int(1, 3), 4, 2, 4))}, {"blocksize": 2})


@case("unfold")
def _unfold(draw: Draw) -> Case:
    attrs = {
        "kernel_sizes": [draw.int(1, 2), draw.int(1, 2)],
        "strides": [draw.int(1, 2), draw.int(1, 2)],
        "paddings": [draw.int(0, 1) for _ in range(4)],
        "dilations": [draw.int(1, 2), draw.int(1, 2)],
    }
    return Case({"X": draw.floats((draw.int(1, 3), 2, 4, 3))}, attrs)


@case("unstack")
def _unstack(draw: Draw) -> Case:
    shape = draw.shape(2)
    axis = draw.int(-len(shape), len(shape) - 1)
    return Case({"X": draw.floats(shape)}, {"axis": axis, "num": shape[axis]}, {"Y": shape[axis]})


# -- at places -------------------------------------------------------------------------------------
@case("gather_nd")
def _gather_nd(draw: Draw) -> Case:
    shape = draw.shape()
    deep = draw.int(1, len(shape))
    places = [draw.rng.integers(0, d, draw.of(3, 5)) for d in shape[:deep]]
    index = np.stack([p[:3] for p in places], -1)
    return Case({"X": draw.floats(shape), "Index": index})


@case("scatter_nd_add")
def _scatter_nd_add(draw: Draw) -> Case:
    x = draw.floats((3, 2, 4))
    index = draw.rng.integers(0, 2, (5, 2))
    return Case({"X": x, "Index": index, "Updates": draw.floats((5, 4))})


@case("graph_send_recv")
def _graph_send_recv(draw: Draw) -> Case:
    edges, by_source = draw.int(1, 6), draw.bool()
    rows = 5 if by_source else edges
    ends = min(4, rows)
    inputs = {"X": draw.floats((rows, 2)), "Dst_index": draw.rng.integers(0, ends, edges)}
    if by_source:  # no edge twice: each that has the extremum gets the gradient
        places = draw.rng.permutation(rows * ends)[:edges]
        inputs |= {"Src_index": places // ends, "Dst_index": places % ends}
    reduction = draw.of("SUM", "MEAN", "MIN", "MAX")
    return Case(inputs, {"reduce_op": reduction, "out_size": 4 if draw.bool() else 0})


@case("scatter")
def _scatter(draw: Draw) -> Case:
    rows = draw.int(1, 4)
    ids = draw.rng.permutation(5)[:rows]
    inputs = {"X": draw.floats((5, 2)), "Ids": ids, "Updates": draw.floats((rows, 2))}
    return Case(inputs, {"overwrite": draw.bool()})


@case("index_select")
def _index_select(draw: Draw) -> Case:
    shape = draw.shape(high=3)
    dim = draw.int(0, len(shape) - 1)
    index = draw.rng.integers(0, shape[dim], draw.int(1, 5))
    return Case({"X": draw.floats(shape), "Index": index}, {"dim": dim - draw.of(0, len(shape))})


@case("index_sample")
def _index_sample(draw: Draw) -> Case:
    rows, columns = draw.int(1, 4), draw.int(1, 4)
    index = draw.rng.integers(0, columns, (rows, draw.int(1, 5)))
    return Case({"X": draw.floats((rows, columns)), "Index": index})


@case("multiplex")
def _multiplex(draw: Draw) -> Case:
    shape = draw.shape(2)
    ids = draw.rng.integers(0, 3, (shape[0], 1)).astype("int32")
    return Case({"Ids": ids, "X": [draw.floats(shape) for _ in range(3)]})


@case("argsort")
def _argsort(draw: Draw) -> Case:
    shape = draw.shape()
    axis = draw.int(-len(shape), len(shape) - 1)
    attrs = {"axis": axis, "descending": draw.bool()}
    return Case({"X": draw.apart(shape)}, attrs, targets=["Out"])


# -- products --------------------------------------------------------------------------------------
@case("bmm")
def _bmm(draw: Draw) -> Case:
    n, a, b, c = (draw.int(1, 3) for _ in range(4))
    return Case({"X": draw.floats((n, a, b)), "Y": draw.floats((n, b, c))})


@case("addmm")
def _addmm(draw: Draw) -> Case:
    a, b, c = (draw.int(1, 3) for _ in range(3))
    inputs = {"Input": draw.floats((a, c)), "X": draw.floats((a, b)), "Y": draw.floats((b, c))}
    return Case(inputs, {"Alpha": 0.5, "Beta": 2.0})


@case("dot")
def _dot(draw: Draw) -> Case:
    shape = draw.shape(1, 2)
    return Case({"X": draw.floats(shape), "Y": draw.floats(shape)})


@case("cross")
def _cross(draw: Draw) -> Case:
    shape, dim = draw.of(((2, 3), 1), ((3, 2), 0), ((4, 2, 3), -1))
    return Case({"X": draw.floats(shape), "Y": draw.floats(shape)}, {"dim": dim})


@case("kron")
def _kron(draw: Draw) -> Case:
    x = draw.shape(1, 3, 3)
    y = draw.of((1, 2), (2, 2), (2,), (1, 1, 2))
    return Case({"X": draw.floats(x), "Y": draw.floats(y)})


@case("bilinear_tensor_product")
def _bilinear(draw: Draw) -> Case:
    n, a, b, k = (draw.int(1, 3) for _ in range(4))
    inputs = {"X": (n, a), "Y": (n, b), "Weight": (k, a, b), "Bias": (1, k)}
    return Case({slot: draw.floats(shape) for slot, shape in inputs.items()})


@case("fsp")
def _fsp(draw: Draw) -> Case:
    n, a, b = (draw.int(1, 3) for _ in range(3))
    return Case({"X": draw.floats((n, a, 2, 3)), "Y": draw.floats((n, b, 2, 3))})


# -- sums ------------------------------------------------------------------------------------------
@case("trace")
def _trace(draw: Draw) -> Case:
    dims = draw.of((0, 1), (1, 2), (-1, -2))
    attrs = {"offset": draw.int(-1, 1), "dim1": dims[0], "dim2": dims[1]}
    return Case({"Input": draw.floats((draw.int(2, 3), 3, 4))}, attrs)


@case("cumsum")
def _cumsum(draw: Draw) -> Case:
    shape = draw.shape()
    axis = draw.int(-len(shape), len(shape) - 1)
    attrs = {"axis": axis, "exclusive": draw.bool(), "reverse": draw.bool()}
    return Case({"X": draw.floats(shape)}, attrs)


@case("dist")
def _dist(draw: Draw) -> Case:
    inputs = {"X": draw.apart((3, 2)) + 0.03, "Y": draw.apart(draw.of((3, 2), (2,), (1, 1)))}
    return Case(inputs, {"p": draw.of(1.0, 2.0, 3.0, float("inf"))})
