"""Recurrent layers over sequences, and their single steps."""

OF_4 = {"x": "f 9 8 lod 2 3 0 4"}
OF_3 = {"x": "f 9 6 lod 2 3 0 4"}
FULL = "f 9 8 lod 4 2 3"
STATES = "layers.sequence_pool(h, 'sum'), c_0=layers.sequence_pool(c, 'sum')"
DRAWN = 8
GATES = ["sigmoid", "tanh"]
OTHERS = ["tanh", "relu", "identity", "sigmoid"]
YES_NO = [True, False]
CASES = [
    (
        "layers.dynamic_lstm(x, 8, use_peepholes={p}, is_reverse={r}, gate_activation={g}, "
        "cell_activation={c}, candidate_activation={d})[0]",
        OF_4,
        {"p": YES_NO, "r": YES_NO, "g": GATES, "c": OTHERS, "d": OTHERS},
    ),
    # In Fluid nothing flows back through cells that others use: tests/kernels/test_rnn.py.
    (
        "(lambda h, c: (h, setattr(c, 'stop_gradient', True) or c))(*layers.dynamic_lstm(x, 8))",
        OF_4,
    ),
    (
        "layers.dynamic_lstm(x, 8, h_0=" + STATES + ", use_peepholes={p}, is_reverse={r})[0]",
        {"x": FULL, "h": "f 3 2 lod 1 1 1", "c": "f 3 2 lod 1 1 1"},
        {"p": YES_NO, "r": YES_NO},
    ),
    (
        "layers.dynamic_lstmp(x, 8, 3, use_peepholes={p}, is_reverse={r}, cell_activation={c}, "
        "proj_activation={d})[0]",
        OF_4,
        {"p": YES_NO, "r": YES_NO, "c": ["tanh", "sigmoid"], "d": OTHERS},
    ),
    (
        "layers.dynamic_lstmp(x, 8, 3, cell_clip={c}, proj_clip={p})[0]",
        OF_4,
        {"c": [None, 0.3, 1.0], "p": [None, 0.3, 1.0]},
    ),
    (
        "layers.dynamic_lstmp(x, 8, 3, h_0=" + STATES + ", is_reverse={r})[0]",
        {"x": FULL, "h": "f 3 3 lod 1 1 1", "c": "f 3 2 lod 1 1 1"},
        {"r": YES_NO},
    ),
    (
        "layers.dynamic_gru(x, 2, is_reverse={r}, gate_activation={g}, candidate_activation={d}, "
        "origin_mode={o})",
        OF_3,
        {"r": YES_NO, "g": GATES, "d": OTHERS, "o": YES_NO},
    ),
    (
        "layers.dynamic_gru(x, 2, h_0=layers.sequence_pool(h, 'sum'), "
        "origin_mode={o}, bias_attr={b})",
        {"x": "f 9 6 lod 4 2 3", "h": "f 3 2 lod 1 1 1"},
        {"o": YES_NO, "b": [None, False]},
    ),
    (
        "layers.gru_unit(x, h, 6, origin_mode={o}, bias_attr={b})",
        {"x": "f 4 6", "h": "f 4 2"},
        {"o": YES_NO, "b": [None, False]},
    ),
    (
        "layers.lstm_unit(x, h, c, forget_bias={f})",
        {"x": "f 4 5", "h": "f 4 2", "c": "f 4 2"},
        {"f": [0.0, 0.6]},
    ),
]
