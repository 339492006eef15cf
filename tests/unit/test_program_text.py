"""How Programs are printed and compared, and parts of them."""

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.errors import GraphError
from hpcdist.fluid.compat.framework import Variable
from hpcdist.graph.printing import exact_text
from tests.support.classifiers import classifier, types


# -- text ------------------------------------------------------------------------------------------
def test_a_program_prints_its_variables_and_numbered_operators(programs):
    main, _ = programs
    x = fluid.layers.data("x", [3])
    fluid.layers.mean(fluid.layers.fc(x, 2, act="relu"))
    assert str(main).splitlines() == [
        "block 0: 7 variables, 4 operators",
        "    x             float32[-1, 3]  data",
        "    fc_0.w_0      float32[3, 2]   parameter",
        "    fc_0.tmp_0    float32[-1, 2]",
        "    fc_0.b_0      float32[2]      parameter",
        "    fc_0.tmp_1    float32[-1, 2]",
        "    fc_0.tmp_2    float32[-1, 2]",
        "    mean_0.tmp_0  float32[1]",
        "    #0  mul(X=x, Y=fc_0.w_0) -> Out=fc_0.tmp_0",
        "    #1  elementwise_add(X=fc_0.tmp_0, Y=fc_0.b_0) -> Out=fc_0.tmp_1 {axis=1}",
        "    #2  relu(X=fc_0.tmp_1) -> Out=fc_0.tmp_2",
        "    #3  mean(X=fc_0.tmp_2) -> Out=mean_0.tmp_0",
    ]
    assert repr(main) == "<Program: 1 blocks, 4 operators>"
    assert repr(x) == "<Variable x: float32[-1, 3] stop_gradient is_data>"
    assert isinstance(x, Variable)


def test_roles_and_nested_blocks_are_shown_where_they_run(programs):
    main, _ = programs
    classifier(lambda: fluid.layers.piecewise_decay([2], [0.3, 0.1]))
    lines = str(main).splitlines()
    assert sum(line.startswith("block") for line in lines) == 1
    first = next(i for i, line in enumerate(lines) if "conditional_block" in line)
    assert lines[first].endswith("# schedule")
    assert lines[first + 1] == " " * 8 + "block 1 in block 0: 0 variables, 1 operators"
    assert lines[first + 2].startswith(" " * 12 + "#0  assign(")
    assert any(line.endswith("# backward+loss") for line in lines)
    assert any("sgd(" in line and line.endswith("# optimize") for line in lines)


def test_details_show_every_attribute_and_how_parameters_are_trained(programs):
    main, _ = programs
    l2 = fluid.regularizer.L2Decay(0.1)
    attr = fluid.ParamAttr(learning_rate=0.5, regularizer=l2)
    fluid.layers.fc(fluid.layers.data("x", [3]), 2, param_attr=attr)
    assert "x_num_col_dims" not in str(main)
    details = main.to_string(throw_on_error=True, with_details=True)
    assert "x_num_col_dims=1" in details
    assert "optimize_attr={'learning_rate': 0.5}, regularizer=" in details
    assert main.to_string(False) == str(main)


def test_long_attributes_are_shortened_in_print_but_not_in_what_ranks_compare():
    def program(last):
        new = fluid.Program()
        attrs = {"shape": [10], "dtype": "float32", "fp32_values": [0.0] * 9 + [last]}
        new.global_block().append_op("assign_value", {}, {"Out": "v"}, attrs)
        return new

    assert "(10 values)" in str(program(1.0))
    assert len({exact_text(program(v)) for v in (1.0, 1.0, 2.0)}) == 2
    middle = program(1.0)
    middle.global_block().ops[0].attrs["fp32_values"][5] = 3.0
    assert str(middle) == str(program(1.0))
    assert exact_text(middle) != exact_text(program(1.0))


def test_programs_built_alike_are_equal_in_every_detail():
    texts = []
    for width in (4, 4, 5):
        main = fluid.Program()
        with fluid.unique_name.guard(), fluid.program_guard(main, fluid.Program()):
            classifier(width=width)
        texts.append(exact_text(main))
    assert texts[0] == texts[1] != texts[2]


def test_a_parameter_made_by_hand_is_initialized_where_it_is_made():
    block = fluid.Program().global_block()
    of = {"shape": [2], "initializer": fluid.initializer.Constant(2.0)}
    for _ in range(2):  # the second one finds the first one's operator
        parameter = block.create_parameter(name="p", **of)
    assert [op.type for op in block.ops] == ["fill_constant"]
    (value,) = fluid.Executor(fluid.CPUPlace()).run(block.program, fetch_list=[parameter])
    np.testing.assert_array_equal(value, [2, 2])


