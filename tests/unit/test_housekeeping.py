"""What Fluid's scripts call around their programs."""

from __future__ import annotations

import io
import logging

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import HpcdistError


@pytest.fixture(autouse=True)
def programs():
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.unique_name.guard(),
        fluid.scope_guard(fluid.Scope()),
    ):
        yield


def run(feed, fetch):
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    return exe.run(feed=feed, fetch_list=fetch)


@pytest.mark.parametrize("asked", [("1.6.0",), ("1.8",), ("1.5", "1.8.5.0"), ("0",)])
def test_a_version_that_is_there(asked):
    fluid.require_version(*asked)


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        (("1.8.6",), Exception, "requires Fluid 1.8.6 or higher; hpcdist .* 1.8.5"),
        (("1.0", "1.7"), Exception, "requires Fluid 1.0 to 1.7"),
        (("1.8-rc",), ValueError, "expected one like"),
        ((1.8,), TypeError, "must be a string"),
    ],
)
def test_other_versions_are_refused(asked, error, message):
    with pytest.raises(error, match=message):
        fluid.require_version(*asked)


def test_groups_of_operators_and_devices_change_nothing():
    assert not fluid.in_dygraph_mode()
    with fluid.name_scope("encoder"), fluid.device_guard("cpu"):
        x = layers.fill_constant([1], "float32", 3.0)
    assert x.name == "fill_constant_0.tmp_0"
    with pytest.raises(AssertionError), fluid.name_scope():
        pass
    with pytest.raises(ValueError, match="expected 'cpu', 'gpu'"), fluid.device_guard("tpu"):
        pass


def test_a_layer_of_ones_own():
    from hpcdist.layer_helper import LayerHelper

    def scaled(input, act=None, param_attr=None, bias_attr=None, name=None):
        helper = LayerHelper("scaled", **locals())
        dtype = helper.input_dtype()
        w = helper.create_parameter(
            attr=helper.param_attr,
            shape=[input.shape[1]],
            dtype=dtype,
            default_initializer=fluid.initializer.Constant(2.0),
        )
        out = helper.create_variable_for_type_inference(dtype)
        helper.append_op(
            type="elementwise_mul",
            inputs={"X": [helper.input()], "Y": [w]},
            outputs={"Out": [out]},
            attrs={"axis": 1},
        )
        return helper.append_activation(helper.append_bias_op(out))

    x = fluid.data("x", [None, 3])
    out = scaled(
        x, act="relu", bias_attr=fluid.ParamAttr(initializer=fluid.initializer.Constant(-1.0))
    )
    assert [p.name for p in fluid.default_main_program().all_parameters()] == [
        "scaled_0.w_0",
        "scaled_0.b_0",
    ]
    values = np.array([[1.0, 0.0, 2.0]], np.float32)
    np.testing.assert_array_equal(run({"x": values}, [out])[0], [[1.0, 0.0, 3.0]])
    helper = LayerHelper("mine", input=3)
    with pytest.raises(TypeError, match="input must be a Variable"):
        helper.input()


@pytest.mark.parametrize("dim", [None, 0, 1])
def test_a_weight_with_a_length_of_its_own(dim):
    x = fluid.data("x", [None, 3])
    attr = fluid.WeightNormParamAttr(
        dim=dim, name="w", initializer=fluid.initializer.Normal(seed=5)
    )
    out = layers.fc(x, 2, param_attr=attr, bias_attr=False)
    loss = layers.mean(out)
    fluid.optimizer.SGD(0.5).minimize(loss)
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())

    def held(name):
        return np.array(fluid.global_scope().find_var(name).get_tensor())

    v, g = held("w_v"), held("w_g")
    axis = None if dim is None else 1 - dim
    norms = np.sqrt(np.sum(v * v, axis=axis, keepdims=True))
    np.testing.assert_allclose(g, norms.reshape(g.shape), rtol=1e-6)
    (first,) = exe.run(feed={"x": values}, fetch_list=[out])
    np.testing.assert_allclose(first, values @ v, rtol=1e-5)  # g / |v| is 1 at first
    v, g = held("w_v"), held("w_g")
    (second,) = exe.run(feed={"x": values}, fetch_list=[out])
    norms = np.sqrt(np.sum(v * v, axis=axis, keepdims=True))
    np.testing.assert_allclose(second, values @ (v * (g / norms)), rtol=1e-5)
    assert second.mean() < first.mean()


