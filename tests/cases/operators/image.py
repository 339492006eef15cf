"""Gradient cases of convolutions, pools and normalizations of images."""

from __future__ import annotations

from typing import Any

from tests.support.ops import Case, Draw, case


def _images(draw: Draw, channels: int, rows: int, columns: int, layout: str) -> tuple[int, ...]:
    n = draw.int(1, 3)
    return (n, channels, rows, columns) if layout == "NCHW" else (n, rows, columns, channels)


def _windows(draw: Draw) -> dict[str, Any]:
    return {
        "strides": [draw.int(1, 3), draw.int(1, 2)],
        "dilations": [draw.int(1, 2), draw.int(1, 2)],
        "paddings": draw.of([0, 0], [1, 2], [2, 0, 0, 1]),
        "padding_algorithm": draw.of("EXPLICIT", "EXPLICIT", "SAME", "VALID"),
        "data_format": draw.of("NCHW", "NHWC"),
    }


@case("conv2d")
def _conv2d(draw: Draw) -> Case:
    groups, attrs = draw.int(1, 3), _windows(draw)
    per_group = draw.int(1, 2)
    x = _images(draw, groups * per_group, draw.int(5, 8), draw.int(5, 8), attrs["data_format"])
    w = (groups * draw.int(1, 2), per_group, draw.int(1, 3), draw.int(1, 3))
    inputs = {"Input": draw.floats(x), "Filter": draw.floats(w)}
    return Case(inputs, {**attrs, "groups": groups})


@case("depthwise_conv2d")
def _depthwise_conv2d(draw: Draw) -> Case:
    channels, attrs = draw.int(1, 4), _windows(draw)
    x = _images(draw, channels, draw.int(5, 8), draw.int(5, 8), attrs["data_format"])
    w = (channels * draw.int(1, 2), 1, draw.int(1, 3), draw.int(1, 3))
    inputs = {"Input": draw.floats(x), "Filter": draw.floats(w)}
    return Case(inputs, {**attrs, "groups": channels})


@case("conv2d_transpose", "depthwise_conv2d_transpose")
def _conv2d_transpose(draw: Draw) -> Case:
    groups, attrs = draw.int(1, 3), _windows(draw)
    channels = groups * draw.int(1, 2)
    attrs["paddings"] = draw.of([0, 0], [1, 0], [0, 1, 1, 0])
    if attrs["padding_algorithm"] == "SAME":
        attrs["strides"] = [1, 1]
    x = _images(draw, channels, draw.int(3, 5), draw.int(3, 5), attrs["data_format"])
    w = (channels, draw.int(1, 2), draw.int(2, 3), draw.int(2, 3))
    inputs = {"Input": draw.floats(x), "Filter": draw.floats(w)}
    return Case(inputs, {**attrs, "groups": groups})


@case("pool2d")
def _pool2d(draw: Draw) -> Case:
    layout, ksize = draw.of("NCHW", "NHWC"), [draw.int(2, 4), draw.int(2, 3)]
    attrs = {
        "pooling_type": draw.of("max", "avg"),
        "ksize": ksize,
        "strides": [draw.int(1, 3), draw.int(1, 3)],
        "paddings": draw.of([0, 0], [1, 1], [0, 1, 1, 0]),
        "padding_algorithm": draw.of("EXPLICIT", "EXPLICIT", "SAME", "VALID"),
        "data_format": layout,
        "exclusive": draw.bool(),
        "adaptive": draw.bool(),
        "global_pooling": draw.int(0, 3) == 0,
    }
    shape = _images(draw, draw.int(1, 3), draw.int(4, 7), draw.int(4, 7), layout)
    return Case({"X": draw.apart(shape)}, attrs)


@case("max_pool2d_with_index")
def _max_pool2d_with_index(draw: Draw) -> Case:
    attrs = {
        "ksize": [draw.int(1, 3), draw.int(1, 3)],
        "strides": [draw.int(1, 2), draw.int(1, 2)],
        "paddings": [0, 0],
        "adaptive": draw.bool(),
        "global_pooling": draw.int(0, 3) == 0,
    }
    shape = _images(draw, draw.int(1, 3), draw.int(3, 6), draw.int(3, 6), "NCHW")
    return Case({"X": draw.apart(shape)}, attrs, targets=["Out"])


@case("batch_norm")
@case("sync_batch_norm")
def _batch_norm(draw: Draw) -> Case:
    layout, channels = draw.of("NCHW", "NHWC"), draw.int(1, 3)
    middle = draw.of((), (3,), (2, 3))
    n = draw.int(2, 4)
    shape = (n, channels, *middle) if layout == "NCHW" else (n, *middle, channels)
    inputs = {
        "X": draw.apart(shape),
        "Scale": draw.floats([channels]),
        "Bias": draw.floats([channels]),
        "Mean": draw.floats([channels]),
        "Variance": draw.floats([channels], 0.5, 2.0),
    }
    attrs = {"data_layout": layout, "epsilon": 1e-3, "use_global_stats": draw.bool()}
    wrt = ["X", "Scale", "Bias"]
    return Case(inputs, attrs, wrt=wrt, targets=["Y"], step=1e-5, tolerance=1e-5)


@case("lrn")
def _lrn(draw: Draw) -> Case:
    layout = draw.of("NCHW", "NHWC")
    shape = _images(draw, draw.int(1, 6), draw.int(1, 3), draw.int(1, 3), layout)
    attrs = {"n": draw.of(1, 3, 5), "k": 1.5, "alpha": 0.3, "beta": 0.75, "data_format": layout}
    return Case({"X": draw.floats(shape)}, attrs, targets=["Out"])
