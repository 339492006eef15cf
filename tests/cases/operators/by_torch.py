"""Gradient cases of what torch computes: volumes, grids, deformed convolutions, regions."""

from __future__ import annotations

import numpy as np

from hpcdist.lod_tensor import LoDTensor
from tests.support.ops import Case, Draw, case


def _volume(draw: Draw, channels: int = 2) -> object:
    return draw.floats((draw.int(1, 2), channels, 3, draw.int(2, 3), 3))


@case("conv3d")
def _conv3d(draw: Draw) -> Case:
    attrs = {
        "strides": [draw.int(1, 2), 1, 1],
        "paddings": draw.of([1, 0, 1], [1, 0, 0, 1, 1, 1]),
        "dilations": [1, 1, draw.int(1, 2)],
        "groups": 2,
        "padding_algorithm": draw.of("EXPLICIT", "SAME"),
    }
    return Case({"Input": _volume(draw), "Filter": draw.floats((4, 1, 2, 2, 2))}, attrs)


@case("conv3d_transpose")
def _conv3d_transpose(draw: Draw) -> Case:
    attrs = {"strides": [draw.int(1, 2), 1, 2], "paddings": [draw.int(0, 1), 0, 0], "groups": 2}
    return Case({"Input": _volume(draw), "Filter": draw.floats((2, 2, 2, 1, 2))}, attrs)


@case("pool3d")
def _pool3d(draw: Draw) -> Case:
    ceil_mode = draw.bool()
    attrs = {
        "pooling_type": draw.of("max", "avg"),
        "ksize": [2, 2, 1],
        "strides": [draw.int(1, 2), 1, 1],
        "paddings": [0 if ceil_mode else draw.int(0, 1), 0, 0],
        "exclusive": draw.bool(),
        "ceil_mode": ceil_mode,
    }
    return Case({"X": draw.apart((draw.int(1, 2), 2, 3, 3, 2))}, attrs)


@case("spp")
def _pyramid(draw: Draw) -> Case:
    attrs = {"pyramid_height": draw.int(1, 3), "pooling_type": draw.of("max", "avg")}
    return Case({"X": draw.apart((draw.int(1, 2), 2, 4, 6))}, attrs)


@case("max_pool3d_with_index")
def _with_index(draw: Draw) -> Case:
    attrs = {"ksize": [2, 1, 2], "adaptive": draw.bool()}
    return Case({"X": draw.apart((draw.int(1, 2), 2, 3, 2, 3))}, attrs, targets=["Out"])


@case("unpool3d")
def _unpool3d(draw: Draw) -> Case:
    shape, size = (draw.int(1, 2), 2, 2, 2, 3), 2 * 2 * 3 * 8
    places = draw.rng.permuted(np.tile(np.arange(size), (*shape[:2], 1)), axis=2)
    index = places[..., : np.prod(shape[2:])].reshape(shape).astype("int32")
    return Case({"X": draw.floats(shape), "Indices": index}, {"ksize": [2] * 3, "strides": [2] * 3})


@case("grid_sampler")
def _grid_sampler(draw: Draw) -> Case:
    rows = draw.int(1, 2)
    grid = draw.floats((rows, 2, 3, 2), -0.9, 0.9)
    return Case({"X": draw.floats((rows, 2, 2, 2)), "Grid": grid})


@case("affine_grid")
def _affine_grid(draw: Draw) -> Case:
    rows = draw.int(1, 3)
    return Case({"Theta": draw.floats((rows, 2, 3))}, {"output_shape": [rows, 1, 2, 3]})


@case("deformable_conv")
def _deformable(draw: Draw) -> Case:
    rows = draw.int(1, 2)
    inputs = {
        "Input": draw.floats((rows, 2, 3, 3)),
        "Offset": draw.floats((rows, 8, 2, 2), 0.1, 0.9),
        "Mask": draw.floats((rows, 4, 2, 2)),
        "Filter": draw.floats((2, 2, 2, 2)),
    }
    return Case(inputs)


@case("deformable_conv_v1")
def _without_mask(draw: Draw) -> Case:
    given = _deformable(draw).inputs
    return Case({slot: value for slot, value in given.items() if slot != "Mask"})


