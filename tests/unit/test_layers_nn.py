"""Layers: Fluid's names, operators and shapes; what they refuse; that they train."""

import numpy as np
import pytest

from hpcdist import layers
from hpcdist.backward import append_backward
from hpcdist.errors import FeedError, GraphError
from hpcdist.executor.backend import CPUPlace
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope
from hpcdist.fluid.layers.embedding import embedding_v2, one_hot_v2
from hpcdist.fluid.layers.io import data_v2
from hpcdist.fluid.layers.param_attr import ParamAttr
from hpcdist.initializer import Constant, NumpyArrayInitializer
from hpcdist.optimizer import SGD
from hpcdist.regularizer import L2Decay


def ops(program):
    return [op.type for op in program.global_block().ops]


def outputs(program):
    return [name for op in program.global_block().ops for name in op.output_arg_names]


def run(main, startup, feed, fetch_list):
    exe, scope = Executor(CPUPlace()), Scope()
    exe.run(startup, scope=scope)
    return exe.run(main, feed=feed, fetch_list=fetch_list, scope=scope)


# -- data ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape, expected",
    [([3], (-1, 3)), ([-1, 3], (-1, 3)), ([None, 3], (-1, 3)), ([3, -1], (3, -1))],
)
def test_data_puts_the_batch_first_unless_a_dimension_is_open(programs, shape, expected):
    assert layers.data("x", shape).shape == expected


def test_data_keeps_its_shape_when_told(programs):
    x = layers.data("x", [3], append_batch_size=False, dtype="int64", stop_gradient=False)
    assert (x.shape, x.dtype, x.stop_gradient, x.is_data) == ((3,), "int64", False, True)
    assert data_v2("y", [None, 3]).shape == (-1, 3)
    assert data_v2("z", [2, 3]).shape == (2, 3)


def test_data_declared_twice_must_agree(programs):
    x = layers.data("x", [3])
    assert layers.data("x", [3]) is x
    with pytest.raises(ValueError, match=r"data 'x' already exists as float32\[-1, 3\]"):
        layers.data("x", [4])


def test_data_shape_must_be_a_list(programs):
    with pytest.raises(TypeError, match=r"layers\.data 'x': the shape must be a list"):
        layers.data("x", 3)


# -- fc --------------------------------------------------------------------------------------------


def test_fc_is_mul_add_and_activation_with_fluids_names(programs):
    main, startup = programs
    out = layers.fc(layers.data("x", [4]), 3, act="relu")
    assert ops(main) == ["mul", "elementwise_add", "relu"]
    assert outputs(main) == ["fc_0.tmp_0", "fc_0.tmp_1", "fc_0.tmp_2"]
    assert main.global_block().ops[1].attr("axis") == 1
    assert [(p.name, p.shape) for p in main.all_parameters()] == [
        ("fc_0.w_0", (4, 3)),
        ("fc_0.b_0", (3,)),
    ]
    assert ops(startup) == ["fill_constant", "uniform_random"]
    assert out.shape == (-1, 3)


def test_fc_sums_several_inputs_and_flattens(programs):
    rng = np.random.default_rng(0)
    x, z = (rng.standard_normal((4, 3, n)).astype("float32") for n in (2, 5))
    u, v = (rng.standard_normal((n, 3)).astype("float32") for n in (2, 5))
    attrs = [ParamAttr(initializer=NumpyArrayInitializer(w)) for w in (u, v)]
    inputs = [layers.data("x", [3, 2]), layers.data("z", [3, 5])]
    out = layers.fc(inputs, 3, num_flatten_dims=2, param_attr=attrs, bias_attr=False, name="sum")
    main, startup = programs
    assert ops(main) == ["mul", "mul", "sum"]
    assert outputs(main) == ["sum.tmp_0", "sum.tmp_1", "sum.tmp_2"]
    (value,) = run(main, startup, {"x": x, "z": z}, [out])
    np.testing.assert_allclose(value, x @ u + z @ v, rtol=1e-5)


def test_fc_with_one_name_shares_its_weight(programs):
    x = layers.data("x", [4])
    for _ in range(2):
        layers.fc(x, 3, param_attr="w", bias_attr="b")
    assert [p.name for p in programs[0].all_parameters()] == ["w", "b"]
    with pytest.raises(GraphError, match=r"'w' is \(4, 3\), cannot share it as \(4, 2\)"):
        layers.fc(x, 2, param_attr="w")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"param_attr": [None, None]}, "2 parameter attributes for 1 inputs"),
        ({"param_attr": False}, "needs weights"),
        ({"num_flatten_dims": 2}, r"num_flatten_dims 2 must be within 1\.\.1"),
    ],
)
def test_fc_refuses_what_does_not_fit(programs, arguments, message):
    with pytest.raises(GraphError, match=message):
        layers.fc(**{"input": layers.data("x", [4]), "size": 3, **arguments})


