"""Operators that Fluid's passes put in place of several: they have no gradients, nor layers."""

DRAWN = 6
_LSTM = "'use_peepholes': {p}, 'is_reverse': {r}, 'use_seq': {q}, 'candidate_activation': {a}"
_STEPS = "'XX', 'BatchedInput', 'BatchedHidden', 'BatchedCell', 'ReorderedH0', 'ReorderedC0'"
_FLAGS = {"p": [True, False], "r": [True, False], "q": [True, False], "a": ["tanh", "relu"]}
_STATES = {"h": "f 3 4", "c": "f 3 4"}


def _without_gradient(operator, *more):
    """Return an expression of an operator's first result, and of more by name."""
    made = ", ".join(["v"] + ["v.block.var('made_%d')" % k for k in more])
    return "(lambda v: [setattr(v, 'stop_gradient', True), [%s]][1])(%s)" % (made, operator)


CASES = [
    (
        _without_gradient(
            "op('fusion_gru', {'X': x, 'WeightX': w, 'WeightH': u, 'Bias': b, 'H0': h}, "
            "{'is_reverse': {r}, 'use_seq': {q}, 'activation': {a}}, "
            "slot='Hidden', more=['ReorderedH0', 'XX', 'BatchedInput', 'BatchedOut'])"
        ),
        {"x": "f 6 5 lod 3 1 2", "w": "f 5 12", "u": "f 4 12", "b": "f 1 12", "h": "f 3 4"},
        _FLAGS,
    ),
    (
        _without_gradient(
            "op('fusion_gru', {'X': x, 'WeightX': w, 'WeightH': u}, {}, "
            "slot='Hidden', more=['ReorderedH0', 'XX', 'BatchedInput', 'BatchedOut'])"
        ),
        {"x": "f 6 2 lod 3 1 2", "w": "f 2 9", "u": "f 3 9"},
    ),
    *(
        (
            _without_gradient(
                "op('fusion_lstm', {'X': x, 'WeightX': w, 'WeightH': u, 'Bias': b%s}, {%s}, "
                "slot='Hidden', more=['Cell', %s, 'CheckedCell'])" % (states, _LSTM, _STEPS),
                1,
            ),
            {"x": "f 6 5 lod 3 1 2", "w": "f 5 16", "u": "f 4 16", "b": bias, **_STATES},
            {**_FLAGS, "p": [peepholes]},
        )
        for states in ("", ", 'H0': h, 'C0': c")
        for bias, peepholes in (("f 1 28", True), ("f 1 16", False))
    ),
    *(
        (
            _without_gradient(
                "op('fused_embedding_fc_lstm', {'Ids': i, 'Embeddings': w, 'WeightH': u, 'Bias': b"
                "%s}, {%s}, slot='Hidden', more=['Cell', %s])" % (states, _LSTM, _STEPS),
                1,
            ),
            {"i": "i7 6 1 lod 3 1 2", "w": "f 7 16", "u": "f 4 16", "b": "f 1 28", **_STATES},
            {**_FLAGS, "p": [True]},
        )
        for states in ("", ", 'H0': h, 'C0': c")
    ),
    *(
        (
            _without_gradient(
                "op('attention_lstm', {'X': x, 'C0': c, 'AttentionWeight': l, 'LSTMWeight': w, "
                "'LSTMBias': b%s}, {'candidate_activation': {a}, 'cell_activation': {e}}, "
                "slot='Hidden', more=['Cell', 'AttentionedX', 'AttentionFCOut', 'LSTMX', "
                "'LSTMOUT'])" % more,
                1,
            ),
            {
                "x": "f 6 5 lod 3 1 2",
                "l": "f 9 1",
                "w": "f 9 16",
                "b": "f 1 16",
                **dict.fromkeys("std", "f 1 1"),
                **_STATES,
            },
            {"a": ["tanh", "relu"], "e": ["tanh", "sigmoid"]},
        )
        for more in (
            "",
            ", 'H0': h, 'AttentionBias': d",
            ", 'H0': h, 'AttentionBias': d, 'AttentionScalar': s, 'AttentionScalarBias': t",
        )
    ),
    *(
        (
            _without_gradient(
                "op('fusion_seqexpand_concat_fc', {'X': [x, y, z], 'FCWeight': w%s}, "
                "{'fc_activation': {a}}, more=['FCOut'])" % bias
            ),
            {
                "x": "f 6 3 lod 3 1 2",
                "y": "f 3 2 lod 1 1 1",
                "z": "f 3 4 lod 1 1 1",
                "w": "f 9 5",
                "b": "f 1 5",
            },
            {"a": ["identity", "relu", "sigmoid", "tanh"]},
        )
        for bias in ("", ", 'FCBias': b")
    ),
    (
        "[op('mean_iou', {'Predictions': i, 'Labels': j, 'InWrongs': [k, l], 'InCorrects': [m], "
        "'InMeanIou': [u]}, {'num_classes': 4}, slot='OutMeanIou', more=['OutWrong', 'OutCorrect'"
        "])] + [fluid.default_main_program().global_block().var('made_%d' % n) for n in (1, 2)]",
        {"i": "j4 9", "j": "j4 9", "k": "j5 4", "l": "j5 4", "m": "j5 4", "u": "u 1"},
    ),
]
