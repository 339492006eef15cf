"""Gradient cases of losses of boxes."""

from __future__ import annotations

from tests.support.ops import Case, Draw, case


@case("yolov3_loss")
def _yolo(draw: Draw) -> Case:
    rows = draw.int(1, 3)
    inputs = {
        "X": draw.floats((rows, 16, 4, 4), -1, 1),
        "GTBox": draw.floats((rows, 2, 4), 0.1, 0.9),
        "GTLabel": draw.rng.integers(0, 3, (rows, 2)).astype("int32"),
        "GTScore": draw.floats((rows, 2), 0.2, 1),
    }
    attrs = {
        "anchors": [10, 13, 16, 30, 33, 23],
        "anchor_mask": draw.of([0, 1], [2, 1]),
        "class_num": 3,
        "ignore_thresh": 2.0,  # none is ignored: a slope would jump where one begins to be
        "downsample_ratio": 8,
        "use_label_smooth": draw.bool(),
    }
    return Case(inputs, attrs, wrt=["X"], targets=["Loss"])
