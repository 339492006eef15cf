"""Recurrent layers: shapes, parameters, what is refused, and that they learn."""

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import GraphError


def ragged(width, name="x"):
    return layers.data(name, [width], dtype="float32", lod_level=1)


@pytest.fixture(autouse=True)
def programs():
    with fluid.unique_name.guard(), fluid.program_guard(fluid.Program(), fluid.Program()):
        yield


def shapes():
    parameters = fluid.default_main_program().all_parameters()
    return {p.name: p.shape for p in parameters}


def test_parameters_have_the_names_shapes_and_order_of_fluid():
    layers.dynamic_lstm(ragged(16), 16)
    layers.dynamic_lstm(ragged(16), 16, use_peepholes=False)
    layers.dynamic_lstmp(ragged(16), 16, 3)
    layers.dynamic_gru(ragged(12, "y"), 4, bias_attr=False)
    assert shapes() == {
        "lstm_0.w_0": (4, 16),
        "lstm_0.b_0": (1, 28),
        "lstm_1.w_0": (4, 16),
        "lstm_1.b_0": (1, 16),
        "lstmp_0.w_0": (3, 16),
        "lstmp_0.w_1": (4, 3),
        "lstmp_0.b_0": (1, 28),
        "gru_0.w_0": (4, 12),
    }


def test_what_does_not_fit_is_refused_when_it_is_built():
    with pytest.raises(GraphError, match="Input must be"):
        layers.dynamic_lstm(ragged(12, "z"), 16)
    with pytest.raises(GraphError, match="lod_level=1"):
        layers.dynamic_gru(layers.data("dense", [12], dtype="float32"), 4)
    with pytest.raises(AssertionError, match="bias_attr"):
        layers.dynamic_lstm(ragged(16), 16, bias_attr=False)
    with pytest.raises(GraphError, match="activation"):
        layers.dynamic_gru(ragged(12, "y"), 4, candidate_activation="swish")


def test_sequences_are_computed_apart_from_one_another_and_from_their_order():
    x = ragged(16)
    hidden, cell = layers.dynamic_lstm(layers.fc(x, 16), 16)
    turned = layers.dynamic_gru(layers.fc(x, 12), 4, is_reverse=True)
    exe, fetches = fluid.Executor(), [hidden, cell, turned]
    exe.run(fluid.default_startup_program())
    rows = np.random.default_rng(3).normal(size=(9, 16)).astype("float32")
    lengths = [2, 0, 4, 3]
    tensor = fluid.create_lod_tensor(rows, [lengths])
    whole = exe.run(feed={"x": tensor}, fetch_list=fetches, return_numpy=False)
    assert [value.recursive_sequence_lengths() for value in whole] == [[lengths]] * 3
    begin = 0
    for length in lengths:
        part = rows[begin : begin + length]
        alone = {"x": fluid.create_lod_tensor(part, [[length]])}
        for one, all_of_them in zip(exe.run(feed=alone, fetch_list=fetches), whole):
            np.testing.assert_allclose(one, np.array(all_of_them)[begin : begin + length], 1e-5)
        begin += length


def test_an_lstm_learns_which_number_came_first():
    x, label = ragged(1), layers.data("label", [1], dtype="int64")
    hidden, _ = layers.dynamic_lstm(layers.fc(x, 32), 32)
    last = layers.sequence_last_step(hidden)
    guess = layers.fc(last, 2, act="softmax")
    loss = layers.mean(layers.cross_entropy(guess, label))
    fluid.optimizer.Adam(0.05).minimize(loss)
    fluid.default_startup_program().random_seed = 1
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    rng = np.random.default_rng(0)
    for _ in range(60):
        lengths = rng.integers(3, 6, 16).tolist()
        rows = rng.choice([-1.0, 1.0], (sum(lengths), 1)).astype("float32")
        firsts = rows[np.cumsum([0, *lengths[:-1]])]
        feed = {"x": fluid.create_lod_tensor(rows, [lengths]), "label": (firsts > 0).astype(int)}
        (value,) = exe.run(feed=feed, fetch_list=[loss])
    assert float(value[0]) < 0.1


@pytest.mark.parametrize("width", [8, 6])
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("layer", ["lstm", "lstmp"])
def test_slopes_flow_back_through_an_lstms_cells(width, used, layer):
    x = ragged(4 * width)
    if layer == "lstm":
        results = layers.dynamic_lstm(x, 4 * width)
    else:
        results = layers.dynamic_lstmp(x, 4 * width, 3)
    pooled = [layers.sequence_pool(results[k], "sum") for k in used]
    loss = layers.mean(layers.concat(pooled, axis=1))
    tested = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.SGD(0.0).minimize(loss)
    exe = fluid.Executor()
    fluid.default_startup_program().random_seed = 1
    exe.run(fluid.default_startup_program())
    random = np.random.default_rng(0)
    rows = random.uniform(-1, 1, (6, 4 * width)).astype("float32")
    feed = {"x": fluid.create_lod_tensor(rows, [[4, 2]], fluid.CPUPlace())}
    (slopes,) = exe.run(feed=feed, fetch_list=[f"{layer}_0.b_0@GRAD"])
    bias = fluid.global_scope().find_var(f"{layer}_0.b_0").get_tensor()
    values = np.array(bias)
    for gate in range(4):  # candidate, input, forget, output
        losses = []
        for moved in (0.02, -0.02):
            there = values.copy()
            there[0, gate * width] += moved
            bias.set(there, fluid.CPUPlace())
            losses.append(float(exe.run(tested, feed=feed, fetch_list=[loss])[0][0]))
        assert slopes[0, gate * width] == pytest.approx((losses[0] - losses[1]) / 0.04, rel=0.02)


@pytest.mark.parametrize("origin_mode", [False, True])
def test_a_fused_unit_computes_as_the_layers_it_stands_for(origin_mode):
    x = ragged(3)
    fed = layers.fc(x, 12, bias_attr=False)
    hidden = layers.dynamic_gru(fed, 4, bias_attr=False, origin_mode=origin_mode)
    block = fluid.default_main_program().global_block()
    fused = block.create_var("fused", dtype="float32")
    inputs = {"X": [x], "WeightX": ["fc_0.w_0"], "WeightH": ["gru_0.w_0"]}
    block.append_op("fusion_gru", inputs, {"Hidden": [fused]}, {"origin_mode": origin_mode})
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    rows = np.random.default_rng(3).normal(size=(9, 3)).astype("float32")
    feed = {"x": fluid.create_lod_tensor(rows, [[2, 0, 4, 3]])}
    one, other = exe.run(feed=feed, fetch_list=[hidden, fused])
    np.testing.assert_allclose(one, other, 1e-5, 1e-6)
