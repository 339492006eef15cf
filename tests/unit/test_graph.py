"""The graph: what Programs, Blocks, Operators and Variables tell of themselves, and as text."""

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.errors import CheckpointError, GraphError, GraphTypeError
from hpcdist.fluid.compat.framework import Operator, Parameter, switch_main_program
from hpcdist.fluid.io.program_data import from_data, to_data
from hpcdist.graph import ROLE_VAR_ATTR, OpRole
from tests.support.classifiers import classifier, types


# -- accessors -------------------------------------------------------------------------------------
def test_a_program_owns_blocks(programs):
    program = fluid.Program()
    assert (program.num_blocks, program.random_seed) == (1, 0)
    block = program.global_block()
    assert (block.idx, block.parent_idx, block.program, block.parent) == (0, -1, program, None)
    inner = program._create_block()
    assert program.current_block() is inner
    assert (inner.idx, inner.parent_idx, inner.parent) == (1, 0, block)
    assert program.block(1) is inner
    program._rollback()
    assert program.current_block() is block


def test_distribution_fields_have_fluids_values():
    program = fluid.Program()
    assert (program._is_distributed, program._is_chief, program._nccl_comm_num) == (False, False, 1)
    assert not program._use_hierarchical_allreduce
    assert program._hierarchical_allreduce_inter_nranks == 0


def test_a_variable_tells_what_it_is(programs):
    main, _ = programs
    x = fluid.layers.data("x", [3, 4], dtype="int64")
    assert (x.name, x.shape, x.dtype, x.type) == ("x", (-1, 3, 4), "int64", "LOD_TENSOR")
    assert (x.persistable, x.stop_gradient, x.lod_level, x.is_data) == (False, True, 0, True)
    assert fluid.data("z", [3, 4]).shape == (3, 4)  # fluid.data adds no batch
    assert fluid.layers.data("whole", [3], append_batch_size=False).shape == (3,)
    made = main.global_block().create_var(name="t", shape=[2, -1], dtype=np.float64)
    assert (made.shape, made.dtype) == ((2, -1), "float64")
    assert made.block is main.global_block()
    assert main.global_block().create_var(name="t") is made
    assert main.global_block().create_var().name == "_generated_var_0"


def test_a_parameter_tells_how_it_is_trained(programs):
    main, _ = programs
    l2 = fluid.regularizer.L2Decay(0.1)
    attr = fluid.ParamAttr(name="w", learning_rate=2.0, regularizer=l2)
    fluid.layers.fc(fluid.layers.data("x", [3]), 2, param_attr=attr)
    fluid.layers.create_parameter([2], "float32", name="fixed", attr=fluid.ParamAttr(trainable=0))
    w, b, fixed = main.all_parameters()
    assert [p.name for p in (w, b)] == ["w", "fc_0.b_0"]
    assert isinstance(w, Parameter) and w.persistable and w.trainable and not w.is_distributed
    assert (w.optimize_attr, w.regularizer) == ({"learning_rate": 2.0}, l2)
    assert w.gradient_clip_attr is None
    assert (fixed.trainable, fixed.stop_gradient) == (False, True)
    assert main.global_block().all_parameters() == [w, b, fixed]


def test_an_operator_tells_its_slots_and_attributes(programs):
    main, _ = programs
    block = main.global_block()
    for name in ("a", "b"):
        block.create_var(name, shape=(2, 3))
    op = block.append_op(type="concat", inputs={"X": ["a", "b"]}, outputs={"Out": "c"})
    assert isinstance(op, Operator) and op.block is block and op.type == "concat"
    assert (op.input("X"), op.output("Out"), op.input("Nothing")) == (["a", "b"], ["c"], [])
    assert (op.input_names, op.output_names) == (["X"], ["Out"])
    assert (op.input_arg_names, op.output_arg_names) == (["a", "b"], ["c"])
    assert op.attr("axis") == 0 and op.has_attr("axis") and not op.has_attr("colour")
    op.all_attrs()["axis"] = 1
    assert op.attr("axis") == 0, "all_attrs gives a copy"
    before = main.version
    op._set_attr("axis", 1)
    assert op.attr("axis") == 1 and main.version > before
    op.rename({"a": "b"})
    assert op.input("X") == ["b", "b"]
    with pytest.raises(KeyError):
        op.attr("colour")


