"""Jobs with cells, decoders and pieces of sequences compute what one process computes."""

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.runtime.batches.analysis import SharedProgram
from tests.support.job import alone, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

SHAPES = [(2, 0), (2, 2)]  # trainers, servers
STEPS, WIDTH, SIZE, WORDS = 5, 3, 4, 11
ROWS = [5, 2]


def given(name):
    """Return a data variable, the same one for all nets of a Program."""
    block = fluid.default_main_program().global_block()
    if block.has_var(name):
        return block.var(name)
    if name == "ragged":
        return layers.data(name, [WIDTH], lod_level=1)
    shape, dtype = {"x": ([None, STEPS, WIDTH], "float32"), "n": ([None], "int64")}[name]
    return fluid.data(name, shape, dtype)


def padded():
    """Cells one after the other, both ways, and layers of units upon them."""
    x, n = given("x"), given("n")
    first = [layers.fc(x[:, 0], SIZE), layers.fc(x[:, 1], SIZE)]
    ahead, last = layers.rnn(layers.LSTMCell(SIZE), x, first, n)
    back, first = layers.rnn(layers.GRUCell(SIZE), x, sequence_length=n, is_reverse=True)
    both = layers.concat([ahead, back], axis=2)
    out, hidden = fluid.contrib.layers.basic_gru(
        both, None, SIZE, 2, n, dropout_prob=0.3, bidirectional=True
    )
    pooled = layers.reduce_mean(out, dim=1)
    guess = layers.fc(layers.concat([pooled, last[1], first, hidden[0]], axis=1), 3, act="softmax")
    return guess, [out, last[0]]


def one_operator():
    x = layers.transpose(given("x"), [1, 0, 2])
    like = {"shape": [2, -1, SIZE], "dtype": "float32", "value": 0.1}
    first = layers.fill_constant_batch_size_like(x, input_dim_idx=1, output_dim_idx=1, **like)
    out, hidden, _ = layers.lstm(x, first, first, STEPS, SIZE, 2, dropout_prob=0.2)
    return layers.fc(layers.concat([out[-1], hidden[0]], axis=1), 3, act="softmax"), []


def decoded():
    x, n = given("x"), given("n")
    state = layers.fc(layers.reduce_mean(x, dim=1), SIZE)
    decoder = layers.BasicDecoder(
        layers.GRUCell(SIZE), layers.TrainingHelper(x, n), lambda o: layers.fc(o, 6)
    )
    outputs, last = layers.dynamic_decode(decoder, inits=state, impute_finished=True)
    drawn = layers.reduce_sum(outputs.cell_outputs, dim=1)
    return layers.fc(layers.concat([drawn, last], axis=1), 3, act="softmax"), []


def pieces():
    x = given("ragged")
    words = layers.data("words", [1], dtype="int64", lod_level=1)
    begin, count = (layers.data(name, [1], dtype="int64") for name in ("begin", "count"))
    piece = layers.sequence_pool(layers.sequence_slice(x, begin, count), "sum")
    spread = layers.sequence_scatter(layers.fc(piece, WORDS), words, layers.fc(x, 1))
    return layers.fc(spread, 3, act="softmax"), [spread]


def state_cell():
    x = given("ragged")
    first = layers.fc(layers.sequence_pool(x, "sum"), SIZE)
    states = {"h": fluid.contrib.decoder.InitState(first, need_reorder=True)}
    cell = fluid.contrib.decoder.StateCell({"word": None}, states, "h")

    @cell.state_updater
    def compute(cell):
        fed = [cell.get_state("h"), cell.get_input("word")]
        cell.set_state("h", layers.fc(fed, SIZE, act="tanh"))

    decoder = fluid.contrib.decoder.TrainingDecoder(cell)
    with decoder.block():
        decoder.state_cell.compute_state({"word": decoder.step_input(x)})
        decoder.state_cell.update_states()
        decoder.output(decoder.state_cell.out_state())
    return layers.fc(layers.sequence_last_step(decoder()), 3, act="softmax"), []


NETS = {"divided": [pieces, state_cell], "whole": [padded, one_operator, decoded]}


def build(nets):
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        label = layers.data("label", [1], dtype="int64")
        made = [net() for net in nets]
        costs = [layers.mean(layers.cross_entropy(guess, label)) for guess, _ in made]
        loss = layers.sums(costs)
        fluid.optimizer.SGD(0.5).minimize(loss)
    return main, startup, [loss, *(value for guess, more in made for value in (guess, *more))]


def batch(rows):
    rng = np.random.default_rng(rows)
    lengths = rng.integers(1, 4, rows)
    begin = rng.integers(0, lengths)
    total = int(lengths.sum())
    return {
        "x": rng.normal(size=(rows, STEPS, WIDTH)).astype("float32"),
        "n": rng.integers(1, STEPS + 1, rows),
        "label": rng.integers(0, 3, (rows, 1)),
        "ragged": fluid.create_lod_tensor(
            rng.normal(size=(total, WIDTH)).astype("float32"), [lengths.tolist()]
        ),
        "words": fluid.create_lod_tensor(rng.integers(0, WORDS, (total, 1)), [lengths.tolist()]),
        "begin": begin.reshape(-1, 1),
        "count": rng.integers(0, lengths - begin + 1).reshape(-1, 1),
    }


def train(net):
    main, startup, fetches = build(net)
    fed = [name for name, var in main.global_block().vars.items() if var.is_data]
    exe = fluid.Executor()
    exe.run(startup)
    found = []
    for rows in ROWS:
        feed = {name: value for name, value in batch(rows).items() if name in fed}
        found += exe.run(main, feed, fetches)
    exe.close()
    return found


@pytest.mark.parametrize(("trainers", "servers"), SHAPES)
@pytest.mark.parametrize("name", sorted(NETS))
def test_a_job_computes_what_one_process_computes(name, trainers, servers):
    with alone():
        expected = train(NETS[name])
    for found in values(run_job(trainers, servers, lambda role: train(NETS[name]))):
        for got, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)


def test_which_batches_are_divided():
    whole = {
        net.__name__: SharedProgram(build([net])[0], 2).why_whole
        for nets in NETS.values()
        for net in nets
    }
    assert not whole["pieces"] and not whole["state_cell"]
    assert "'transpose2' cannot be divided by rows" in whole["padded"]
    assert "how often a loop turns depends on rows of the batch" in whole["decoded"]
