"""Losses, and normalizations with parameters."""

ONE = "fluid.initializer.Constant(1.0)"
DRAWN = 3
CASES = [
    ("layers.bpr_loss(x, i)", {"x": "f 4 5", "i": "i5 4 1"}),
    ("layers.rank_loss(l, x, y)", {"l": "u 4 1", "x": "f 4 1", "y": "f 4 1"}),
    (
        "layers.margin_rank_loss(layers.cast(l, 'float32'), x, y, {m})",
        {"l": "i2 4 1", "x": "f 4 1", "y": "f 4 1"},
        {"m": [0.1, 0.5]},
    ),
    (
        "layers.center_loss(x, i, 3, 0.2, None, {u})",
        {"x": "f 4 5", "i": "i3 4 1"},
        {"u": [True, False]},
    ),
    (
        "layers.teacher_student_sigmoid_loss(x, layers.assign(np.array("
        "[[-2.0], [-1.0], [0.3], [1.6]], 'float32')))",
        {"x": "f 4 1"},
    ),
    (
        "layers.continuous_value_model(x, c, {u})",
        {"x": "p 4 5", "c": "p 4 2"},
        {"u": [True, False]},
    ),
    (
        "layers.kldiv_loss(x, y, {r})",
        {"x": "f 4 5", "y": "u 4 5"},
        {"r": ["mean", "sum", "batchmean", "none"]},
    ),
    (
        "layers.kldiv_loss(x, y, {r})",
        {"x": "f 4 2 3", "y": "f 4 2 3"},
        {"r": ["mean", "sum", "batchmean", "none"]},
    ),
    (
        "layers.sigmoid_focal_loss(x, i, n, {g}, {a})",
        {"x": "f 6 3", "i": "j4 6 1", "n": "j4 1"},
        {"g": [2.0, 1.5], "a": [0.25, 0.6]},
    ),
    ("layers.dice_loss(layers.softmax(x), i)", {"x": "f 3 4", "i": "i4 3 1"}),
    (
        "layers.npair_loss(x, y, i, {l})",
        {"x": "f 4 5", "y": "f 4 5", "i": "i3 4"},
        {"l": [0.002, 0.1]},
    ),
    ("layers.huber_loss(x, y, {d})", {"x": "f 4 1", "y": "f 4 1"}, {"d": [0.5, 1.0]}),
    ("layers.smooth_l1(x, y, sigma={s})", {"x": "f 4 3", "y": "f 4 3"}, {"s": [1.0, 2.0]}),
    ("layers.log_loss(x, y)", {"x": "u 4 1", "y": "u 4 1"}),
    ("layers.mse_loss(x, y)", {"x": "f 4 3", "y": "f 4 3"}),
    ("layers.square_error_cost(x, y)", {"x": "f 4 3", "y": "f 4 3"}),
    ("layers.cross_entropy(layers.softmax(x), i)", {"x": "f 4 3", "i": "i3 4 1"}),
    ("layers.softmax_with_cross_entropy(x, i)", {"x": "f 4 3", "i": "i3 4 1"}),
    ("layers.sigmoid_cross_entropy_with_logits(x, y)", {"x": "f 4 3", "y": "u 4 3"}),
    ("layers.label_smooth(layers.one_hot(i, 3), epsilon=0.2)", {"i": "i3 4 1"}),
    # large vocabularies; nce with classes that are not drawn
    ("layers.hsigmoid(x, i, {c})", {"x": "f 5 3", "i": "i5 5 1"}, {"c": [5, 6, 9]}),
    ("layers.hsigmoid(x, i, 7, bias_attr=False)", {"x": "f 5 3", "i": "i7 5 1"}),
    (
        "layers.hsigmoid(x, i, 4, is_custom=True, path_table=layers.assign(np.array("
        "[[0, 1, 3], [0, 2, -1], [0, 1, 2]], 'int64')), path_code=layers.assign(np.array("
        "[[0, 1, 1], [1, 0, -1], [1, 1, 0]], 'int64')))",
        {"x": "f 3 4", "i": "i3 3 1"},
    ),
    (
        "[op('nce', {'Input': x, 'Label': i, 'Weight': w, 'Bias': b}, {'num_total_classes': 6, "
        "'num_neg_samples': 3, 'sampler': {s}, 'custom_neg_classes': [1, 4, 5], 'seed': 1, "
        "'is_sparse': False}, slot='Cost', more=['SampleLogits', 'SampleLabels'])]",
        {"x": "f 4 3", "i": "i6 4 1", "w": "f 6 3", "b": "f 6 1"},
        {"s": [0, 1]},
    ),
    (
        "layers.sampled_softmax_with_cross_entropy(x, i, 3, use_customized_samples=True, "
        "customized_samples=s, customized_probabilities=p, remove_accidental_hits={r})",
        {"x": "f 4 6", "i": "i6 4 1", "s": "i6 4 4", "p": "u 4 4"},
        {"r": [True, False]},
    ),
    # normalizations
    (
        "layers.group_norm(x, {g}, param_attr=fluid.ParamAttr(), bias_attr=fluid.ParamAttr())",
        {"x": "f 2 6 3 2"},
        {"g": [1, 2, 3]},
    ),
    (
        "layers.group_norm(x, 2, 0.1, param_attr=fluid.ParamAttr(), bias_attr=fluid.ParamAttr(), "
        "data_layout='NHWC', act='relu')",
        {"x": "f 2 3 2 6"},
    ),
    # without a scale Fluid's gradient lacks a term; that of spectral_norm is taken by element
    ("layers.group_norm(layers.cast(c, 'float32'), {g})", {"c": "i9 2 6 3 2"}, {"g": [2, 3]}),
    ("layers.instance_norm(x, {e})", {"x": "f 2 3 4 2"}, {"e": [1e-5, 1e-3]}),
    (
        "layers.affine_channel(x, s, b, {l})",
        {"x": "f 2 3 4 3", "s": "f 3", "b": "f 3"},
        {"l": ["NCHW", "NHWC"]},
    ),
    (
        "layers.spectral_norm(layers.cast(c, 'float32'), {d}, {n})",
        {"c": "i9 3 4 2"},
        {"d": [0, 1], "n": [1, 3]},
    ),
    ("layers.data_norm(x)", {"x": "f 5 4"}),
    ("layers.data_norm(x, slot_dim=2)", {"x": "f 5 4"}),
    (
        "layers.data_norm(x, enable_scale_and_shift=True, param_attr={'batch_size': 1e4})",
        {"x": "f 5 4"},
    ),
    ("layers.layer_norm(x, begin_norm_axis={a})", {"x": "f 2 3 4"}, {"a": [1, 2]}),
    ("layers.batch_norm(x)", {"x": "f 4 3 2 2"}),
    ("layers.l2_normalize(x, {a})", {"x": "f 3 4"}, {"a": [0, 1]}),
    ("layers.lrn(x, n={n})", {"x": "f 2 6 2 2"}, {"n": [3, 5]}),
]
