"""Single operators on a scope; protos, flags and gradients, as Fluid's tests use them."""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.compat import aspaddle
from hpcdist.errors import FeedError, GraphError

core = fluid.core


@pytest.fixture
def Operator():
    aspaddle.install()
    from paddle.fluid.op import Operator

    yield Operator
    aspaddle.uninstall()


def test_an_operator_runs_on_the_values_of_a_scope(Operator):
    scope = fluid.Scope()
    scope.var("x").get_tensor().set(np.array([1.0, 2.0], "float32"))
    double = Operator("scale", X="x", Out="y", scale=2.0)
    double.run(scope, fluid.CPUPlace())
    assert np.array(scope.find_var("y").get_tensor()).tolist() == [2.0, 4.0]
    scope.find_var("x").get_tensor().set(np.array([1.0, 5.0], "float32"))
    double.run(scope, fluid.CPUPlace())
    assert np.array(scope.find_var("y").get_tensor()).tolist() == [2.0, 10.0]
    scope.find_var("x").get_tensor().set(np.ones((2, 2), "float64"))  # another shape and type
    double.run(scope, fluid.CPUPlace())
    assert np.array(scope.find_var("y").get_tensor()).shape == (2, 2)


def test_an_operator_reads_and_writes_sequences(Operator):
    scope = fluid.Scope()
    x = scope.var("x").get_tensor()
    x.set(np.arange(5, dtype="float32")[:, None])
    x.set_recursive_sequence_lengths([[2, 3]])
    Operator("sequence_softmax", X="x", Out="y").run(scope, fluid.CPUPlace())
    assert scope.find_var("y").get_tensor().recursive_sequence_lengths() == [[2, 3]]
    Operator("sequence_pool", X=["x"], Out="z", pooltype="SUM").run(scope, fluid.CPUPlace())
    assert np.array(scope.find_var("z").get_tensor()).reshape(-1).tolist() == [1.0, 9.0]


def test_an_operator_in_place(Operator):
    scope = fluid.Scope()
    scope.var("p").get_tensor().set(np.ones(2, "float32"))
    scope.var("g").get_tensor().set(np.full(2, 2.0, "float32"))
    scope.var("r").get_tensor().set(np.array([0.5], "float32"))
    sgd = Operator("sgd", Param="p", Grad="g", LearningRate="r", ParamOut="p")
    sgd.run(scope, fluid.CPUPlace())
    sgd.run(scope, fluid.CPUPlace())
    assert np.array(scope.find_var("p").get_tensor()).tolist() == [-1.0, -1.0]


def test_what_an_operator_refuses(Operator):
    with pytest.raises(ValueError, match="has not been registered"):
        Operator("scael", X="x")
    with pytest.raises(GraphError, match="slot X takes one variable"):
        Operator("scale", X=["x", "y"], Out="z")
    scope = fluid.Scope()
    with pytest.raises(GraphError, match="the scope has no variable 'x'"):
        Operator("scale", X="x", Out="y").run(scope)
    scope.var("x")
    with pytest.raises(FeedError, match="'x' is not initialized"):
        Operator("scale", X="x", Out="y").run(scope)


def test_slots_are_told(Operator):
    assert Operator.get_op_inputs("sum") == [("X", True)]
    assert "Out" in Operator.get_op_output_names("dropout")
    assert "scale" in Operator.get_op_attr_names("scale")
    proto = fluid.framework.OpProtoHolder.instance().get_op_proto("dropout")
    mask = next(slot for slot in proto.outputs if slot.name == "Mask")
    assert mask.intermediate and not mask.dispensable and not mask.duplicable


def test_flags_are_a_dictionary(monkeypatch):
    flags = core.globals()
    before = flags["FLAGS_check_nan_inf"]
    flags["FLAGS_check_nan_inf"] = True
    assert fluid.get_flags("FLAGS_check_nan_inf") == {"FLAGS_check_nan_inf": True}
    flags["FLAGS_check_nan_inf"] = before
    names = ("eager_delete_tensor_gb", "memory_fraction_of_eager_deletion")
    for name in (*names, "fast_eager_deletion_mode"):
        monkeypatch.setenv(f"FLAGS_{name}", "0")  # and set back after the test
    core._set_eager_deletion_mode(2.0**30, 0.5, True)
    assert flags["FLAGS_eager_delete_tensor_gb"] == 1.0
    assert "FLAGS_check_nan_inf" in list(flags)


def test_gradients_of_one_operator_are_told():
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x, y = (fluid.data(name, [2, 3], "float32") for name in "xy")
        out = fluid.layers.elementwise_add(x, y)
        desc = out.op.desc
    made, gradients = core.get_grad_op_desc(desc, set(), [])
    assert [op.type() for op in made] == ["elementwise_add_grad"]
    assert gradients == {"x@GRAD": "x", "y@GRAD": "y"}
    _, gradients = core.get_grad_op_desc(desc, {"y@GRAD"}, [])
    assert gradients == {"x@GRAD": "x"}
    assert core.has_grad_op_maker("relu") and not core.has_grad_op_maker("sgd")
    block = fluid.Program().global_block()
    assert block.desc.var(b"z").name() == "z" and block.has_var("z")
    assert fluid.backward._append_grad_suffix_("z") == "z@GRAD"
    copy = block.desc.append_op()
    copy.copy_from(made[0])
    assert copy.type() == "elementwise_add_grad" and copy.input("Out@GRAD") == [f"{out.name}@GRAD"]


def test_element_types_have_fluids_numbers():
    assert int(core.VarDesc.VarType.FP32) == 5 and core.VarDesc.VarType.FP32 == "float32"
    assert int(fluid.framework.convert_np_dtype_to_dtype_(np.int64)) == 3
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data("x", [2], "float32")
        block = fluid.default_main_program().global_block()
        y = block.create_var(name="y", dtype=None, shape=None, lod_level=None)
        attrs = {"in_dtype": int(core.VarDesc.VarType.FP32), "out_dtype": 3}
        block.append_op("cast", {"X": x}, {"Out": y}, attrs)
        (value,) = fluid.Executor().run(feed={"x": np.ones(2, "float32")}, fetch_list=[y])
    assert value.dtype == "int64" and y.dtype == "int64"


def test_gradients_of_variables_that_are_no_parameters():
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data("x", [2], "float32")
        x.stop_gradient = False
        loss = fluid.layers.reduce_sum(fluid.layers.square(x), keep_dim=True)
        ((of, gradient),) = fluid.append_backward(loss, parameter_list=["x"])
        (value,) = fluid.Executor().run(
            feed={"x": np.array([1, 3], "float32")}, fetch_list=[gradient]
        )
    assert of is x and value.tolist() == [2.0, 6.0]