def test_statistics_of_a_program():
    from hpcdist.contrib import memory_usage, op_freq_statistic

    x = fluid.data("x", [None, 3])
    layers.fc(layers.fc(x, 4, act="relu"), 1)
    low, high, unit = memory_usage(fluid.default_main_program(), batch_size=10)
    elements = 10 * (4 * 3 + 1 * 2)
    assert (low, high, unit) == (elements * 4 * 1.05, elements * 4 * 1.1, "B")
    single, pairs = op_freq_statistic(fluid.default_main_program())
    assert dict(single) == {"mul": 2, "elementwise_add": 2, "relu": 1}
    assert dict(pairs) == {"mul->elementwise_add": 2, "elementwise_add->relu": 1, "relu->mul": 1}
    with pytest.raises(TypeError, match="expected a Program"):
        memory_usage(3, 1)


def test_a_check_of_the_installation(capsys):
    fluid.install_check.run_check()
    assert "installed successfully" in capsys.readouterr().out


def test_a_logger_that_writes_by_itself(capsys):
    logger = fluid.log_helper.get_logger("of_a_test", logging.INFO, fmt="%(message)s here")
    logger.info("seen")
    assert capsys.readouterr().err == "seen here\n"
    assert issubclass(fluid.core.EnforceNotMet, HpcdistError)


def test_schedules_of_ones_own_count_steps():
    from hpcdist.fluid.layers.learning_rate_scheduler import _decay_step_counter

    step = _decay_step_counter(begin=5)
    assert run({}, [step])[0] == [5.0]


def test_text_of_python_2():
    from hpcdist.compat import python_versions as compat

    assert compat.to_text([b"a", "b"]) == ["a", "b"]
    given = {"a"}
    assert compat.to_bytes(given, inplace=True) is given and given == {b"a"}
    assert [compat.round(x) for x in (0.5, 1.5, -2.5, 0.0)] == [1.0, 2.0, -3.0, 0.0]
    assert compat.round(2.675001, 2) == 2.68


def test_what_scripts_ask_of_variables_and_programs():
    from hpcdist.transpiler.details import (
        delete_ops,
        find_op_by_input_arg,
        find_op_by_output_arg,
        op_to_code,
        program_to_code,
    )
    from hpcdist.transpiler.ps_dispatcher import HashName

    assert HashName is fluid.transpiler.HashName
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        x = fluid.data("x", [None, 2])
        hidden = layers.fc(x, 2)
        hidden._set_error_clip(fluid.clip.ErrorClipByValue(1e-6))
        fluid.optimizer.SGD(0.1).minimize(layers.mean(hidden))
        program = fluid.default_main_program()
    assert hidden.grad_name == "fc_0.tmp_1@GRAD"
    block = program.global_block()
    assert "clip" in [op.type for op in block.ops]
    assert [find_op_by_input_arg(block, "x"), find_op_by_input_arg(block, "y")] == [0, -1]
    assert find_op_by_output_arg(block, hidden.name, reverse=True) == 1
    text = io.StringIO()
    program_to_code(program, text)
    assert "mul(X=x" in text.getvalue() and op_to_code(block.ops[0]) in text.getvalue()
    delete_ops(block, [block.ops[0]])
    assert block.ops[0].type == "elementwise_add"
    kinds = fluid.core.VarDesc.VarType
    assert all(
        var.type not in (kinds.FEED_MINIBATCH, kinds.FETCH_LIST) for var in block.vars.values()
    )


def test_an_average_of_fetched_losses_is_a_number():
    average = fluid.average.WeightedAverage()
    average.add(np.array([2.0]), 1)
    average.add(np.array([4.0]), 3)
    assert float(average.eval()) == 3.5


