"""Shapes, joins, parts and constants against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest

from hpcdist.errors import FeedError, GraphError
from hpcdist.graph import Program
from tests.support.ops import run_op

RNG = np.random.default_rng(8)
X = RNG.uniform(-2, 2, (2, 3, 4)).astype("float32")
Y = RNG.uniform(-2, 2, (2, 3, 4)).astype("float32")


@pytest.mark.parametrize(
    ("type", "attrs", "expected"),
    [
        ("reshape2", {"shape": [0, -1]}, X.reshape(2, 12)),
        ("reshape2", {"shape": [-1, 2, 0]}, X.reshape(3, 2, 4)),
        ("reshape2", {"shape": [4, 6]}, X.reshape(4, 6)),
        ("flatten2", {"axis": 2}, X.reshape(6, 4)),
        ("flatten2", {"axis": 0}, X.reshape(1, 24)),
        ("unsqueeze2", {"axes": [0, 2]}, X[None, :, None]),
        ("unsqueeze2", {"axes": [-1]}, X[..., None]),
        ("transpose2", {"axis": [1, 2, 0]}, X.transpose(1, 2, 0)),
        ("expand", {"expand_times": [2, 1, 3]}, np.tile(X, (2, 1, 3))),
        ("assign", {}, X),
        ("fill_zeros_like", {}, np.zeros_like(X)),
        ("fill_any_like", {"value": 3.0}, np.full_like(X, 3)),
    ],
)
def test_shapes(type, attrs, expected):
    out = run_op(type, {"X": X}, attrs)
    np.testing.assert_array_equal(out["Out"], expected)
    if "XShape" in out:
        assert out["XShape"].shape == (0, *X.shape)


@pytest.mark.parametrize(("axes", "shape"), [([1], (2, 3, 1)), ([-1, 1], (2, 3)), ([], (2, 3))])
def test_squeeze(axes, shape):
    x = X[:, :1, :3].transpose(0, 1, 2).reshape(2, 1, 3, 1)
    out = run_op("squeeze2", {"X": x}, {"axes": axes})["Out"]
    np.testing.assert_array_equal(out, x.reshape(shape))


@pytest.mark.parametrize(
    ("type", "attrs", "message"),
    [
        ("reshape2", {"shape": [5, -1]}, r"cannot reshape \(2, 3, 4\) \(24 elements\)"),
        ("reshape2", {"shape": [-1, -1]}, "one -1 is allowed"),
        ("reshape2", {"shape": [2, 3, 4, 0]}, "0 keeps an extent"),
        ("squeeze2", {"axes": [1]}, "is 3, expected 1"),
        ("transpose2", {"axis": [0, 0, 1]}, "not a permutation"),
        ("expand", {"expand_times": [2]}, "as long as the shape"),
        ("split", {"num": 2, "axis": 1}, "cannot be cut into 2"),
        ("split", {"sections": [1, 1], "axis": 1}, "do not add up to 3"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(type, attrs, message):
    with pytest.raises(GraphError, match=message):
        run_op(type, {"X": X}, attrs, Out=2 if type == "split" else 1)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ([0, -1], (-1, 12)),
        ([-1, 6], (-1, 6)),
        ([-1, 4, 0], (-1, 4, 4)),
        ([0, 0, 2, -1], (-1, 3, 2, 2)),
    ],
)
def test_reshape_of_an_unknown_batch(shape, expected):
    block = Program().global_block()
    block.create_var("x", shape=(-1, 3, 4))
    block.append_op("reshape2", {"X": "x"}, {"Out": "out", "XShape": "s"}, {"shape": shape})
    assert block.var("out").shape == expected


def test_join_and_cut():
    np.testing.assert_array_equal(
        run_op("concat", {"X": [X, Y[:, :1]]}, {"axis": 1})["Out"],
        np.concatenate([X, Y[:, :1]], axis=1),
    )
    np.testing.assert_array_equal(
        run_op("stack", {"X": [X, Y]}, {"axis": -1})["Y"], np.stack([X, Y], axis=-1)
    )
    for attrs in ({"sections": [1, -1], "axis": -1}, {"sections": [1, 3], "axis": 2}):
        first, second = run_op("split", {"X": X}, attrs, Out=2)["Out"]
        np.testing.assert_array_equal(first, X[..., :1])
        np.testing.assert_array_equal(second, X[..., 1:])
    with pytest.raises(GraphError, match="cannot concat"):
        run_op("concat", {"X": [X, Y[:, :1]]}, {"axis": 0})


@pytest.mark.parametrize(
    ("starts", "ends", "expected"),
    [([0, -3], [2, 100], X[:, 0:2, -3:]), ([1, 0], [-1, 2], X[:, 1:-1, 0:2])],
)
def test_slice(starts, ends, expected):
    attrs = {"axes": [1, 2], "starts": starts, "ends": ends}
    np.testing.assert_array_equal(run_op("slice", {"Input": X}, attrs)["Out"], expected)


def test_slice_can_drop_a_dimension_but_not_be_empty():
    attrs = {"axes": [1], "starts": [1], "ends": [2], "decrease_axis": [1]}
    np.testing.assert_array_equal(run_op("slice", {"Input": X}, attrs)["Out"], X[:, 1])
    with pytest.raises(GraphError, match="is empty"):
        run_op("slice", {"Input": X}, {"axes": [1], "starts": [3], "ends": [4]})


@pytest.mark.parametrize("index", [[2, 0, 2], [[1], [1]]])
def test_gather(index):
    x, rows = X[0], np.array(index)
    np.testing.assert_array_equal(
        run_op("gather", {"X": x, "Index": rows})["Out"], x[rows.reshape(-1)]
    )


@pytest.mark.parametrize("row", [-1, 4])
def test_gather_refuses_rows_that_are_not_there(row):
    inputs = {"X": np.zeros((4, 2), np.float32), "Index": np.array([0, row])}
    with pytest.raises(FeedError, match=rf"gather: id {row} \(element 1 of 2\) is outside 0\.\.3"):
        run_op("gather", inputs)


def test_casts():
    x = np.array([-1.7, 0.0, 2.9], "float32")
    for dtype in ("int64", "int32", "bool", "float64"):
        attrs = {"in_dtype": "float32", "out_dtype": dtype}
        out = run_op("cast", {"X": x}, attrs)["Out"]
        assert out.dtype == dtype
        np.testing.assert_array_equal(out, x.astype(dtype))


def test_constants():
    out = run_op("fill_constant", {}, {"shape": [2, 3], "dtype": "int64", "value": 7.0})["Out"]
    assert out.dtype == "int64"
    assert out.tolist() == [[7] * 3] * 2
    attrs = {"shape": [5, -1], "value": 0.5, "input_dim_idx": 1, "output_dim_idx": 1}
    out = run_op("fill_constant_batch_size_like", {"Input": X}, attrs)["Out"]
    np.testing.assert_array_equal(out, np.full((5, 3), 0.5, "float32"))
    attrs = {"shape": [2, 2], "dtype": "int32", "int32_values": [1, 2, 3, 4]}
    assert run_op("assign_value", {}, attrs)["Out"].tolist() == [[1, 2], [3, 4]]
    assert run_op("shape", {"Input": X})["Out"].tolist() == [2, 3, 4]


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_increment_keeps_the_type(dtype):
    out = run_op("increment", {"X": np.array([4], dtype)}, {"step": 2.0})["Out"]
    assert (out.dtype, out.tolist()) == (dtype, [6])
