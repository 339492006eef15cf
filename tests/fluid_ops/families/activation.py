"""Functions of one value, element by element."""

X = {"x": "f 3 5"}
SMALL = {"x": "u 3 5"}
DRAWN = 3
CASES = [
    ("layers.acos(x)", SMALL),
    ("layers.asin(x)", SMALL),
    ("layers.atan(x)", X),
    ("layers.erf(x)", X),
    ("layers.log1p(x)", SMALL),
    ("layers.brelu(x, t_min={low}, t_max={high})", X, {"low": [-1.0, -0.3], "high": [0.5, 1.5]}),
    ("layers.brelu(x)", X),
    ("layers.soft_relu(x, threshold={t})", X, {"t": [0.5, 2.0, 40.0]}),
    ("layers.hard_shrink(x, threshold={t})", X, {"t": [None, 0.2, 1.0]}),
    ("layers.softshrink(x, alpha={t})", X, {"t": [None, 0.2, 1.0]}),
    ("layers.hard_swish(x)", X),
    (
        "layers.hard_swish(x, threshold={t}, scale={s}, offset={o})",
        X,
        {"t": [1.0, 2.0], "s": [2.0, 5.0], "o": [0.5, 1.0]},
    ),
    ("layers.mish(x)", X),
    ("layers.mish(x, threshold={t})", X, {"t": [0.5, 1.0]}),
    ("layers.selu(x, scale={s}, alpha={a})", X, {"s": [None, 1.5], "a": [None, 0.7]}),
    ("layers.stanh(x, scale_a={a}, scale_b={b})", X, {"a": [0.67, 1.2], "b": [1.7159, 0.5]}),
    ("layers.tanh_shrink(x)", X),
    ("layers.thresholded_relu(x, threshold={t})", X, {"t": [None, 0.2]}),
    ("layers.prelu(x, mode={m})", {"x": "f 2 3 4 5"}, {"m": ["all", "channel", "element"]}),
    ("layers.maxout(x, groups={g}, axis=1)", {"x": "a 2 6 3 2"}, {"g": [2, 3]}),
    ("layers.maxout(x, groups={g}, axis={a})", {"x": "a 2 3 2 6"}, {"g": [2, 3], "a": [-1, 3]}),
]
OLDER = (
    "abs ceil cos exp floor logsigmoid relu round sigmoid sign sin softplus softsign square tanh "
    "elu gelu hard_sigmoid leaky_relu relu6 swish"
)
CASES += [(f"layers.{name}(x)", X) for name in OLDER.split(" ")]
POSITIVE = "log reciprocal rsqrt sqrt"
CASES += [(f"layers.{name}(x)", {"x": "p 3 5"}) for name in POSITIVE.split(" ")]
CASES += [
    ("layers.pow(x, factor={f})", {"x": "p 3 5"}, {"f": [0.5, 2.0, -1.5]}),
    ("layers.leaky_relu(x, alpha={a})", X, {"a": [0.3, 0.6]}),
    ("layers.elu(x, alpha={a})", X, {"a": [0.3, 1.5]}),
    ("layers.hard_sigmoid(x, slope={a}, offset={b})", X, {"a": [0.1, 0.4], "b": [0.3]}),
]
