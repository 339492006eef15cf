"""Operators on sequences against closed forms in plain numpy, sequence by sequence."""

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import FeedError, GraphError, HpcdistError

LENGTHS = [2, 0, 3, 1]


def tensor(array, *lengths):
    return fluid.create_lod_tensor(np.asarray(array), [list(level) for level in lengths])


def numbers(lengths, *width):
    return np.random.default_rng(5).uniform(-1, 1, (sum(lengths), *width)).astype("float32")


def pieces(rows, lengths):
    return np.split(rows, np.cumsum(lengths)[:-1])


def run(build, feed):
    """Return the LoDTensors of the variables that ``build`` makes."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        made = build()
    made = made if isinstance(made, (list, tuple)) else [made]
    exe, scope = fluid.Executor(), fluid.Scope()
    exe.run(startup, scope=scope)
    return exe.run(main, feed, list(made), scope=scope, return_numpy=False)


def ragged(name="x", width=2, dtype="float32", level=1):
    return layers.data(name, [width], dtype=dtype, lod_level=level)


# -- pool ------------------------------------------------------------------------------------------
POOLS = {
    "sum": lambda rows: rows.sum(0),
    "average": lambda rows: rows.mean(0),
    "sqrt": lambda rows: rows.sum(0) / np.sqrt(len(rows)),
    "max": lambda rows: rows.max(0),
    "first": lambda rows: rows[0],
    "last": lambda rows: rows[-1],
}


@pytest.mark.parametrize("kind", POOLS)
def test_pool_takes_each_sequence_to_one_row_and_an_empty_one_to_the_pad_value(kind):
    x = numbers(LENGTHS, 2)
    (out,) = run(
        lambda: layers.sequence_pool(ragged(), kind, pad_value=0.5), {"x": tensor(x, LENGTHS)}
    )
    expected = [POOLS[kind](p) if len(p) else np.full(2, 0.5) for p in pieces(x, LENGTHS)]
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    assert out.lod() == []


def test_pool_of_two_levels_leaves_the_outer_one():
    x = numbers([2, 3, 1], 2)
    (out,) = run(
        lambda: layers.sequence_pool(ragged(level=2), "sum"), {"x": tensor(x, [1, 2], [2, 3, 1])}
    )
    np.testing.assert_allclose(out, [p.sum(0) for p in pieces(x, [2, 3, 1])], rtol=1e-6)
    assert out.recursive_sequence_lengths() == [[1, 2]]


def test_first_and_last_step():
    x = numbers([2, 3], 2)
    first, last = run(
        lambda: [layers.sequence_first_step(ragged()), layers.sequence_last_step(ragged())],
        {"x": tensor(x, [2, 3])},
    )
    np.testing.assert_array_equal(first, x[[0, 2]])
    np.testing.assert_array_equal(last, x[[1, 4]])


def test_an_unknown_pool_and_values_without_sequences_are_refused():
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        with pytest.raises(GraphError, match="pool_type must be one of sum, average, .*'MEDIAN'"):
            layers.sequence_pool(ragged(), "median")
        with pytest.raises(GraphError, match="X of shape .* lod_level=1 and feed a LoDTensor"):
            layers.sequence_pool(layers.data("dense", [2]), "sum")


def test_an_array_fed_for_sequences_is_refused_where_they_are_needed():
    with pytest.raises(HpcdistError, match="op #0 sequence_pool.* feed a LoDTensor"):
        run(lambda: layers.sequence_pool(ragged(), "sum"), {"x": np.ones((3, 2), np.float32)})


# -- softmax, convolution --------------------------------------------------------------------------
def test_softmax_sums_to_one_within_each_sequence():
    x = numbers(LENGTHS, 1)
    (out,) = run(lambda: layers.sequence_softmax(ragged(width=1)), {"x": tensor(x, LENGTHS)})
    expected = np.concatenate([np.exp(p) / np.exp(p).sum() for p in pieces(x, LENGTHS)])
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    assert out.recursive_sequence_lengths() == [LENGTHS]


@pytest.mark.parametrize(("size", "start"), [(3, None), (4, None), (1, 0), (2, 1), (3, -4)])
def test_convolution_sees_its_own_sequence_only(size, start):
    x = numbers(LENGTHS, 2)

    def build():
        attr = fluid.ParamAttr(name="filter")
        return layers.sequence_conv(
            ragged(), 3, size, padding_start=start, param_attr=attr, bias_attr=False
        ), layers.assign(fluid.default_main_program().global_block().var("filter"))

    out, filters = run(build, {"x": tensor(x, LENGTHS)})
    begin = -(size // 2) if start is None else start
    expected = []
    for piece in pieces(x, LENGTHS):
        for row in range(len(piece)):
            at = range(row + begin, row + begin + size)
            window = [piece[i] if 0 <= i < len(piece) else np.zeros(2) for i in at]
            expected.append(np.concatenate(window) @ np.asarray(filters))
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-6)


def test_convolution_takes_no_other_stride():
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        pytest.raises(GraphError, match="filter_stride must be 1"),
    ):
        layers.sequence_conv(ragged(), 3, filter_stride=2)


def test_trainable_padding_and_images_of_their_own_sizes_are_refused():
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = ragged()
        layers.sequence_conv(x, 3)
        conv = next(op for op in x.block.ops if op.type == "sequence_conv")
        slots = {slot: conv.input(slot) for slot in conv.inputs}
        with pytest.raises(GraphError, match="paddings not trainable"):
            attrs = {**conv.attrs, "paddingTrainable": True}
            x.block.append_op("sequence_conv", slots, {"Out": "out"}, attrs)
        with pytest.raises(GraphError, match="input_image_size is not there"):
            image = fluid.data("image", [None, 1, 4, 4])
            layers.im2sequence(image, 2, input_image_size=image)


# -- other sequences -------------------------------------------------------------------------------
def test_expand_repeats_rows():
    x = numbers([3], 2)
    (out,) = run(
        lambda: layers.sequence_expand(layers.data("x", [2]), ragged("y", 1)),
        {"x": x, "y": tensor(np.zeros((5, 1), "float32"), [2, 0, 3])},
    )
    np.testing.assert_array_equal(out, x[[0, 0, 2, 2, 2]])


def test_expand_repeats_sequences_as_a_level_says():
    # As Fluid 1.8.5's documentation of sequence_expand has it.
    x = tensor(np.arange(4, dtype="float32").reshape(-1, 1), [2, 2])
    y = tensor(np.zeros((8, 1), "float32"), [2, 2], [3, 3, 1, 1])
    (out,) = run(
        lambda: layers.sequence_expand(ragged(width=1), ragged("y", 1, level=2), ref_level=0),
        {"x": x, "y": y},
    )
    np.testing.assert_array_equal(np.ravel(out), [0, 1, 0, 1, 2, 3, 2, 3])
    assert out.lod() == [[0, 2, 4, 6, 8]]


def test_expand_as_repeats_each_row_over_a_sequence():
    x = numbers([4], 2)
    (out,) = run(
        lambda: layers.sequence_expand_as(layers.data("x", [2]), ragged("y", 1)),
        {"x": x, "y": tensor(np.zeros((6, 1), "float32"), LENGTHS)},
    )
    np.testing.assert_array_equal(out, np.repeat(x, LENGTHS, axis=0))
    assert out.recursive_sequence_lengths() == [LENGTHS]


def test_concat_puts_sequences_behind_one_another():
    x, y = numbers([1, 2], 2), numbers([2, 0], 2) + 5
    (out,) = run(
        lambda: layers.sequence_concat([ragged("x"), ragged("y")]),
        {"x": tensor(x, [1, 2]), "y": tensor(y, [2, 0])},
    )
    np.testing.assert_array_equal(out, np.concatenate([x[:1], y, x[1:]]))
    assert out.recursive_sequence_lengths() == [[3, 2]]


def test_reverse_turns_each_sequence():
    x = numbers(LENGTHS, 2)
    (out,) = run(lambda: layers.sequence_reverse(ragged()), {"x": tensor(x, LENGTHS)})
    np.testing.assert_array_equal(out, np.concatenate([p[::-1] for p in pieces(x, LENGTHS)]))


def test_reshape_keeps_the_numbers_of_each_sequence():
    x = numbers([2, 4], 2)
    (out,) = run(lambda: layers.sequence_reshape(ragged(), 4), {"x": tensor(x, [2, 4])})
    np.testing.assert_array_equal(out, x.reshape(3, 4))
    assert out.recursive_sequence_lengths() == [[1, 2]]
    with pytest.raises(GraphError, match=r"lengths \[1, 5\] with 2 numbers per row .* of 4"):
        run(lambda: layers.sequence_reshape(ragged(), 4), {"x": tensor(x, [1, 5])})


def test_enumerate_gives_each_id_with_those_behind_it():
    ids = np.arange(1, 7).reshape(-1, 1)
    (out,) = run(
        lambda: layers.sequence_enumerate(ragged(width=1, dtype="int64"), 2, pad_value=9),
        {"x": tensor(ids, [2, 0, 4])},
    )
    np.testing.assert_array_equal(out, [[1, 2], [2, 9], [3, 4], [4, 5], [5, 6], [6, 9]])


def test_lod_reset_groups_anew():
    x = numbers([6], 2)
    by_other, by_offsets = run(
        lambda: [
            layers.lod_reset(ragged(), ragged("y", 1)),
            layers.lod_reset(ragged(), target_lod=[0, 5, 6]),
        ],
        {"x": tensor(x, [6]), "y": tensor(np.zeros((6, 1), "float32"), [4, 2])},
    )
    np.testing.assert_array_equal(by_other, x)
    assert (by_other.lod(), by_offsets.lod()) == ([[0, 4, 6]], [[0, 5, 6]])


# -- padding ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("maxlen", [None, 4])
def test_pad_and_unpad_are_each_others_inverse(maxlen):
    x = numbers(LENGTHS, 2)

    def build():
        value = layers.assign(np.array([0.25], "float32"))
        out, length = layers.sequence_pad(ragged(), value, maxlen)
        return out, length, layers.sequence_unpad(out, length), layers.sequence_mask(length, 5)

    padded, length, back, mask = run(build, {"x": tensor(x, LENGTHS)})
    longest = maxlen or max(LENGTHS)
    expected = np.full((4, longest, 2), 0.25, "float32")
    for row, piece in zip(expected, pieces(x, LENGTHS)):
        row[: len(piece)] = piece
    np.testing.assert_array_equal(padded, expected)
    np.testing.assert_array_equal(length, LENGTHS)
    np.testing.assert_array_equal(back, x)
    assert back.recursive_sequence_lengths() == [LENGTHS]
    np.testing.assert_array_equal(mask, [[i < n for i in range(5)] for n in LENGTHS])


def test_lengths_that_are_fed_make_shapes():
    x = numbers([3], 4)

    def build():
        length = layers.data("n", [-1], append_batch_size=False, dtype="int64")
        return layers.sequence_unpad(layers.data("x", [4]), length), layers.sequence_mask(length)

    for lengths in ([2, 4, 0], [1, 1, 1]):
        out, mask = run(build, {"x": x, "n": np.array(lengths)})
        np.testing.assert_array_equal(
            np.ravel(out), np.concatenate([row[:n] for row, n in zip(x, lengths)])
        )
        assert np.asarray(mask).shape == (3, max(lengths))
    with pytest.raises(GraphError, match=r"X \(3, 4\) has no sequence of 5 rows"):
        run(build, {"x": x, "n": np.array([1, 5, 1])})
    with pytest.raises(FeedError, match="ascend"):
        run(build, {"x": x, "n": np.array([1, -1, 1])})


def test_padding_that_is_too_short_is_refused():
    def build():
        return layers.sequence_pad(ragged(), layers.assign(np.zeros(1, "float32")), 2)[0]

    with pytest.raises(GraphError, match="maxlen 2 is shorter than a sequence of 3 rows"):
        run(build, {"x": tensor(numbers(LENGTHS, 2), LENGTHS)})


# -- the numbers of Fluid --------------------------------------------------------------------------
def test_a_weighted_bag_of_words_is_that_of_fluid():
    """Losses of Fluid 1.8.5 (CPU) running this very function, its lr and data unchanged."""
    lengths = [[3, 1, 2], [1, 1, 5], [2, 2, 2]]
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 7
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        loss = bag_of_words(fluid)
    exe, scope = fluid.Executor(), fluid.Scope()
    exe.run(startup, scope=scope)
    losses = []
    for step in range(6):
        held = lengths[step % 3]
        words = (np.arange(sum(held)) * 7 + step) % 11
        feed = {
            "words": fluid.create_lod_tensor(words.reshape(-1, 1), [held], fluid.CPUPlace()),
            "label": np.array([[step % 2], [1], [0]]),
        }
        losses.append(exe.run(main, feed, [loss], scope=scope)[0].item())
    np.testing.assert_allclose(losses, FLUID_LOSSES, rtol=2e-5)


def bag_of_words(fluid):
    words = fluid.layers.data("words", [1], dtype="int64", lod_level=1)
    label = fluid.layers.data("label", [1], dtype="int64")
    rows = fluid.layers.embedding(words, [11, 4], is_sparse=True, padding_idx=0)
    weight = fluid.layers.sequence_softmax(fluid.layers.fc(rows, 1, bias_attr=False))
    bag = fluid.layers.sequence_pool(fluid.layers.elementwise_mul(rows, weight, axis=0), "sum")
    near = fluid.layers.sequence_conv(rows, 5, act="tanh")
    last = fluid.layers.sequence_pool(near, "max")
    guess = fluid.layers.fc([bag, last], 2, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(guess, label))
    fluid.optimizer.Adagrad(0.2).minimize(loss)
    return loss


FLUID_LOSSES = [0.7119684, 0.7994750, 0.7426808, 0.9865307, 0.6633806, 1.5323318]
