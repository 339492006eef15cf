"""Images of another size, values made of nothing or of coordinates."""

IMAGE = {"x": "f 2 3 4 5"}
SIZES = [[8, 10], [3, 2], [4, 7], [1, 6]]
DRAWN = 8
CASES = [
    (
        "layers.image_resize(x, {s}, resample={r}, align_corners={c}, align_mode={m})",
        IMAGE,
        {"s": SIZES, "r": ["BILINEAR", "NEAREST"], "c": [True, False], "m": [0, 1]},
    ),
    (
        "layers.resize_bilinear(x, scale={k}, align_corners={c}, align_mode={m}, data_format={f})",
        IMAGE,
        {"k": [2.0, 0.5], "c": [True, False], "m": [0, 1], "f": ["NCHW", "NHWC"]},
    ),
    (
        "layers.resize_nearest(x, {s}, align_corners={c}, data_format={f})",
        IMAGE,
        {"s": SIZES, "c": [True, False], "f": ["NCHW", "NHWC"]},
    ),
    (
        "layers.resize_trilinear(x, {s}, align_corners={c}, align_mode={m}, data_format={f})",
        {"x": "f 2 2 3 4 3"},
        {"s": [[6, 2, 4], [2, 8, 5]], "c": [True, False], "m": [0, 1], "f": ["NCDHW", "NDHWC"]},
    ),
    (
        "layers.interpolate(x, {s}, {k}, resample='BICUBIC', align_corners={c}, data_format={f})",
        IMAGE,
        {
            "s": [*SIZES, None],
            "k": [2.0],
            "c": [True, False],
            "f": ["NCHW", "NHWC"],
        },
    ),
    ("layers.image_resize_short(x, {n})", IMAGE, {"n": [2, 8]}),
    (
        "layers.range({a}, {b}, {s}, {d})",
        {},
        {"a": [0, 1], "b": [7], "s": [1, 3], "d": ["int32", "int64", "float32"]},
    ),
    (
        "layers.linspace({a}, {b}, {n}, 'float32')",
        {},
        {"a": [0.0, 1.0], "b": [2.0, -1.0], "n": [1, 5]},
    ),
    (
        "layers.eye({n}, {m}, {b}, {d})",
        {},
        {"n": [2, 3], "m": [None, 4], "b": [None, [2]], "d": ["float32", "int32"]},
    ),
    ("layers.full([2, 3], {v}, dtype={d})", {}, {"v": [1, 5], "d": [None, "int64"]}),
    ("layers.full_like(x, {v}, dtype={d})", IMAGE, {"v": [1, 5], "d": [None, "int64"]}),
    ("layers.meshgrid([x, y])", {"x": "f 3", "y": "f 4"}),
    (
        "layers.add_position_encoding(x, {a}, {b})",
        {"x": "f 2 3 6"},
        {"a": [1.0, 0.5], "b": [1.0, 2.0]},
    ),
    ("layers.add_position_encoding(x, 1.0, 0.5)", {"x": "f 5 4 lod 2 3"}),
    ("layers.size(x)", IMAGE),
    ("layers.clamp(x, {a}, {b})", IMAGE, {"a": [-1.0, -0.5], "b": [0.5, 1.0]}),
    ("layers.elementwise_equal(i, j)", {"i": "i3 4", "j": "i3 4"}),
    ("layers.mean_iou(i, j, 4)", {"i": "j4 9", "j": "j4 9"}),
]
