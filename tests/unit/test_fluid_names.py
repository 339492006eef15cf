"""Every name of Fluid 1.8.5 is there, or refused by name with what to use instead."""

from __future__ import annotations

import importlib
import re

import numpy as np
import pytest

import hpcdist as fluid
import hpcdist.fleet  # a submodule is a name of the package once it is imported
from hpcdist.compat import aspaddle, fluid_names, refused_names
from hpcdist.compat.importable import OnlyImported
from hpcdist.errors import GraphError, MissingModuleError, MissingNameError

OF = r"of (?:Fluid 1\.8\.5|Paddle 2\.6\.2)"  # names outside fluid are Paddle 2's


@pytest.fixture(autouse=True)
def paddle():
    aspaddle.install()
    yield
    aspaddle.uninstall()


@pytest.mark.parametrize("module", sorted(fluid_names.table()))
def test_every_name_is_there_or_refused_with_what_to_use_instead(module):
    try:
        held = importlib.import_module(module)
    except MissingModuleError as error:  # of itself, or of a package that it is in
        assert module.startswith(re.split(f" {OF} is not in hpcdist: ", str(error))[0])
        return
    refused = []
    for name in sorted(fluid_names.table()[module]):
        found = None
        try:
            if isinstance(found := getattr(held, name), OnlyImported):
                found()
        except MissingNameError as error:
            assert re.search(rf"fluid\..*{OF}|{name} {OF}", str(error))
            assert len(str(error).partition("is not in hpcdist: ")[2]) > 20, error
            if found is not None:
                continue
            refused.append(name)
            with pytest.raises(MissingModuleError, match=re.escape(str(error))):
                exec(f"from {module} import {name}", {})
    assert not any(hasattr(held, name) for name in refused)


REFUSED = {
    "numpy": (lambda: next(iter(op().block.vars.values())), "Executor.run fetches"),
    "current_step_lr": (lambda: fluid.optimizer.SGD(0.1), "fetch"),
}


def op():
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        fluid.layers.fill_constant([1], "float32", 1.0)
        return fluid.default_main_program().global_block().ops[0]


@pytest.mark.parametrize("name", REFUSED)
def test_names_of_objects_are_refused_with_what_to_use_instead(name):
    make, instead = REFUSED[name]
    with pytest.raises(MissingNameError, match=rf"{name} of Fluid 1.8.5 is not in .*{instead}"):
        getattr(make(), name)
    assert not hasattr(make(), name)


def test_scopes_of_names_are_not_kept():
    assert not op().has_attr("op_namescope")
    with pytest.raises(MissingNameError, match="op #0 fill_constant: 'op_namescope' is not stored"):
        op().attr("op_namescope")


def test_tensors_tell_their_element_type():
    scope = fluid.Scope()
    for tensor in (fluid.LoDTensor(), scope.var("a").get_tensor()):
        tensor.set(np.zeros(3, "float32"), fluid.CPUPlace())
        assert tensor._dtype() == fluid.core.VarDesc.VarType.FP32


@pytest.mark.parametrize(
    ("optimizer", "names"),
    [
        ("Momentum", {"_velocity_acc_str": "velocity"}),
        ("LarsMomentum", {"_velocity_acc_str": "velocity"}),
        ("Adagrad", {"_moment_acc_str": "moment"}),
        ("Adamax", {"_inf_norm_acc_str": "inf_norm", "_beta1_pow_acc_str": "beta1_pow_acc"}),
        ("Adadelta", {"_avg_squared_grad_acc_str": "_avg_squared_grad"}),
        ("RMSProp", {"_momentum_acc_str": "momentum", "_mean_square_acc_str": "mean_square"}),
        ("Ftrl", {"_squared_acc_str": "squared", "_linear_acc_str": "linear"}),
        ("DGCMomentumOptimizer", {"_u_velocity_acc_str": "_dgc_u_"}),
    ],
)
def test_optimizers_name_their_state_as_fluids_do(optimizer, names):
    made = getattr(fluid.optimizer, optimizer)
    assert {name: getattr(made, name) for name in names} == names


def test_the_state_of_an_optimizer_can_be_asked_for():
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        w = fluid.layers.create_parameter([2], "float32", "w")
        adam = fluid.optimizer.Adam(0.1)
        with pytest.raises(GraphError, match="no 'moment1' of 'w'; it keeps moment1, moment2, "):
            adam._get_accumulator(adam._moment1_acc_str, w)
        adam.minimize(fluid.layers.mean(w))
        assert adam._get_accumulator(adam._moment1_acc_str, w).name.startswith("w_moment1")


def test_names_are_refused_in_modules_that_fluid_has_elsewhere():
    assert not hasattr(importlib.import_module("paddle.fluid.incubate.fleet.collective"), "nothing")
    assert not hasattr(hpcdist.fleet, "nothing")


def test_what_is_refused_can_be_listed():
    found = refused_names.refused()
    assert found["paddle.fluid.regularizer"][1] == [] and found["paddle.fluid.dygraph"][1]


def test_modules_of_hpcdist_are_not_hidden_by_what_fluid_imports_under_their_names(monkeypatch):
    assert fluid.fleet  # loaded with the first name that is used
    # Served by `__getattr__` until it was first used: then only is it in the dictionary.
    monkeypatch.delitem(vars(fluid), "fleet", raising=False)
    assert fluid.fleet is importlib.import_module("hpcdist.fleet") and callable(fluid.fleet.init)


def test_a_layer_that_is_called_as_its_module_stays_a_layer():
    module = importlib.import_module("paddle.fluid.layers.rnn")
    assert module.LSTMCell is fluid.layers.LSTMCell and module.dynamic_gru
    assert callable(fluid.layers.rnn)


