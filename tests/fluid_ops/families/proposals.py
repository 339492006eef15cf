"""Detectors with two stages and feature pyramids: what is proposed, learnt of, kept."""

DRAWN = 4
TRUE = "layers.concat([t * 20.0, t * 20.0 + 6.0 + d * 14.0], 1)"  # of 3 and 2 objects
PROPOSED = "layers.concat([r * 20.0, r * 20.0 + 4.0 + q * 16.0], 1)"
OBJECTS = {"t": "u 5 2 lod 3 2", "d": "u 5 2 lod 3 2", "c": "j2 5 1 lod 3 2"}
REGIONS = {"r": "u 24 2 lod 11 13", "q": "u 24 2 lod 11 13"}
INFO = "layers.assign(np.array({i}, 'float32'))"
INFOS = [[[40, 32, 1.0], [36, 40, 1.0]], [[40, 32, 1.25], [36, 40, 0.8]]]
ANCHORS = (
    "layers.reshape(layers.anchor_generator(m, {a}, [0.5, 1.0], stride=[8.0, 8.0])[0], [-1, 4])"
)
CROWDS = "layers.cast(layers.less_than(c, layers.fill_constant([1], 'int32', {n})), 'int32')"
CORNER = "layers.assign(np.array([%s, %s], 'float32'))"
FLAT = (
    "layers.assign(np.array([[[0.5, 0.5, 0.5, 0.5]] * 2 + [[0.0, 0.0, 0.1, 0.1], "
    "[0.5, 0.5, 0.5, 0.5], [0.2, 0.5, 0.8, 0.5]]], 'float32'))"
)
CASES = [
    (
        "layers.rpn_target_assign(x, y, "
        + ANCHORS
        + ", y, "
        + TRUE
        + ", "
        + CROWDS
        + ", "
        + INFO
        + ", {s}, {h}, {f}, {p}, {b}, use_random=False)",
        {**OBJECTS, "m": "f 2 3 5 4", "x": "f 2 80 4", "y": "f 2 80 1"},
        {
            "a": [[8.0, 16.0]],
            "n": [0, 1],
            "i": INFOS,
            "s": [256, 16, 6],
            "h": [0.0, -1.0, 6.0],
            "f": [0.5, 0.25],
            "p": [0.7, 0.4],
            "b": [0.3, 0.5],
        },
    ),
    (
        "(lambda v: [v[0], v[1] * v[4], *v[2:]])(layers.retinanet_target_assign(x, y, "
        + ANCHORS
        + ", y, "
        + TRUE
        + ", k, "
        + CROWDS
        + ", "
        + INFO
        + ", 3, {p}, {b}))",
        {**OBJECTS, "k": "j3 5 1 lod 3 2", "m": "f 2 3 5 4", "x": "f 2 80 4", "y": "f 2 80 3"},
        {"a": [[8.0, 16.0]], "n": [0, 1], "i": INFOS, "p": [0.5, 0.3], "b": [0.4, 0.2]},
    ),
    (
        "layers.generate_proposals(y, x, " + INFO + ", *layers.anchor_generator(m, {a}, [1.0], "
        "stride=[8.0, 8.0]), {k}, {l}, {t}, {s}, {e}, return_rois_num=True)",
        {"m": "f 2 3 5 4", "y": "u 2 2 5 4", "x": "f 2 8 5 4"},
        {
            "a": [[8.0, 16.0]],
            "i": INFOS,
            "k": [60, 20],
            "l": [10, 4],
            "t": [0.5, 0.7],
            "s": [0.1, 12.0],
            "e": [1.0, 0.8],
        },
    ),
    (
        "layers.generate_proposal_labels("
        + PROPOSED
        + ", k, "
        + CROWDS
        + ", "
        + TRUE
        + ", "
        + INFO
        + ", {s}, {f}, {t}, {h}, {l}, class_nums=4, use_random=False, "
        "is_cls_agnostic={g}, is_cascade_rcnn={e})",
        {**OBJECTS, **REGIONS, "k": "j4 5 1 lod 3 2"},
        {
            "n": [0, 1],
            "i": INFOS,
            "s": [16, 6],
            "f": [0.25, 0.5],
            "t": [0.5, 0.25],
            "h": [0.5],
            "l": [0.0, 0.1],
            "g": [True, False],
            "e": [True, False],
        },
    ),
    (
        "(lambda v: v[0] + [v[1]])(layers.distribute_fpn_proposals("
        + PROPOSED
        + ", {l}, 5, {r}, {s}))",
        REGIONS,
        {"l": [2, 3], "r": [3, 4], "s": [8, 16]},
    ),
    (
        "layers.collect_fpn_proposals([" + PROPOSED + ", g], [s, v], 2, 3, {k})",
        {**REGIONS, "g": "u 5 4 lod 2 3", "s": "u 24 1 lod 11 13", "v": "u 5 1 lod 2 3"},
        {"k": [5, 20, 100]},
    ),
    (
        "layers.box_decoder_and_assign(" + PROPOSED + ", v, x, s, {c})",
        {**REGIONS, "v": "p 4", "x": "f 24 12", "s": "f 24 3"},
        {"c": [4.135, 0.5]},
    ),
    (
        "layers.matrix_nms(layers.concat([a, a + c], 2), s, {t}, {p}, {k}, {n}, {g}, {o}, {b}, {m},"
        " True)",
        {"a": "u 2 9 2", "c": "u 2 9 2", "s": "u 2 3 9"},
        {
            "t": [0.1, 0.5],
            "p": [0.0, 0.3],
            "k": [4, -1],
            "n": [5, -1],
            "g": [True, False],
            "o": [2.0, 0.5],
            "b": [0, -1],
            "m": [True, False],
        },
    ),
    (
        "layers.locality_aware_nms(layers.concat([a, a + c], 2), s, {t}, {k}, {n}, {o}, {m}, {e})",
        {"a": "u 2 12 2", "c": "u 2 12 2", "s": "u 2 1 12"},
        {
            "t": [0.1, 0.5],
            "k": [4, -1],
            "n": [5, -1],
            "o": [0.1, 0.3],
            "m": [True, False],
            "e": [1.0, 0.7],
        },
    ),
    (
        "layers.locality_aware_nms(layers.concat([a, a + c * " + CORNER % (0.9, 0.1) + ", a + c, "
        "a + c * " + CORNER % (0.2, 0.95) + "], 2), s, {t}, -1, {n}, {o})",
        {"a": "u 2 8 2", "c": "u 2 8 2", "s": "u 2 1 8"},
        {"t": [0.1], "n": [5, -1], "o": [0.1, 0.3]},
    ),
    (
        "layers.locality_aware_nms(layers.concat([a, a + c], 2), s * 0.01, 0.9, -1, -1)",
        {"a": "u 2 8 2", "c": "u 2 8 2", "s": "u 2 1 8"},
    ),
    (
        "layers.retinanet_detection_output([x, z], [y, w], [a * 30.0, b * 30.0], "
        + INFO
        + ", {t}, {k}, {n}, {o})",
        {
            "x": "f 2 8 4",
            "z": "f 2 5 4",
            "y": "u 2 8 3",
            "w": "u 2 5 3",
            "a": "u 8 4",
            "b": "u 5 4",
        },
        {"i": INFOS, "t": [0.05, 0.6], "k": [1000, 6], "n": [100, 7], "o": [0.3, 0.6]},
    ),
    ("layers.locality_aware_nms(" + FLAT + ", s, 0.1, -1, -1, 0.3)", {"s": "u 1 1 5"}),
    ("layers.matrix_nms(" + FLAT + ", s, 0.01, 0.0, -1, -1)", {"s": "u 1 2 5"}),
    (  # where the first two have become one with score 0, whose place is not a number
        "layers.locality_aware_nms(layers.assign(np.array([[[0.0, 0.0, 0.5, 0.5]] * 2 + "
        "[[0.6, 0.6, 0.9, 0.9], [0.6, 0.6, 0.6, 0.6]]], 'float32')), "
        "layers.assign(np.array([[[0.0, 0.0, 0.7, 0.7]]], 'float32')), 0.1, -1, -1, 0.3)",
        {},
    ),
]
