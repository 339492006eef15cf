"""Gradient cases of what torch computes: volumes, grids, deformed convolutions, regions."""

from __future__ import annotations

import numpy as np

from hpcdist.lod_tensor import LoDTensor
from tests.support_ops import Case, Draw, case


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


@case("max_pool3d_with_index")
def _with_index(draw: Draw) -> Case:
    attrs = {"ksize": [2, 1, 2], "adaptive": draw.bool()}
    return Case({"X": draw.apart((draw.int(1, 2), 2, 3, 2, 3))}, attrs, targets=["Out"])


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