@pytest.mark.parametrize(
    "name",
    [
        "layers.fc",
        "layers.nn.relu",
        "layers.ops.sigmoid",
        "layers.tensor.fill_constant",
        "layers.metric_op.accuracy",
        "layers.sequence_lod.sequence_pool",
        "executor.Executor",
        "executor.global_scope",
        "framework.Variable",
        "core.CPUPlace",
        "input.embedding",
        "io.batch",
        "compiler.CompiledProgram",
        "unique_name.guard",
        "incubate.fleet.collective.fleet",
        "incubate.fleet.base.role_maker.PaddleCloudRoleMaker",
    ],
)
def test_names_are_found_where_fluid_has_them(name):
    found = fluid
    for part in name.split("."):
        found = getattr(found, part)
    module, _, last = f"paddle.fluid.{name}".rpartition(".")
    assert getattr(importlib.import_module(module), last) is found


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("fluid.dygraph.Linear(2, 3)", "dygraph.Linear of Fluid 1.8.5.*parameters is a Program"),
        ("fluid.contrib.slim.Compressor", "compressing models is not part"),
        (
            "from paddle.fluid.contrib.slim.core.compressor import Context",
            "slim.core.compressor.Context of Fluid 1.8.5",
        ),
        ("fluid.core.NativeConfig", "load_inference_model"),
        ("import paddle; paddle.dataset.voc2012", "paddle.dataset.voc2012 .*docs/data.md"),
        ("fluid.layers.relue", "neither here nor in Fluid 1.8.5; did you mean 'relu'"),
        ("from paddle.fluid import dygraphs", "cannot import name 'dygraphs'"),
        ("import paddle.fluid.nothing", "nothing"),
    ],
)
def test_what_is_refused_says_what_to_use(source, message):
    with pytest.raises((AttributeError, ImportError), match=message):
        exec(source, {"fluid": fluid})


def test_names_of_the_imperative_mode_are_refused_when_they_are_used():
    from paddle.fluid.dygraph.nn import Linear
    from paddle.fluid.dygraph.parallel import DataParallel

    class Net(fluid.dygraph.Layer):
        pass

    assert not isinstance(fluid.data, (DataParallel, Net))
    for used in (Net, Linear, lambda: DataParallel.forward):
        with pytest.raises(MissingNameError, match=r"dygraph\..*build one with fluid.layers"):
            used()
    with pytest.raises(ImportError, match="cannot import name 'Linea'"):
        from paddle.fluid.dygraph.nn import Linea  # noqa: F401


def test_hasattr_and_guarded_imports_tell_what_is_there():
    assert hasattr(fluid.layers, "fc") and not hasattr(fluid.core, "NativeConfig")
    with pytest.raises(ImportError):
        from paddle.fluid.contrib.slim import Compressor  # noqa: F401


def test_layers_of_ones_own_check_their_arguments_as_fluids_do():
    from hpcdist.data_feeder import check_dtype, check_type, check_variable_and_dtype, convert_dtype

    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data("x", [None, 3])
    check_variable_and_dtype(x, "x", ["float32"], "mine")
    check_type(3, "size", (int, tuple), "mine")
    assert convert_dtype(fluid.core.VarDesc.VarType.FP32) == "float32"
    with pytest.raises(TypeError, match="data type of 'x' in mine must be .*received float32. No"):
        check_dtype(x.dtype, "x", ["int64"], "mine", "No")
    with pytest.raises(TypeError, match="type of 'x' in mine must be .*Variable.*received .*int"):
        check_variable_and_dtype(3, "x", ["float32"], "mine")


def test_roles_of_operators_have_fluids_names():
    maker = fluid.core.op_proto_and_checker_maker
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 3]), 1))
        fluid.optimizer.SGD(0.1).minimize(loss)
        ops = fluid.default_main_program().global_block().ops
    key, var_key = maker.kOpRoleAttrName(), maker.kOpRoleVarAttrName()
    updates = [op for op in ops if int(op.attr(key)) & int(maker.OpRole.Optimize)]
    assert {op.type for op in updates} == {"sgd"}
    assert updates[0].attr(var_key)[1] == updates[0].attr(var_key)[0] + fluid.core.kGradVarSuffix()
    losses = [op for op in ops if int(op.attr(key)) & int(maker.OpRole.Loss)]
    assert [op.type for op in losses] == ["mean", "fill_constant"]


def test_programs_tell_how_often_a_backward_pass_was_appended():
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.layers.create_parameter([2], "float32")
        program, loss = fluid.default_main_program(), fluid.layers.mean(fluid.layers.square(x))
        assert program._appending_grad_times == 0
        (gradient,) = fluid.gradients([loss], [x])
        fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(gradient))
    assert program._appending_grad_times == program.clone()._appending_grad_times == 2
    assert program.clone(for_test=True)._appending_grad_times == 0


def test_blocks_are_printed_and_drawn(tmp_path, capsys):
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        fluid.layers.fc(fluid.data("x", [None, 3]), 1, param_attr="w", bias_attr=False)
        program = fluid.default_main_program()
    path = tmp_path / "block.dot"
    fluid.debugger.draw_block_graphviz(program.global_block(), highlights=["w"], path=str(path))
    lines = path.read_text().splitlines()
    assert '  op_0 [label="mul", shape=box];' in lines and '  "w" -> op_0;' in lines
    assert '  "w" [shape=ellipse, style=filled, fillcolor=orange];' in lines
    fluid.debugger.pprint_program_codes(program)
    fluid.debugger.pprint_block_codes(program.global_block())
    assert capsys.readouterr().out.count("mul(X=x, Y=w)") == 2
