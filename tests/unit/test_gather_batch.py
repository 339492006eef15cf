"""What a Program computes of the rows of a batch, and the whole from the trainers' parts."""

import re
from dataclasses import replace

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import FeedError, PlanError
from hpcdist.graph import registry
from hpcdist.graph.registry import lookup
from hpcdist.graph.rows import How, OfRows
from hpcdist.lod_tensor import create_lod_tensor
from hpcdist.runtime.batches.analysis import RowTreatment, SharedProgram
from hpcdist.runtime.batches.gather import pack, unpack
from hpcdist.runtime.batches.scatter import (
    Division,
    batched_names,
    cut_feed,
    share_of,
    unlike,
)
from hpcdist.runtime.batches.trainer_part import loss_weight

ROWS, MEAN, SUM, MAX, MIN = How.ROWS, How.MEAN, How.SUM, How.MAX, How.MIN
SAME, MIXED = How.SAME, How.MIXED


pytestmark = pytest.mark.usefixtures("programs")


def how_of(var):
    program = fluid.default_main_program()
    return RowTreatment(program, batched_names(program)).of(var.name).how


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
    "a sum, shifted": (lambda x, w: layers.scale(layers.reduce_sum(x), 1.0, 1.0), MIXED),
    "a sum and a parameter": (lambda x, w: layers.reduce_sum(x) + w, MIXED),
    "a sum and a mean": (lambda x, w: layers.reduce_sum(x) + layers.mean(x), MIXED),
    "one over a mean": (lambda x, w: w / layers.mean(x), MIXED),
    "a product of means": (lambda x, w: layers.mean(x) * layers.mean(x), MIXED),
    "the root of a mean": (lambda x, w: layers.sqrt(layers.mean(x)), MIXED),
    "a maximum, scaled": (lambda x, w: layers.scale(layers.reduce_max(x), -1.0), MIXED),
    "rows less their mean": (lambda x, w: x - layers.mean(x), MIXED),
    "rows times rows": (lambda x, w: layers.matmul(x, x, transpose_y=True), MIXED),
    "columns times rows": (lambda x, w: layers.matmul(x, x, transpose_x=True), MIXED),
    "batches joined": (lambda x, w: layers.concat([x, x], axis=0), MIXED),
    "columns joined": (lambda x, w: layers.concat([x, x], axis=1), ROWS),
    "rows turned round": (lambda x, w: layers.reverse(x, [0]), MIXED),
    "columns turned round": (lambda x, w: layers.reverse(x, [1]), ROWS),
    "a softmax over the rows": (lambda x, w: layers.softmax(x, axis=0), MIXED),
    "a softmax of rank 1": (lambda x, w: layers.softmax(layers.reshape(x, [-1])), MIXED),
    "the best column": (lambda x, w: layers.argmax(x, axis=1), ROWS),
    "the best row": (lambda x, w: layers.argmax(x, axis=0), MIXED),
    "columns first": (lambda x, w: layers.transpose(x, [1, 0]), MIXED),
    "rows joined by two": (lambda x, w: layers.reshape(x, [-1, 8]), MIXED),
    "rows cut and joined": (lambda x, w: layers.reshape(layers.reshape(x, [-1, 2]), [-1, 4]), ROWS),
    "rows cut, and whole ones": (
        lambda x, w: layers.reshape(x, [-1, 1]) + layers.reshape(layers.reduce_sum(x, 1), [-1, 1]),
        MIXED,
    ),
    "rows and a parameter of as many": (lambda x, w: x + parameter([3, 4]), MIXED),
    "rows and one row": (lambda x, w: x + parameter([1, 4]), ROWS),
    "rows by a parameter": (lambda x, w: layers.matmul(x, parameter([4, 2])), ROWS),
    "a parameter by rows": (lambda x, w: layers.matmul(parameter([2, 4]), x), MIXED),
    "a norm of each row": (lambda x, w: layers.l2_normalize(x, axis=1), ROWS),
    "a norm of each column": (lambda x, w: layers.l2_normalize(x, axis=0), MIXED),
    "all finite": (lambda x, w: layers.isfinite(x), MIN),
    "the number of rows": (lambda x, w: layers.shape(x), MIXED),
    "rows picked by rows": (lambda x, w: layers.gather(x, layers.argmax(x, axis=1)), MIXED),
    "rows picked by themselves": (
        lambda x, w: (lambda ids: layers.gather(ids, ids))(layers.argmax(x, axis=1)),
        MIXED,
    ),
    "a product over the rows": (lambda x, w: layers.reduce_prod(x, dim=0), MIXED),
    "a mean by a matrix": (
        lambda x, w: layers.fc(layers.reshape(layers.reduce_mean(x, dim=0), [1, 4]), 2),
        MEAN,
    ),
    "the first rows": (lambda x, w: layers.slice(x, [0], [0], [2]), MIXED),
    "the first columns": (lambda x, w: layers.slice(x, [1], [0], [2]), ROWS),
}