@case("psroi_pool")
def _bins_of_their_own(draw: Draw) -> Case:
    given = _regions(draw)
    x = draw.floats((2, 8, 5, 5))
    attrs = {**given.attrs, "output_channels": 2}
    return Case({**given.inputs, "X": x}, attrs, wrt=["X"])


@case("roi_pool", "roi_align")
def _regions(draw: Draw) -> Case:
    corners = draw.rng.integers(0, 3, (3, 2))
    rois = LoDTensor(np.concatenate([corners, corners + 2], 1) + 0.25)
    rois.set_recursive_sequence_lengths([[1, 2]])
    attrs = {"pooled_height": 2, "pooled_width": 2}
    return Case({"X": draw.apart((2, 2, 5, 5)), "ROIs": rois}, attrs, wrt=["X"])


@case("prroi_pool")
def _exact_bins(draw: Draw) -> Case:
    rois = LoDTensor(draw.floats((3, 4), 0.0, 1.5) + np.array([0, 0, 2.1, 2.1]))
    rois.set_recursive_sequence_lengths([[1, 2]])
    return Case({**_regions(draw).inputs, "ROIs": rois}, _regions(draw).attrs)


@case("deformable_psroi_pooling")
def _moved_bins(draw: Draw) -> Case:
    inputs = {
        "Input": draw.floats((2, 4, 6, 6)),
        "ROIs": _regions(draw).inputs["ROIs"],
        "Trans": draw.floats((3, 2, 2, 2), 0.11, 0.19),
    }
    attrs = {
        "pooled_height": 2,
        "pooled_width": 2,
        "output_dim": 4,
        "part_size": [2, 2],
        "sample_per_part": 2,
        "trans_std": 0.31,
    }
    return Case(inputs, attrs, wrt=["Input", "Trans"], targets=["Output"])


@case("roi_perspective_transform")
def _quadrangles(draw: Draw) -> Case:
    rois = LoDTensor(np.array([[1, 0, 5, 1, 4, 5, 0, 4], [0, 0, 3, 0, 3, 4, 0, 4.0]]))
    rois.set_recursive_sequence_lengths([[1, 1]])
    attrs = {"transformed_height": draw.int(2, 4), "transformed_width": 3}
    x = draw.floats((2, 2, 6, 6))
    return Case({"X": x, "ROIs": rois}, attrs, wrt=["X"], targets=["Out"])


# -- Paddle 2's ------------------------------------------------------------------------------------
@case("lgamma")
def _lgamma(draw: Draw) -> Case:
    return Case({"X": draw.floats(draw.shape(), 0.5, 3.0)})


@case("digamma")
def _digamma(draw: Draw) -> Case:
    return Case({"X": draw.floats(draw.shape(), 0.5, 3.0)})


def _moderate(draw: Draw) -> Case:
    return Case({"X": draw.floats(draw.shape(), -2.0, 2.0)})


for _type in ("i0", "i0e", "i1", "i1e"):
    case(_type)(_moderate)


@case("polygamma")
def _polygamma(draw: Draw) -> Case:
    return Case({"X": draw.floats(draw.shape(), 1.0, 3.0)}, {"n": draw.int(0, 2)})


@case("erfinv")
def _erfinv(draw: Draw) -> Case:
    return Case({"X": draw.floats(draw.shape(), -0.8, 0.8)})


@case("elementwise_fmax")
def _fmax(draw: Draw) -> Case:
    shape = draw.shape(2)
    x = draw.apart((2, *shape))
    return Case({"X": x[0], "Y": x[1]})


@case("elementwise_fmin")
def _fmin(draw: Draw) -> Case:
    shape = draw.shape(2)
    x = draw.apart((2, *shape))
    return Case({"X": x[0], "Y": x[1]})


@case("atan2")
def _atan2(draw: Draw) -> Case:
    shape = draw.shape()
    return Case({"X1": draw.floats(shape, 0.3, 2.0), "X2": draw.floats(shape, 0.3, 2.0)})


