"""Convolutions, pools and normalizations against closed forms written as plain loops."""

import itertools

import numpy as np
import pytest

from hpcdist.errors import GraphError
from hpcdist.graph.registry import Meta
from hpcdist.graph.shape_rules import infer_outputs
from hpcdist.ops.convolution import correlate_cpu, correlate_device
from hpcdist.ops.convolution.windows import Correlation, lay_windows
from tests.support.ops import run_op

RNG = np.random.default_rng(0)


def padded(x, paddings, value=0.0):
    top, bottom, left, right = paddings
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=value)


def convolved(x, w, strides, paddings, dilations, groups):
    """Return the correlation of [n, channels, rows, columns] with filters, one window at a time."""
    x, (rows, columns) = padded(x, paddings), w.shape[2:]
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, (rows, columns))]
    size = [(x.shape[2 + i] - reach[i]) // strides[i] + 1 for i in range(2)]
    y = np.zeros((len(x), len(w), *size))
    for f, i, j in itertools.product(range(len(w)), *map(range, size)):
        group = f // (len(w) // groups)
        channels = slice(group * w.shape[1], (group + 1) * w.shape[1])
        top, left = i * strides[0], j * strides[1]
        window = x[:, channels, top : top + reach[0], left : left + reach[1]]
        y[:, f, i, j] = (window[:, :, :: dilations[0], :: dilations[1]] * w[f]).sum((1, 2, 3))
    return y


def first(array, layout):
    return array.transpose(0, 3, 1, 2) if layout == "NHWC" else array


def last(array, layout):
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)) if layout == "NHWC" else array


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("strides", [(1, 1), (2, 1), (3, 2)])
def test_conv2d_is_the_sum_over_its_windows(strides, groups, layout):
    cases = itertools.product(
        [(0, 0, 0, 0), (1, 1, 2, 2), (2, 0, 0, 1)],
        [(1, 1), (2, 1)],
        [(1, 1), (3, 3), (2, 3)],
    )
    for paddings, dilations, taps in cases:
        x, w = RNG.normal(size=(3, 4, 7, 6)), RNG.normal(size=(8, 4 // groups, *taps))
        attrs = {
            "strides": list(strides),
            "paddings": list(paddings),
            "dilations": list(dilations),
            "groups": groups,
            "data_format": layout,
        }
        y = run_op("conv2d", {"Input": last(x, layout), "Filter": w}, attrs)["Output"]
        wanted = convolved(x, w, strides, paddings, dilations, groups)
        np.testing.assert_allclose(first(y, layout), wanted, atol=1e-12)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
@pytest.mark.parametrize("extents", [(1, 1), (2, 2), (1, 3), (4, 1)])
def test_conv2d_and_its_gradients_when_filters_are_wider_than_the_image(extents, strides, groups):
    for reach in (1, 2, 3):  # some taps lie beside the image in every window
        taps = 2 * reach + 1
        x = RNG.normal(size=(3, 4, *extents))
        w = RNG.normal(size=(8, 4 // groups, taps, taps))
        facts = (strides, (reach,) * 4, (1, 1), groups)
        attrs = {"strides": list(strides), "paddings": [reach] * 2, "groups": groups}
        y = run_op("conv2d", {"Input": x, "Filter": w}, attrs)["Output"]
        np.testing.assert_allclose(y, convolved(x, w, *facts), atol=1e-12)
        dy, v, u = (RNG.normal(size=a.shape) for a in (y, x, w))
        found = run_op("conv2d_grad", {"Input": x, "Filter": w, "Output@GRAD": dy}, attrs)
        along = [(found["Input@GRAD"] * v).sum(), (found["Filter@GRAD"] * u).sum()]
        wanted = [(dy * convolved(*pair, *facts)).sum() for pair in ((v, w), (x, u))]
        np.testing.assert_allclose(along, wanted, atol=1e-10)


def test_blocks_of_rows_and_of_images_give_the_whole(monkeypatch):
    x, w = RNG.normal(size=(5, 3, 11, 9)), RNG.normal(size=(4, 3, 3, 3))
    inputs, attrs = {"Input": x, "Filter": w}, {"paddings": [1, 1]}
    wanted = convolved(x, w, (1, 1), (1, 1, 1, 1), (1, 1), 1)
    for columns in (1, 20, 70, 200, 10_000):
        monkeypatch.setattr(correlate_cpu, "COLUMNS", columns)
        monkeypatch.setattr(correlate_cpu, "CACHED", 0)
        y = run_op("conv2d", inputs, attrs)["Output"]
        np.testing.assert_allclose(y, wanted, atol=1e-12)


@pytest.mark.parametrize("many", [1, 2])
def test_depthwise_conv2d_is_conv2d_with_a_group_for_each_channel(many):
    x, w = RNG.normal(size=(2, 3, 6, 7)), RNG.normal(size=(3 * many, 1, 3, 2))
    for type in ("conv2d", "depthwise_conv2d"):
        attrs = {"groups": 3, "strides": [2, 1], "paddings": [1, 0]}
        y = run_op(type, {"Input": x, "Filter": w}, attrs)["Output"]
        wanted = convolved(x, w, (2, 1), (1, 1, 0, 0), (1, 1), 3)
        np.testing.assert_allclose(y, wanted, atol=1e-12)


def test_conv2d_pads_same_as_many_windows_as_strides_begin_and_drops_the_dilation():
    # 12 21 27 ... : numbers of the original for ones as filter and 0..24 as image
    x = np.arange(25, dtype=np.float64).reshape(1, 1, 5, 5)
    attrs = {"padding_algorithm": "SAME", "dilations": [2, 2]}
    y = run_op("conv2d", {"Input": x, "Filter": np.ones((1, 1, 3, 3))}, attrs)["Output"]
    assert y[0, 0, 0].tolist() == [12, 21, 27, 33, 24]
    attrs = {"padding_algorithm": "SAME", "strides": [2, 3]}
    y = run_op("conv2d", {"Input": x, "Filter": np.ones((1, 1, 2, 3))}, attrs)["Output"]
    assert y.shape == (1, 1, 3, 2)


def test_conv2d_transpose_spreads_each_pixel_over_its_window():
    x, w = RNG.normal(size=(2, 4, 3, 4)), RNG.normal(size=(4, 3, 3, 2))
    strides, groups, before = (2, 3), 2, (1, 0)
    wanted = np.zeros((2, 6, 2 * 2 + 3, 3 * 3 + 2))
    for c, i, j in itertools.product(range(4), range(3), range(4)):
        filters = slice(c // 2 * 3, c // 2 * 3 + 3)
        window = wanted[:, filters, 2 * i : 2 * i + 3, 3 * j : 3 * j + 2]
        window += x[:, c, i, j][:, None, None, None] * w[c]
    attrs = {"strides": list(strides), "groups": groups, "paddings": list(before)}
    y = run_op("conv2d_transpose", {"Input": x, "Filter": w}, attrs)["Output"]
    np.testing.assert_allclose(y, wanted[:, :, 1:-1], atol=1e-12)
    y = run_op("conv2d_transpose", {"Input": x, "Filter": w}, {**attrs, "output_size": [6, 13]})
    np.testing.assert_allclose(y["Output"][:, :, :5, :11], wanted[:, :, 1:-1], atol=1e-12)


# -- pools -----------------------------------------------------------------------------------------


def pooled(x, type, ksize, strides, paddings, exclusive, ceil_mode):
    """Return maxima or means, one window at a time."""
    n, channels, *extents = x.shape
    top, bottom, left, right = paddings
    total = [extents[0] + top + bottom, extents[1] + left + right]
    more = [ceil_mode * (s - 1) for s in strides]
    size = [(total[i] - ksize[i] + more[i]) // strides[i] + 1 for i in range(2)]
    y = np.zeros((n, channels, *size))
    for i, j in itertools.product(*map(range, size)):
        begin = [i * strides[0] - top, j * strides[1] - left]
        rows = slice(max(begin[0], 0), min(begin[0] + ksize[0], extents[0]))
        columns = slice(max(begin[1], 0), min(begin[1] + ksize[1], extents[1]))
        window = x[:, :, rows, columns].reshape(n, channels, -1)
        count = window.shape[-1] if exclusive else ksize[0] * ksize[1]
        y[:, :, i, j] = window.max(-1) if type == "max" else window.sum(-1) / count
    return y


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("type", ["max", "avg"])
def test_pool2d_is_the_maximum_or_mean_of_its_windows(type, layout):
    cases = itertools.product(
        [(2, 2), (3, 2)],
        [(1, 1), (2, 2)],
        [(0, 0, 0, 0), (1, 0, 1, 1)],
        [True, False],
        [True, False],
    )
    for ksize, strides, paddings, exclusive, ceil_mode in cases:
        x = RNG.normal(size=(2, 3, 7, 6))
        attrs = {
            "pooling_type": type,
            "ksize": list(ksize),
            "strides": list(strides),
            "paddings": list(paddings),
            "exclusive": exclusive,
            "ceil_mode": ceil_mode,
            "data_format": layout,
        }
        y = run_op("pool2d", {"X": last(x, layout)}, attrs)["Out"]
        wanted = pooled(x, type, ksize, strides, paddings, exclusive, ceil_mode)
        np.testing.assert_allclose(first(y, layout), wanted, atol=1e-12)


@pytest.mark.parametrize("type, reduced", [("max", np.max), ("avg", np.mean)])
def test_a_global_pool_has_one_window_and_an_adaptive_one_as_many_as_asked(type, reduced):
    x = RNG.normal(size=(2, 3, 5, 7))
    y = run_op("pool2d", {"X": x}, {"pooling_type": type, "global_pooling": True})["Out"]
    np.testing.assert_allclose(y, reduced(x, (2, 3), keepdims=True))
    y = run_op("pool2d", {"X": x}, {"pooling_type": type, "adaptive": True, "ksize": [2, 3]})
    rows, columns = [(0, 3), (2, 5)], [(0, 3), (2, 5), (4, 7)]
    for (i, (a, b)), (j, (c, d)) in itertools.product(enumerate(rows), enumerate(columns)):
        np.testing.assert_allclose(y["Out"][:, :, i, j], reduced(x[:, :, a:b, c:d], (2, 3)))


def test_a_pool_that_is_global_and_adaptive_has_a_window_for_each_element():
    x = np.arange(30, dtype=np.float32).reshape(1, 1, 5, 6)
    both = {"ksize": [2, 3], "adaptive": True, "global_pooling": True}
    out = run_op("max_pool2d_with_index", {"X": x}, both)
    np.testing.assert_array_equal(out["Out"], x)
    np.testing.assert_array_equal(out["Mask"], x)
    np.testing.assert_array_equal(run_op("pool2d", {"X": x}, both)["Out"], x)


def test_max_pool2d_with_index_says_where_each_maximum_is():
    x = RNG.permutation(2 * 3 * 35).reshape(2, 3, 5, 7).astype(float)
    out = run_op("max_pool2d_with_index", {"X": x}, {"ksize": [2, 3], "adaptive": True})
    wanted = run_op("pool2d", {"X": x}, {"ksize": [2, 3], "adaptive": True})["Out"]
    np.testing.assert_array_equal(out["Out"], wanted)
    taken = np.take_along_axis(x.reshape(2, 3, -1), out["Mask"].reshape(2, 3, -1), 2)
    np.testing.assert_array_equal(taken.reshape(wanted.shape), wanted)


def test_the_gradient_of_equal_maxima_goes_to_the_first():
    x = np.zeros((1, 1, 2, 4))
    inputs = {"X": x, "Out": x[:, :, :1, ::2], "Out@GRAD": np.array([[[[2.0, 3.0]]]])}
    dx = run_op("pool2d_grad", inputs, {"ksize": [2, 2], "strides": [2, 2]})["X@GRAD"]
    assert dx.tolist() == [[[[2, 0, 3, 0], [0, 0, 0, 0]]]]


# -- batch_norm, lrn -------------------------------------------------------------------------------


def normalization(channels):
    slots = ("Scale", "Bias", "Mean", "Variance")
    return {slot: RNG.uniform(0.5, 2, channels) for slot in slots}


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("middle", [(), (5,), (3, 4)])
def test_batch_norm_trains_on_the_batch_and_moves_the_running_moments(layout, middle):
    shape = (4, 3, *middle) if layout == "NCHW" else (4, *middle, 3)
    x, vectors = RNG.normal(size=shape), normalization(3)
    axis = 1 if layout == "NCHW" else len(shape) - 1
    others = tuple(i for i in range(len(shape)) if i != axis)
    across = [1] * len(shape)
    across[axis] = 3
    mean, variance = x.mean(others), x.var(others)

    def normed(centre, spread):
        s, b = vectors["Scale"].reshape(across), vectors["Bias"].reshape(across)
        return (x - centre.reshape(across)) / np.sqrt(spread.reshape(across) + 1e-3) * s + b

    attrs = {"data_layout": layout, "epsilon": 1e-3, "momentum": 0.7}
    out = run_op("batch_norm", {"X": x, **vectors}, attrs)
    np.testing.assert_allclose(out["Y"], normed(mean, variance))
    np.testing.assert_allclose(out["SavedMean"], mean)
    np.testing.assert_allclose(out["SavedVariance"], 1 / np.sqrt(variance + 1e-3))
    np.testing.assert_allclose(out["MeanOut"], 0.7 * vectors["Mean"] + 0.3 * mean)
    np.testing.assert_allclose(out["VarianceOut"], 0.7 * vectors["Variance"] + 0.3 * variance)
    for by in ("is_test", "use_global_stats"):
        out = run_op("batch_norm", {"X": x, **vectors}, {**attrs, by: True})
        np.testing.assert_allclose(out["Y"], normed(vectors["Mean"], vectors["Variance"]))
        np.testing.assert_array_equal(out["MeanOut"], vectors["Mean"])
        np.testing.assert_array_equal(out["VarianceOut"], vectors["Variance"])


def test_batch_norm_leaves_one_element_per_channel_alone():
    x, vectors = RNG.normal(size=(1, 3, 1, 1)), normalization(3)
    out = run_op("batch_norm", {"X": x, **vectors})
    np.testing.assert_array_equal(out["Y"], x)


def test_batch_norm_is_exact_far_from_zero():
    x = (RNG.normal(size=(4, 2, 9, 9)) + 1000).astype(np.float32)
    vectors = {"Scale": 1, "Bias": 0, "Mean": 0, "Variance": 1}
    inputs = {slot: np.full(2, value, np.float32) for slot, value in vectors.items()}
    out = run_op("batch_norm", {"X": x, **inputs})
    wide = x.astype(np.float64)
    np.testing.assert_allclose(out["SavedMean"], wide.mean((0, 2, 3)), rtol=1e-7)
    np.testing.assert_allclose(out["SavedVariance"], wide.var((0, 2, 3)) ** -0.5, rtol=1e-5)


def test_lrn_divides_by_the_neighbouring_channels():
    x = RNG.normal(size=(2, 6, 2, 3))
    wanted = np.empty_like(x)
    for c in range(6):
        around = x[:, max(0, c - 2) : c + 3]
        wanted[:, c] = x[:, c] / (2 + 0.3 * (around**2).sum(1)) ** 0.75
    out = run_op("lrn", {"X": x}, {"n": 5, "k": 2.0, "alpha": 0.3})
    np.testing.assert_allclose(out["Out"], wanted)


# -- shapes ----------------------------------------------------------------------------------------


def inferred(type, slot, attrs, **inputs):
    metas = {name: [Meta(shape, "float32")] for name, shape in inputs.items()}
    return infer_outputs(type, metas, attrs)[slot][0].shape


def test_extents_that_are_not_known_stay_so():
    same = {"padding_algorithm": "SAME", "strides": [2, 2]}
    for attrs, rows, columns in (({}, 6, -1), (same, 4, -1)):
        shape = inferred("conv2d", "Output", attrs, Input=(-1, 3, 8, -1), Filter=(4, 3, 3, 3))
        assert shape == (-1, 4, rows, columns)
    pool = {"ksize": [2, 2], "strides": [2, 2]}
    assert inferred("pool2d", "Out", pool, X=(-1, 3, -1, 9)) == (-1, 3, -1, 4)
    assert inferred("pool2d", "Out", {"global_pooling": True}, X=(-1, 3, -1, -1)) == (-1, 3, 1, 1)
    adaptive = {"adaptive": True, "ksize": [2, 5]}
    assert inferred("pool2d", "Out", adaptive, X=(-1, 3, -1, -1)) == (-1, 3, 2, 5)
    shape = inferred("conv2d_transpose", "Output", {}, Input=(-1, 3, 4, -1), Filter=(3, 2, 3, 3))
    assert shape == (-1, 2, 6, -1)


@pytest.mark.parametrize(
    "type, attrs, inputs, message",
    [
        ("conv2d", {}, {"Input": (1, 4, 5, 5), "Filter": (2, 3, 3, 3)}, "4 channels .* expected 3"),
        ("conv2d", {}, {"Input": (1, 3, 5), "Filter": (2, 3, 3, 3)}, "must have 4 dimensions"),
        ("conv2d", {}, {"Input": (1, 3, 5, 2), "Filter": (2, 3, 3, 3)}, "2 columns with padding 0"),
        ("conv2d", {"groups": 2}, {"Input": (1, 4, 5, 5), "Filter": (3, 2, 3, 3)}, "3 filters"),
        ("conv2d", {"paddings": [1]}, {"Input": (1, 3, 5, 5), "Filter": (2, 3, 3, 3)}, "2 or 4"),
        (
            "conv2d",
            {"strides": [0, 1]},
            {"Input": (1, 3, 5, 5), "Filter": (2, 3, 3, 3)},
            "1 or more",
        ),
        (
            "conv2d",
            {"data_format": "HWC"},
            {"Input": (1, 3, 5, 5), "Filter": (2, 3, 1, 1)},
            "'HWC'",
        ),
        ("conv2d_transpose", {}, {"Input": (1, 4, 5, 5), "Filter": (3, 2, 3, 3)}, "4 channels"),
        (
            "conv2d_transpose",
            {"output_size": [9, 7]},
            {"Input": (1, 3, 5, 5), "Filter": (3, 2, 3, 3)},
            "must be 7..7",
        ),
        ("pool2d", {"pooling_type": "min"}, {"X": (1, 3, 5, 5)}, "'max' or 'avg'"),
        ("pool2d", {"ksize": [6, 2]}, {"X": (1, 3, 5, 5)}, "window of 6 .* 5 rows"),
        (
            "pool2d",
            {"ksize": [2, 2], "strides": [2, 2], "paddings": [1, 1], "ceil_mode": True},
            {"X": (1, 3, 3, 3)},
            "window 2 of 3 .* has no element",
        ),
        ("lrn", {"n": 4}, {"X": (1, 3, 5, 5)}, "odd number"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(type, attrs, inputs, message):
    with pytest.raises(GraphError, match=message):
        inferred(type, "Output", attrs, **inputs)


# -- how a GPU computes it, here with numpy --------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 1 << 27])
@pytest.mark.parametrize("channels, filters, groups", [(4, 6, 1), (4, 6, 2), (4, 8, 4)])
def test_the_array_library_alone_computes_the_same(monkeypatch, channels, filters, groups, budget):
    monkeypatch.setattr(correlate_device, "COLUMNS_BYTES", budget)
    x, w = (
        RNG.normal(size=(3, channels, 7, 8)),
        RNG.normal(size=(filters, channels // groups, 3, 2)),
    )
    windows = lay_windows((7, 8), (3, 2), (2, 1), (1, 2), (1, 0, 2, 1), "EXPLICIT")
    c = Correlation(*windows, groups)
    wanted = convolved(x, w, (2, 1), (1, 0, 2, 1), (1, 2), groups)
    slope = RNG.normal(size=wanted.shape)
    found = {}
    for module in (correlate_cpu, correlate_device):
        y, dx, dw = (np.full_like(like, np.nan) for like in (wanted, x, w))
        module.correlate(np, c, x, w, y)()
        module.correlate_back(np, c, w, slope, dx)()
        module.correlate_weights(np, c, x, slope, dw)()
        np.testing.assert_allclose(y, wanted, atol=1e-12)
        found[module] = dx, dw
    for ours, theirs in zip(found[correlate_cpu], found[correlate_device]):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)


def test_bytes_are_resized_as_fractions_and_cut():
    x = np.array([[[[10, 200], [250, 3]]]], "uint8")
    attrs = {"out_h": 3, "out_w": 3, "align_corners": True}
    out = run_op("bilinear_interp", {"X": x}, attrs)["Out"]
    assert out.dtype == np.uint8
    np.testing.assert_array_equal(out[0, 0], [[10, 105, 200], [130, 115, 101], [250, 126, 3]])