def parameter(shape):
    return layers.create_parameter(shape, "float32")


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
    assert shared.of_rows("fc_0.w_0").how is SAME
    assert shared.of_rows("learning_rate_0").how is SAME
    with pytest.raises(FeedError, match="cannot fetch 'fc_0.tmp_0@GRAD' while trainers share"):
        shared.of_rows("fc_0.tmp_0@GRAD")
    norm = layers.reduce_sum(fluid.default_main_program().global_block().var("fc_0.w_0@GRAD"))
    shared = SharedProgram(fluid.default_main_program(), 2)
    assert not shared.why_whole_for([norm.name])
    with pytest.raises(FeedError, match="reads a gradient of its own rows"):
        shared.of_rows(norm.name)


@pytest.mark.parametrize(
    ("reduced", "wanted"),
    [(layers.mean, MEAN), (layers.reduce_sum, SUM)],
)
def test_the_loss_decides_how_gradients_count(reduced, wanted):
    assert minimized(reduced(layers.fc(layers.data("x", [4]), 1))).loss.how is wanted


def test_a_loss_of_a_parameter_alone_is_the_same_everywhere():
    layers.data("x", [4])
    w = layers.create_parameter([1], "float32", name="w")
    assert minimized(layers.mean(layers.square(w))).loss.how is SAME


def test_batches_of_other_losses_are_not_divided():
    shared = minimized(layers.sqrt(layers.mean(layers.fc(layers.data("x", [4]), 1))))
    assert re.search(r"'sqrt_0.tmp_0' is mixed .*'sqrt' cannot", shared.why_whole)
    assert shared.of_rows("sqrt_0.tmp_0").how is MIXED  # the first trainer's is everyone's
    assert not SharedProgram(fluid.default_main_program(), 1).why_whole


def test_a_batch_that_is_not_divided_is_everyones_and_counts_once():
    feed = {"x": np.arange(6.0).reshape(3, 2), "y": np.arange(5)}
    for trainer in range(2):
        cut, division = cut_feed(feed, frozenset({"x"}), trainer, 2, ["z"], why_whole="rows mix")
        assert cut["x"] is feed["x"]
        assert (division.share.begin, division.share.end) == (0, 3)
        assert division.counts == {"": [3, 0], "z": [3, 0]}
        assert bool(division.share.weight) is (trainer == 0)
        assert division.why_whole == "rows mix"
    values, ofs = [np.arange(7), np.arange(3.0)], [OfRows(ROWS), OfRows(MIXED)]
    divisions = [cut_feed(feed, frozenset({"x"}), k, 2, why_whole="rows mix")[1] for k in range(2)]
    told = [pack(values, ofs, division.share) for division in divisions]
    assert told[1] == b""
    for mine, joined in zip(values, unpack(told, values, ofs, division)):
        np.testing.assert_array_equal(mine, joined)