def test_values_of_a_scope_as_arrays():
    block = fluid.default_main_program().global_block()
    startup = fluid.default_startup_program().global_block()
    facts = {"name": "tree", "shape": [3, 2], "dtype": "int32", "persistable": True}
    block.create_var(**facts)
    startup.create_var(**facts, initializer=fluid.initializer.Constant(4))
    tensor = fluid.global_scope().var("tree").get_tensor()
    assert (tensor._get_dims(), tensor._is_initialized()) == ([0], False)
    assert fluid.executor.as_numpy(tensor) is None
    fluid.Executor(fluid.CPUPlace()).run(fluid.default_startup_program())
    assert (tensor._get_dims(), tensor._is_initialized()) == ([3, 2], True)
    assert fluid.executor._fetch_var("tree").tolist() == [[4, 4]] * 3
    held = fluid.executor._fetch_var("tree", return_numpy=False)
    assert np.array(held).dtype == np.int32
    with pytest.raises(HpcdistError, match="no variable 'leaf'"):
        fluid.executor._fetch_var("leaf")


def test_tensors_as_arrays():
    array = fluid.core.LoDTensorArray()
    array.append(fluid.create_lod_tensor(np.ones((2, 1)), [], fluid.CPUPlace()))
    assert isinstance(array[0], fluid.core.LoDTensor) and array[0]._get_dims() == [2, 1]
    assert [rows.tolist() for rows in fluid.executor.as_numpy(array)] == [[[1.0], [1.0]]]
    with pytest.raises(HpcdistError, match="an array does not hold sequences"):
        fluid.executor.as_numpy(fluid.create_lod_tensor([[1, 2], [3]], [[2, 1]], fluid.CPUPlace()))


def test_hdfs_is_refused_when_it_is_used():
    from hpcdist.contrib.utils.hdfs_utils import HDFSClient, multi_download
    from hpcdist.incubate.fleet.utils import hdfs

    assert hdfs.HDFSClient is HDFSClient is fluid.contrib.utils.HDFSClient
    for use in (HDFSClient, multi_download):
        with pytest.raises(HpcdistError, match="contrib.utils.* is not in hpcdist: .* shared file"):
            use("/opt/hadoop", {"fs.default.name": "hdfs://a"})


def test_losses_of_labels_without_a_last_dimension_have_their_shape():
    """Values and gradients are those that Fluid 1.8.5 gives for labels [2]."""
    x, label = fluid.data("x", [-1, 3]), fluid.data("label", [-1], "int64")
    x.stop_gradient = False
    cost = layers.cross_entropy(x, label, ignore_index=1)
    (slope,) = fluid.gradients(layers.mean(cost), x)
    assert cost.shape == (-1,)
    scores = np.array([[0.2, 0.3, 0.5], [0.1, 0.6, 0.3]], "float32")
    feed = {"x": scores, "label": np.array([2, 1])}
    losses, slopes = fluid.Executor(fluid.CPUPlace()).run(feed=feed, fetch_list=[cost, slope])
    np.testing.assert_allclose(losses, [np.log(2), 0], rtol=1e-6)
    np.testing.assert_allclose(slopes, [[0, 0, -1], [0, 0, 0]], rtol=1e-6)


def test_elements_of_fetched_and_kept_tensors_have_numbers():
    kept = fluid.global_scope().var("kept").get_tensor()
    kept.set(np.arange(6.0).reshape(2, 3), fluid.CPUPlace())
    fetched = fluid.create_lod_tensor(np.arange(6.0).reshape(2, 3), [[1, 1]], fluid.CPUPlace())
    for tensor in (kept, fetched):
        tensor._set_float_element(4, 9.5)
        assert tensor._get_float_element(4) == 9.5 == np.array(tensor)[1, 1]


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_variances_of_boxes_may_be_an_array(kind):
    boxes = np.array([[0, 0, 2, 2], [1, 1, 4, 3]], np.float32)
    prior = layers.data("prior", [2, 4], append_batch_size=False)
    target = layers.data("target", [2, 4], append_batch_size=False)
    block = fluid.default_main_program().global_block()
    out = block.create_var("out", dtype="float32")
    block.append_op(
        type="box_coder",
        inputs={"PriorBox": prior, "TargetBox": target},
        outputs={"OutputBox": out},
        attrs={"code_type": "encode_center_size", "variance": kind([0.1, 0.1, 0.2, 0.5])},
    )
    (found,) = run({"prior": boxes, "target": boxes + 1}, [out])
    np.testing.assert_allclose(found[0, 0], [5, 5, 0, 0], atol=1e-5)
