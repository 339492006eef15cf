"""Private names, slots and attributes that Fluid's own tests use."""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.compat import aspaddle
from hpcdist.errors import FeedError, GraphError

core = fluid.core


@pytest.fixture
def Operator():
    aspaddle.install()
    from paddle.fluid.op import Operator

    yield Operator
    aspaddle.uninstall()


def test_private_names_that_fluids_tests_call():
    x = layers.data("x", [3])
    main = fluid.default_main_program()
    assert {f"{x.name}@GRAD"} <= fluid.backward._get_stop_gradients_(main)[0]
    assert np.array(fluid.executor._as_lodtensor(2, None, "float32")).tolist() == [2.0]
    with pytest.raises(FeedError, match="expected an array or a LoDTensor"):
        fluid.executor._as_lodtensor([1.0], fluid.CPUPlace())
    with pytest.raises(AssertionError, match="expected an element type"):
        fluid.executor._as_lodtensor(1, fluid.CPUPlace())
    check = fluid.reader.GeneratorLoader._check_input_array
    assert check([np.ones(2), np.ones(2)]).shape == (2, 2)
    with pytest.raises(TypeError, match="parts of shapes"):
        check([np.ones(2), np.ones(3)])
    loader = fluid.io.PyReader([x], 2)
    assert loader._loader is loader
    assert fluid.CPUPlace()._type() != fluid.CUDAPlace(0)._type() != fluid.CUDAPinnedPlace()._type()


def test_flags_that_fluid_keeps_private_or_does_not_have():
    name = "FLAGS_use_mkldnn"
    for ask in (lambda: fluid.get_flags(name), lambda: fluid.set_flags({name: True})):
        with pytest.raises(ValueError, match="not public"):
            ask()
    assert core.globals()[name] is False
    assert core.globals().get("there_is_none", -1) == -1
    core.globals()["FLAGS_enable_parallel_graph"] = False


@pytest.mark.parametrize(("shape", "dtype"), [(None, "float32"), ([-1], "float32"), ([1], None)])
def test_a_parameter_has_a_shape_and_an_element_type(shape, dtype):
    with pytest.raises(ValueError, match="must have a shape such as"):
        fluid.Program().global_block().create_parameter(name="p", shape=shape, dtype=dtype)


@pytest.mark.parametrize("type", ["random_crop", "shuffle_batch"])
def test_the_seed_that_is_given_back_is_always_written(Operator, type):
    scope = fluid.Scope()
    scope.var("x").get_tensor().set(np.ones((4, 4), "float32"))
    outputs = {"Out": "y", "SeedOut": "seed"}
    more = {"shape": [2]} if type == "random_crop" else {}
    places = {} if type == "random_crop" else {"ShuffleIdx": "order"}
    single = Operator(type, X="x", **outputs, **places, startup_seed=5, **more)
    single.run(scope, fluid.CPUPlace())
    assert np.array(scope.find_var("seed").get_tensor()).tolist() == [5]


def test_a_kind_of_operator_that_fluid_cannot_make_says_so(Operator):
    from paddle.fluid.op import CondOp, DynamicRecurrentOp, RecurrentOp

    for kind in (CondOp, DynamicRecurrentOp, RecurrentOp):
        with pytest.raises(GraphError, match="there is no such operator.*StaticRNN"):
            kind("x")


def test_the_windows_of_matrices_can_be_read():
    names = ("matrix", "row", "column")
    x, row, column = (fluid.data(name, [None, 1], lod_level=1) for name in names)
    block = fluid.default_main_program().global_block()
    for name, shape in (("w", [1, 4]), ("out", None), ("windows", None)):
        block.create_var(name, shape=shape, dtype="float32", is_data=name == "w")
    inputs = {"X": x, "ROW": row, "COLUMN": column, "W": ["w"]}
    attrs = {"KernelH": 2, "KernelW": 2}
    block.append_op("var_conv_2d", inputs, {"Out": ["out"], "Col": ["windows"]}, attrs)
    ragged = fluid.create_lod_tensor
    feed = {
        "matrix": ragged(np.arange(1, 5, dtype="float32")[:, None], [[4]]),
        **{n: ragged(np.zeros((2, 1), "float32"), [[2]]) for n in ("row", "column")},
        "w": np.array([[1, 10, 100, 1000]], "float32"),
    }
    out, windows = fluid.Executor().run(feed=feed, fetch_list=["out", "windows"])
    taps = windows.reshape(4, -1)  # each at all places
    assert taps[3].tolist() == [1, 2, 3, 4]
    assert (feed["w"] @ taps).reshape(-1).tolist() == out.reshape(-1).tolist()


def test_variables_are_cut_as_the_transpiler_cuts_them(Operator):
    from paddle.fluid.transpiler.distribute_transpiler import slice_variable

    block = fluid.Program().global_block()
    variables = [block.create_var("a", shape=[8, 1020]), block.create_var("b", shape=[3, 5])]
    assert slice_variable(variables, 10, 2000) == [
        *(f"a:{index}:2040" for index in range(4)),
        "b:0:15",
    ]


def test_counts_of_an_auc_are_lists_as_in_fluid():
    auc = fluid.metrics.Auc("auc", num_thresholds=2)
    auc.update(np.array([[0.5, 0.5], [0.0, 1.0]]), np.array([[1], [0]]))
    assert (auc._stat_pos, auc._stat_neg) == ([0, 1, 0], [0, 0, 1])
    assert auc.counts.tolist() == [[0, 1, 0], [0, 0, 1]]


def test_what_fluid_need_not_be_told_of_may_be_left_out(Operator):
    from paddle.fluid.framework import OpProtoHolder

    optional = {"generate_proposals": "RpnRoisLod", "beam_search": "parent_idx"}
    for type, slot in optional.items():
        outputs = OpProtoHolder.instance().get_op_proto(type).outputs
        assert {proto.name: proto.dispensable for proto in outputs}[slot]