@pytest.mark.parametrize("number", [3, 3.0, np.float32(3), np.int64(3)])
def test_one_number_is_fed_as_an_array_of_one(number):
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        y = fluid.layers.scale(fluid.data("x", [1]), 2.0)
    (value,) = fluid.Executor(fluid.CPUPlace()).run(program, {"x": number}, [y])
    np.testing.assert_array_equal(value, [6])


def test_a_part_of_a_program_is_what_its_targets_need(programs):
    main, _ = programs
    loss = classifier()
    guess = main.global_block().var("fc_1.tmp_2")
    forward = ["mul", "elementwise_add", "relu", "dropout", "mul", "elementwise_add", "softmax"]
    assert types(main._prune([loss])) == [*forward, "cross_entropy2", "mean"]
    assert types(main._prune(guess)) == types(main._prune(guess.name)) == forward
    part = main._prune_with_input([guess.name], [loss])
    assert types(part) == ["cross_entropy2", "mean"]
    assert {var.name for var in part.all_parameters()} == set()
    assert types(main)[-1] == "sgd"  # the Program itself stays as it is
    with pytest.raises(GraphError, match="no operator computes the target 'x'"):
        main._prune("x")


def test_a_part_may_be_asked_for_by_operators(programs):
    main, _ = programs
    classifier()
    copies = main.clone()
    old = copies.all_parameters()[0]
    with fluid.program_guard(copies):
        aside = fluid.layers.create_global_var(old.shape, 0.0, "float32", persistable=True)
        made = fluid.layers.assign(old, aside)
    # An update writes the parameter, too, but nobody asked for it.
    assert types(copies._prune([made])) == types(copies._prune([made.op])) == ["assign"]
    update = copies.global_block().ops[-2]
    assert update.type == "sgd" and types(copies._prune([update]))[-1] == "sgd"


def test_all_that_writes_a_variable_is_part_of_what_reads_it(programs):
    """The other places of an array, and what is there if a branch is not taken."""
    main, _ = programs
    layers, x = fluid.layers, fluid.data("x", [2])
    zero, one = (layers.fill_constant([1], "int64", i) for i in (0, 1))
    held = layers.array_write(x, zero)
    layers.array_write(layers.scale(x, 2.0), one, held)
    first = layers.array_read(held, zero)
    chosen = layers.fill_constant([1], "float32", 3.0)
    with layers.Switch() as switch, switch.case(layers.less_than(one, zero)):
        layers.assign(layers.fill_constant([1], "float32", 4.0), chosen)
    targets = [first, layers.scale(chosen, 2.0)]
    feed = {"x": np.array([5, 6], "float32")}
    found = fluid.Executor().run(main._prune(targets), feed, targets)
    assert [value.tolist() for value in found] == [[5, 6], [6]]


def test_variables_are_renamed_where_they_stand(programs):
    main, _ = programs
    x = fluid.layers.data("x", [3])
    y = fluid.layers.scale(x, 2.0)
    block = main.global_block()
    assert block._rename_var("x", "z") is x
    assert (x.name, block.ops[0].input("X"), list(block.vars)) == ("z", ["z"], ["z", y.name])
    with pytest.raises(GraphError, match="already exists"):
        block._rename_var("z", y.name)
    block.ops[0]._rename_input("z", "a")
    block.ops[0]._rename_output(y.name, "b")
    assert (block.ops[0].input("X"), block.ops[0].output("Out")) == (["a"], ["b"])
    like = fluid.Program().global_block()._clone_variable(y)
    assert (like.name, like.shape, like.persistable) == (y.name, y.shape, True)


def test_a_second_variable_of_a_name_has_the_same_shape():
    block = fluid.Program().global_block()
    w = block.create_var(name="w", shape=[3, 4])
    assert block.create_var(name="w") is block.create_var(name="w", shape=[3, 4]) is w
    with pytest.raises(GraphError, match=r"'w' already exists, with shape \(3, 4\)"):
        block.create_var(name="w", shape=[4, 3])


def test_parts_of_a_program_print_alone(programs):
    main, _ = programs
    classifier()
    block, op = main.global_block(), main.global_block().ops[0]
    assert block.to_string(True) == main.to_string(True).rstrip("\n")
    assert op.to_string(True) == str(op) and block.var("x").to_string(True) == str(block.var("x"))
    assert (op.idx, "x_num_col_dims" in op.attr_names) == (0, True)
    assert list(block.iter_parameters()) == main.all_parameters()


def test_a_prefix_of_names_may_be_bytes_and_a_parameter_has_a_shape(programs):
    with fluid.unique_name.guard(b"p_"):
        assert fluid.unique_name.generate("a") == "p_a_0"
    for shape in (None, []):
        with pytest.raises(GraphError, match="must have a shape"):
            fluid.default_main_program().global_block().create_parameter(name="w", shape=shape)
