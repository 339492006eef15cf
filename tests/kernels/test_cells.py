"""Cells, decoders and layers over padded input: names, what is refused, numeric gradients."""

from typing import NamedTuple

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import FeedError, GraphError, GraphTypeError
from hpcdist.layers import structure

STEPS, ROWS, WIDTH, SIZE = 3, 2, 3, 2


class Pair(NamedTuple):
    first: object
    second: object


pytestmark = pytest.mark.usefixtures("programs")


def run(fetches, feed):
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    return exe.run(feed=feed, fetch_list=list(fetches))


def test_structures_are_taken_apart_and_put_together():
    nest = {"b": [1, (2, 3)], "a": Pair(4, [])}
    assert structure.flatten(nest) == [4, 1, 2, 3]
    doubled = structure.map_structure(lambda x, y: x + y, nest, nest)
    assert doubled == {"b": [2, (4, 6)], "a": Pair(8, [])} and isinstance(doubled["a"], Pair)
    structure.assert_same_structure(nest, doubled)
    with pytest.raises(GraphTypeError, match="a list, the other a tuple"):
        structure.assert_same_structure([1, 2], (1, 2))
    with pytest.raises(GraphError, match="2 values, but 1"):
        structure.pack_sequence_as([1, 2], [1])


def test_parameters_have_the_names_of_fluid():
    x = layers.data("x", [4])
    states = layers.LSTMCell(2).get_initial_states(x)
    layers.LSTMCell(2)(x, states)
    named = fluid.ParamAttr("own")
    layers.GRUCell(2, param_attr=named)(x, states[0])
    shapes = {p.name: p.shape for p in fluid.default_main_program().all_parameters()}
    assert shapes == {
        "LSTMCell/BasicLSTMUnit_1.w_0": (6, 8),
        "LSTMCell/BasicLSTMUnit_1.b_0": (8,),
        "own_gate": (6, 4),
        "own_candidate": (6, 2),
        "GRUCell/BasicGRUUnit_0.b_0": (4,),
        "GRUCell/BasicGRUUnit_0.b_1": (2,),
    }


def test_what_cannot_be_built_says_so():
    x = layers.data("x", [4])
    with pytest.raises(GraphError, match="cannot be left out"):
        layers.LSTMCell(2, bias_attr=False)
    with pytest.raises(GraphTypeError, match="states must be of type list"):
        layers.LSTMCell(2)(x, x)
    with pytest.raises(NotImplementedError, match="RNNCell must have a method call"):
        layers.RNNCell()(x, x)
    with pytest.raises(GraphError, match="init_hidden and init_cell"):
        fluid.contrib.layers.basic_lstm(layers.data("y", [3, 4]), x, None, 2)
    with pytest.raises(GraphError, match=r"InitH must be \[2, -1, 2\]"):
        fed = layers.data("z", [3, -1, 4], append_batch_size=False)
        first = layers.data("h", [1, -1, 2], append_batch_size=False)
        layers.lstm(fed, first, first, 3, 2, 2)


def through(state, weights, rows):
    """One direction of a layer, as cuDNN documents it; gates: input, forget, candidate, output."""
    hidden, cell = state
    out = []
    for row in rows:
        i, f, g, o = np.split(row @ weights[0].T + hidden @ weights[1].T + weights[2], 4, axis=1)
        i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
        cell = f * cell + i * np.tanh(g)
        hidden = o * np.tanh(cell)
        out.append(hidden)
    return np.array(out), hidden, cell


def pieces_of(flat, widths, ways):
    """Cut cuDNN's flat weights: matrices of all layers and directions, then two biases of each."""
    found, at = [], 0
    for width in widths:
        for _ in range(ways):
            made = []
            for columns in (width, SIZE):
                made.append(flat[at : at + 4 * SIZE * columns].reshape(4 * SIZE, columns))
                at += made[-1].size
            found.append(made)
    for made in found:
        made.append(flat[at : at + 4 * SIZE] + flat[at + 4 * SIZE : at + 8 * SIZE])
        at += 8 * SIZE
    assert at == len(flat)
    return found