def test_operators_are_put_where_asked(programs):
    main, _ = programs
    block = main.global_block()
    block.create_var("x", shape=(2,))
    block.append_op("relu", {"X": "x"}, {"Out": "y"})
    block._prepend_op("abs", {"X": "x"}, {"Out": "z"})
    block._insert_op(1, "square", {"X": "x"}, {"Out": "s"})
    assert types(main) == ["abs", "square", "relu"]
    assert [op.place for op in block] == ["op #0", "op #1", "op #2"]
    assert main.global_block().var("s").op is block.ops[1]
    block._remove_op(1)
    assert types(main) == ["abs", "relu"]
    block._remove_var("s")
    assert not block.has_var("s")


def test_variables_are_found_in_parents(programs):
    main, _ = programs
    outer = main.global_block().create_var("outer")
    inner = main._create_block()
    own = inner.create_var("own")
    assert inner.find_var("outer") is outer and inner._var_recursive("own") is own
    assert not inner.has_var("outer") and outer.block.find_var("own") is None
    with pytest.raises(GraphError, match="block 1 has no variable 'outer'"):
        inner.var("outer")
    with pytest.raises(GraphError, match="no variable 'nowhere' in block 1 or its parents"):
        inner._var_recursive("nowhere")
    w = inner.create_parameter(name="w", shape=[2], dtype="float32")
    assert w.block is main.global_block(), "parameters live in the global block"
    assert [v.name for v in main.list_vars()] == ["outer", "w", "own"]


# -- defaults and names ----------------------------------------------------------------------------
def test_program_guard_installs_and_restores():
    before = fluid.default_main_program(), fluid.default_startup_program()
    main, startup = fluid.Program(), fluid.Program()
    with pytest.raises(KeyboardInterrupt), fluid.program_guard(main, startup):
        assert (fluid.default_main_program(), fluid.default_startup_program()) == (main, startup)
        with fluid.program_guard(fluid.Program()):
            assert fluid.default_startup_program() is startup
        assert fluid.default_main_program() is main
        raise KeyboardInterrupt
    assert (fluid.default_main_program(), fluid.default_startup_program()) == before
    other = fluid.Program()
    assert switch_main_program(other) is before[0]
    assert switch_main_program(before[0]) is other


@pytest.mark.parametrize("arguments", [("main",), (fluid.Program(), 3)])
def test_program_guard_takes_programs_only(arguments):
    wrong = pytest.raises(TypeError, match=r"expected a Program, got (str|int)")
    with wrong, fluid.program_guard(*arguments):
        pass


def test_unique_names_count_per_key_and_afresh_in_a_guard():
    names = fluid.unique_name
    with names.guard():
        assert [names.generate(k) for k in ("fc", "fc", "mean")] == ["fc_0", "fc_1", "mean_0"]
        with names.guard():
            assert names.generate("fc") == "fc_0"
        with names.guard("tower_"):
            assert names.generate("fc") == "tower_fc_0"
        assert names.generate("fc") == "fc_2"
        old, checker = names.switch()
        assert names.generate("fc") == "fc_0"
        names.switch(old, checker)
        assert names.generate("fc") == "fc_3"


def test_layers_are_named_as_in_fluid(programs):
    main, _ = programs
    classifier()
    assert [p.name for p in main.all_parameters()] == [
        f"fc_{i}.{kind}_0" for i in (0, 1) for kind in ("w", "b")
    ]
    written = [op.output("Out")[0] for op in main.global_block().ops[:3]]
    assert written == ["fc_0.tmp_0", "fc_0.tmp_1", "fc_0.tmp_2"]
    assert {"learning_rate_0", "fc_0.w_0@GRAD"} <= set(main.global_block().vars)


