"""What a Program computes of the rows of a batch, and the whole from the trainers' parts."""

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import FeedError, PlanError
from hpcdist.lod_tensor import LoDTensor, create_lod_tensor
from hpcdist.runtime.joining import How, SharedProgram, how_values_join, pack, unpack
from hpcdist.runtime.sharing import batched_names, cut_feed, share_of

ROWS, MEAN, SUM, MAX, MIN = How.ROWS, How.MEAN, How.SUM, How.MAX, How.MIN
SAME, LOCAL = How.SAME, How.LOCAL


@pytest.fixture(autouse=True)
def programs():
    with fluid.unique_name.guard(), fluid.program_guard(fluid.Program(), fluid.Program()):
        yield


def how_of(var):
    program = fluid.default_main_program()
    return how_values_join(program, batched_names(program)).get(var.name, SAME)


VALUES = {
    "what is fed": (lambda x, w: x, ROWS),
    "a layer": (lambda x, w: layers.fc(x, 3, act="softmax"), ROWS),
    "a sum over columns": (lambda x, w: layers.reduce_sum(x, dim=1), ROWS),
    "rows times a column": (lambda x, w: x * layers.reduce_sum(x, dim=1, keep_dim=True), ROWS),
    "rows cut in two": (lambda x, w: layers.reshape(x, [-1, 2]), ROWS),
    "a mean": (lambda x, w: layers.mean(x), MEAN),
    "means of columns": (lambda x, w: layers.reduce_mean(x, dim=0), MEAN),
    "a mean, scaled and shifted": (lambda x, w: layers.scale(layers.mean(x), 2.0, 1.0), MEAN),
    "a mean times a parameter": (lambda x, w: layers.mean(x) * w, MEAN),
    "a mean over a parameter": (lambda x, w: layers.mean(x) / w, MEAN),
    "a mean with a penalty": (lambda x, w: layers.mean(x) + layers.reduce_sum(w * w), MEAN),
    "two means": (lambda x, w: layers.mean(x) - layers.mean(layers.square(x)), MEAN),
    "a sum": (lambda x, w: layers.reduce_sum(x), SUM),
    "a sum, scaled": (lambda x, w: layers.scale(layers.reduce_sum(x), 2.0), SUM),
    "a sum, reshaped": (lambda x, w: layers.reshape(layers.reduce_sum(x, dim=0), [2, 2]), SUM),
    "a maximum": (lambda x, w: layers.reduce_max(x), MAX),
    "minima of columns": (lambda x, w: layers.reduce_min(x, dim=0), MIN),
    "a parameter": (lambda x, w: layers.square(w), SAME),
    "a sum, shifted": (lambda x, w: layers.scale(layers.reduce_sum(x), 1.0, 1.0), LOCAL),
    "a sum and a parameter": (lambda x, w: layers.reduce_sum(x) + w, LOCAL),
    "a sum and a mean": (lambda x, w: layers.reduce_sum(x) + layers.mean(x), LOCAL),
    "one over a mean": (lambda x, w: w / layers.mean(x), LOCAL),
    "a product of means": (lambda x, w: layers.mean(x) * layers.mean(x), LOCAL),
    "the root of a mean": (lambda x, w: layers.sqrt(layers.mean(x)), LOCAL),
    "a maximum, scaled": (lambda x, w: layers.scale(layers.reduce_max(x), -1.0), LOCAL),
    "rows less their mean": (lambda x, w: x - layers.mean(x), LOCAL),
    "rows times rows": (lambda x, w: layers.matmul(x, x, transpose_y=True), LOCAL),
    "columns times rows": (lambda x, w: layers.matmul(x, x, transpose_x=True), LOCAL),
    "batches joined": (lambda x, w: layers.concat([x, x], axis=0), LOCAL),
    "columns joined": (lambda x, w: layers.concat([x, x], axis=1), ROWS),
    "the first rows": (lambda x, w: layers.slice(x, [0], [0], [2]), LOCAL),
    "the first columns": (lambda x, w: layers.slice(x, [1], [0], [2]), ROWS),
}


@pytest.mark.parametrize("name", VALUES)
def test_what_a_value_is_of_the_rows(name):
    build, wanted = VALUES[name]
    w = layers.create_parameter([1], "float32", name="w")
    assert how_of(build(layers.data("x", [4]), w)) is wanted


def test_a_schedule_is_the_same_everywhere():
    layers.data("x", [4])
    assert how_of(layers.exponential_decay(0.1, 2, 0.5)) is SAME
    assert how_of(layers.piecewise_decay([2], [0.3, 0.1])) is SAME


def minimized(loss):
    fluid.optimizer.SGD(0.1).minimize(loss)
    return SharedProgram(fluid.default_main_program(), 2)


def test_persistables_and_gradients():
    x = layers.data("x", [4])
    shared = minimized(layers.mean(layers.fc(x, 1)))
    assert shared.how_joined("fc_0.w_0") is SAME
    assert shared.how_joined("learning_rate_0") is SAME
    with pytest.raises(FeedError, match="cannot fetch 'fc_0.tmp_0@GRAD' while trainers share"):
        shared.how_joined("fc_0.tmp_0@GRAD")


@pytest.mark.parametrize(
    ("reduced", "wanted"),
    [(layers.mean, MEAN), (layers.reduce_sum, SUM)],
)
def test_the_loss_decides_how_gradients_count(reduced, wanted):
    assert minimized(reduced(layers.fc(layers.data("x", [4]), 1))).loss is wanted


def test_a_loss_of_a_parameter_alone_is_the_same_everywhere():
    layers.data("x", [4])
    w = layers.create_parameter([1], "float32", name="w")
    assert minimized(layers.mean(layers.square(w))).loss is SAME


