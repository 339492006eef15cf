"""What is decoded from scores, and tokens that are left out."""

SCORES = {"x": "f 12 3 lod 5 0 7"}
TOKENS = {"x": "i4 9 1 lod 2 3 4", "y": "i4 10 1 lod 4 1 5"}
THREE = "layers.fill_constant([2, 1], 'int64', 3)"
DRAWN = 6
CASES = [
    ("layers.ctc_greedy_decoder(x, blank={b})", SCORES, {"b": [0, 1, 2]}),
    (
        "layers.ctc_greedy_decoder(x, blank={b}, input_length=" + THREE + ", padding_value={p})",
        {"x": "f 2 5 3"},
        {"b": [0, 2], "p": [0, 9]},
    ),
    (
        "layers.edit_distance(x, y, normalized=False, ignored_tokens={t})",
        TOKENS,
        {"t": [[0], [1, 3], None]},
    ),
    ("layers.gather_tree(x, y)", {"x": "i9 4 2 3", "y": "i3 4 2 3"}),
]
