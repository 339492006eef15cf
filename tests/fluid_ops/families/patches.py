"""Patches of images as sequences, and sums over rows to come."""

IMAGES = {"x": "f 2 3 5 4"}
DRAWN = 8
CASES = [
    ("layers.row_conv(x, {n})", {"x": "f 9 4 lod 2 3 4"}, {"n": [0, 1, 2, 3]}),
    ("layers.row_conv(x, 2, act='tanh')", {"x": "f 9 4 lod 2 3 4"}),
    (
        "layers.im2sequence(x, filter_size={f}, stride={s}, padding={p})",
        IMAGES,
        {"f": [1, [2, 3], [3, 2]], "s": [1, 2, [2, 1]], "p": [0, 1, [1, 0], [0, 1, 1, 0]]},
    ),
]
