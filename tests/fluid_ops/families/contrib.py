"""What Fluid has under fluid.contrib.layers: columns, texts matched, trees."""

DRAWN = 4
CONTRIB = "fluid.contrib.layers."
TEXTS = {"x": "f 7 3 lod 2 4 1", "y": "f 6 3 lod 3 2 1"}
EDGES = "layers.assign(np.array({e}, 'int32'))"
FUSED = "fused_elemwise_activation(x, y, {f}, {a}, 0.5)"
CASES = [
    (
        CONTRIB + "partial_concat([x, y], {s}, {l})",
        {"x": "f 3 5", "y": "f 3 5"},
        {"s": [0, 2, -3], "l": [-1, 2]},
    ),
    (
        CONTRIB + "partial_sum([x, y, z], {s}, {l})",
        {"x": "f 3 5", "y": "f 3 5", "z": "f 3 5"},
        {"s": [0, 2], "l": [-1, 2]},
    ),
    (
        CONTRIB + FUSED,
        {"x": "f 3 4", "y": "f 3 4"},
        {
            "f": [
                ["elementwise_add", "relu"],
                ["relu", "elementwise_add"],
                ["elementwise_mul", "scale"],
                ["scale", "elementwise_add"],
            ],
            "a": [-1],
        },
    ),
    (
        CONTRIB + "fused_embedding_seq_pool(i, [5, 3], {p}, {q})",
        {"i": "i5 7 1 lod 2 4 1"},
        {"p": [False], "q": [None, 1]},
    ),
    (
        CONTRIB
        + "multiclass_nms2(layers.concat([a, a + c], 2), s, {t}, {k}, {n}, return_index=True)",
        {"a": "u 2 9 2", "c": "u 2 9 2", "s": "u 2 3 9"},
        {"t": [0.1, 0.5], "k": [4, -1], "n": [5, -1]},
    ),
    ("list(" + CONTRIB + "ctr_metric_bundle(x, y))", {"x": "u 5 1", "y": "u 5 1"}),
    (CONTRIB + "match_matrix_tensor(x, y, {c}, {a})", TEXTS, {"c": [1, 3], "a": [None, "tanh"]}),
    (
        CONTRIB + "sequence_topk_avg_pooling(x, r, c, {k}, 2)",
        {"x": "a 40 1 lod 12 16 12", "r": "f 8 2 lod 2 4 2", "c": "f 8 3 lod 3 2 3"},
        {"k": [[1], [1, 3], [2, 3, 5]]},
    ),
    (
        CONTRIB + "var_conv_2d(x, r, c, 2, {o}, {k}, {s}, act={a})",
        {"x": "a 40 1 lod 12 16 12", "r": "f 8 2 lod 2 4 2", "c": "f 8 3 lod 3 2 3"},
        {"o": [1, 3], "k": [1, 3, [2, 3]], "s": [1, [2, 1]], "a": [None, "tanh"]},
    ),
    (
        CONTRIB + "tree_conv(layers.cast(i, 'float32'), " + EDGES + ", 3, {f}, {d}, {a})",
        {"i": "i9 2 6 4"},
        {
            "e": [
                [[[1, 2], [1, 3], [2, 4], [2, 5], [3, 6]], [[1, 2], [2, 3], [3, 4], [1, 5], [5, 6]]]
            ],
            "f": [1, 2],
            "d": [2, 3],
            "a": [None, "tanh"],
        },
    ),
    *(
        (
            "(lambda names: [op('positive_negative_pair', {'Score': x, 'Label': y, 'QueryID': i"
            f"{more}}}, {{'column': {column}}}, slot='PositivePair', more=names)] + "
            "[fluid.default_main_program().global_block().var('made_%d' % k) for k in (1, 2)])"
            "(['NegativePair', 'NeutralPair'])",
            {"x": "h 9 2", "y": "h 9 1", "i": "i3 9 1", "w": "p 9 1", "a": "p 1"},
        )
        for column, more in (
            (0, ", 'Weight': w"),
            (
                -1,
                ", 'AccumulatePositivePair': a, 'AccumulateNegativePair': a, "
                "'AccumulateNeutralPair': a",
            ),
        )
    ),
    ("op('rnn_memory_helper', {'X': x}, {})", {"x": "f 3 4"}),
    ("op('squared_l2_norm', {'X': x}, {})", {"x": "f 3 4"}),
    ("op('seed', {}, {'seed': 123}, 'int32')", {}),
]
