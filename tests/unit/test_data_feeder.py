from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from hpcdist.data_feeder import DataFeeder
from hpcdist.errors import FeedError
from hpcdist.graph import Program, program_guard


@dataclass(frozen=True)
class Var:
    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    lod_level: int = 0


X = Var("x", (-1, 13))
IMAGE = Var("image", (-1, 1, 28, 28))
LABEL = Var("label", (-1, 1), "int64")


def feed(variables, batch):
    return {n: np.array(v) for n, v in DataFeeder(variables, place=None).feed(batch).items()}


def refused(variables, batch):
    with pytest.raises(FeedError) as error:
        feed(variables, batch)
    return str(error.value)


def test_devices_are_fed_a_batch_each():
    feeder = DataFeeder([LABEL])
    batches = [[(n,)] for n in range(5)]
    assert [np.array(fed["label"]).item() for fed in feeder.feed_parallel(batches[:2], 2)] == [0, 1]
    with pytest.raises(FeedError, match="a batch for each of 3 devices, got 2"):
        feeder.feed_parallel(batches[:2], 3)
    read = feeder.decorate_reader(lambda: batches, multi_devices=False)
    assert [np.array(fed["label"]).item() for fed in read()] == list(range(5))
    read = feeder.decorate_reader(lambda: batches, multi_devices=True, num_places=2)
    assert [[np.array(fed["label"]).item() for fed in some] for some in read()] == [[0, 1], [2, 3]]
    read = feeder.decorate_reader(lambda: batches, True, 2, drop_last=False)
    with pytest.raises(FeedError, match="1 batches are left for 2 devices"):
        list(read())


def test_feed_stacks_columns_to_the_variables_shapes_and_dtypes():
    rows = np.arange(39.0).reshape(3, 13)
    fed = feed([X, LABEL], [(row, n) for n, row in enumerate(rows)])
    assert list(fed) == ["x", "label"]
    np.testing.assert_array_equal(fed["x"], rows)
    assert fed["x"].dtype == np.float32
    np.testing.assert_array_equal(fed["label"], [[0], [1], [2]])
    assert fed["label"].dtype == np.int64


def test_feed_as_in_fluids_documentation():
    fed = feed([IMAGE, LABEL], [([0] * 784, [9]), ([1] * 784, [1])])
    assert fed["image"].shape == (2, 1, 28, 28)
    np.testing.assert_array_equal(fed["image"][1], np.ones((1, 28, 28)))
    np.testing.assert_array_equal(fed["label"], [[9], [1]])


def test_feed_copies_its_samples():
    row = np.ones(13, np.float32)
    fed = feed([X], [(row,)])
    row[:] = 5
    np.testing.assert_array_equal(fed["x"], np.ones((1, 13)))


def test_feed_takes_any_iterable_of_any_sequences():
    fed = feed([X, LABEL], (s for s in [[np.zeros(13), 1], (list(range(13)), 2)]))
    assert fed["x"].shape == (2, 13)


@pytest.mark.parametrize(
    ("shape", "sample", "expected"),
    [
        ((-1, 4), np.zeros((2, 2)), (3, 4)),
        ((-1, 2, 2), np.zeros(4), (3, 2, 2)),
        ((-1, -1), np.zeros(5), (3, 5)),
        ((-1, -1, 2), np.zeros(6), (3, 3, 2)),
        ((-1, -1, -1), np.zeros((2, 5)), (3, 2, 5)),
        ((-1,), 1.0, (3,)),
        ((-1,), [1.0], (3,)),
        ((3, 1), 1.0, (3, 1)),
    ],
)
def test_feed_reshapes_when_the_number_of_dimensions_differs(shape, sample, expected):
    assert feed([Var("v", shape)], [(sample,)] * 3)["v"].shape == expected


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("int64", 3.0),
        ("int64", True),
        ("int32", 2**31 - 1),
        ("uint8", 255),
        ("bool", 1),
        ("float32", 3),
        ("float32", 0.1),
        ("float16", np.float32(0.5)),
        ("float32", float("nan")),
        ("float32", float("inf")),
    ],
)
def test_feed_casts_what_the_dtype_can_hold(dtype, value):
    fed = feed([Var("v", (-1, 1), dtype)], [(value,)])["v"]
    assert fed.dtype == dtype
    np.testing.assert_array_equal(fed, np.array([[value]], dtype))