def _matrices(draw: Draw, columns: int = 0) -> np.ndarray:
    """Return matrices, square ones well away from singular ones."""
    rows = draw.int(1, 3)
    batch = (draw.int(1, 3),) if draw.bool() else ()
    if columns:
        return draw.floats((*batch, 3, columns))
    return draw.floats((*batch, rows, rows), -0.3, 0.3) + 2 * np.eye(rows)


@case("inverse")
def _inverse(draw: Draw) -> Case:
    return Case({"Input": _matrices(draw)})


@case("determinant")
def _determinant(draw: Draw) -> Case:
    return Case({"Input": _matrices(draw)})


@case("slogdeterminant")
def _slogdeterminant(draw: Draw) -> Case:
    return Case({"Input": _matrices(draw)})


@case("matrix_power")
def _matrix_power(draw: Draw) -> Case:
    return Case({"X": _matrices(draw)}, {"n": draw.int(-2, 3)})


@case("cholesky")
def _cholesky(draw: Draw) -> Case:
    # Its slope is along symmetric matrices: tests of Paddle 2's functions have larger ones.
    return Case({"X": draw.floats((draw.int(1, 3), 1, 1), 0.5, 2.0)}, {"upper": draw.bool()})


@case("solve")
def _solve(draw: Draw) -> Case:
    x = _matrices(draw)
    return Case({"X": x, "Y": draw.floats((*x.shape[:-1], 2))})


@case("triangular_solve")
def _triangular_solve(draw: Draw) -> Case:
    x = _matrices(draw)
    attrs = {name: draw.bool() for name in ("upper", "transpose", "unitriangular")}
    return Case({"X": x, "Y": draw.floats((*x.shape[:-1], 2))}, attrs)


@case("cholesky_solve")
def _cholesky_solve(draw: Draw) -> Case:
    y = _matrices(draw)
    return Case({"X": draw.floats((*y.shape[:-1], 2)), "Y": y}, {"upper": draw.bool()})


@case("cumprod")
def _cumprod(draw: Draw) -> Case:
    shape = draw.shape()
    return Case({"X": draw.floats(shape, 0.5, 1.5)}, {"dim": draw.int(0, len(shape) - 1)})


@case("logcumsumexp")
def _logcumsumexp(draw: Draw) -> Case:
    shape = draw.shape()
    return Case({"X": draw.floats(shape)}, {"axis": draw.int(0, len(shape) - 1)})


@case("cummax")
def _cummax(draw: Draw) -> Case:
    shape = draw.shape()
    return Case({"x": draw.apart(shape)}, {"axis": draw.int(0, len(shape) - 1)}, targets=["out"])


@case("cummin")
def _cummin(draw: Draw) -> Case:
    shape = draw.shape()
    return Case({"x": draw.apart(shape)}, {"axis": draw.int(0, len(shape) - 1)}, targets=["out"])


@case("kthvalue")
def _kthvalue(draw: Draw) -> Case:
    shape = draw.shape()
    axis = draw.int(0, len(shape) - 1)
    attrs = {"k": draw.int(1, shape[axis]), "axis": axis, "keepdim": draw.bool()}
    return Case({"X": draw.apart(shape)}, attrs, targets=["Out"])


@case("diagonal")
def _diagonal(draw: Draw) -> Case:
    attrs = {"offset": draw.int(-1, 1), "axis1": draw.of(0, 1), "axis2": 2}
    return Case({"Input": draw.floats((draw.int(2, 3), 3, 4))}, attrs)


@case("renorm")
def _renorm(draw: Draw) -> Case:
    attrs = {"p": draw.of(1.0, 2.0), "axis": draw.int(0, 1), "max_norm": 0.7}
    return Case({"X": draw.floats((3, 4), 0.3, 1.0)}, attrs)


@case("put_along_axis")
def _put_along_axis(draw: Draw) -> Case:
    rows, how = draw.int(1, 3), draw.of("assign", "add", "multiply")
    index = np.stack([draw.rng.permutation(4)[:2] for _ in range(rows)])
    values = {"Input": draw.floats((rows, 4), 0.5, 2.0), "Value": draw.floats((rows, 2), 0.5, 2.0)}
    return Case({**values, "Index": index}, {"Axis": 1, "Reduce": how})
