"""Gradient cases of arithmetic, activations, reductions, products and shapes."""

from __future__ import annotations

import math

import numpy as np

from tests.support.ops import Case, Draw, case


# -- two values --------------------------------------------------------------------------------
def _broadcast(draw: Draw) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return shapes of x and y, and an axis that places y within x, or x within y."""
    x = draw.shape()
    start = draw.int(0, len(x) - 1)
    stop = draw.int(start + 1, len(x))
    y = tuple(1 if draw.int(0, 4) == 0 else d for d in x[start:stop])
    axis = -1 if stop == len(x) and draw.bool() else start
    return (y, x, axis) if draw.bool() else (x, y, axis)


@case("elementwise_add", "elementwise_sub", "elementwise_mul")
def _polynomial(draw: Draw) -> Case:
    x, y, axis = _broadcast(draw)
    return Case({"X": draw.floats(x), "Y": draw.floats(y)}, {"axis": axis})


@case("elementwise_div", "elementwise_pow")
def _positive(draw: Draw) -> Case:
    x, y, axis = _broadcast(draw)
    return Case({"X": draw.floats(x, 0.5, 2), "Y": draw.floats(y, 0.5, 2)}, {"axis": axis})


@case("elementwise_max", "elementwise_min")
def _ordered(draw: Draw) -> Case:
    x, y, axis = _broadcast(draw)
    return Case({"X": draw.apart(x), "Y": draw.apart(y) + 0.05}, {"axis": axis})


@case("where")
def _either(draw: Draw) -> Case:
    shape = draw.shape()
    condition = draw.rng.integers(0, 2, shape).astype(bool)
    inputs = {"Condition": condition, "X": draw.floats(shape), "Y": draw.floats(shape)}
    return Case(inputs, {}, wrt=["X", "Y"])


@case("sum")
def _sum(draw: Draw) -> Case:
    shape = draw.shape()
    return Case({"X": [draw.floats(shape) for _ in range(draw.int(1, 4))]})


# -- one value -----------------------------------------------------------------------------------
@case("exp", "sin", "cos", "tanh", "sigmoid", "logsigmoid", "softplus", "softsign", "square")
def _smooth(draw: Draw) -> Case:
    return Case({"X": draw.floats(draw.shape(), -4, 4)})


@case("log", "sqrt", "rsqrt", "reciprocal")
def _of_positive(draw: Draw) -> Case:
    return Case({"X": draw.floats(draw.shape(), 0.2, 3)})


@case("abs", "relu", "sign")
def _kink_at_zero(draw: Draw) -> Case:
    return Case({"X": draw.floats(draw.shape(), avoid=[0])})


@case("floor", "ceil")
def _steps(draw: Draw) -> Case:
    return Case({"X": draw.floats(draw.shape(), avoid=[-2, -1, 0, 1, 2])})


@case("round")
def _half_steps(draw: Draw) -> Case:
    return Case({"X": draw.floats(draw.shape(), avoid=[-1.5, -0.5, 0.5, 1.5])})


@case("pow")
def _pow(draw: Draw) -> Case:
    return Case({"X": draw.floats(draw.shape(), 0.5, 2)}, {"factor": draw.of(-1.5, 0.5, 2.0, 3.0)})


@case("leaky_relu", "elu")
def _with_alpha(draw: Draw) -> Case:
    return Case(
        {"X": draw.floats(draw.shape(), avoid=[0])}, {"alpha": draw.of(0.02, 0.3, 1.0, 1.7)}
    )


@case("relu6")
def _relu6(draw: Draw) -> Case:
    return Case({"X": draw.floats(draw.shape(), -2, 8, avoid=[0, 6])}, {"threshold": 6.0})


@case("hard_sigmoid")
def _hard_sigmoid(draw: Draw) -> Case:
    return Case({"X": draw.floats(draw.shape(), -4, 4, avoid=[-2.5, 2.5])})


@case("swish")
def _swish(draw: Draw) -> Case:
    return Case({"X": draw.floats(draw.shape(), -4, 4)}, {"beta": draw.of(1.0, 0.7, 2.0)})


@case("gelu")
def _gelu(draw: Draw) -> Case:
    return Case({"X": draw.floats(draw.shape(), -4, 4)}, {"approximate": draw.bool()})


@case("scale")
def _scale(draw: Draw) -> Case:
    attrs = {
        "scale": draw.of(-1.0, 0.25, 1.0, 3.0),
        "bias": draw.of(0.0, 2.0),
        "bias_after_scale": draw.bool(),
    }
    return Case({"X": draw.floats(draw.shape())}, attrs)


@case("increment")
def _increment(draw: Draw) -> Case:
    return Case({"X": draw.floats((1,))}, {"step": draw.of(-1.0, 2.5)})


@case("clip")
def _clip(draw: Draw) -> Case:
    x = draw.floats(draw.shape(), avoid=[-0.5, 1])
    return Case({"X": x}, {"min": -0.5, "max": 1.0})


@case("cast")
def _cast(draw: Draw) -> Case:
    out = draw.of("float32", "float64")
    return Case(
        {"X": draw.floats(draw.shape())},
        {"in_dtype": "float64", "out_dtype": out},
        step=0.5,  # the operator is linear; a smaller step drowns in float32
        tolerance=1e-6,
    )


@case("assign", "rnn_memory_helper")
def _assign(draw: Draw) -> Case:
    return Case({"X": draw.floats(draw.shape())})


# -- reductions ------------------------------------------------------------------------------------
def _dims(draw: Draw, rank: int) -> dict[str, object]:
    dims = [i - rank * draw.int(0, 1) for i in range(rank) if draw.bool()] or [0]
    return {"dim": dims, "keep_dim": draw.bool(), "reduce_all": draw.bool()}


@case("mean")
def _mean(draw: Draw) -> Case:
    return Case({"X": draw.floats(draw.shape())})


@case("reduce_sum", "reduce_mean")
def _reduction(draw: Draw) -> Case:
    shape = draw.shape()
    return Case({"X": draw.floats(shape)}, _dims(draw, len(shape)))


@case("reduce_max", "reduce_min")
def _extremum(draw: Draw) -> Case:
    shape = draw.shape()
    return Case({"X": draw.apart(shape)}, _dims(draw, len(shape)))


@case("reduce_prod")
def _product(draw: Draw) -> Case:
    shape = draw.shape(high=3, extent=3)
    return Case({"X": draw.floats(shape, 0.5, 1.5)}, _dims(draw, len(shape)))


# -- matrix products -------------------------------------------------------------------------------
@case("mul")
def _mul(draw: Draw) -> Case:
    rows, inner, columns = draw.shape(1, 2), draw.shape(1, 2), draw.shape(1, 2)
    flat_inner = (math.prod(inner),) if draw.bool() else inner
    return Case(
        {"X": draw.floats(rows + inner), "Y": draw.floats(flat_inner + columns)},
        {"x_num_col_dims": len(rows), "y_num_col_dims": len(flat_inner)},
    )


@case("matmul")
def _matmul(draw: Draw) -> Case:
    batch = draw.shape(0, 2, 3)
    m, k, n = draw.int(1, 4), draw.int(1, 4), draw.int(1, 4)
    tx, ty = draw.bool(), draw.bool()
    shapes = []
    for rows, columns, transpose in ((m, k, tx), (k, n, ty)):
        matrix = (columns, rows) if transpose else (rows, columns)
        kept = draw.of(batch, (), tuple(1 if draw.bool() else d for d in batch))
        vector = (k,) if (columns if rows == k else rows) == 1 else ()
        use_vector = len(vector) == 1 and draw.bool() and (m == 1 or n == 1) and k > 1
        shapes.append(vector if use_vector else kept + matrix)
    x, y = shapes
    if len(x) == 1:  # a vector on the left is a row, its transpose a column
        tx = False if m == 1 else tx
    if len(y) == 1:
        ty = False if n == 1 else ty
    attrs = {"transpose_X": tx, "transpose_Y": ty, "alpha": draw.of(1.0, 0.5)}
    return Case({"X": draw.floats(x), "Y": draw.floats(y)}, attrs)


# -- shapes ----------------------------------------------------------------------------------------
@case("reshape2")
def _reshape(draw: Draw) -> Case:
    shape = draw.shape(2)
    target = draw.of([-1], [0, -1], [1, math.prod(shape)], list(shape[::-1]))
    return Case({"X": draw.floats(shape)}, {"shape": target})


@case("flatten2")
def _flatten(draw: Draw) -> Case:
    shape = draw.shape()
    return Case({"X": draw.floats(shape)}, {"axis": draw.int(0, len(shape))})


@case("squeeze2")
def _squeeze(draw: Draw) -> Case:
    shape = (draw.int(1, 3), 1, draw.int(2, 3), 1)
    return Case({"X": draw.floats(shape)}, {"axes": draw.of([1], [-1], [1, 3], [])})


@case("unsqueeze2")
def _unsqueeze(draw: Draw) -> Case:
    return Case({"X": draw.floats(draw.shape(2, 3))}, {"axes": draw.of([0], [1, 3], [-1], [2, 0])})


@case("transpose2")
def _transpose(draw: Draw) -> Case:
    shape = draw.shape()
    return Case(
        {"X": draw.floats(shape)}, {"axis": [int(i) for i in draw.rng.permutation(len(shape))]}
    )


@case("expand")
def _expand(draw: Draw) -> Case:
    shape = draw.shape(high=3, extent=3)
    return Case({"X": draw.floats(shape)}, {"expand_times": [draw.int(1, 3) for _ in shape]})


def _parts_along(draw: Draw) -> tuple[tuple[int, ...], int, list[int]]:
    shape = draw.shape()
    axis = draw.int(0, len(shape) - 1)
    return shape, axis, [draw.int(1, 3) for _ in range(draw.int(1, 3))]


@case("concat")
def _concat(draw: Draw) -> Case:
    shape, axis, extents = _parts_along(draw)
    xs = [draw.floats((*shape[:axis], e, *shape[axis + 1 :])) for e in extents]
    return Case({"X": xs}, {"axis": axis - len(shape) * draw.int(0, 1)})


@case("split")
def _split(draw: Draw) -> Case:
    shape, axis, extents = _parts_along(draw)
    sections, num = extents, 0
    if draw.bool():
        sections, num, extents = [], len(extents), [2] * len(extents)
    x = draw.floats((*shape[:axis], sum(extents), *shape[axis + 1 :]))
    attrs = {"sections": sections, "num": num, "axis": axis - len(shape) * draw.int(0, 1)}
    return Case({"X": x}, attrs, {"Out": len(extents)})


@case("stack")
def _stack(draw: Draw) -> Case:
    shape = draw.shape(high=3)
    xs = [draw.floats(shape) for _ in range(draw.int(1, 3))]
    return Case({"X": xs}, {"axis": draw.int(-1, len(shape))})


@case("slice")
def _slice(draw: Draw) -> Case:
    shape = (draw.int(3, 5), draw.int(1, 3), draw.int(3, 5))
    starts, ends = draw.of(([0, -2], [2, 100]), ([-3, 0], [-1, 3]), ([1, 1], [2, -1]))
    attrs = {"axes": [0, 2], "starts": starts, "ends": ends}
    if ends[0] - starts[0] == 1:
        attrs["decrease_axis"] = [0]
    return Case({"Input": draw.floats(shape)}, attrs)


@case("strided_slice")
def _strided_slice(draw: Draw) -> Case:
    shape = (draw.int(3, 6), draw.int(1, 3), draw.int(3, 6))
    starts, ends = draw.of(([0, -1], [100, -100]), ([-3, 2], [-1, 0]))
    attrs = {"axes": [0, 2], "starts": starts, "ends": ends, "strides": [draw.int(1, 3), -1]}
    return Case({"Input": draw.floats(shape)}, attrs)


@case("reverse")
def _reverse(draw: Draw) -> Case:
    return Case({"X": draw.floats((2, 3, 2))}, {"axis": draw.of([0], [1], [-1, 0])})


@case("gather")
def _gather(draw: Draw) -> Case:
    shape = draw.shape()
    n = draw.int(1, 6)
    index = draw.rng.integers(0, shape[0], (n, 1) if draw.bool() else (n,))
    return Case({"X": draw.floats(shape), "Index": index.astype(draw.of(np.int64, np.int32))})
