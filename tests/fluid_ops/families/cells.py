"""Cells step by step, layers of them, and decoders that repeat one until all have ended."""

PADDED = {"x": "f 3 5 4"}
WITH_STATES = {"x": "f 3 5 4", "h": "f 3 2", "c": "f 3 2", "n": "i6 3"}
OPEN = {"h": "f 3 2 lod 1 1 1", "c": "f 3 2 lod 1 1 1"}
POOLED = "layers.sequence_pool({0}, 'sum')"
YES_NO = [True, False]
DRAWN = 6


def flat(call):
    return "layers.utils.flatten(" + call + ")"


EMBED = "lambda ids: fluid.embedding(ids, [7, 4], param_attr=fluid.ParamAttr('words'))"
SCORES = (
    "lambda x: layers.fc(x, 7, num_flatten_dims=len(x.shape) - 1, "
    "param_attr=fluid.ParamAttr('scores'), bias_attr=False)"
)
STARTS = "layers.fill_constant([3], 'int64', 1)"
# Tokens, lengths, and scores of beams: as whole numbers, for Fluid refuses gradients of a test.
WITHOUT_SLOPES = "(lambda f: [f[0], f[-1], layers.cast(layers.scale(f[-4], 1e6), 'int64')])("
DECODED = ", max_step_num=4, impute_finished={i}, output_time_major={t})"
CASES = [
    case
    # Fluid takes an LSTM's initial states for rnn in no form that it can go through.
    for cell, states, first, opened in (
        ("LSTMCell", "[h, c]", "None", "[" + POOLED.format("h") + ", " + POOLED.format("c") + "]"),
        ("GRUCell", "h", "h", POOLED.format("h")),
    )
    for case in (
        (
            flat("layers.rnn(layers." + cell + "(2), x, time_major={t}, is_reverse={r})"),
            PADDED,
            {"t": YES_NO, "r": YES_NO},
        ),
        (
            flat("layers.rnn(layers." + cell + "(2), x, " + first + ", n, is_reverse={r})"),
            WITH_STATES,
            {"r": YES_NO},
        ),
        (
            flat(
                "layers.dynamic_decode(layers.BasicDecoder(layers." + cell + "(2), "
                "layers.TrainingHelper(x, n)), inits=" + states + ", impute_finished={i}, "
                "output_time_major={t}, return_length=True)"
            ),
            {**WITH_STATES, "n": "i5 3"},
            {"i": YES_NO, "t": YES_NO},
        ),
        (
            flat(
                "layers.dynamic_decode(layers.BasicDecoder(layers." + cell + "(2), "
                "layers.GreedyEmbeddingHelper(" + EMBED + ", " + STARTS + ", 3), " + SCORES + "), "
                "inits=" + states + DECODED
            ),
            WITH_STATES,
            {"i": YES_NO, "t": YES_NO},
        ),
        (
            WITHOUT_SLOPES
            + flat(
                "layers.dynamic_decode(layers.BeamSearchDecoder(layers." + cell + "(2), "
                "1, 3, {k}, " + EMBED + ", " + SCORES + "), inits=" + opened + ", max_step_num=4, "
                "is_test=True, output_time_major={t}, return_length=True)"
            )
            + ")",
            OPEN,
            {"k": [1, 3], "t": YES_NO},
        ),
    )
]
CASES += [
    (
        "fluid.contrib.layers.basic_lstm(x, None, None, 2, num_layers={l}, bidirectional={b}, "
        "batch_first={f}, forget_bias={g})",
        PADDED,
        {"l": [1, 2], "b": YES_NO, "f": YES_NO, "g": [0.0, 1.0]},
    ),
    (
        "fluid.contrib.layers.basic_gru(x, None, 2, num_layers={l}, bidirectional={b}, "
        "batch_first={f})",
        PADDED,
        {"l": [1, 2], "b": YES_NO, "f": YES_NO},
    ),
    (
        "fluid.contrib.layers.basic_lstm(x, h, c, 2, num_layers=2, sequence_length=n, "
        "bidirectional=True)",
        {"x": "f 3 5 4", "h": "f 4 3 2", "c": "f 4 3 2", "n": "i6 3"},
    ),
    (
        "fluid.contrib.layers.basic_gru(x, h, 2, num_layers={l}, sequence_length=n)",
        {"x": "f 3 5 4", "h": "f 2 3 2", "n": "i6 3"},
        {"l": [2]},
    ),
    (
        "layers.BeamSearchDecoder.tile_beam_merge_with_batch(x, {k})",
        PADDED,
        {"k": [1, 3]},
    ),
]
