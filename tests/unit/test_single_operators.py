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


# -- rows of tables --------------------------------------------------------------------------------
def _put_rows(scope: fluid.Scope, name: str, rows: list[int], height: int) -> core.SelectedRows:
    held = scope.var(name).get_selected_rows()
    held.set_height(height)
    held.set_rows(rows)
    held.get_tensor().set(np.arange(1, 2 * len(rows) + 1, dtype="float32").reshape(-1, 2))
    return held


def test_rows_of_a_table_are_set_and_read():
    rows = core.SelectedRows([0, 4, 7], 10)
    rows.get_tensor().set(np.ones((3, 2), "float32"), fluid.CPUPlace())
    assert (rows.rows(), rows.height(), rows.numel()) == ([0, 4, 7], 10, 6)
    scope = fluid.Scope()
    held = _put_rows(scope, "g", [5, 1], 8)
    again = scope.find_var("g").get_selected_rows()
    assert again.rows() == [5, 1] and again.height() == 8
    held.get_tensor().set(np.zeros((2, 3), "float32"))
    assert np.array(again.get_tensor()).shape == (2, 3)


@pytest.mark.parametrize(
    ("type", "rows", "values"),
    [
        ("merge_selected_rows", [1, 5], [[3.0, 4.0], [6.0, 8.0]]),
        ("scale", [5, 1, 5], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
    ],
)
def test_an_operator_reads_and_writes_rows(Operator, type, rows, values):
    scope = fluid.Scope()
    _put_rows(scope, "x", [5, 1, 5], 8)
    out = scope.var("y").get_selected_rows()
    Operator(type, X="x", Out="y").run(scope, fluid.CPUPlace())
    assert (out.rows(), out.height()) == (rows, 8)
    assert np.array(out.get_tensor()).tolist() == values


def test_rows_are_added_in_place_each_once(Operator):
    scope = fluid.Scope()
    first = _put_rows(scope, "a", [3, 0], 4)
    _put_rows(scope, "b", [0], 4)
    scope.var("none").get_selected_rows().set_height(4)
    scope.var("none").get_selected_rows().get_tensor().set(np.ones((5, 2), "float32"))
    Operator("sum", X=["a", "b", "none"], Out="a").run(scope, fluid.CPUPlace())
    assert first.rows() == [0, 3]
    assert np.array(first.get_tensor()).tolist() == [[4.0, 6.0], [1.0, 2.0]]


def test_a_table_given_as_rows_is_looked_up_and_moved(Operator):
    scope = fluid.Scope()
    table = _put_rows(scope, "w", [2, 0, 1], 3)
    scope.var("ids").get_tensor().set(np.array([[0], [2]], "int64"))
    Operator("lookup_table", W="w", Ids="ids", Out="y").run(scope, fluid.CPUPlace())
    found = np.array(scope.find_var("y").get_tensor()).tolist()
    assert found == [[3.0, 4.0], [1.0, 2.0]]
    _put_rows(scope, "g", [1], 3)
    scope.var("r").get_tensor().set(np.array([1.0], "float32"))
    Operator("sgd", Param="w", Grad="g", LearningRate="r", ParamOut="w").run(scope)
    assert table.rows() == [2, 0, 1]
    assert np.array(table.get_tensor()).tolist() == [[1.0, 2.0], [3.0, 4.0], [4.0, 4.0]]


def test_what_rows_are_refused(Operator):
    scope = fluid.Scope()
    _put_rows(scope, "x", [5, 1], 8).set_rows([1, 2, 3])
    with pytest.raises(FeedError, match=r"'x': 3 rows, but values of shape \(2, 2\)"):
        Operator("scale", X="x", Out="y").run(scope)
    with pytest.raises(FeedError, match="holds SelectedRows"):
        np.array(scope.var("x").get_tensor())
    scope.var("d").get_tensor().set(np.ones(2, "float32"))
    with pytest.raises(FeedError, match="holds an array"):
        scope.var("d").get_selected_rows()
    _put_rows(scope, "w", [0, 2], 3)
    scope.var("ids").get_tensor().set(np.array([[0]], "int64"))
    with pytest.raises(GraphError, match="the table 'w' has 2 rows of 3"):
        Operator("lookup_table", W="w", Ids="ids", Out="y").run(scope)


def test_powers_of_adam_are_read_before_they_are_written_elsewhere(Operator):
    """In place Fluid's sparse kernel reads them a step ahead; the expected value is Fluid's."""
    moved = {}
    for ahead in (False, True):
        scope = fluid.Scope()
        _put_rows(scope, "Grad", [0], 2)
        slots = {"Param": 5.0, "Moment1": 5.0, "Moment2": 5.0, "LearningRate": 2.0}
        for name, value in slots.items():
            shape = (1,) if name == "LearningRate" else (2, 2)
            scope.var(name).get_tensor().set(np.full(shape, value, "float32"))
        for name, value in {"Beta1Pow": 0.5, "Beta2Pow": 0.25}.items():
            scope.var(name).get_tensor().set(np.array([value], "float32"))
            slots[name] = value
        outputs = ("Param", "Moment1", "Moment2", "Beta1Pow", "Beta2Pow")
        names = {f"{n}Out": n if ahead else f"{n}Out" for n in outputs}
        names |= {name: name for name in slots}
        Operator("adam", Grad="Grad", beta1=0.5, beta2=0.5, **names).run(scope)
        moved[ahead] = float(np.array(scope.find_var(names["ParamOut"]).get_tensor())[0, 0])
        power = np.array(scope.find_var(names["Beta1PowOut"]).get_tensor())
        assert power.tolist() == [0.25]
    moment, second = 0.5 * 5 + 0.5 * 1, 0.5 * 5 + 0.5 * 1
    for ahead, (power1, power2) in {False: (0.5, 0.25), True: (0.25, 0.125)}.items():
        rate = 2 * np.sqrt(1 - power2) / (1 - power1)
        assert moved[ahead] == pytest.approx(5 - rate * moment / np.sqrt(second), rel=1e-6)


def test_rows_move_towards_zero(Operator):
    scope = fluid.Scope()
    for name, values in {"p": [1.0, -0.02], "g": [0.5, 0.0], "m": [0.0, 0.0]}.items():
        scope.var(name).get_tensor().set(np.array(values, "float32"))
    scope.var("r").get_tensor().set(np.array([0.1], "float32"))
    facts = {"Param": "p", "Grad": "g", "LearningRate": "r", "ParamOut": "q"}
    Operator("proximal_gd", **facts, l1=0.5, l2=2.0).run(scope)
    moved = np.array(scope.find_var("q").get_tensor())
    assert np.allclose(moved, [(0.95 - 0.05) / 1.2, 0.0])
    Operator("proximal_adagrad", **facts, Moment="m", MomentOut="n", l2=2.0).run(scope)
    assert np.allclose(np.array(scope.find_var("n").get_tensor()), [0.25, 0.0])


def test_room_is_made_for_tensors():
    empty = fluid.Scope().var("e").get_tensor()
    assert isinstance(empty._mutable_data(fluid.CPUPlace(), "float32"), int)
    tensor = fluid.Scope().var("t").get_tensor()
    tensor._set_dims([2, 3])
    tensor._alloc_int(fluid.CPUPlace())
    assert np.array(tensor).dtype == "int32" and np.array(tensor).shape == (2, 3)
    tensor.set(np.ones((2, 3), "int32"))
    assert tensor._mutable_data(fluid.CPUPlace(), core.VarDesc.VarType.INT32) > 0
    assert np.array(tensor).sum() == 6  # what is there stays
    tensor._alloc_float(fluid.CPUPlace())
    assert np.array(tensor).dtype == "float32"


def test_a_variable_may_hold_a_whole_number():
    variable = fluid.Scope().var("n")
    with pytest.raises(FeedError, match="'n' holds no whole number"):
        variable.get_int()
    variable.set_int(10)
    assert variable.is_int() and variable.get_int() == 10


def test_a_place_may_be_chosen_later():
    place = core.Place()
    place.set_place(fluid.CPUPlace())
    assert place.is_cpu_place() and not place.is_gpu_place()
    assert fluid.Executor(place).place == fluid.CPUPlace()


def test_a_program_is_made_of_descriptions():
    program = core.ProgramDesc()
    block = program.block(0)
    for name in ("a", "b"):
        block.var(name).set_shape([2, 3])
    block.var("c")
    op = block.append_op()
    op.set_type("mul")
    op.set_input("X", ["a"])
    op.set_input("Y", ["b"])
    op.set_output("Out", ["c"])
    op.check_attrs()
    assert op.attr("x_num_col_dims") == 1
    block.var("b").set_shape([3, 5])
    op.infer_shape(block)
    assert block.var("c").shape() == [2, 5]
    inner = program.append_block(block)
    assert inner.parent == 0 and program.append_block(inner).parent == inner.id
    op.set_block_attr("sub_block", inner)
    assert op._block_attr_id("sub_block") == inner.id
    first = block._prepend_op()
    assert [block.op(i) == first for i in range(2)] == [True, False]


@pytest.fixture
def main():
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        yield fluid.default_main_program()


def test_an_array_is_no_variable(main):
    block = main.global_block()
    with pytest.raises(TypeError, match="expected a Variable, or the name of one, got ndarray"):
        block.append_op("relu", {"X": np.ones(2, "float32")}, {"Out": "y"})
    x = fluid.data("x", [2, 3])
    with pytest.raises(TypeError, match="expected SelectedRows, got a dense value"):
        fluid.layers.get_tensor_from_selected_rows(x)
    with pytest.raises(GraphError, match="level must be offsets, or a Variable, got 0"):
        fluid.layers.lod_append(x, 0)


@pytest.mark.parametrize("layer", ["tril", "triu"])
@pytest.mark.usefixtures("main")
def test_a_diagonal_is_a_number(layer):
    with pytest.raises(TypeError, match=f"diagonal in {layer} must be a python Int, got 1.5"):
        getattr(fluid.layers, layer)(fluid.data("x", [2, 3]), diagonal=1.5)
    with pytest.raises(ValueError, match=f"input shape in {layer} must be at least 2-D"):
        getattr(fluid.layers, layer)(fluid.data("vector", [2]))


def run_single(Operator, type, slots, outputs, **attrs):
    """Run one operator on arrays, and return its outputs."""
    scope = fluid.Scope()
    for slot, value in slots.items():
        scope.var(slot).get_tensor().set(np.array(value))
    named = {name: name for name in (*slots, *outputs)}
    Operator(type, **named, **attrs).run(scope, fluid.CPUPlace())
    return [np.array(scope.find_var(name).get_tensor()) for name in outputs]


def test_what_a_seed_in_a_slot_draws_is_fluids(Operator):
    x = np.arange(9 * 11, dtype="float32").reshape(1, 9, 11)
    slots, outputs = {"X": x, "Seed": [12345]}, ["Out", "SeedOut"]
    crop, seed = run_single(Operator, "random_crop", slots, outputs, shape=[2, 3])
    assert (crop[0, 0, 0], seed.tolist()) == (28.0, [1498755989])
    slots, outputs = {"X": np.arange(7.0)[:, None], "Seed": [99]}, ["Out", "SeedOut", "ShuffleIdx"]
    rows, seed, order = run_single(Operator, "shuffle_batch", slots, outputs)
    assert rows[:, 0].tolist() == order.tolist() == [2, 0, 4, 3, 6, 1, 5]
    assert seed.tolist() == [1411792268]


def test_rmsprop_may_lack_the_mean_that_it_does_not_move(Operator):
    names = {"Param": 1.0, "Grad": 2.0, "Moment": 0.5, "MeanSquare": 4.0}
    slots = {name: np.full(3, value, "float32") for name, value in names.items()}
    slots["LearningRate"] = np.array([0.1], "float32")
    attrs = {"decay": 0.75, "epsilon": 0.0, "momentum": 0.5}
    (moved,) = run_single(Operator, "rmsprop", slots, ["ParamOut"], centered=False, **attrs)
    assert moved == pytest.approx(1 - (0.5 * 0.5 + 0.1 * 2 / 2))
    with pytest.raises(GraphError, match="MeanGrad"):
        run_single(Operator, "rmsprop", slots, ["ParamOut"], centered=True, **attrs)
