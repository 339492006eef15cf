"""Boxes, what is chosen by value, and distributions."""

MAP = {"x": "f 1 2 3 4", "m": "f 1 3 24 32"}
DRAWN = 4
BOXES = "layers.concat([%s, %s + layers.abs(%s) + 0.1], 1)"
A, B = BOXES % ("a", "a", "c"), BOXES % ("b", "b", "d")
PAIRS = {"a": "u 3 2", "c": "u 3 2", "b": "u 4 2", "d": "u 4 2"}
FLAT = (
    "layers.assign(np.array([[[0.2, 0.3, 0.2, 0.3]] * 3 + [[0.2, 0.3, 0.6, 0.7]] * 2 + "
    "[[0.5, 0.1, 0.5, 0.4]] * 2], 'float32'))"
)
CASES = [
    (
        "layers.prior_box(x, m, {s}, {t}, {r}, flip={f}, clip={c}, steps={p}, "
        "min_max_aspect_ratios_order={o})",
        MAP,
        {
            "s": [[4.0], [4.0, 6.0]],
            "t": [None],
            "r": [[1.0], [2.0, 3.0]],
            "f": [True, False],
            "c": [True, False],
            "p": [[0.0, 0.0], [7.0, 9.0]],
            "o": [True, False],
        },
    ),
    (
        "layers.prior_box(x, m, [4.0, 6.0], [9.0, 12.0], [2.0], flip={f}, "
        "min_max_aspect_ratios_order={o})",
        MAP,
        {"f": [True, False], "o": [True, False]},
    ),
    (
        "layers.density_prior_box(x, m, [2, 1], [4.0, 9.0], {r}, clip={c}, steps={p}, "
        "flatten_to_2d={f})",
        MAP,
        {
            "r": [[1.0], [1.0, 2.0]],
            "c": [True, False],
            "p": [[0.0, 0.0], [8.0, 8.0]],
            "f": [True, False],
        },
    ),
    (
        "layers.anchor_generator(x, {s}, {r}, stride=[16.0, 12.0], offset={o})",
        MAP,
        {"s": [[32.0], [64.0, 128.0]], "r": [[1.0], [0.5, 2.0]], "o": [0.5, 0.0]},
    ),
    ("layers.iou_similarity(" + A + ", " + B + ", {n})", PAIRS, {"n": [True, False]}),
    (
        "layers.box_coder(" + A + ", {v}, " + B + ", 'encode_center_size', {n})",
        PAIRS,
        {"v": [[0.1, 0.1, 0.2, 0.2]], "n": [True, False]},
    ),
    (
        "layers.box_coder(" + A + ", v, t, 'decode_center_size', {n}, axis={a})",
        {"a": "u 3 2", "c": "u 3 2", "v": "p 3 4", "t": "f 3 3 4"},
        {"n": [True, False], "a": [0, 1]},
    ),
    (
        "layers.box_clip(x, layers.assign(np.array([[4.0, 6.0, 1.0], [9.0, 3.0, 2.0]], "
        "'float32')))",
        {"x": "f 5 4 lod 2 3"},
    ),
    (
        "layers.yolo_box(x, i, [10, 13, 16, 30], 3, {t}, 32, {c}, None, {s})",
        {"x": "f 2 16 3 4", "i": "j200 2 2"},
        {"t": [0.01, 0.5], "c": [True, False], "s": [1.0, 1.2]},
    ),
    (
        "layers.yolov3_loss(x, b * 0.5 + 0.2, i, [10, 13, 16, 30, 33, 23], {m}, 3, {t}, 8, "
        "use_label_smooth={l}, scale_x_y={s})",
        {"x": "f 2 16 4 4", "b": "u 2 2 4", "i": "j3 2 2"},
        {"m": [[0, 1], [2, 1]], "t": [0.5, 0.9], "l": [True, False], "s": [1.0, 1.2]},
    ),
    (
        "layers.yolov3_loss(x, b, i, [10, 13, 16, 30, 33, 23], [1, 2], 3, 0.7, 8, g)",
        {"x": "f 2 16 4 4", "b": "u 2 3 4", "i": "j3 2 3", "g": "u 2 3"},
    ),
    (
        "layers.bipartite_match(layers.iou_similarity("
        "layers.concat([t * 0.3, t * 0.3 + 0.5], 1), " + B + "), {m}, {d})",
        {"b": "u 4 2", "d": "u 4 2", "t": "u 5 2 lod 2 3"},
        {"m": [None, "per_prediction"], "d": [None, 0.1]},
    ),
    (
        "layers.ssd_loss(x, s, layers.concat([t * 0.3, t * 0.3 + 0.5], 1), i, "
        + B
        + ", [0.1, 0.1, 0.2, 0.2], "
        "overlap_threshold={o}, neg_pos_ratio={r}, normalize={n}, match_type={m})",
        {
            "b": "u 6 2",
            "d": "u 6 2",
            "x": "f 2 6 4",
            "s": "f 2 6 3",
            "t": "u 5 2 lod 2 3",
            "i": "j3 5 1 lod 2 3",
        },
        {
            "o": [0.1, 0.5],
            "r": [1.0, 3.0],
            "n": [True, False],
            "m": ["per_prediction", "bipartite"],
        },
    ),
    (
        "layers.multi_box_head([x, y, z], m, 32, 3, [[2.0], [2.0, 3.0], [2.0]], 20, 90, "
        "flip={f}, kernel_size=3, pad=1, min_max_aspect_ratios_order={o})",
        {"x": "f 2 2 4 4", "y": "f 2 2 2 2", "z": "f 2 2 1 1", "m": "f 2 3 32 32"},
        {"f": [True, False], "o": [True, False]},
    ),
    ("layers.polygon_box_transform(x)", {"x": "f 2 8 3 4"}),
    (
        "layers.multiclass_nms(layers.concat([a, a + c], 2), s, {t}, {k}, {n}, {o}, {m}, {e}, {b})",
        {"a": "u 2 9 2", "c": "u 2 9 2", "s": "u 2 3 9"},
        {
            "t": [0.1, 0.5],
            "k": [4, -1],
            "n": [5, -1],
            "o": [0.2, 0.6],
            "m": [True, False],
            "e": [1.0, 0.7],
            "b": [0, -1],
        },
    ),
    (
        "layers.multiclass_nms(layers.concat([a, a + c], 2), s, 0.99, 4, 5)",
        {"a": "u 2 9 2", "c": "u 2 9 2", "s": "u 2 3 9"},
    ),
    (
        "layers.detection_output(t, s, " + A + ", v, score_threshold={h}, nms_top_k=5)",
        {"a": "u 6 2", "c": "u 6 2", "v": "u 6 4", "t": "f 2 6 4", "s": "f 2 6 3"},
        {"h": [0.1, 0.4]},
    ),
    ("layers.where(b)", {"b": "b 3 4"}),
    ("layers.nonzero(layers.cast(i, 'float32'), {t})", {"i": "i2 3 4"}, {"t": [True, False]}),
    ("layers.unique(i)", {"i": "i5 9"}),
    ("layers.unique_with_counts(i)", {"i": "i5 9"}),
    ("layers.Uniform(0.0, 2.5).entropy()", {}),
    ("layers.Uniform(x, x + 1.5).log_prob(x + 0.5)", {"x": "u 3"}),
    (
        "[layers.Normal(x, y).entropy(), layers.Normal(x, y).log_prob(z)]",
        {"x": "f 3", "y": "p 3", "z": "f 3"},
    ),
    (
        "layers.Normal(x, y).kl_divergence(layers.Normal(z, w))",
        {"x": "f 3", "y": "p 3", "z": "f 3", "w": "p 3"},
    ),
    (
        "[layers.Categorical(x).entropy(), layers.Categorical(x).kl_divergence("
        "layers.Categorical(y))]",
        {"x": "f 3 4", "y": "f 3 4"},
    ),
    ("layers.MultivariateNormalDiag(x, layers.diag(y)).entropy()", {"x": "f 2", "y": "p 2"}),
    (
        "layers.MultivariateNormalDiag(x, layers.diag(y)).kl_divergence("
        "layers.MultivariateNormalDiag(z, layers.diag(w)))",
        {"x": "f 2", "y": "p 2", "z": "f 2", "w": "p 2"},
    ),
    (  # points, and lines, some of them twice: their overlaps are not numbers
        "layers.multiclass_nms(" + FLAT + ", s, 0.01, -1, -1, {o}, {m}, background_label=-1)",
        {"s": "u 1 2 7"},
        {"o": [0.3], "m": [True, False]},
    ),
]
