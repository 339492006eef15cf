"""Variables in shapes, starts, ends and counts, as Fluid takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.backward import gradients
from hpcdist.errors import GraphError, GraphTypeError
from hpcdist.graph.registry import defined, lookup
from hpcdist.transpiler.sync_batch_norm import synchronize_batch_norm

X = np.arange(18, dtype=np.float32).reshape(6, 3)


@pytest.fixture(autouse=True)
def _program() -> Any:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        yield


def run(*fetches: Any, **feed: Any) -> list[np.ndarray]:
    feed = {"x": X, **feed}
    return fluid.Executor().run(feed=feed, fetch_list=list(fetches), scope=fluid.Scope())


def two() -> Any:
    return layers.fill_constant([1], "int32", 2)


# What each gives when the Program is built, and for 6 rows; Fluid 1.8.5 gives the same.
CASES: dict[str, Any] = {
    "fill": (lambda x, s, k: layers.fill_constant([s[0], 2], "float32", 1.5), (-1, 2), (6, 2)),
    "fill by one": (lambda x, s, k: layers.fill_constant(s, "float32", 2.0), (-1, -1), (6, 3)),
    "ones": (lambda x, s, k: layers.ones([s[0], 2], "float32"), (-1, 2), (6, 2)),
    "reshape": (lambda x, s, k: layers.reshape(x, [s[0], 3, 1]), (-1, 3, 1), (6, 3, 1)),
    "reshape by one": (lambda x, s, k: layers.reshape(x, s), (-1, -1), (6, 3)),
    "reshape, rest": (lambda x, s, k: layers.reshape(x, [-1, k]), (-1, -1), (9, 2)),
    "actual": (lambda x, s, k: layers.reshape(x, [0, 3], actual_shape=s), (-1, 3), (6, 3)),
    "slice": (lambda x, s, k: layers.slice(x, [0], [k - 1], [k]), None, (1, 3)),
    "slice to": (lambda x, s, k: layers.slice(x, [0], [0], [k]), None, (2, 3)),
    "slice columns": (lambda x, s, k: layers.slice(x, [1], [k], [3]), (-1, -1), (6, 1)),
    "strided": (lambda x, s, k: layers.strided_slice(x, [0], [0], [s[0] - k], [2]), None, (2, 3)),
    "expand": (lambda x, s, k: layers.expand(x, [k, 1]), (-1, 3), (12, 3)),
    "expand by one": (lambda x, s, k: layers.expand(x, layers.concat([k, k])), None, (12, 6)),
    "computed": (lambda x, s, k: layers.ones([s[0] * s[1] + k], "float32"), (-1,), (20,)),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_variables_may_stand_in_shapes(name):
    function, built, shape = CASES[name]
    x = layers.data("x", [3])
    out = function(x, layers.shape(x), two())
    assert built is None or tuple(out.shape) == built
    (value,) = run(out)
    assert value.shape == shape
    (value,) = run(out, x=X[:4]) if name == "fill" else (None,)
    assert value is None or value.shape == (4, 2)


def test_values_are_those_that_starts_and_ends_say():
    x, k = layers.data("x", [3]), two()
    part, columns = layers.slice(x, [0], [k - 1], [k + 1]), layers.slice(x, [1], [k], [3])
    got = run(part, columns, layers.expand(x, [k, 1]))
    np.testing.assert_array_equal(got[0], X[1:3])
    np.testing.assert_array_equal(got[1], X[:, 2:])
    np.testing.assert_array_equal(got[2], np.tile(X, (2, 1)))


def test_gradients_flow_through_what_variables_size():
    x = layers.data("x", [3])
    x.stop_gradient = False
    k, s = two(), layers.shape(x)
    part = layers.slice(layers.expand(layers.reshape(x, [s[0], 3]), [1, k]), [0], [k], [s[0] - 1])
    (gradient,) = gradients(layers.reduce_sum(layers.square(part)), x)
    wanted = np.zeros_like(X)
    wanted[2:5] = 4 * X[2:5]
    np.testing.assert_allclose(run(gradient)[0], wanted)


@pytest.mark.parametrize("draw", [layers.uniform_random, layers.gaussian_random])
def test_random_values_have_shapes_of_variables(draw):
    x = layers.data("x", [3])
    out = draw([layers.shape(x)[0], two()])
    assert tuple(out.shape) == (-1, -1)
    (value,) = run(out)
    assert value.shape == (6, 2) and len(np.unique(value)) == 12


def test_ragged_batches_of_other_lengths_are_sized_anew():
    word = layers.data("x", [1], lod_level=1)
    ones = layers.ones([layers.shape(word)[0], 2], "float32")
    exe, scope = fluid.Executor(), fluid.Scope()
    for lengths in ([2, 3], [1, 1], [4, 3]):
        rows = np.ones((sum(lengths), 1), np.float32)
        ragged = fluid.create_lod_tensor(rows, [lengths], fluid.CPUPlace())
        (value,) = exe.run(feed={"x": ragged}, fetch_list=[ones], scope=scope)
        assert value.shape == (sum(lengths), 2)


def test_a_shape_of_floats_is_refused_by_name():
    x = layers.data("x", [3])
    with pytest.raises(GraphTypeError, match="is float32, expected int32 or int64: use"):
        layers.ones([layers.reduce_sum(x), 2], "float32")


def test_a_fed_extent_may_be_another_one_in_every_step():
    x = layers.data("x", [3])
    rows = layers.data("rows", [1], dtype="int64", append_batch_size=False)
    ones, tail = layers.ones([rows, 2], "float32"), layers.slice(x, [0], [rows], [6])
    exe, scope = fluid.Executor(), fluid.Scope()
    for count in (3, 1, 5, 3):
        feed = {"x": X, "rows": np.array([count])}
        values = exe.run(feed=feed, fetch_list=[ones, tail], scope=scope)
        assert values[0].shape == (count, 2)
        np.testing.assert_array_equal(values[1], X[count:])


def test_a_part_of_known_shape_stays_compiled_and_moves_with_its_number():
    x = layers.data("x", [3])
    place = layers.data("place", [1], dtype="int32", append_batch_size=False)
    row = x[place]
    assert tuple(row.shape) == (3,)
    exe, scope = fluid.Executor(), fluid.Scope()
    for number in (2, 0, 5):
        feed = {"x": X, "place": np.array([number], np.int32)}
        (value,) = exe.run(feed=feed, fetch_list=[row], scope=scope)
        np.testing.assert_array_equal(value, X[number])
    feed = {"x": X, "place": np.array([9], np.int32)}
    with pytest.raises(GraphError, match=r"op #\d+ slice.*is empty"):
        exe.run(feed=feed, fetch_list=[row], scope=scope)


def test_a_piece_begins_where_a_value_says():
    x = layers.data("x", [3])
    at = layers.data("at", [2], dtype="int32", append_batch_size=False)
    piece = layers.crop_tensor(x, [2, 2], at)
    (value,) = run(piece, at=np.array([3, 1], np.int32))
    np.testing.assert_array_equal(value, X[3:5, 1:])


def test_images_take_the_size_that_is_computed_from_shapes():
    x = layers.data("x", [2, 3, 4])
    size = layers.cast(layers.slice(layers.shape(x), [0], [2], [4]), "int32") * 2
    twice = layers.resize_nearest(x, scale=3.0, actual_shape=size)  # goes before the scale
    given = layers.resize_bilinear(x, out_shape=size)
    mixed = layers.image_resize(x, out_shape=[two(), 5], scale=7.0)
    values = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    found = run(twice, given, mixed, x=values)
    assert [value.shape[2:] for value in found] == [(6, 8), (6, 8), (2, 5)]
    (wanted,) = run(layers.resize_bilinear(x, out_shape=[6, 8]), x=values)
    np.testing.assert_array_equal(found[1], wanted)


BESIDE: dict[str, Any] = {  # slots, and what the attribute says of two values beside it
    "reshape2": ("X", "ShapeTensor", {"shape": [9, 2]}, (9, 2)),
    "expand": ("X", "expand_times_tensor", {"expand_times": [9, 2]}, (54, 6)),
    "slice": (
        "Input",
        "EndsTensorList",
        {"axes": [0, 1], "starts": [0, 0], "ends": [9, 2]},
        (6, 2),
    ),
    "crop_tensor": ("X", "ShapeTensor", {"shape": [6, 2], "offsets": [0, 0]}, (6, 2)),
}


@pytest.mark.parametrize("type", BESIDE)
def test_an_attribute_does_not_stand_for_the_values_that_give_it(type):
    """Fluid takes the values; reshape2 took the attribute, without a word."""
    operand, slot, attrs, shape = BESIDE[type]
    block = fluid.default_main_program().global_block()
    fed = [layers.data(name, [1], dtype="int32", append_batch_size=False) for name in "ab"]
    inputs = {operand: layers.data("x", [6, 3], append_batch_size=False), slot: fed}
    out = block.create_var("out", dtype="float32")
    block.append_op(type, inputs, {"Out": out}, attrs)
    numbers = attrs.get("ends") or next(iter(attrs.values()))
    said = [np.array([number], np.int32) for number in numbers]
    (value,) = run(out, a=said[0], b=said[1])
    assert value.shape == out.shape == shape
    with pytest.raises(GraphError, match=rf"op #0 {type}.*'out' is .* now, but was declared as"):
        run(out, a=said[0] // 3, b=said[1] * 3 if type == "reshape2" else said[1] // 2)


NUMBERS: dict[str, Any] = {
    "split: num_or_sections": lambda x, k: layers.split(x, k, 1),
    "reduce_sum: dim": lambda x, k: layers.reduce_sum(x, k),
    "eye": lambda x, k: layers.eye(k),
    "image_resize_short": lambda x, k: layers.image_resize_short(image(x), k),
}


def image(x: Any) -> Any:
    return layers.reshape(x, [-1, 1, 3, 1])


@pytest.mark.parametrize("name", NUMBERS)
def test_variables_in_place_of_other_numbers_are_refused_by_name(name):
    words = f"layers.{name}.*must be known before the step, got a Variable"
    with pytest.raises((GraphError, GraphTypeError), match=words):
        NUMBERS[name](layers.data("x", [3]), two())


# The slots of Fluid 1.8.5's operators that hold what is also an attribute, or decide a shape.
FLUIDS = """
adam Beta1Tensor Beta2Tensor | batch_norm MomentumTensor | clip Min Max
affine_grid OutputShape | bicubic_interp OutSize SizeTensor Scale
bilinear_interp OutSize SizeTensor Scale | concat AxisTensor
crop Offsets | crop_tensor Shape Offsets ShapeTensor OffsetsTensor
dropout Seed | expand ExpandTimes expand_times_tensor
fill_constant ShapeTensor ShapeTensorList ValueTensor
gaussian_random ShapeTensor ShapeTensorList | linspace Num
nearest_interp OutSize SizeTensor Scale | one_hot depth_tensor | one_hot_v2 depth_tensor
pad2d Paddings | pow FactorTensor | randint ShapeTensor ShapeTensorList | random_crop Seed
range Start End Step | reshape Shape ShapeTensor
reshape2 Shape ShapeTensor | scale ScaleTensor | sequence_mask MaxLenTensor
slice StartsTensor EndsTensor StartsTensorList EndsTensorList | split AxisTensor SectionsTensorList
strided_slice StartsTensor EndsTensor StartsTensorList EndsTensorList
strided_slice StridesTensor StridesTensorList
top_k K | trilinear_interp OutSize SizeTensor Scale | uniform_random ShapeTensor ShapeTensorList
unsqueeze AxesTensor AxesTensorList | unsqueeze2 AxesTensor AxesTensorList
"""
OF_PADDLE_2 = {("graph_send_recv", "Out_size")}


def test_every_slot_of_fluid_that_gives_an_attribute_is_declared():
    wanted = {
        (words[0], slot)
        for words in (entry.split() for entry in FLUIDS.replace("\n", "|").split("|"))
        for slot in words[1:]
    }
    forward = [t for t in defined() if not t.endswith("_grad")]
    assert {(t, slot) for t in forward for slot in lookup(t).giving} == wanted | OF_PADDLE_2


@pytest.mark.parametrize("k", [-2, -1, 1])
def test_an_index_may_be_made_of_variables(k):
    x = layers.data("x", [3, 4, 5], append_batch_size=False)
    n = layers.data("n", [1], append_batch_size=False, dtype="int32")
    x.stop_gradient = False
    last = layers.fill_constant([1], "int32", -1)
    parts = [x[n], x[:, last], x[::2, n], x[last:0:last], x[0 : n + 3 : n * n], x[:, :, last]]
    slopes = [gradients(layers.reduce_sum(part), x)[0] for part in parts]
    fed = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    feed = {"x": fed, "n": np.int32([k])}
    values = fluid.Executor().run(feed=feed, fetch_list=[*parts, *slopes])
    places = [np.s_[k], np.s_[:, -1], np.s_[::2, k], np.s_[-1:0:-1], np.s_[0 : k + 3 : k * k]]
    for part, slope, place in zip(values, values[6:], [*places, np.s_[:, :, -1]]):
        expected = np.zeros_like(fed)
        expected[place] = 1
        np.testing.assert_array_equal(part, fed[place])
        np.testing.assert_array_equal(slope, expected)


def test_a_momentum_that_is_a_value_is_refused_where_ranks_share_moments():
    x = layers.data("x", [3])
    layers.batch_norm(x)
    main = fluid.default_main_program()
    (op,) = [op for op in main.global_block().ops if op.type == "batch_norm"]
    op.inputs["MomentumTensor"] = [x.name]
    with pytest.raises(GraphError, match="sync_batch_norm does not read slot 'MomentumTensor'"):
        synchronize_batch_norm(main.global_block())


@pytest.mark.parametrize(
    "build",
    [
        lambda x: layers.fill_constant([2.5, 3], "float32", 1.0),
        lambda x: layers.zeros([2.5], "float32"),
        lambda x: layers.reshape(x, [2.5, -1]),
        lambda x: layers.expand(x, [1.5, 1]),
        lambda x: layers.slice(x, axes=[0], starts=[0], ends=[2.5]),
        lambda x: layers.topk(x, 2.5),
        lambda x: layers.gaussian_random([2.5]),
        lambda x: layers.one_hot(layers.cast(x, "int64"), 2.5),
        lambda x: layers.fill_constant_batch_size_like(x, [1, 2.5], "float32", 0.0),
    ],
)
def test_fractions_are_no_extents(build):
    """Not cut to whole numbers: ``size / 2`` of an odd size is a mistake."""
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data("x", [4, 1])
        with pytest.raises(TypeError, match=r"expected a whole number, got [12]\.5: int\(\) of it"):
            build(x)


def test_whole_numbers_may_be_floats():
    """As `size / 2` is in Python 3."""
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data("x", [4, 6])
        assert layers.reshape(x, [16 / 2, np.float64(3)]).shape == (8, 3)
        assert layers.topk(x, 4 / 2)[0].shape == (4, 2)