@pytest.mark.parametrize(
    ("dtype", "value", "got"),
    [
        ("int64", 3.5, "the float64 value 3.5"),
        ("int64", float("nan"), "the float64 value nan"),
        ("int32", 2**31, "the int64 value 2147483648"),
        ("uint8", -1, "the int64 value -1"),
        ("bool", 2, "the int64 value 2"),
        ("float32", 1e300, r"the float64 value 1e+300"),
        ("float16", 70000, "the int64 value 70000"),
        ("float32", "1,5", "'1,5'"),
        ("float32", None, "None"),
        ("float32", 1j, "1j"),
    ],
)
def test_feed_refuses_what_the_dtype_cannot_hold(dtype, value, got):
    message = refused([Var("v", (-1, 1), dtype)], [(1,), (value,)])
    assert f"'v' ({dtype}, shape (-1, 1)): sample 1 has {got}, expected {dtype}" in message


@pytest.mark.parametrize(
    ("variable", "values", "message"),
    [
        (X, [np.zeros(13), np.zeros(12)], "sample 1 has shape (12,), expected shape (13,)"),
        (X, [np.zeros(12), np.zeros(13)], "sample 0 has shape (12,), expected shape (13,)"),
        (X, [np.zeros(12), np.zeros(12)], "sample 0 has shape (12,), expected shape (13,)"),
        (X, [[0] * 13, [0] * 13, 7], "sample 2 has shape (), expected shape (13,)"),
        (X, [[[1], [1, 2]]], "sample 0 has lists of unequal length, expected shape (13,)"),
        (IMAGE, [np.zeros(783)], "sample 0 has shape (783,), expected shape (1, 28, 28)"),
        (IMAGE, [np.zeros((1, 14, 56))], "has shape (1, 14, 56), expected shape (1, 28, 28)"),
        (Var("v", (-1, -1)), [[1, 2], [1]], "sample 1 has shape (1,), expected shape (2,)"),
        (Var("v", (-1, -1, 2)), [np.zeros(5)], "has shape (5,), expected shape (-1, 2)"),
        (Var("v", (-1, -1, 2)), [np.zeros(0)], "has shape (0,), expected shape (-1, 2)"),
        (Var("v", (4, 1)), [1, 2], "takes 4 samples at once, got 2"),
    ],
)
def test_feed_names_variable_and_sample_of_a_wrong_shape(variable, values, message):
    got = refused([variable], [(value,) for value in values])
    assert message in got
    assert f"variable {variable.name!r} (float32, shape {variable.shape})" in got


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([], "the batch for ['x', 'label'] is empty"),
        ([(1, 2), (1,)], "sample 1 must be a tuple of 2 fields (x, label), got 1 fields"),
        ([(1, 2, 3)], "sample 0 must be a tuple of 2 fields (x, label), got 3 fields"),
        ([5], "sample 0 must be a tuple of 2 fields (x, label), got int"),
        (["ab"], "sample 0 must be a tuple of 2 fields (x, label), got str"),
    ],
)
def test_feed_names_the_sample_without_a_field_for_each_variable(batch, message):
    assert message in refused([X, LABEL], batch)


@pytest.mark.parametrize(
    ("feed_list", "message"),
    [
        ([], "feed_list is empty"),
        ([X, X], "names a variable twice"),
        ([X, 3], r"feed_list\[1\] must be a Variable or a name, got int"),
        ([Var("scalar", ())], "'scalar' has shape ()"),
    ],
)
def test_feeder_refuses_a_feed_list_it_cannot_serve(feed_list, message):
    with pytest.raises(FeedError, match=message.replace("()", r"\(\)")):
        DataFeeder(feed_list, None)