def test_other_losses_are_refused():
    loss = layers.sqrt(layers.mean(layers.fc(layers.data("x", [4]), 1)))
    with pytest.raises(PlanError, match=r"'sqrt_0.tmp_0' is none of these; .*transpile"):
        minimized(loss)
    SharedProgram(fluid.default_main_program(), 1)  # one trainer shares with nobody


@pytest.mark.parametrize("total", [1, 2, 7])
@pytest.mark.parametrize("trainers", [1, 2, 3])
def test_parts_make_the_whole(total, trainers):
    rng = np.random.default_rng(total)
    batch = rng.uniform(-1, 1, (total, 4)).astype(np.float32)

    def values(rows):
        count = np.array([len(rows)], np.int32)
        return [
            rows,
            rows.reshape(-1, 2),
            rows.mean(0),
            count,
            rows.sum(0),
            rows.max(),
            rows.min(0),
            np.array([3.0]),
        ]

    hows = [ROWS, ROWS, MEAN, SUM, SUM, MAX, MIN, SAME]
    shares = [share_of(total, k, trainers) for k in range(trainers)]
    own = [values(batch[s.begin : s.end]) for s in shares]
    packed = [pack(v, hows, s) for v, s in zip(own, shares)]
    for mine, share in zip(own, shares):
        for got, wanted in zip(unpack(packed, mine, hows, share), values(batch), strict=True):
            assert got.shape == np.shape(wanted) and got.dtype == wanted.dtype
            np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-7)


# -- sequences -------------------------------------------------------------------------------------
RAGGED = How.RAGGED
OF_SEQUENCES = {
    "what is fed": (lambda x, y: x, RAGGED),
    "a layer": (lambda x, y: layers.fc(x, 3, act="tanh"), RAGGED),
    "a row of each sequence": (lambda x, y: layers.sequence_pool(x, "sum"), ROWS),
    "a layer over those": (lambda x, y: layers.fc(layers.sequence_last_step(x), 2), ROWS),
    "rows repeated": (lambda x, y: layers.sequence_expand(y, x), RAGGED),
    "rows spread": (lambda x, y: layers.sequence_expand_as(y, x), RAGGED),
    "sequences joined": (lambda x, y: layers.sequence_concat([x, x]), RAGGED),
    "weights": (lambda x, y: layers.sequence_softmax(layers.fc(x, 1)), RAGGED),
    "a mean of pools": (lambda x, y: layers.mean(layers.sequence_pool(x, "max")), MEAN),
    "a sum": (lambda x, y: layers.reduce_sum(x), SUM),
    "a maximum": (lambda x, y: layers.reduce_max(x), MAX),
    "a mean over all rows of sequences": (lambda x, y: layers.mean(x), LOCAL),
    "rows of sequences and rows": (lambda x, y: layers.elementwise_add(x, y), LOCAL),
    "padded": (lambda x, y: padded(x, 9), ROWS),
    "unpadded": (
        lambda x, y: layers.sequence_unpad(padded(x, 9), y_lengths()),
        RAGGED,
    ),
}


def padded(x, maxlen=None):
    return layers.sequence_pad(x, layers.fill_constant([1], "float32", 0.0), maxlen)[0]


def y_lengths():
    return layers.data("n", [-1], append_batch_size=False, dtype="int64")


@pytest.mark.parametrize("name", OF_SEQUENCES)
def test_values_of_sequences_are_followed(name):
    build, expected = OF_SEQUENCES[name]
    x, y = layers.data("x", [4], lod_level=1), layers.data("y", [4])
    assert how_of(build(x, y)) is expected


def test_values_padded_to_each_trainers_own_longest_sequence_are_not_fetched():
    x = layers.data("x", [4], lod_level=1)
    value = padded(x)
    fluid.optimizer.SGD(0.1).minimize(layers.mean(layers.fc(layers.sequence_pool(x, "sum"), 1)))
    shared = SharedProgram(fluid.default_main_program(), 2)
    with pytest.raises(FeedError, match="give sequence_pad, or sequence_mask, a maxlen"):
        shared.how_joined(value.name)


@pytest.mark.parametrize("lengths", [[2, 0, 3, 1, 1], [0, 0], [4]])
def test_sequences_are_cut_and_joined_again(lengths):
    rows = np.arange(sum(lengths) * 2, dtype="float32").reshape(-1, 2)
    whole = create_lod_tensor(rows, [lengths])
    trainers, batched = 3, frozenset({"x", "y"})
    feed = {"x": whole, "y": np.arange(len(lengths))}
    cuts = [cut_feed(feed, batched, k, trainers) for k in range(trainers)]
    for cut, _ in cuts:
        assert cut["x"].samples == len(cut["y"])
    hows = [RAGGED, SUM]
    own = [[cut["x"], np.array([float(len(cut["x"]))])] for cut, _ in cuts]
    packed = [pack(values, hows, share) for values, (_, share) in zip(own, cuts)]
    for values, (_, share) in zip(own, cuts):
        joined, total = unpack(packed, values, hows, share)
        assert isinstance(joined, LoDTensor)
        np.testing.assert_array_equal(joined, rows)
        assert joined.recursive_sequence_lengths() == [lengths]
        np.testing.assert_array_equal(total, [sum(lengths)])


def test_batches_of_different_numbers_of_sequences_are_refused():
    feed = {"x": create_lod_tensor(np.zeros((3, 1)), [[1, 2]]), "y": np.zeros((3, 1))}
    with pytest.raises(FeedError, match="equal numbers of rows, got {'x': 2, 'y': 3}"):
        cut_feed(feed, frozenset({"x", "y"}), 0, 2)
