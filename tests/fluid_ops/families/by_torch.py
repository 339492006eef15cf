"""Operators that torch computes: volumes, grids, deformed convolutions, regions."""

VOLUME = {"x": "f 2 4 5 4 6"}
LAST = {"x": "f 2 5 4 6 4"}
NEEDS_TORCH = True
DRAWN = 5
RECTANGLES = "layers.assign(np.array([[0, 0, 4, 3], [1, 1, 6, 6], [2, 0, 3, 5]], 'float32'))"
REGIONS = "layers.lod_reset(" + RECTANGLES + ", target_lod=[0, 1, 3])"
CASES = [
    (
        "layers.conv3d(x, 6, {k}, {s}, {p}, {d}, {g})",
        VOLUME,
        {
            "k": [1, 3, [2, 1, 3]],
            "s": [1, 2],
            "p": [1, [1, 0, 2], "SAME", "VALID"],
            "d": [1],
            "g": [None, 2],
        },
    ),
    ("layers.conv3d(x, 4, 2, dilation=[1, 2, 1], act='relu')", VOLUME),
    ("layers.conv3d(x, 4, 3, padding=1, data_format='NDHWC')", LAST),
    (
        "layers.conv3d_transpose(x, 6, None, {k}, {p}, {s}, {d}, {g})",
        VOLUME,
        {"k": [2, [3, 2, 1]], "p": [0, [1, 0, 0]], "s": [1, 2], "d": [1], "g": [None, 2]},
    ),
    ("layers.conv3d_transpose(x, 3, [10, 8, 12], None, 0, 2, bias_attr=False)", VOLUME),
    (
        "layers.pool3d(x, {k}, {t}, {s}, {p}, False, True, {c}, None, {e})",
        VOLUME,
        {
            "k": [2, [3, 2, 2]],
            "t": ["max", "avg"],
            "s": [1, 2],
            "p": [0, 1],
            "c": [True, False],
            "e": [True, False],
        },
    ),
    ("layers.pool3d(x, 2, {t}, global_pooling=True)", VOLUME, {"t": ["max", "avg"]}),
    ("layers.adaptive_pool3d(x, [2, 3, 4], {t})", VOLUME, {"t": ["max", "avg"]}),
    ("layers.adaptive_pool3d(x, 2, 'max', True)[0]", VOLUME),
    ("layers.grid_sampler(x, g)", {"x": "f 2 3 4 5", "g": "f 2 4 5 2"}),
    ("layers.affine_grid(t, [2, 3, 4, 5])", {"t": "f 2 2 3"}),
    ("layers.affine_grid(t, s)", {"t": "f 2 2 3", "s": "n 2 3 4 5"}),
    (
        "layers.deformable_conv(x, o, m, 4, 3, 1, 1, 1, {g}, {d}, 1)",
        {"x": "f 2 4 4 5", "o": "u 2 36 4 5", "m": "u 2 18 4 5"},
        {"g": [None, 2], "d": [2]},
    ),
    (
        "layers.deformable_conv(x, o, None, 4, [2, 3], {s}, 0, 1, 1, 1, 1, modulated=False)",
        {"x": "f 2 4 5 5", "o": "u 2 12 4 3"},
        {"s": [1]},
    ),
    (
        "layers.roi_pool(x, layers.lod_reset(layers.assign(np.array([[0, 0, 4, 3], [1, 1, 6, 6], "
        "[2, 0, 3, 5]], 'float32')), target_lod=[0, 1, 3]), {h}, {w}, {s})",
        {"x": "a 2 3 4 4"},
        {"h": [2, 3], "w": [2], "s": [1.0, 0.5]},
    ),
    (
        "layers.roi_align(x, layers.lod_reset(layers.assign(np.array([[0, 0, 4, 3], [1, 1, 6, 6], "
        "[2, 0, 3, 5]], 'float32')), target_lod=[0, 1, 3]), {h}, {w}, {s}, {r})",
        {"x": "a 2 3 4 4"},
        {"h": [2, 3], "w": [2], "s": [1.0, 0.5], "r": [-1, 2]},
    ),
    (
        "layers.psroi_pool(x, layers.lod_reset(layers.assign(np.array([[0, 0, 4, 3], [1, 1, 6, 6], "
        "[2, 0, 3, 5]], 'float32')), target_lod=[0, 1, 3]), 2, {s}, 2, 3)",
        {"x": "f 2 12 6 6"},
        {"s": [1.0, 0.5]},
    ),
    (
        "layers.prroi_pool(x, " + REGIONS + ", {s}, {h}, {w})",
        {"x": "f 2 3 6 6"},
        {"s": [1.0, 0.5], "h": [2, 3], "w": [2, 1]},
    ),
    (
        "layers.deformable_roi_pooling(x, " + REGIONS + ", t, {n}, {s}, [1, 1], {h}, 2, None, {m}, "
        "{d})",
        {"x": "f 2 4 6 6", "t": "u 3 4 2 2"},
        {"n": [True, False], "s": [1.0, 0.5], "h": [2], "m": [1, 3], "d": [0.1, 0.5]},
    ),
    (
        "op('deformable_psroi_pooling', {'Input': x, 'ROIs': " + REGIONS + ", 'Trans': t}, "
        "{'no_trans': {n}, 'spatial_scale': 0.5, 'output_dim': 2, 'group_size': [2, 3], "
        "'pooled_height': 2, 'pooled_width': 3, 'part_size': [1, 1], 'sample_per_part': 2, "
        "'trans_std': 0.2}, slot='Output', more=['TopCount'])",
        {"x": "f 2 12 6 6", "t": "u 3 4 1 1"},
        {"n": [True, False]},
    ),
    (
        "layers.roi_perspective_transform(x, layers.lod_reset(layers.assign(np.array([[1, 0, 5, 1, "
        "4, 5, 0, 4], [1, 1, 7, 0, 6, 6, 2, 5], [0, 0, 3, 0, 3, 4, 0, 4]], 'float32')), "
        "target_lod=[0, 1, 3]), {h}, {w}, {s})",
        {"x": "f 2 3 6 6"},
        {"h": [4, 3], "w": [5, 2], "s": [1.0, 0.5]},
    ),
    (
        "[roi(x, " + RECTANGLES + ", 2, 2, {s}, rois_lod=layers.assign(np.array([0, 1, 3]))) "
        "for roi in (layers.roi_pool, layers.roi_align)]",
        {"x": "a 2 3 4 4"},
        {"s": [1.0, 0.5]},
    ),
    (  # at places on pixels, as offsets of 0 give them, and a pixel outside
        "layers.deformable_conv(x, o, m, 4, 3, 1, 1, 1, 1, 2, 1)",
        {"x": "f 2 4 4 5", "o": "h 2 36 4 5", "m": "u 2 18 4 5"},
    ),
    (
        "layers.deformable_roi_pooling(x, " + REGIONS + ", t, False, {s}, [1, 1], 2, 2, None, 2, "
        "0.5)",
        {"x": "f 2 4 6 6", "t": "h 3 4 2 2"},
        {"s": [0.5, 1.0]},
    ),
    (
        "[op('roi_pool', {'X': x, 'ROIs': layers.lod_reset(layers.assign(np.array([[0, 0, 4, 3], "
        "[1, 1, 6, 6], [9, 9, 12, 12]], 'float32')), target_lod=[0, 2, 3])}, {'pooled_height': 2, "
        "'pooled_width': 3, 'spatial_scale': 0.7}, more=['Argmax']), "
        "layers.cast(fluid.default_main_program().global_block().var('made_1'), 'int32')][1:]",
        {"x": "a 2 3 7 7"},
    ),
]
