"""Attributes that are fed or computed: extents, bounds, depths, k, sections, axes, factors.

Every attribute that an operator declares to be `given` stands here in each of its slots.
"""

DRAWN = 6
N = {"n": "n 2"}
T = {"t": "n 6 2"}
E = {"x": "f 3 4", "e": "e 0.5"}
X = {"x": "f 3 4 5", "n": "n 2"}
K = {"x": "f 3 4 5", "n": "n 2", "k": "m 1"}
IMAGE = {"x": "f 2 3 4 6", "n": "n 5"}
S = {"x": "f 3 4 5", "s": "n 2 3 4"}
SUM = "layers.reduce_sum(layers.cast(i, 'int32'))"  # a number that is computed of what is fed
CASES = [
    # shapes
    ("layers.fill_constant([n, 4], {t}, 1.5)", N, {"t": ["float32", "int64"]}),
    ("layers.fill_constant(s, 'float32', 1.5)", {"s": "n 2 3"}),
    ("layers.fill_constant(s, 'float32', 1.5)", {"s": "m 2 3"}),
    ("layers.fill_constant([3, k, n], 'int32', 7)", {"n": "n 2", "k": "m 4"}),
    ("layers.fill_constant([n, 2], 'float32', e)", {"n": "n 3", "e": "e 0.5"}),
    ("layers.fill_constant([%s, 2], 'float32', 0.5)" % SUM, {"i": "i4 3"}),
    ("layers.zeros([n, 3], 'int32')", N),
    ("layers.ones([n, 3], 'float32') * 2", N),
    ("layers.shape(layers.uniform_random([n, 3]))", N),
    ("layers.uniform_random(s, seed=3)", {"s": "n 2 3"}),
    ("layers.uniform_random([n, 3], seed=3)", N),
    ("layers.gaussian_random([n, 3], seed=3)", N),
    ("layers.gaussian_random(s, seed=3)", {"s": "m 2 3"}),
    ("layers.shape(layers.randint(0, 9, [n, 3]))", N),
    ("layers.randint(4, 5, s)", {"s": "n 2 3"}),
    ("layers.reshape(x, [n, -1])", X),
    ("layers.reshape(x, [-1, n, 3])", X),
    ("layers.reshape(x, [0, n, -1, 5])", X),
    ("layers.reshape(x, s)", {"x": "f 3 4 5", "s": "n 5 -1"}),
    ("layers.reshape(x, s)", {"x": "f 3 4 5", "s": "n 0 0 5 1"}),
    ("layers.reshape(x, [15, 4], actual_shape=s)", {"x": "f 3 4 5", "s": "n 6 10"}),
    ("layers.expand(x, [n, 1, k])", {"x": "f 3 4 5", "n": "n 2", "k": "n 3"}),
    ("layers.expand(x, s)", {"x": "f 2 3", "s": "n 2 3"}),
    ("layers.expand(x, [%s, 1])" % SUM, {"x": "f 2 3", "i": "i4 3"}),
    ("layers.expand_as(x, layers.fill_constant([n, 4], 'float32', 0))", {"x": "f 1 4", "n": "n 3"}),
    # bounds
    ("layers.slice(x, [0], [0], [n])", X),
    ("layers.slice(x, [1], [n], [4])", X),
    ("layers.slice(x, [0, 2], [0, n], [n, 5])", X),
    ("layers.slice(x, [0, 2], s, t)", {"x": "f 3 4 5", "s": "n 1 0", "t": "n 3 -1"}),
    ("layers.slice(x, [1], [-3], [n])", {"x": "f 3 4 5", "n": "n -1"}),
    ("layers.strided_slice(x, [1], [0], [n], [1])", {"x": "f 3 4 5", "n": "n 3"}),
    ("layers.strided_slice(x, [2], [0], [5], [n])", X),
    ("layers.strided_slice(x, [1, 2], [n, 0], [4, 5], [1, n])", X),
    (
        "layers.strided_slice(x, [1, 2], s, t, u)",
        {"x": "f 3 4 5", "s": "n 0 4", "t": "n 4 0", "u": "n 2 -1"},
    ),
    ("x[n]", {"x": "f 3 4 5", "n": "n 1"}),
    ("x[:n]", X),
    ("x[n:, 0]", X),
    ("x[:, n]", X),
    ("layers.crop(x, [2, 2, 3], s)", {"x": "f 3 4 5", "s": "n 1 2 0"}),
    ("layers.crop_tensor(x, [n, 2, k])", {"x": "f 3 4 5", "n": "n 2", "k": "n 1"}),
    ("layers.crop_tensor(x, [n, -1, 3], [1, n, 0])", X),
    ("layers.crop_tensor(x, s)", S),
    ("layers.crop_tensor(x, [1, 2, 3], [n, 0, 1])", X),
    (
        "layers.pad2d(x, s, {m}, 0.5)",
        {"x": "f 2 3 4 6", "s": "n 1 0 2 1"},
        {"m": ["constant", "reflect", "edge"]},
    ),
    ("layers.range(0, n, 1, 'int32')", {"n": "n 5"}),
    ("layers.range(n, 20, k, {t})", {"n": "n 2", "k": "m 3"}, {"t": ["int64", "float32"]}),
    ("layers.range(8, n, -2, 'int32')", {"n": "n 1"}),
    ("layers.range(0.0, e, 0.25, 'float32')", {"e": "e 1.3"}),
    ("layers.range(e, 2.0, 0.3, 'float32')", {"e": "e 0.1"}),
    ("layers.linspace(0.0, 1.0, n, 'float32')", {"n": "n 5"}),
    ("layers.linspace(e, 1.0, 7, 'float32')", {"e": "e 0.3"}),
    ("layers.linspace(2.0, e, n, 'float32')", {"n": "n 4", "e": "e 0.3"}),
    ("layers.linspace(2.0, 3.0, n, 'float32')", {"n": "n 1"}),
    # depths, k, sections
    ("layers.one_hot(i, n)", {"i": "i3 4 1", "n": "n 3"}),
    ("layers.one_hot(i, n, allow_out_of_range=True)", {"i": "i5 4 1", "n": "n 3"}),
    ("fluid.one_hot(i, n)", {"i": "i3 4", "n": "n 4"}),
    ("layers.sequence_mask(i, maxlen=n)", {"i": "i3 4", "n": "n 3"}),
    ("layers.sequence_mask(i, maxlen=n, dtype='float32')", {"i": "i3 4", "n": "n 5"}),
    ("layers.sequence_mask(layers.cast(layers.reduce_sum(i, 1), 'int64'))", {"i": "i3 4 2"}),
    ("layers.topk(x, n)", {"x": "a 3 5", "n": "n 2"}),
    ("layers.split(x, [n, 2], dim=1)", X),
    ("layers.split(x, [n, -1], dim=2)", X),
    ("layers.split(x, [1, n, k], dim=1)", {"x": "f 3 4 5", "n": "n 2", "k": "n 1"}),
    ("layers.split(x, 2, dim=n)", {"x": "f 3 4 6", "n": "n 1"}),
    ("layers.split(x, [1, 3], dim=n)", {"x": "f 3 4 6", "n": "n 1"}),
    # axes
    ("layers.concat([x, y], n)", {"x": "f 3 4", "y": "f 3 2", "n": "n 1"}),
    ("layers.concat([x, y], n)", {"x": "f 3 4", "y": "f 3 2", "n": "n -1"}),
    ("layers.unsqueeze(x, n)", {"x": "f 3 4", "n": "n 1"}),
    ("layers.unsqueeze(x, s)", {"x": "f 3 4", "s": "n 0 2"}),
    ("layers.unsqueeze(x, [n, 0])", {"x": "f 3 4", "n": "n 1"}),
    # sizes of images
    ("layers.resize_nearest(x, out_shape=[n, n])", IMAGE),
    ("layers.resize_nearest(x, out_shape=[n, 3], align_corners=False)", IMAGE),
    (
        "layers.resize_bilinear(x, out_shape=s, align_mode={m})",
        {"x": "f 2 3 4 6", "s": "n 3 7"},
        {"m": [0, 1]},
    ),
    ("layers.resize_bilinear(x, out_shape=[5, n])", IMAGE),
    ("layers.resize_bilinear(x, scale=e)", {"x": "f 2 3 4 6", "e": "e 1.5"}),
    ("layers.interpolate(x, out_shape=[n, 3], resample='BICUBIC')", IMAGE),
    ("layers.interpolate(x, out_shape=s, resample='BICUBIC')", {"x": "f 2 3 4 6", "s": "n 3 7"}),
    ("layers.interpolate(x, scale=e, resample='BICUBIC')", {"x": "f 2 3 4 6", "e": "e 1.5"}),
    (
        "layers.resize_nearest(x, out_shape=[2, 2], actual_shape=s)",
        {"x": "f 2 3 4 6", "s": "n 3 7"},
    ),
    ("layers.resize_trilinear(x, out_shape=[n, 2, n])", {"x": "f 1 2 3 2 3", "n": "n 4"}),
    ("layers.resize_trilinear(x, out_shape=s)", {"x": "f 1 2 3 2 3", "s": "n 2 3 5"}),
    ("layers.resize_nearest(x, scale=e)", {"x": "f 2 3 4 6", "e": "e 1.5"}),
    ("layers.resize_trilinear(x, scale=e)", {"x": "f 1 2 3 2 3", "e": "e 2.0"}),
    # what follows from them
    (
        "layers.reduce_sum(layers.elementwise_mul(x, layers.expand(y, [n, 1])), 0)",
        {"x": "f 6 4", "y": "f 2 4", "n": "n 3"},
    ),
    ("layers.fc(layers.slice(x, [0], [0], [n]), 3)", {"x": "f 3 4", "n": "n 2"}),
    ("layers.softmax(layers.reshape(x, [n, 6]))", {"x": "f 3 4", "n": "n 2"}),
    ("layers.matmul(layers.expand(x, [n, 1]), y)", {"x": "f 3 4", "y": "f 4 2", "n": "n 2"}),
    ("layers.layer_norm(layers.slice(x, [0], [n], [5]))", {"x": "f 5 4", "n": "n 2"}),
    ("layers.dropout(layers.slice(x, [0], [n], [5]), 0.0)", {"x": "f 5 4", "n": "n 2"}),
    (
        "layers.scatter(layers.fill_constant([n, 3], 'float32', 0.0), i, u, overwrite=False)",
        {"n": "n 5", "i": "i5 4", "u": "f 4 3"},
    ),
    (
        "layers.scatter_nd_add(layers.fill_constant([n, 3], 'float32', 1.0), i, u)",
        {"n": "n 5", "i": "i5 4 1", "u": "f 4 3"},
    ),
    ("layers.gather(x, layers.range(0, n, 1, 'int64'))", {"x": "f 5 4", "n": "n 3"}),
    ("layers.gather(x, layers.reshape(layers.where(c), [-1]))", {"x": "f 5 4", "c": "b 5"}),
    (
        "layers.fill_constant([layers.shape(layers.where(c))[0], 2], 'float32', 2.0)",
        {"c": "b 5"},
    ),
    ("layers.shape(layers.unique(i)[0])", {"i": "i3 6"}),
    (
        "layers.embedding(layers.slice(i, [0], [0], [n]), [9, 4], param_attr='w')",
        {"i": "i9 5 1", "n": "n 3"},
    ),
    ("layers.sequence_pool(layers.expand(x, [1, n]), 'sum')", {"x": "f 5 2 lod 2 3", "n": "n 3"}),
    ("layers.cumsum(layers.slice(x, [0], [0], [n]))", {"x": "f 5 2", "n": "n 3"}),
    ("layers.argsort(layers.slice(x, [0], [0], [n]), 0)", {"x": "a 5 2", "n": "n 3"}),
    ("layers.transpose(layers.expand(x, [n, 1, 1]), [2, 0, 1])", X),
    ("layers.squeeze(layers.slice(x, [0], [0], [n]), [0])", {"x": "f 5 2", "n": "n 1"}),
    ("layers.reduce_mean(layers.slice(x, [0], [0], [n]))", {"x": "f 5 2", "n": "n 3"}),
    # factors, seeds
    ("op('scale', {'X': x, 'ScaleTensor': e}, {'scale': 7.0, 'bias': 1.0})", E),
    ("op('fill_constant', {'ValueTensor': e}, {'shape': [2, 3], 'value': 7.0, 'dtype': 5})", E),
    ("op('clip', {'X': x, 'Min': e, 'Max': g}, {'min': 0.0, 'max': 0.0})", {**E, "g": "e 0.9"}),
    ("layers.clamp(x, e)", E),
    ("layers.clamp(x, -0.4, max=e)", E),
    ("op('pow', {'X': x, 'FactorTensor': e}, {'factor': 7.0})", {"x": "p 3 4", "e": "e 1.5"}),
    (
        "op('dropout', {'X': x, 'Seed': n}, {'dropout_prob': 0.4}, more=['Mask'])",
        {"x": "f 3 40", "n": "n 9"},
    ),
    (
        "[op('batch_norm', {'X': x, 'Scale': y, 'Bias': y, 'Mean': y, 'Variance': z, "
        "'MomentumTensor': e}, {'momentum': 0.9}, slot='Y', more=['MeanOut=y', 'VarianceOut=z', "
        "'SavedMean', 'SavedVariance']), layers.assign(y), layers.assign(z)][1:]",
        {"x": "f 6 4", "y": "p 4", "z": "p 4", "e": "e 0.3"},
    ),
    (
        "op('adam', {'Param': x, 'Grad': y, 'LearningRate': e, 'Moment1': y, 'Moment2': z, "
        "'Beta1Pow': e, 'Beta2Pow': e, 'Beta1Tensor': e, 'Beta2Tensor': g}, {}, 'float32', "
        "'ParamOut', ['Moment1Out', 'Moment2Out', 'Beta1PowOut', 'Beta2PowOut'])",
        {"x": "f 3 4", "y": "f 3 4", "z": "p 3 4", "e": "e 0.4", "g": "e 0.7"},
    ),
    *(
        (f"op('{type}', {{'X': x, {slots}}}, {{{attrs}}})", {"x": "f 3 4", **N, **T, "k": "n 12"})
        for type, slots, attrs in (
            ("reshape", "'Shape': t", "'shape': [-1, 1]"),
            ("reshape", "'ShapeTensor': k", "'shape': [-1]"),
            ("unsqueeze", "'AxesTensor': n", "'axes': []"),
            ("unsqueeze", "'AxesTensorList': n", "'axes': []"),
        )
    ),
    (
        "op('random_crop', {'X': i, 'Seed': k}, {'shape': [2, 3]}, 'int32', more=['SeedOut'])",
        {"i": "j99 3 5 7", "k": "m 12345"},
    ),
]
