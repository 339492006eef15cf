"""Elements moved, read and written at places, products, sums."""

XYZ = {"x": "f 3 4 5"}
IMAGE = {"x": "f 2 6 4 6"}
DRAWN = 3
CASES = [
    ("layers.roll(x, {s}, {d})", XYZ, {"s": [1, -2], "d": [None, 0, 1, -1]}),
    ("layers.roll(x, [1, 2], [0, 2])", XYZ),
    ("layers.flip(x, {d})", XYZ, {"d": [[0], [1, 2], [-1]]}),
    (
        "layers.temporal_shift(x, {s}, {r})",
        {"x": "f 4 8 2 3"},
        {"s": [2, 4], "r": [0.25, 0.2]},
    ),
    ("layers.t(x)", {"x": "f 3 4"}),
    ("layers.tril(x, {d})", {"x": "f 2 4 5"}, {"d": [0, 1, -2]}),
    ("layers.triu(x, {d})", {"x": "f 2 4 5"}, {"d": [0, 1, -2]}),
    ("layers.diag(x)", {"x": "f 4"}),
    (
        "layers.diag_embed(x, {o}, {a}, {b})",
        {"x": "f 2 3"},
        {"o": [0, 1, -1], "a": [-2, 0], "b": [-1, 1]},
    ),
    ("layers.pad(x, [0, 1, 2, 0, 1, 1], {v})", XYZ, {"v": [0.0, 0.5]}),
    (
        "layers.pad2d(x, {p}, {m}, 0.5)",
        IMAGE,
        {"p": [[0, 1, 2, 0], [1, 1, 2, 3]], "m": ["constant", "reflect", "edge"]},
    ),
    (
        "layers.pad2d(x, {p}, {m}, data_format='NHWC')",
        IMAGE,
        {"p": [[0, 1, 2, 0], [1, 1, 2, 3]], "m": ["constant", "reflect", "edge"]},
    ),
    ("layers.pad_constant_like(x, y, {v})", {"x": "f 3 4 5", "y": "f 2 4 3"}, {"v": [0.0, 2.0]}),
    ("layers.crop(x, [2, 3, 1], {o})", XYZ, {"o": [None, [1, 0, 3]]}),
    ("layers.crop(x, y, [1, 0, 2])", {"x": "f 3 4 5", "y": "f 2 4 3"}),
    ("layers.crop_tensor(x, {s}, [0, 1, 2])", XYZ, {"s": [[3, 2, -1], [2, -1, 1]]}),
    ("layers.expand_as(x, y)", {"x": "f 1 4 2", "y": "f 3 4 6"}),
    ("layers.unstack(x, {a})", XYZ, {"a": [0, 1, -1]}),
    ("layers.unstack(x, 2, 5)", XYZ),
    ("layers.pixel_shuffle(x, 2)", {"x": "f 2 8 2 3"}),
    # of other groups Fluid takes the gradient as if groups and their channels were as many
    ("layers.shuffle_channel(x, {g})", {"x": "f 2 4 3 2"}, {"g": [2]}),
    ("layers.space_to_depth(x, {b})", {"x": "f 2 4 4 6"}, {"b": [2]}),
    (
        "layers.unfold(x, {k}, {s}, {p}, {d})",
        {"x": "f 2 3 6 5"},
        {"k": [2, [3, 2]], "s": [1, 2], "p": [0, 1, [1, 0, 2, 1]], "d": [1, [2, 1]]},
    ),
    ("layers.gather_nd(x, i)", {"x": "f 3 3 4", "i": "i3 4 2"}),
    ("layers.gather_nd(x, i)", {"x": "f 3 3 4", "i": "j3 2 5 1"}),
    ("layers.gather_nd(x, i)", {"x": "f 3 3 3", "i": "i3 6 3"}),
    # Fluid's gradient of x is that of the result, also where rows were overwritten
    (
        "layers.scatter(layers.cast(c, 'float32'), i, u, overwrite={o})",
        {"c": "i9 4 3", "i": "i4 1", "u": "f 1 3"},
        {"o": [True, False]},
    ),
    ("layers.scatter_nd_add(x, i, u)", {"x": "f 3 3 2", "i": "i3 5 2", "u": "f 5 2"}),
    ("layers.scatter_nd(i, u, [4, 2])", {"i": "i4 5 1", "u": "f 5 2"}),
    ("layers.index_select(x, i, {d})", {"x": "f 4 4 4", "i": "i4 6"}, {"d": [0, 1, 2]}),
    ("layers.index_sample(x, i)", {"x": "f 3 5", "i": "i5 3 4"}),
    ("layers.multiplex([x, y, z], i)", {"x": "f 4 3", "y": "f 4 3", "z": "f 4 3", "i": "j3 4 1"}),
    ("layers.argsort(x, {a}, {d})", {"x": "a 3 4 5"}, {"a": [-1, 0, 1], "d": [False, True]}),
    ("layers.shard_index(i, 20, {n}, {k})", {"i": "i20 6 1"}, {"n": [2, 3], "k": [0, 1]}),
    # layers.hash of Fluid fails
    (
        "op('hash', {'X': i}, {'mod_by': {s}, 'num_hash': {n}}, 'int64')",
        {"i": "i99 6 2"},
        {"s": [1000, 37], "n": [1, 4]},
    ),
    ("layers.bmm(x, y)", {"x": "f 2 3 4", "y": "f 2 4 5"}),
    ("layers.dot(x, y)", {"x": "f 3 4", "y": "f 3 4"}),
    ("layers.dot(x, y)", {"x": "f 4", "y": "f 4"}),
    ("layers.cross(x, y, {d})", {"x": "f 3 2 3", "y": "f 3 2 3"}, {"d": [None, 0, 2, -1]}),
    ("layers.kron(x, y)", {"x": "f 2 3", "y": "f 3 2"}),
    ("layers.kron(x, y)", {"x": "f 2 1 3", "y": "f 2 2"}),
    ("layers.dist(x, y, {p})", {"x": "f 2 3", "y": "f 2 3"}, {"p": [2, 1, 3, 0.5]}),
    ("layers.dist(x, y, {p})", {"x": "f 4 2 3", "y": "f 2 1"}, {"p": [2, 1]}),
    ("layers.dist(x, y, {p})", {"x": "a 2 3", "y": "f 2 3"}, {"p": [0]}),
    ("layers.fsp_matrix(x, y)", {"x": "f 2 3 4 4", "y": "f 2 5 4 4"}),
    (
        "layers.addmm(z, x, y, {a}, {b})",
        {"x": "f 3 4", "y": "f 4 2", "z": "f 3 2"},
        {"a": [1.0, 0.5], "b": [1.0, 2.0]},
    ),
    ("layers.addcmul(x, y, z, {v})", {"x": "f 3 4", "y": "f 3 4", "z": "f 3 4"}, {"v": [1.0, 0.5]}),
    ("layers.bilinear_tensor_product(x, y, 4)", {"x": "f 3 5", "y": "f 3 2"}),
    (
        "layers.bilinear_tensor_product(x, y, 4, act='tanh', bias_attr=False)",
        {"x": "f 3 5", "y": "f 3 2"},
    ),
    (
        "layers.trace(x, {o}, {a}, {b})",
        {"x": "f 3 4 5"},
        {"o": [0, 1, -1], "a": [0, 2], "b": [1, -2]},
    ),
    ("layers.trace(x)", {"x": "f 3 4"}),
    (
        "layers.cumsum(x, {a}, {e}, {r})",
        XYZ,
        {"a": [None, 0, 1, -1], "e": [None, True], "r": [None, True]},
    ),
    ("layers.logsumexp(x, {d}, {k})", XYZ, {"d": [1, [0, 2]], "k": [False, True]}),
    ("layers.logsumexp(x)", XYZ),
    ("layers.log_softmax(x, {a})", XYZ, {"a": [None, 0, 1]}),
    (
        "layers.reduce_all(b, {d}, {k})",
        {"b": "b 2 3 2"},
        {"d": [None, 1, [0, 2]], "k": [False, True]},
    ),
    (
        "layers.reduce_any(b, {d}, {k})",
        {"b": "b 2 3 2"},
        {"d": [None, 1, [0, 2]], "k": [False, True]},
    ),
    ("layers.allclose(x, y, {r})", {"x": "u 3", "y": "u 3"}, {"r": [1e-5, 100.0]}),
]