def test_an_operator_that_declares_nothing_is_named(monkeypatch):
    undeclared = replace(lookup("tanh"), rows=None)
    monkeypatch.setitem(registry.operators, "tanh", undeclared)
    loss = layers.mean(layers.fc(layers.data("x", [4]), 1, act="tanh"))
    assert "'tanh' does not declare how it treats rows" in minimized(loss).why_whole


def test_a_loss_that_depends_on_rows_turned_round_is_not_divided():
    x = layers.data("x", [4])
    turned = layers.reverse(x, [0])
    shared = minimized(layers.mean(layers.fc(x, 4) * turned))
    assert "'reverse' cannot be divided by rows: it works along" in shared.why_whole


def test_a_state_that_is_computed_from_rows_is_not_divided():
    x = layers.data("x", [4])
    seen = layers.create_global_var([1], 0.0, "float32", persistable=True, name="seen")
    layers.assign(layers.reduce_max(x), seen)
    shared = minimized(layers.mean(layers.fc(x, 1)))
    assert "different values of 'seen': it is a maximum" in shared.why_whole


def test_counts_of_the_last_step_are_counts_where_they_are_read():
    x, label = layers.data("x", [2]), layers.data("label", [1], dtype="int64")
    guess = layers.fc(x, 2, act="softmax")
    _, _, (positives, *_) = layers.auc(guess, label)
    block = fluid.default_main_program().global_block()
    block.prepend_op("scale", {"X": positives}, {"Out": block.create_var("before")}, {})
    assert how_of(block.var("before")) is MIXED
    assert how_of(positives) is How.COUNTS


def test_means_of_whole_numbers_drop_fractions():
    counts = layers.reduce_sum(layers.data("n", [4], dtype="int64"), dim=0)
    assert how_of(counts) is SUM
    assert how_of(layers.reduce_mean(counts)) is MIXED
    assert how_of(layers.elementwise_div(counts, layers.fill_constant([1], "int64", 2))) is MIXED


def test_a_rate_that_is_computed_from_each_trainers_rows_is_refused():
    x = layers.data("x", [4])
    loss = layers.mean(layers.fc(x, 1))
    fluid.optimizer.SGD(layers.scale(layers.mean(x), 0.1)).minimize(loss)
    with pytest.raises(PlanError, match="operator 'sgd' updates by .* a mean over the rows"):
        SharedProgram(fluid.default_main_program(), 2)


def test_gradients_that_do_not_start_from_a_loss_may_not_train():
    cost = layers.fc(layers.data("x", [4]), 1)
    loss = layers.mean(cost)
    parameters = fluid.default_main_program().all_parameters()
    pairs = list(zip(parameters, fluid.gradients(cost, parameters)))
    fluid.backward.append_backward(loss)
    fluid.optimizer.SGD(0.1).apply_gradients(pairs)
    with pytest.raises(PlanError, match="does not start from the gradient of a loss"):
        SharedProgram(fluid.default_main_program(), 2)


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

    ofs = [OfRows(how) for how in (ROWS, ROWS, MEAN, SUM, SUM, MAX, MIN, SAME)]
    shares = [share_of(total, k, trainers) for k in range(trainers)]
    own = [values(batch[s.begin : s.end]) for s in shares]
    packed = [pack(v, ofs, s) for v, s in zip(own, shares)]
    for mine, share in zip(own, shares):
        division = Division(share, {"": [s.counted for s in shares]})
        for got, wanted in zip(unpack(packed, mine, ofs, division), values(batch), strict=True):
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
    "a mean over all rows of sequences": (lambda x, y: layers.mean(x), MEAN),
    "decoded": (lambda x, y: layers.ctc_greedy_decoder(x, 3), RAGGED),
    "a sum over what was decoded": (
        lambda x, y: layers.reduce_sum(layers.ctc_greedy_decoder(x, 3)),
        MIXED,
    ),
    "a mean over rows that were repeated": (
        lambda x, y: layers.mean(layers.sequence_expand(y, x)),
        MIXED,
    ),
    "rows of sequences and rows": (lambda x, y: layers.elementwise_add(x, y), RAGGED),
    "rows of sequences, two in one": (lambda x, y: layers.reshape(x, [-1, 8]), MIXED),
    "sequences cut anew": (lambda x, y: layers.lod_reset(x, target_lod=[0, 2, 4]), MIXED),
    "padded to the longest": (lambda x, y: padded(x), How.PADDED),
    "padded to the longest, scaled": (lambda x, y: layers.scale(padded(x), 2.0), How.PADDED),
    "as many columns as padded rows": (
        lambda x, y: layers.fill_constant_batch_size_like(
            padded(x), [7, 2], "float32", 1.0, input_dim_idx=1
        ),
        MIXED,
    ),
    "a mean over padding": (lambda x, y: layers.reduce_mean(padded(x), dim=1), MIXED),
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


