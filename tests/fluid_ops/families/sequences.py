"""Sequences cut and put together by numbers that are computed or fed."""

DRAWN = 6
NUMBERS = "layers.assign(np.array({0}, 'int64').reshape(-1, 1))"
PLACES = [([0, 1, 2, 0], [2, 2, 0, 1]), ([1, 0, 0, 3], [1, 3, 1, 2]), ([0, 0, 1, 4], [1, 1, 1, 1])]


def sliced(offset, length):
    return "layers.sequence_slice(x, %s, %s)" % (NUMBERS.format(offset), NUMBERS.format(length))


CASES = [
    *(
        (sliced(*places), {"x": "f 14 %s lod 3 4 2 5" % shape})
        for places in PLACES
        for shape in ("3", "1", "2 3")
    ),
    *(
        (
            "layers.sequence_scatter(x, i, u)",
            {
                "x": "f 3 %d" % width,
                "i": "i%d %d 1 lod %s" % (width, rows, lod),
                "u": "f %d 1 lod %s" % (rows, lod),
            },
        )
        for width, rows, lod in ((6, 9, "3 5 1"), (4, 7, "1 1 5"), (9, 6, "2 2 2"))
    ),
    (
        "layers.sequence_conv(x, 4, {s}, padding_start={p}, bias_attr={b})",
        {"x": "f 9 3 lod 2 3 4"},
        {"s": [1, 2, 3, 5], "p": [None, -1, 0], "b": [None, False]},
    ),
    (
        "layers.row_conv(x, {n})",
        {"x": "f 9 3 lod 2 3 4"},
        {"n": [1, 2, 4]},
    ),
    (
        "layers.sequence_mask(n, maxlen=layers.shape(x)[{a}], dtype={d})",
        {"x": "f 3 5 4", "n": "i6 3"},
        {"a": [1, 2], "d": ["float32", "int64"]},
    ),
    (
        "layers.range({s}, layers.shape(x)[{a}], 2, 'int64')",
        {"x": "f 3 5 4"},
        {"a": [0, 1], "s": [0, 1]},
    ),
    *(
        (text % "layers.concat([x, y], 0)", {"x": "f 6 3 lod 3 2 1", "y": "f 3 3 lod 1 2"})
        for text in ("%s", "layers.sequence_pool(%s, 'sum')")
    ),
]
