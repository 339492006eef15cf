"""Instances with tags, planes that are alike, levels of sequences, how well boxes were found."""

DRAWN = 4
TAGS = "layers.assign(np.array({f}, 'int64'))"
TRUE = "layers.concat([layers.cast(k, 'float32')%s, b * 0.5, b * 0.5 + 0.1 + e * 0.3], 1)"
FOUND = "layers.concat([layers.cast(g, 'float32'), s, h * 0.5, h * 0.5 + 0.1 + q * 0.3], 1)"
BOXES = {
    "k": "i3 9 1 lod 4 5",
    "b": "u 9 2 lod 4 5",
    "e": "u 9 2 lod 4 5",
    "o": "i2 9 1 lod 4 5",
    "g": "i3 30 1 lod 14 16",
    "s": "u 30 1 lod 14 16",
    "h": "u 30 2 lod 14 16",
    "q": "u 30 2 lod 14 16",
}
CASES = [
    (
        "layers.filter_by_instag(x, t, " + TAGS + ", False, {e})",
        {"x": "f 5 3", "t": "i4 7 1 lod 1 2 1 1 2"},
        {"f": [[1], [0, 2], [9]], "e": [0, 7]},
    ),
    (
        "layers.filter_by_instag(x, t, " + TAGS + ", True, {e})",
        {"x": "f 6 3 lod 1 3 2", "t": "i4 5 1 lod 1 2 2"},
        {"f": [[1], [0, 2], [3]], "e": [0, 7]},
    ),
    (
        "layers.similarity_focus(x, {a}, {i})",
        {"x": "a 2 4 3 5"},
        {"a": [1, 2, 3], "i": [[0], [2, 1]]},
    ),
    ("layers.lod_append(x, [0, 1, 1, 2, 4, 5, 6])", {"x": "f 6 2 lod 2 4"}),
    *(
        (
            "layers.detection.detection_map(" + FOUND + ", " + TRUE % difficult + ", 4, 0, {t}, "
            "{v}, ap_version={a})",
            BOXES,
            {"t": [0.1, 0.3], "v": [True, False], "a": ["integral", "11point"]},
        )
        for difficult in ("", ", layers.cast(o, 'float32')")
    ),
]