@pytest.mark.parametrize("ways", [1, 2])
def test_lstm_computes_what_cudnn_does_and_its_gradients_are_slopes(ways):
    x = layers.data("x", [STEPS, ROWS, WIDTH], append_batch_size=False)
    h, c = (
        layers.data(name, [2 * ways, ROWS, SIZE], append_batch_size=False) for name in ("h", "c")
    )
    for given in (x, h, c):
        given.stop_gradient = False
    outs = layers.lstm(x, h, c, STEPS, SIZE, 2, is_bidirec=ways == 2)
    (weight,) = fluid.default_main_program().all_parameters()
    parts = [layers.reduce_sum(layers.elementwise_mul(v, v)) for v in outs]
    loss = layers.sums(parts)
    slopes = fluid.gradients(loss, [x, h, c, weight])
    rng = np.random.default_rng(4)
    values = {v.name: rng.normal(size=v.shape).astype("float32") for v in (x, h, c)}
    flat = rng.uniform(-0.6, 0.6, weight.shape)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())

    def set_weight(numbers):
        tensor = fluid.global_scope().find_var(weight.name).get_tensor()
        tensor.set(numbers.astype("float32"), fluid.CPUPlace())

    set_weight(flat)
    found = exe.run(feed=values, fetch_list=[*outs, *slopes])
    rows, lasts = values["x"], []
    for group in np.arange(2 * ways).reshape(2, ways):
        made = []
        for k in group:
            pieces = pieces_of(flat, [WIDTH, ways * SIZE], ways)[k]
            turn = slice(None, None, -1 if k % ways else 1)
            out, *last = through((values["h"][k], values["c"][k]), pieces, rows[turn])
            made.append(out[turn])
            lasts.append(last)
        rows = np.concatenate(made, axis=2)
    for got, wanted in zip(found, (rows, *map(np.array, zip(*lasts)))):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)

    def loss_at(feed, numbers):
        set_weight(numbers)
        return exe.run(feed=feed, fetch_list=[loss])[0].item()

    for name, slope in zip((*values, None), found[3:]):
        step = rng.normal(size=slope.shape)
        step *= 1e-2 / np.linalg.norm(step)
        sides = []
        for sign in (1, -1):
            feed, numbers = dict(values), flat
            if name is None:
                numbers = flat + sign * step
            else:
                feed[name] = (values[name] + sign * step).astype("float32")
            sides.append(loss_at(feed, numbers))
        assert (sides[0] - sides[1]) / 2 == pytest.approx((slope * step).sum(), rel=2e-2, abs=2e-4)


def test_dropout_stands_between_layers_of_lstm_in_training_only():
    fed = {"shape": [STEPS, ROWS, WIDTH], "append_batch_size": False}
    x = layers.data("x", **fed)
    first = layers.fill_constant([2, ROWS, SIZE], "float32", 0.0)
    outs = [
        layers.lstm(x, first, first, STEPS, SIZE, 2, dropout_prob=p, is_test=test, name="shared")
        for p, test in ((0.0, False), (0.5, True), (0.5, False))
    ]
    weights = fluid.default_main_program().all_parameters()
    for_test = fluid.default_main_program().clone(for_test=True)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    held = [fluid.global_scope().find_var(w.name).get_tensor() for w in weights]
    for tensor in held[1:]:
        tensor.set(np.array(held[0]), fluid.CPUPlace())
    feed = {"x": np.ones((STEPS, ROWS, WIDTH), "float32")}
    plain, tested, dropped = exe.run(feed=feed, fetch_list=[out[0] for out in outs])
    np.testing.assert_array_equal(plain, tested)
    assert not np.allclose(plain, dropped)
    for got in exe.run(for_test, feed=feed, fetch_list=[out[0] for out in outs]):
        np.testing.assert_allclose(got, plain, rtol=1e-6)