# -- losses and metrics ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "build, types, names_of_outputs",
    [
        (
            lambda x, y: layers.cross_entropy(x, y),
            ["cross_entropy2"],
            [f"cross_entropy2_0.tmp_{i}" for i in range(3)],
        ),
        (
            lambda x, y: layers.cross_entropy(x, x, soft_label=True),
            ["cross_entropy"],
            ["cross_entropy_0.tmp_0"],
        ),
        (
            lambda x, y: layers.softmax_with_cross_entropy(x, y),
            ["softmax_with_cross_entropy"],
            [f"softmax_with_cross_entropy_0.tmp_{i}" for i in range(2)],
        ),
        (
            lambda x, y: layers.square_error_cost(x, x),
            ["elementwise_sub", "square"],
            [f"square_error_cost_0.tmp_{i}" for i in range(2)],
        ),
        (
            lambda x, y: layers.mse_loss(x, x),
            ["elementwise_sub", "square", "reduce_mean"],
            ["square_error_cost_0.tmp_0", "square_error_cost_0.tmp_1", "reduce_mean_0.tmp_0"],
        ),
        (
            lambda x, y: layers.accuracy(x, y, k=2),
            ["top_k", "accuracy"],
            ["top_k_0.tmp_0", "top_k_0.tmp_1", *(f"accuracy_0.tmp_{i}" for i in range(3))],
        ),
        (
            lambda x, y: layers.layer_norm(x),
            ["layer_norm"],
            [f"layer_norm_0.tmp_{i}" for i in (2, 0, 1)],
        ),
        (
            lambda x, y: layers.dropout(x, 0.5),
            ["dropout"],
            ["dropout_0.tmp_0", "dropout_0.tmp_1"],
        ),
        (
            lambda x, y: layers.l2_normalize(x, 1),
            ["norm"],
            ["l2_normalize_0.tmp_0", "l2_normalize_0.tmp_1"],
        ),
    ],
)
def test_layers_append_fluids_operators_under_fluids_names(
    programs, build, types, names_of_outputs
):
    build(layers.data("x", [4]), layers.data("y", [1], dtype="int64"))
    assert ops(programs[0]) == types
    assert outputs(programs[0]) == names_of_outputs


def test_softmax_with_cross_entropy_returns_the_softmax_on_demand(programs):
    x, y = layers.data("x", [3, 4]), layers.data("y", [3, 1], dtype="int64")
    loss, softmax = layers.softmax_with_cross_entropy(x, y, return_softmax=True)
    assert (loss.shape, softmax.shape) == ((-1, 3, 1), (-1, 3, 4))


def test_accuracy_fills_given_counters(programs):
    x, y = layers.data("x", [3]), layers.data("y", [1], dtype="int64")
    correct, total = (layers.create_tensor("int32", name) for name in ("right", "all"))
    share = layers.accuracy(x, y, correct=correct, total=total)
    feed = {"x": np.eye(3, dtype=np.float32), "y": np.array([[0], [1], [0]])}
    values = run(*programs, feed, [share, "right", "all"])
    np.testing.assert_allclose([v[0] for v in values], [2 / 3, 2, 3], rtol=1e-6)


def test_label_smooth_refuses_a_share_above_one(programs):
    with pytest.raises(GraphError, match=r"epsilon must be within 0\.\.1, got 2"):
        layers.label_smooth(layers.data("x", [3]), epsilon=2)


# -- embeddings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layer, op_type, shape, expected",
    [
        (layers.embedding, "lookup_table", [1], (-1, 4)),
        (layers.embedding, "lookup_table", [3, 1], (-1, 3, 4)),
        (embedding_v2, "lookup_table_v2", [3], (-1, 3, 4)),
        (embedding_v2, "lookup_table_v2", [1], (-1, 1, 4)),
    ],
)
def test_embedding_shapes(programs, layer, op_type, shape, expected):
    out = layer(layers.data("ids", shape, dtype="int64"), [10, 4], is_sparse=True, padding_idx=-2)
    (op,) = programs[0].global_block().ops
    assert (op.type, out.name, out.shape) == (op_type, "embedding_0.tmp_0", expected)
    assert (op.attr("padding_idx"), op.attr("remote_prefetch")) == (8, True)
    assert op.input("W") == ["embedding_0.w_0"]


def test_sparse_embedding_has_a_gradient_of_selected_rows(programs):
    ids = layers.data("ids", [1], dtype="int64")
    loss = layers.mean(layers.embedding(ids, [10, 4], is_sparse=True))
    ((table, grad),) = append_backward(loss)
    assert (grad.name, grad.type) == ("embedding_0.w_0@GRAD", "SELECTED_ROWS")
    feed = {"ids": np.array([[3], [9], [3]])}
    (value,) = run(*programs, feed, [grad])
    assert (value.height, value.rows.tolist()) == (table.shape[0], [3, 9, 3])
    np.testing.assert_allclose(value.value, np.full((3, 4), 1 / 12), rtol=1e-6)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"size": [10]}, r"size must be \[rows, width\]"),
        ({"padding_idx": 10}, "padding_idx 10 is outside a table of 10 rows"),
        ({"param_attr": False}, "needs a table"),
    ],
)
def test_embedding_refuses_what_does_not_fit(programs, arguments, message):
    ids = layers.data("ids", [1], dtype="int64")
    with pytest.raises(GraphError, match=message):
        layers.embedding(**{"input": ids, "size": [10, 4], **arguments})