# -- roles -----------------------------------------------------------------------------------------
def test_roles_have_fluids_values(programs):
    main, _ = programs
    loss = classifier(lambda: fluid.layers.exponential_decay(0.1, 5, 0.5))
    ops = main.global_block().ops
    assert loss.op.attr("op_role") == 256
    roles = {op.type: op.attr("op_role") for op in ops}
    wanted = {"mul": 0, "mul_grad": 1, "sgd": 2, "increment": 16, "mean_grad": 1}
    assert {type: roles[type] for type in wanted} == wanted
    (start,) = [op for op in ops if op.attr("op_role") == 257]
    assert (start.type, start.output("Out")) == ("fill_constant", [f"{loss.name}@GRAD"])
    for op in ops:
        if op.type == "sgd":
            assert op.attr(ROLE_VAR_ATTR) == [op.input("Param")[0], op.input("Grad")[0]]
    done = [op.attr(ROLE_VAR_ATTR) for op in ops if op.type == "mul_grad"]
    assert done == [["fc_1.w_0", "fc_1.w_0@GRAD"], ["fc_0.w_0", "fc_0.w_0@GRAD"]]


def test_role_guards_nest_and_restore(programs):
    main, _ = programs
    block = main.global_block()
    w = block.create_parameter("w", shape=[2])

    def role_of_next():
        op = block.append_op("relu", {"X": w}, {"Out": "out"})
        return op.role, op.all_attrs().get(ROLE_VAR_ATTR)

    with main._optimized_guard([w, "w@GRAD"]):
        assert role_of_next() == (OpRole.OPTIMIZE, ["w", "w@GRAD"])
        with main._lr_schedule_guard():
            assert role_of_next() == (OpRole.LR_SCHED, None)
        assert role_of_next() == (OpRole.OPTIMIZE, ["w", "w@GRAD"])
    assert role_of_next() == (OpRole.FORWARD, None)


# -- clone -----------------------------------------------------------------------------------------
def test_clone_is_deep(programs):
    main, _ = programs
    classifier()
    main.random_seed = 7
    copy = main.clone()
    assert (str(copy), copy.random_seed) == (str(main), 7)
    assert all(var.block is copy.global_block() for var in copy.global_block().vars.values())
    assert [p.name for p in copy.all_parameters()] == [p.name for p in main.all_parameters()]
    before = str(main)
    copy.global_block().ops[0].rename({"x": "other"})
    copy.global_block().ops[0].attrs["x_num_col_dims"] = 2
    copy.global_block().create_var("new", shape=[1])
    copy.global_block().vars["x"].shape = (5, 5)
    assert str(main) == before


def test_clone_for_test_keeps_the_forward_pass_only(programs):
    main, _ = programs
    main.random_seed = 7
    unread = fluid.layers.data("unread", [1]).name
    classifier(lambda: fluid.layers.piecewise_decay([2, 4], [0.3, 0.2, 0.1]))
    before = str(main)
    test = main.clone(for_test=True)
    forward = [op.type for op in main.global_block().ops if op.role in (0, OpRole.LOSS)]
    assert types(test) == forward and forward[-2:] == ["cross_entropy2", "mean"]
    assert len(test.blocks) == 1, "no case of the schedule is left"
    read = {n for op in test.global_block().ops for n in op.input_arg_names + op.output_arg_names}
    assert set(test.global_block().vars) == {*read, unread}, "no gradient, accumulator or rate"
    assert test.random_seed == 7
    (dropout,) = [op for op in test.global_block().ops if op.type == "dropout"]
    assert dropout.attr("is_test") is True
    assert str(main) == before


def test_clone_for_test_of_a_trainer_program_has_no_messages(programs):
    main, startup = programs
    classifier()
    forward = types(main.clone(for_test=True))
    transpiler = fluid.DistributeTranspiler()
    transpiler.transpile(0, main, "a:1,b:1", 2, startup_program=startup)
    trainer = transpiler.get_trainer_program()
    assert {"send", "recv"} <= set(types(trainer))
    assert types(trainer.clone(for_test=True)) == forward