def test_numbers_may_be_text():
    three = Var("three", (-1, 3))
    samples = [(["1", "2.5", "3e-1"], "4"), (["0", "1", "2"], 5)]
    fed = DataFeeder([three, LABEL], None).feed(samples)
    expected = np.array([[1, 2.5, 0.3], [0, 1, 2]], np.float32)
    np.testing.assert_array_equal(fed["three"], expected)
    np.testing.assert_array_equal(fed["label"], [[4], [5]])
    assert "sample 1 has 'dog', expected int64 numbers" in refused([LABEL], [("4",), ("dog",)])


def test_names_are_looked_up_in_the_program():
    program = Program()
    program.global_block().create_var(name="x", shape=[-1, 2], dtype="float32")
    fed = DataFeeder(["x"], None, program).feed([([1, 2],)])
    np.testing.assert_array_equal(fed["x"], [[1, 2]])
    with program_guard(program):
        assert DataFeeder(["x"], None).feed_names == ["x"]
    with pytest.raises(ValueError, match="y"):
        DataFeeder(["y"], None, program)


WORDS = Var("words", (-1, 1), "int64", lod_level=1)


def test_sequences_of_any_lengths_become_rows_and_lengths():
    fed = DataFeeder([WORDS, LABEL], None).feed([([3, 1, 2], 0), ([], 1), (np.array([7]), 0)])
    assert fed["words"].recursive_sequence_lengths() == [[3, 0, 1]]
    assert fed["words"].lod() == [[0, 3, 3, 4]]
    np.testing.assert_array_equal(fed["words"], [[3], [1], [2], [7]])
    assert np.asarray(fed["words"]).dtype == np.int64
    assert fed["label"].shape() == [3, 1] and fed["label"].lod() == []


def test_parts_of_what_is_fed_are_copies():
    fed = DataFeeder([LABEL], None).feed([(n,) for n in range(4)])["label"]
    part = fed[1:3]
    assert (part.shape(), np.array(part).tolist(), fed[2].shape()) == ([2, 1], [[1], [2]], [1, 1])
    part.value[:] = 7
    np.testing.assert_array_equal(fed, [[0], [1], [2], [3]])


def test_sequences_of_vectors_keep_their_width_even_without_rows():
    points = Var("points", (-1, 2), lod_level=1)
    fed = DataFeeder([points], None).feed([([],), ([],)])
    assert fed["points"].shape() == [0, 2]
    fed = DataFeeder([points], None).feed([([[1, 2], [3, 4]],), ([[5, 6]],)])
    np.testing.assert_array_equal(fed["points"], [[1, 2], [3, 4], [5, 6]])


def test_sequences_of_sequences_have_two_levels():
    fed = DataFeeder([Var("text", (-1, 1), "int64", lod_level=2)], None).feed(
        [([[1], [2, 3]],), ([],)]
    )
    assert fed["text"].lod() == [[0, 2, 2], [0, 1, 3]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (5, "'words' has lod_level 1: expected a sequence of rows in every sample, got 5"),
        ([0.5], "has the float64 value 0.5, expected int64 numbers"),
        ([[1, 2]], "has shape (2,), expected shape (1,)"),
    ],
)
def test_sequences_that_do_not_fit_are_refused(words, message):
    assert message in refused([WORDS, LABEL], [(words, 0)])


def test_a_sample_may_be_a_batch():
    length = Var("length", (-1,), "int64")
    feeder = DataFeeder([WORDS, length, Var("point", (-1, 2))], None)
    fed = feeder.feed([([[7], [8], [9]], [4, 5, 6], [[1, 2], [3, 4], [5, 6]])])
    np.testing.assert_array_equal(fed["length"], [4, 5, 6])
    np.testing.assert_array_equal(fed["point"], [[1, 2], [3, 4], [5, 6]])
    assert fed["words"].recursive_sequence_lengths() == [[3]]


def test_batches_in_samples_that_do_not_fit_are_refused():
    length = Var("length", (-1,), "int64")
    got = refused([length, LABEL], [([4, 5], [0])])
    assert "expected as many rows of all in a batch, got {'length': 2, 'label': 1}" in got
    assert "sample 0 has shape (2,)" in refused([length], [([4, 5],), ([4],)])
    assert "has shape (2, 1), expected shape (1,)" in refused([WORDS], [([[[1], [2]]],)])