def test_a_gradient_finds_the_place_in_an_array_that_was_written():
    """Also if the number that said where has been counted on since: Fluid takes the last place."""
    x = layers.data("x", [3], append_batch_size=False)
    x.stop_gradient = False
    place = layers.fill_constant([1], "int64", 0)
    array = layers.array_write(x, place)
    place = layers.increment(place, 1)
    layers.array_write(layers.scale(x, 2.0), place, array)
    joined = layers.tensor_array_to_tensor(array, axis=0)[0]
    (slope,) = fluid.gradients(layers.reduce_sum(layers.square(joined)), [x])
    given = np.array([1.0, -2.0, 3.0], "float32")
    np.testing.assert_allclose(run([slope], {"x": given})[0], 10 * given)


def test_what_no_sequence_has_is_refused_at_the_step():
    x = layers.data("x", [2], lod_level=1)
    begin, count = (layers.data(name, [1], dtype="int64") for name in ("begin", "count"))
    piece = layers.sequence_slice(x, begin, count)
    rows = fluid.create_lod_tensor(np.ones((5, 2), "float32"), [[2, 3]])
    feed = {"x": rows, "begin": np.array([[1], [0]]), "count": np.array([[1], [3]])}
    assert run([piece], feed)[0].shape == (4, 2)
    with pytest.raises(FeedError, match="sequence 0 has 2 rows, so 2 from row 1"):
        run([piece], {**feed, "count": np.array([[2], [3]])})
    words = layers.data("words", [1], dtype="int64", lod_level=1)
    updates = layers.data("updates", [1], lod_level=1)
    added = layers.sequence_scatter(layers.data("wide", [4]), words, updates)
    tokens = fluid.create_lod_tensor(np.array([[0], [4], [1]]), [[1, 2]])
    numbers = fluid.create_lod_tensor(np.ones((3, 1), "float32"), [[1, 2]])
    wide = np.zeros((2, 4), "float32")
    with pytest.raises(FeedError, match="an index must be from 0 to 3, got 0 to 4"):
        run([added], {**feed, "words": tokens, "updates": numbers, "wide": wide})


def test_decoding_needs_a_step():
    x, length = layers.data("x", [3, 4]), layers.data("length", [1], dtype="int64")
    cell = layers.GRUCell(4)
    helper = layers.TrainingHelper(x, layers.reshape(length, [-1]))
    out, _ = layers.dynamic_decode(
        layers.BasicDecoder(cell, helper), inits=cell.get_initial_states(x)
    )
    feed = {"x": np.ones((2, 3, 4), "float32"), "length": np.array([[1], [3]])}
    assert run([out.cell_outputs], feed)[0].shape == (2, 3, 4)
    with pytest.raises(FeedError, match="the array is empty: the loop that fills it made no step"):
        run([out.cell_outputs], {**feed, "length": np.array([[0], [0]])})
    with pytest.raises(FeedError, match="gather: id 4 .* is outside 0..3"):
        run([out.cell_outputs], {**feed, "length": np.array([[1], [5]])})


def test_a_search_ends_with_the_word_that_is_given():
    decoders = fluid.contrib.decoder
    first = decoders.InitState(init=layers.data("context", [5]))
    cell = decoders.StateCell({"word": None}, {"h": first}, "h")
    cell.state_updater(lambda cell: cell.set_state("h", layers.fc(cell.get_state("h"), 5)))
    ids = layers.data("ids", [1], dtype="int64", lod_level=2)
    scores = layers.data("scores", [1], lod_level=2)
    search = decoders.BeamSearchDecoder(cell, ids, scores, 12, 4, topk_size=5, end_id=3)
    with pytest.raises(GraphError, match="after decode"):
        search()
    search.decode()
    search()
    ops = [op for block in fluid.default_main_program().blocks for op in block.ops]
    ends = [op.attrs["end_id"] for op in ops if op.type.startswith("beam_search")]
    assert ends == [3, 3]
    with pytest.raises(GraphError, match="can be built once only"):
        search.decode()
    with pytest.raises(GraphError, match="no input 'letter'"):
        cell.compute_state({"letter": ids})
    with pytest.raises(GraphError, match="out_state 'c' is not one of"):
        decoders.StateCell({}, {"h": first}, "c")