# -- errors ----------------------------------------------------------------------------------------
def test_shapes_that_do_not_fit_are_told_with_operator_and_place(programs):
    main, _ = programs
    block = main.global_block()
    block.create_var("x", shape=(-1, 3))
    block.create_var("w", shape=(4, 2))
    block.append_op("relu", {"X": "x"}, {"Out": "y"})
    version = main.version
    with pytest.raises(GraphError) as caught:
        block.append_op("mul", {"X": "x", "Y": "w"}, {"Out": "z"})
    assert str(caught.value).startswith("op #1 mul(X=x, Y=w) -> Out=z: ")
    assert "(-1, 3)" in str(caught.value) and "(4, 2)" in str(caught.value)
    assert types(main) == ["relu"] and main.version == version, "nothing is left behind"
    with pytest.raises(GraphError, match=r"op #0 mul\("):
        block.prepend_op("mul", {"X": "x", "Y": "w"}, {"Out": "z"})
    inner = main._create_block()
    with pytest.raises(GraphError, match=r"block 1, op #0 mul\("):
        inner.append_op("mul", {"X": "x", "Y": "w"}, {"Out": "z"})


def test_unknown_operators_variables_and_dtypes_are_refused(programs):
    main, _ = programs
    block = main.global_block()
    with pytest.raises(GraphError, match='Operator "teleport" has not'):
        block.append_op("teleport")
    with pytest.raises(GraphError, match=r"op #0 relu\(X=ghost\) -> Out=y: .*'ghost'"):
        block.append_op("relu", {"X": "ghost"}, {"Out": "y"})
    with pytest.raises(GraphTypeError, match="unknown dtype 'complex1000'"):
        block.create_var("v", dtype="complex1000")
    with pytest.raises(GraphError, match="unknown dtype 'complex64'"):
        block.create_var("v", dtype="complex64")
    assert not block.ops and not block.vars


UNREAD = {  # what Fluid's operators read, and these do not
    "conv2d": ("Input", "ResidualData"),
    "im2sequence": ("X", "Y"),
    "mine_hard_examples": ("ClsLoss", "LocLoss"),
    "relu": ("X", "x"),
}


@pytest.mark.parametrize("type", UNREAD)
def test_a_filled_slot_that_an_operator_does_not_read_is_refused(programs, type):
    slot, unread = UNREAD[type]
    block = programs[0].global_block()
    x, number = block.create_var("x", shape=[3]), block.create_var("n", shape=[1])
    with pytest.raises(GraphError, match=rf"{type} does not read slot '{unread}', given \['n'\]"):
        block.append_op(type, {slot: x, unread: number}, {"Out": block.create_var("out")})
    assert not block.ops


def test_a_gradient_may_be_given_all_slots_of_its_operator(programs):
    block = programs[0].global_block()
    for name in ("x", "out", "out@GRAD", "other"):
        block.create_var(name, shape=[3], dtype="float32", is_data=True)
    given = {"X": ["x"], "Out": ["out"], "Out@GRAD": ["out@GRAD"]}
    block.append_op("relu_grad", given, {"X@GRAD": block.create_var("x@GRAD")})
    values = {"x": [-9, 9, 9], "out": [0, 1, 2], "out@GRAD": [1, 2, 3]}
    feed = {name: np.array(value, "float32") for name, value in values.items()}
    (found,) = fluid.Executor().run(programs[0], feed=feed, fetch_list=["x@GRAD"])
    assert found.tolist() == [0, 2, 3]
    with pytest.raises(GraphError, match="relu_grad does not read slot 'Other'"):
        block.append_op("relu_grad", {**given, "Other": ["other"]}, {"X@GRAD": ["x@GRAD"]})


def test_stored_operators_read_all_their_slots(programs):
    block = programs[0].global_block()
    x = fluid.data("x", [3])
    fluid.layers.scale(x, 2.0)
    data = to_data(programs[0])
    data["blocks"][0]["ops"][0]["inputs"]["BiasTensor"] = ["x"]
    with pytest.raises(CheckpointError, match="scale does not read slot 'BiasTensor'"):
        from_data(data, "model")
    data["blocks"][0]["ops"][0]["inputs"]["BiasTensor"] = []  # as Fluid writes empty slots
    assert from_data(data, "model").global_block().ops[0].type == block.ops[0].type