def test_values_padded_to_each_trainers_own_longest_sequence_are_fetched_of_whole_batches():
    x = layers.data("x", [4], lod_level=1)
    value = padded(x)
    fluid.optimizer.SGD(0.1).minimize(layers.mean(layers.fc(layers.sequence_pool(x, "sum"), 1)))
    shared = SharedProgram(fluid.default_main_program(), 2)
    assert not shared.why_whole and not shared.why_whole_for(["mean_0.tmp_0"])
    assert repr(value.name) in shared.why_whole_for(["mean_0.tmp_0", value.name])
    assert shared.of_rows(value.name).how is MIXED


def test_a_mean_over_rows_of_sequences_counts_rows():
    x, y = layers.data("x", [4], lod_level=1), layers.data("y", [1])
    both = layers.sequence_pool(x, "sum") + y
    shared = minimized(layers.mean(layers.fc(x, 1)) + 0 * layers.reduce_sum(w_of(both)))
    assert shared.loss == OfRows(MEAN, "x")
    feed = {"x": create_lod_tensor(np.ones((7, 4), "float32"), [[1, 4, 2]]), "y": np.ones((3, 1))}
    (_, division) = cut_feed(feed, shared.batched, 1, 2, shared.counted)
    assert division.counts == {"": [1, 2], "x": [1, 6]}
    assert loss_weight(shared.loss, division.counts["x"], 1) == 12 / 7


def test_a_batch_of_which_a_trainer_would_take_a_mean_over_no_rows_is_not_divided():
    rows = create_lod_tensor(np.ones((3, 4), "float32"), [[3, 0]])
    for trainers, named in (2, "trainer 1"), (3, "trainer 2"):  # of three one has no samples
        cut, division = cut_feed({"x": rows}, frozenset({"x"}), 0, trainers, counted=["x"])
        assert (
            f"mean over the rows of 'x', but the samples of {named} have none" in division.why_whole
        )
        assert len(cut["x"]) == 3


def w_of(value):
    """Return a parameter, so that ``value`` is computed, but does not matter."""
    return layers.create_parameter([1], "float32")


def test_values_computed_together_must_have_equally_many_rows_of_each_sample():
    x, y = layers.data("x", [4], lod_level=1), layers.data("y", [4])
    shared = minimized(layers.mean(layers.fc(x + y, 1)))
    one_each = create_lod_tensor(np.ones((2, 4), "float32"), [[1, 1]])
    others = create_lod_tensor(np.ones((2, 4), "float32"), [[2, 0]])
    y = np.ones((2, 4))
    for feed, named in (
        ({"x": one_each, "y": y}, ""),
        ({"x": others, "y": y}, "'x' has [2, 0] rows of its samples, expected one each"),
        ({"x": one_each, "y": others}, "'y' has [2, 0] rows of its samples, expected one each"),
    ):
        assert unlike(feed, shared.alike_in(feed)).startswith(named)
        assert bool(unlike(feed, shared.alike_in(feed))) is bool(named)
