"""fluid.save and its kin, and the files that Fluid 1.8.5 itself has written (tests/fluid_1_8)."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcdist as fluid
from hpcdist.checkpoint.pickled import read_state
from hpcdist.errors import CheckpointError, GraphAssertionError, GraphError
from hpcdist.fluid.io.program_desc import read_program, write_program
from tests.support.job import alone

FLUID = Path(__file__).parent.parent / "fluid_1_8"
EXPECTED = json.loads((FLUID / "expected.json").read_text())
SHAPES = {"mlp": (6, 4), "lenet": (6, 1, 14, 14)}


@pytest.fixture(autouse=True)
def by_itself():
    with alone():
        yield


def data_of(net):
    shape = SHAPES[net]
    return np.linspace(-1, 1, int(np.prod(shape))).reshape(shape).astype("float32")


def build(dropout=None):
    """Return (main, startup, output, loss) of the mlp of tests/fluid_1_8/make.py."""
    main, startup = fluid.Program(), fluid.Program()
    startup.random_seed = 3
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data(name="x", shape=[None, 4], dtype="float32")
        hidden = fluid.layers.fc(x, size=5, act="relu")
        if dropout is not None:
            hidden = fluid.layers.dropout(hidden, dropout)
        out = fluid.layers.fc(hidden, size=3, act="softmax")
        label = fluid.data(name="label", shape=[None, 1], dtype="int64")
        loss = fluid.layers.mean(fluid.layers.cross_entropy(out, label))
        fluid.optimizer.Adam(0.1).minimize(loss)
    return main, startup, out, loss


def train(exe, main, loss, steps=4):
    feed = {"x": data_of("mlp"), "label": np.arange(6).reshape(6, 1) % 3}
    return [exe.run(main, feed=feed, fetch_list=[loss])[0].item() for _ in range(steps)]


def kept(main):
    scope = fluid.global_scope()
    names = [v.name for v in main.list_vars() if v.persistable]
    return {name: np.array(scope.find_var(name).get_tensor()).tobytes() for name in names}


# -- fluid.save and fluid.load ---------------------------------------------------------------------
def test_training_goes_on_with_the_same_bits(tmp_path):
    main, startup, _, loss = build()
    exe = fluid.Executor()
    exe.run(startup)
    train(exe, main, loss)
    fluid.save(main, str(tmp_path / "deep" / "model"))
    before = kept(main)
    rest = train(exe, main, loss)
    for name in ("model", "model.pdparams", "model.pdopt", "model.pdmodel"):
        with fluid.scope_guard(fluid.Scope()):
            fluid.load(main, str(tmp_path / "deep" / name), exe)  # without the startup program
            assert kept(main) == before
            assert train(exe, main, loss) == rest


def test_what_is_in_which_file(tmp_path):
    main, startup, _, _ = build()
    fluid.Executor().run(startup)
    fluid.save(main, str(tmp_path / "m"))
    state = fluid.load_program_state(str(tmp_path / "m"))
    assert {name: array.tobytes() for name, array in state.items()} == kept(main)
    with fluid.checkpoint.Checkpoint(tmp_path / "m.pdparams") as saved:
        assert sorted(saved.variables) == ["fc_0.b_0", "fc_0.w_0", "fc_1.b_0", "fc_1.w_0"]
    assert (tmp_path / "m.pdopt").exists() and (tmp_path / "m.pdmodel").exists()


def test_a_program_takes_a_state(tmp_path):
    main, startup, _, _ = build()
    fluid.Executor().run(startup)
    state = {k: np.full_like(v, 0.25) for k, v in state_of(main).items()}
    with pytest.warns(UserWarning, match="keeps none of these variables: nobody"):
        fluid.set_program_state(main, {**state, "nobody": np.zeros(1)})
    before = kept(main)
    assert all((np.frombuffer(b, np.float32) == 0.25).all() for b in before.values())
    for wrong in (np.zeros((4, 6), np.float32), np.zeros((4, 5))):
        with pytest.raises(GraphAssertionError, match=r"'fc_0.w_0' is .* but the program has"):
            fluid.set_program_state(main, {**state_zero(state), "fc_0.w_0": wrong})
        assert kept(main) == before
    with (
        fluid.scope_guard(fluid.Scope()),
        pytest.raises(AssertionError, match="run the startup program"),
    ):
        fluid.set_program_state(main, state)


def test_arrays_that_a_file_names_twice_are_two(tmp_path):
    rows = np.arange(40_000, dtype=np.float32).reshape(200, 200)
    (tmp_path / "m.pdparams").write_bytes(pickle.dumps({"a": rows, "b": rows, "c": rows[:2]}))
    state = read_state(tmp_path / "m.pdparams")
    state["a"][0] = -1
    np.testing.assert_array_equal(state["b"], rows)
    np.testing.assert_array_equal(state["c"], rows[:2])


def state_of(main):
    scope = fluid.global_scope()
    names = [v.name for v in main.list_vars() if v.persistable]
    return {name: np.array(scope.find_var(name).get_tensor()) for name in names}


def state_zero(state):
    return {name: np.zeros_like(array) for name, array in state.items()}


@pytest.mark.parametrize("format", ["hdf5", "fluid"])
@pytest.mark.parametrize("filename", [None, "all"])
def test_what_save_persistables_has_saved(tmp_path, format, filename):
    main, startup, _, _ = build()
    exe = fluid.Executor()
    exe.run(startup)
    before, where = kept(main), tmp_path / "saved"
    fluid.io.save_persistables(exe, str(where), main, filename, format=format)
    path = str(where if filename is None else where / filename)
    variables = [var for var in main.list_vars() if var.persistable]
    state = fluid.load_program_state(path, variables)
    assert {name: array.tobytes() for name, array in state.items()} == before
    if filename is None or format == "hdf5":
        assert [*fluid.load_program_state(path, variables[:1])] == [variables[0].name]
    fluid.set_program_state(main, state_zero(state))
    fluid.load(main, path, exe, variables)
    assert kept(main) == before
    with pytest.raises(GraphError, match="executor is required"):
        fluid.load(main, path)
    if filename and format == "fluid":
        with pytest.raises(GraphError, match="var_list is required"):
            fluid.load_program_state(path)


def test_what_is_missing_is_said(tmp_path):
    main, startup, _, _ = build()
    exe = fluid.Executor()
    exe.run(startup)
    with pytest.raises(CheckpointError, match="no such file or directory"):
        fluid.load(main, str(tmp_path / "m"), exe)
    with pytest.raises(CheckpointError, match="no such file or directory"):
        fluid.load_program_state(str(tmp_path / "m"))
    with pytest.raises(AssertionError, match="the prefix is empty"):
        fluid.save(main, f"{tmp_path}/")
    fluid.save(main, str(tmp_path / "m"))
    (tmp_path / "m.pdopt").unlink()
    with pytest.raises(CheckpointError, match=r"m.pdopt: missing; the program keeps"):
        fluid.load(main, str(tmp_path / "m"))


def test_rows_of_distributed_tables_are_saved_with_the_rest(tmp_path):
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        ids = fluid.data("ids", [None, 1], "int64")
        rows = fluid.layers.embedding(ids, [-1, 4], is_sparse=True, is_distributed=True)
        loss = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(rows, 3)))
        fluid.optimizer.Adam(0.1, lazy_mode=True).minimize(loss)
    exe, feed = fluid.Executor(), {"ids": np.arange(9).reshape(9, 1) * 10**12}

    def steps(count):
        return [exe.run(main, feed=feed, fetch_list=[loss])[0].item() for _ in range(count)]

    exe.run(startup)
    steps(3)
    fluid.save(main, str(tmp_path / "m"))
    fluid.io.save_persistables(exe, str(tmp_path / "all"), main)
    state = fluid.load_program_state(str(tmp_path / "m"))
    assert "fc_0.w_0" in state and "embedding_0.w_0" not in state
    rest = steps(4)
    fluid.load(main, str(tmp_path / "m"))
    assert steps(4) == rest
    fluid.io.load_persistables(exe, str(tmp_path / "all"), main)
    fluid.set_program_state(main, state)
    assert steps(4) == rest
    with pytest.raises(CheckpointError, match="cannot hold the rows of embedding_0.w_0"):
        fluid.io.save_persistables(exe, str(tmp_path / "f"), main, format="fluid")


# -- Fluid's own files -----------------------------------------------------------------------------
def test_a_state_that_fluid_has_pickled():
    main, _, out, loss = build(dropout=0.5)
    exe = fluid.Executor()
    fluid.load(main, str(FLUID / "mlp" / "trained"))
    state = fluid.load_program_state(str(FLUID / "mlp" / "trained.pdparams"))
    assert {name: array.tobytes() for name, array in state.items()} == kept(main)
    assert state["fc_0.b_0_beta1_pow_acc_0"] == pytest.approx(0.9**4)  # after 3 steps
    test = main.clone(for_test=True)
    label = np.zeros((6, 1), np.int64)
    (value,) = exe.run(test, {"x": data_of("mlp"), "label": label}, [out.name])
    np.testing.assert_allclose(value, EXPECTED["mlp"], atol=2e-7)
    assert np.isfinite(train(exe, main, loss)).all()


class Evil:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_but_arrays_is_made_of_a_pickle(tmp_path, protocol):
    path, canary = tmp_path / "m.pdparams", tmp_path / "canary"
    for evil in (
        {"w": Evil(os.system, f"touch {canary}")},
        {"w": Evil(open, str(canary), "w")},
        Evil(exec, f"open({str(canary)!r}, 'w')"),
        {"w": Evil(np.fromfile, "/etc/passwd")},
    ):
        path.write_bytes(pickle.dumps(evil, protocol=protocol))
        with pytest.raises(CheckpointError, match="is not part of an array"):
            fluid.load_program_state(str(tmp_path / "m"))
        assert not canary.exists()
    for wrong in ({"w": np.array([{}])}, {"w": 3}, {3: np.ones(2)}, [np.ones(2)], "text"):
        path.write_bytes(pickle.dumps(wrong, protocol=protocol))
        with pytest.raises(CheckpointError, match="not a file of fluid.save"):
            fluid.load_program_state(str(tmp_path / "m"))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_pickles_are_read_or_refused(tmp_path_factory, data):
    original = (FLUID / "mlp" / "trained.pdparams").read_bytes()
    found = bytearray(original[: data.draw(st.integers(0, len(original)))])
    for _ in range(data.draw(st.integers(0, 4)) if found else 0):
        found[data.draw(st.integers(0, len(found) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.pdparams"
    path.write_bytes(found)
    try:
        state = read_state(path)
    except CheckpointError as error:
        assert "not a file of fluid.save" in str(error)
    else:
        assert all(type(array) is np.ndarray for array in state.values())


# -- __model__ -------------------------------------------------------------------------------------
@pytest.mark.parametrize("net", SHAPES)
def test_a_model_that_fluid_has_saved(net):
    exe = fluid.Executor()
    program, feeds, fetches = fluid.io.load_inference_model(
        str(FLUID / net), exe, params_filename="params"
    )
    (value,) = exe.run(program, feed={feeds[0]: data_of(net)}, fetch_list=fetches)
    np.testing.assert_allclose(value, EXPECTED[net], atol=2e-7)


def test_a_model_is_taken_as_bytes():
    exe = fluid.Executor()
    model, params = ((FLUID / "mlp" / name).read_bytes() for name in ("__model__", "params"))
    program, feeds, fetches = fluid.io.load_inference_model(None, exe, model, params)
    (value,) = exe.run(program, feed={feeds[0]: data_of("mlp")}, fetch_list=fetches)
    np.testing.assert_allclose(value, EXPECTED["mlp"], atol=2e-7)
    with pytest.raises(CheckpointError, match="as bytes; got str"):
        fluid.io.load_inference_model(None, exe, "model", "params")
    with pytest.raises(CheckpointError, match="dirname must be None then, got 'here'"):
        fluid.io.load_inference_model("here", exe, model, params)


@pytest.mark.parametrize("net", SHAPES)
def test_a_model_written_as_fluid_does_is_the_same_program(tmp_path, net):
    exe = fluid.Executor()
    program, feeds, fetches = fluid.io.load_inference_model(
        str(FLUID / net), exe, params_filename="params"
    )
    fluid.io.save_inference_model(
        str(tmp_path), feeds, fetches, exe, program, params_filename="params", format="fluid"
    )
    assert (tmp_path / "params").read_bytes() == (FLUID / net / "params").read_bytes()
    again, feeds_again, fetches_again = fluid.io.load_inference_model(
        str(tmp_path), exe, params_filename="params"
    )
    assert feeds_again == feeds
    before = [op for op in program.global_block().ops if op.type != "scale"]
    after = [op for op in again.global_block().ops if op.type != "scale"]
    for old, new in zip(before, after, strict=True):
        assert (new.type, new.inputs, new.outputs) == (old.type, old.inputs, old.outputs)
        for name, value in old.attrs.items():
            assert new.attrs[name] == value, (old.type, name)
    feed = {feeds[0]: data_of(net)}
    (value,) = exe.run(program, feed=feed, fetch_list=fetches)
    (same,) = exe.run(again, feed=feed, fetch_list=fetches_again)
    assert same.tobytes() == value.tobytes()


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_models_are_read_or_refused(data):
    original = (FLUID / "mlp" / "__model__").read_bytes()
    found = bytearray(original[: data.draw(st.integers(0, len(original)))])
    for _ in range(data.draw(st.integers(0, 4)) if found else 0):
        found[data.draw(st.integers(0, len(found) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_program(bytes(found), "damaged")
    except CheckpointError as error:
        assert str(error).startswith("damaged: ")


def test_what_cannot_be_run_is_said(tmp_path):
    path, exe = tmp_path / "__model__", fluid.Executor()
    original = (FLUID / "lenet" / "__model__").read_bytes()
    program, feeds, fetches = fluid.io.load_inference_model(
        str(FLUID / "lenet"), exe, params_filename="params"
    )
    (relu, *_) = (op for op in program.global_block().ops if op.type == "relu")
    relu.attrs["data_format"] = "NHWC"
    odd = write_program(program, feeds, [var.name for var in fetches])
    for data, said in (
        (original.replace(b"pool2d", b"pool9d"), "pool9d"),
        (odd, "operator relu with data_format='NHWC'"),
        (b"not a model", "neither a model of hpcdist nor one of Fluid's"),
    ):
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=f"__model__: .*{said}"):
            fluid.io.load_inference_model(str(tmp_path), exe)