def test_one_hot_shapes(programs):
    assert layers.one_hot(layers.data("a", [1], dtype="int64"), 5).shape == (-1, 5)
    assert one_hot_v2(layers.data("b", [3], dtype="int64"), 5).shape == (-1, 3, 5)


# -- dropout and layer_norm ------------------------------------------------------------------------


def test_clone_for_test_switches_dropout_off(programs):
    main, startup = programs
    out = layers.dropout(layers.data("x", [50]), 0.5)
    test = main.clone(for_test=True)
    feed = {"x": np.ones((4, 50), np.float32)}
    np.testing.assert_array_equal(run(test, startup, feed, [out.name])[0], feed["x"] / 2)
    assert set(run(main, startup, feed, [out])[0].flat) == {0, 1}


def test_dropout_layers_of_one_program_draw_different_masks(programs):
    main, startup = programs
    x = layers.data("x", [200])
    outs = [layers.dropout(x, 0.5) for _ in range(2)]
    feed = {"x": np.ones((4, 200), np.float32)}
    a, b = run(main, startup, feed, outs)
    again, _ = run(main, startup, feed, outs)
    assert (a != b).any()
    np.testing.assert_array_equal(a, again)


@pytest.mark.parametrize(("seed", "program_seed"), [(5, 0), (5, 90), (None, 5)])
def test_dropout_with_a_seed_draws_fluids_mask_in_every_step(programs, seed, program_seed):
    main, _ = programs
    main.random_seed = program_seed
    out = layers.dropout(layers.data("x", [12]), 0.3, seed=seed)
    exe, feed = Executor(), {"x": np.ones((2, 12), np.float32)}
    for _ in range(2):  # the mask was printed by Fluid 1.8.5 (CPU)
        (mask,) = exe.run(main, feed, [out])
        assert mask.ravel().tolist() == [float(c) for c in "010111111111101111111010"]


def test_layer_norm_without_scale_or_shift_has_no_such_parameters(programs):
    x = layers.data("x", [3, 4])
    layers.layer_norm(x, shift=False, begin_norm_axis=2)
    assert [(p.name, p.shape) for p in programs[0].all_parameters()] == [("layer_norm_0.w_0", (4,))]
    layers.layer_norm(x, scale=False)
    assert programs[0].all_parameters()[-1].shape == (12,)
    with pytest.raises(GraphError, match="param_attr=False, but scale=True needs one"):
        layers.layer_norm(x, param_attr=False)


# -- all together ----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_classifier_of_words_learns(programs, is_sparse):
    main, startup = programs
    startup.random_seed = 1
    words = layers.data("words", [3, 1], dtype="int64")
    label = layers.data("label", [1], dtype="int64")
    table = layers.embedding(words, [20, 8], is_sparse=is_sparse)
    hidden = layers.dropout(layers.layer_norm(layers.fc(table, 16, act="tanh")), 0.1, seed=2)
    prediction = layers.fc(hidden, 4, act="softmax")
    loss = layers.mean(layers.cross_entropy(prediction, label))
    share = layers.accuracy(prediction, label)
    SGD(learning_rate=0.2).minimize(loss)
    rng = np.random.default_rng(3)
    feed = {"words": rng.integers(0, 20, (64, 3, 1))}
    feed["label"] = feed["words"][:, 0] % 4
    exe, scope = Executor(CPUPlace()), Scope()
    exe.run(startup, scope=scope)
    history = [exe.run(main, feed, [loss, share], scope=scope) for _ in range(150)]
    assert history[0][0][0] > 1.2
    assert history[-1][0][0] < 0.4
    assert history[-1][1][0] > 0.9
    feed["words"][5, 1] = 20
    with pytest.raises(FeedError, match=r"lookup_table: id 20 \(element 16 of 192\)"):
        exe.run(main, feed, [loss], scope=scope)


def test_a_shared_parameter_is_trained_as_the_last_one_to_name_it_says(programs):
    x, decay = layers.data("x", [4]), L2Decay(0.1)
    first = ParamAttr(name="w", learning_rate=0.2, initializer=Constant(0.0))
    layers.fc(x, 3, param_attr=first, bias_attr=False)
    second = ParamAttr(name="w", learning_rate=0.5, regularizer=decay)
    layers.fc(x, 3, param_attr=second, bias_attr=False)
    shared = programs[0].global_block().var("w")
    assert (shared.optimize_attr, shared.regularizer) == ({"learning_rate": 0.5}, decay)
    assert [op.type for op in programs[1].global_block().ops] == ["fill_constant"]
    layers.create_parameter([4, 3], "float32", name="w")
    assert (shared.optimize_attr, shared.regularizer) == ({"learning_rate": 1.0}, None)
    layers.fc(x, 3, param_attr=ParamAttr(name="w", trainable=False), bias_attr=False)
    assert (shared.trainable, shared.stop_gradient) == (False, True)
