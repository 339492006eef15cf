"""Gradient cases of resized images, grids and encodings."""

from __future__ import annotations

from tests.support.ops import Case, Draw, case


@case("nearest_interp", "bilinear_interp", "bicubic_interp")
def _resized(draw: Draw) -> Case:
    layout = draw.of("NCHW", "NHWC")
    attrs = {
        "out_h": draw.int(1, 6),
        "out_w": draw.int(1, 6),
        "align_corners": draw.bool(),
        "align_mode": draw.int(0, 1),
        "data_layout": layout,
    }
    shape = (draw.int(1, 3), 2, draw.int(1, 4), 3)
    return Case({"X": draw.floats(shape)}, attrs)


@case("trilinear_interp")
def _volumes(draw: Draw) -> Case:
    attrs = {"out_d": draw.int(1, 4), "out_h": 3, "out_w": 2, "align_corners": draw.bool()}
    return Case({"X": draw.floats((draw.int(1, 3), 2, 3, 2, 2))}, attrs)


@case("meshgrid")
def _meshgrid(draw: Draw) -> Case:
    xs = [draw.floats((draw.int(1, 4),)) for _ in range(draw.int(1, 3))]
    return Case({"X": xs}, outputs={"Out": len(xs)})


@case("add_position_encoding")
def _position_encoding(draw: Draw) -> Case:
    attrs = {"alpha": 0.5, "beta": 2.0}
    if draw.bool():
        lengths = draw.lengths()
        return Case({"X": draw.ragged(lengths, (4,))}, attrs)
    return Case({"X": draw.floats((draw.int(1, 3), draw.int(1, 3), 4))}, attrs)


@case("print")
def _print(draw: Draw) -> Case:
    return Case({"In": draw.floats(draw.shape())}, {"first_n": 0})  # it says nothing
