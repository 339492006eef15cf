"""Tags and alignments of sequences."""

THREE = "layers.fill_constant([2], 'int64', 3)"
PARAM = "fluid.ParamAttr(name='crf')"
ROWS = {"x": "f 9 3 lod 2 3 4", "y": "i3 9 1 lod 2 3 4"}
PADDED = {"x": "f 2 4 3", "y": "i3 2 4"}
TAGS = {"x": "i9 12 1 lod 5 7", "y": "i9 12 1 lod 5 7"}
DRAWN = 12
CASES = [
    ("layers.linear_chain_crf(x, y, " + PARAM + ")", ROWS),
    (
        "layers.linear_chain_crf(x, y, " + PARAM + ", length=" + THREE + ")",
        PADDED,
    ),
    (
        "[layers.linear_chain_crf(x, y, " + PARAM + "), layers.crf_decoding(x, " + PARAM + "), "
        "layers.crf_decoding(x, " + PARAM + ", label=y)]",
        ROWS,
    ),
    (
        "[layers.linear_chain_crf(x, y, " + PARAM + ", length=" + THREE + "), "
        "layers.crf_decoding(x, " + PARAM + ", length=" + THREE + ")]",
        PADDED,
    ),
    (
        "layers.chunk_eval(x, y, {s}, {t}, excluded_chunk_types={e})",
        TAGS,
        {"s": ["IOB", "IOE"], "t": [4], "e": [None, [1], [0, 2]]},
    ),
    (
        "layers.chunk_eval(x, y, {s}, {t})",
        TAGS,
        {"s": ["IOBES"], "t": [2]},
    ),
    ("layers.chunk_eval(x, y, 'plain', {t})", TAGS, {"t": [8]}),
    (
        "layers.edit_distance(x, y, normalized={m})",
        {"x": "i4 9 1 lod 2 3 4", "y": "i4 10 1 lod 4 1 5"},
        {"m": [True, False]},
    ),
    (
        "layers.warpctc(x, layers.cast(y, 'int32'), blank=3, norm_by_times={b})",
        {"x": "f 12 4 lod 5 7", "y": "i3 5 1 lod 2 3"},
        {"b": [True, False]},
    ),
    (
        "layers.warpctc(x, y, blank=3, norm_by_times={b})",
        {"x": "f 12 4 lod 5 7", "y": "j3 5 1 lod 2 3"},
        {"b": [True, False]},
    ),
]
