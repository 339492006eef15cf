"""What a Program computes of the rows of a batch, and the whole from the trainers' parts."""

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import FeedError, PlanError
from hpcdist.runtime.joining import How, SharedProgram, how_values_join, pack, unpack
from hpcdist.runtime.sharing import batched_names, share_of

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
