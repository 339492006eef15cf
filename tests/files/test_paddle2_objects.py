"""paddle.save and load: objects in files of Paddle 2.6.2; states of Programs, also on servers."""

from __future__ import annotations

import base64
import io
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcdist
from hpcdist.compat import aspaddle
from hpcdist.errors import CheckpointError, GraphError, GraphTypeError
from hpcdist.executor.scope import Scope
from hpcdist.fluid.compat.paddle2 import optimizer, values
from hpcdist.graph.lod_tensor import LoDTensor
from tests.paddle_2_6 import objects
from tests.support.thread_jobs import ranks_as_threads

SAVED = {
    name: base64.b64decode(data)
    for name, data in json.loads(
        (Path(objects.__file__).parent / "objects.json").read_text()
    ).items()
}
PICKLED = [name for name, data in SAVED.items() if data[:1] == b"\x80"]


@pytest.fixture
def paddle():
    assert "paddle" not in sys.modules
    aspaddle.install()
    import paddle

    paddle.enable_static()
    with hpcdist.scope_guard(Scope()):
        yield paddle
    aspaddle.uninstall()


def same(found: Any, wanted: Any) -> None:
    """Compare objects, arrays with their types."""
    if isinstance(wanted, dict):
        assert type(found) is type(wanted) and list(found) == list(wanted)
        for key, value in wanted.items():
            same(found[key], value)
    elif isinstance(wanted, (list, tuple)):
        assert type(found) is type(wanted) and len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
    elif isinstance(wanted, np.ndarray):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(found, wanted)
    else:
        assert type(found) is type(wanted) and found == wanted


@pytest.mark.parametrize("name", PICKLED)
def test_what_2_6_2_has_saved_is_read_and_written_alike(paddle, tmp_path, name):
    theirs = pickle.loads(SAVED[name])  # what the file holds, by Python's own reader
    (tmp_path / "theirs").write_bytes(SAVED[name])
    found = paddle.load(str(tmp_path / "theirs"), return_numpy=True)
    same(found, theirs)
    value, how = objects.objects(*objects.built(paddle))[name]
    paddle.save(value, str(tmp_path / "new" / "ours"), **how)
    ours = (tmp_path / "new" / "ours").read_bytes()
    assert (b"eval" in ours) == (b"eval" in SAVED[name])
    if name in ("state", "optimizer", "nested", "nested in protocol 2"):
        return  # the order of what a Program keeps is not that of 2.6.2
    same(pickle.loads(ours), theirs)


@pytest.mark.parametrize("name", ["state", "optimizer", "nested"])
def test_states_hold_what_those_of_2_6_2_hold(paddle, tmp_path, name):
    theirs = pickle.loads(SAVED[name])
    value, how = objects.objects(*objects.built(paddle))[name]
    paddle.save(value, str(tmp_path / "ours"), **how)
    ours = pickle.loads((tmp_path / "ours").read_bytes())
    if name == "nested":
        ours, theirs = ours["model"], theirs["model"]
    assert ours.keys() == theirs.keys()
    for key in theirs:
        same(ours[key], theirs[key])


def test_tensors_are_loaded_as_tensors(paddle, tmp_path):
    for name in ("nested", "tensor", "tensor in binary"):
        (tmp_path / "file").write_bytes(SAVED[name])
        found = paddle.load(str(tmp_path / "file"))
        tensors = [found["list"][4], found["array"]] if name == "nested" else [found]
        assert all(isinstance(one, LoDTensor) for one in tensors)
        np.testing.assert_array_equal(tensors[0], np.arange(6, dtype="float32").reshape(3, 2))


def test_a_tensor_in_binary_has_the_bytes_of_2_6_2(paddle, tmp_path):
    value, how = objects.objects(*objects.built(paddle))["tensor in binary"]
    paddle.save(value, str(tmp_path / "file"), **how)
    assert (tmp_path / "file").read_bytes() == SAVED["tensor in binary"]


def test_a_program_is_saved_and_loaded(paddle, tmp_path):
    (tmp_path / "theirs").write_bytes(SAVED["program"])
    paddle.save(objects.built(paddle)[1], str(tmp_path / "ours"))
    fed = {"x": np.ones((2, 3), "float32")}
    results = []
    for name in ("theirs", "ours"):
        main, _ = objects.built(paddle)
        loaded = paddle.load(str(tmp_path / name))
        assert {p.name for p in main.all_parameters()} <= {v.name for v in loaded.list_vars()}
        (mean,) = (
            op.output("Out")[0] for op in loaded.global_block().ops if op.type[-4:] == "mean"
        )
        results.append(paddle.static.Executor().run(loaded, feed=fed, fetch_list=[mean])[0])
    np.testing.assert_allclose(results[0], 7.5, rtol=1e-6)
    np.testing.assert_array_equal(*results)


def test_memory_is_saved_into_and_loaded_from(paddle):
    file = io.BytesIO()
    paddle.save({"epoch": 3, "w": np.ones(2)}, file)
    file.seek(0)
    same(paddle.load(file, return_numpy=True), {"epoch": 3, "w": np.ones(2)})


class _Runs:
    def __reduce__(self) -> Any:
        return eval, ("open('it_ran', 'w')", {})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (_Runs(), "a call that is not part of"),
        ({"w": print}, "builtins.print is not part of"),
        ({(1, 2): 3}, "a tuple as a key"),
        (complex(1, 2), "builtins.complex is not part of"),
    ],
)
def test_loading_runs_nothing(paddle, tmp_path, monkeypatch, value, message):
    monkeypatch.chdir(tmp_path)
    Path("file").write_bytes(pickle.dumps(value, 4))
    with pytest.raises(CheckpointError, match=message):
        paddle.load("file")
    assert not Path("it_ran").exists()


CUT = "UnpackBigParamInfor@@"  # the entry of files of protocol 2 that tells which arrays are cut


@pytest.mark.parametrize(
    "loaded",
    [
        {CUT: [1]},
        {CUT: {"w": 3}},
        {CUT: {"w": {}}},
        {CUT: {"w": {"slices": ["part"], "OriginShape": [2]}}},
        {CUT: {"w": {"slices": ["part"], "OriginShape": [7]}}, "part": np.ones(2)},
        {CUT: {"w": {"slices": ["part"], "OriginShape": "x"}}, "part": "text"},
    ],
)
def test_arrays_that_are_not_cut_as_a_file_says_are_refused(paddle, tmp_path, loaded):
    path = tmp_path / "file"
    path.write_bytes(pickle.dumps(loaded, 2))
    with pytest.raises(CheckpointError, match="of arrays that are cut does not fit"):
        paddle.load(str(path))


def test_what_cannot_be_saved_is_refused_with_its_place(paddle, tmp_path):
    (main, _), path = objects.built(paddle), str(tmp_path / "file")
    endless: list[Any] = []
    endless.append(endless)
    for value, message in [
        ({"a": [object()]}, r"the object\['a'\]\[0\] is a object; expected dicts"),
        ({"w": main.all_parameters()[0]}, r"the object\['w'\] is a Parameter.*get_value\(\) give"),
        ([main], r"the object\[0\] is a Program"),
        (endless, "nested more than 100 deep"),
        ({(1, 2): 3}, "has a tuple as a key"),
    ]:
        with pytest.raises(GraphTypeError, match=message):
            paddle.save(value, path)
    with pytest.raises(GraphError, match="protocol: expected 2, 3 or 4, got 5"):
        paddle.save({}, path, protocol=5)
    with pytest.raises(CheckpointError, match="there is no file"):
        paddle.load(path)
    with pytest.raises(CheckpointError, match="is a directory"):
        paddle.load(str(tmp_path))


def test_values_are_got_and_set(paddle):
    main, _ = objects.built(paddle)
    weight = main.global_block().var("linear_0.w_0")
    tensor = weight.get_value()
    weight.set_value(np.full((3, 2), 2, "float32"))
    np.testing.assert_array_equal(tensor, np.full((3, 2), 2))  # it is the scope's
    for wrong in (np.ones((2, 3), "float32"), np.ones((3, 2))):
        with pytest.raises(GraphError, match=r"set_value: 'linear_0.w_0': (its shape|it is)"):
            weight.set_value(wrong)
        with pytest.warns(UserWarning, match="'linear_0.w_0' is left out"):
            main.set_state_dict({"linear_0.w_0": wrong})
    with pytest.warns(UserWarning, match="'nobody' is left out: it is not in the program"):
        main.set_state_dict({"nobody": np.ones(1)})
    np.testing.assert_array_equal(tensor, np.full((3, 2), 2))
    with pytest.raises(GraphError, match="run the startup program"):
        weight.get_value(Scope())
    with pytest.raises(GraphError, match="mode: expected 'param', 'opt' or 'all', got 'x'"):
        main.state_dict("x")
    assert main.state_dict("opt").keys() & main.state_dict("param").keys() == set()


def test_models_are_made_bytes_and_programs_of_them(paddle, tmp_path):
    static = paddle.static
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        x = static.data("x", [None, 3])
        out = paddle.nn.Linear(3, 2)(x)
    exe = static.Executor()
    exe.run(startup)
    program = static.serialize_program([x], [out], program=main)
    kept = static.serialize_persistables([x], [out], exe, program=main)
    static.save_inference_model(str(tmp_path / "saved"), [x], [out], exe, program=main)
    assert static.load_from_file(str(tmp_path / "saved.pdiparams")) == kept
    static.save_to_file(str(tmp_path / "bytes.pdmodel"), program)
    fed = {"x": np.ones((2, 3), "float32")}
    (wanted,) = exe.run(main, feed=fed, fetch_list=[out])
    with hpcdist.scope_guard(Scope()):
        loaded = static.deserialize_program(static.load_from_file(str(tmp_path / "bytes.pdmodel")))
        static.deserialize_persistables(loaded, kept, exe)
        (name,) = loaded.global_block().ops[-1].output("Out")
        normal = static.normalize_program(main, [x], [out]).global_block().ops
        assert [op.type for op in normal] == [op.type for op in loaded.global_block().ops]
        np.testing.assert_array_equal(exe.run(loaded, feed=fed, fetch_list=[name])[0], wanted)
        with pytest.raises(CheckpointError):
            static.deserialize_persistables(loaded, kept[:-1], exe)
    with pytest.raises(CheckpointError):
        static.deserialize_program(b"nothing")
    with pytest.raises(GraphTypeError, match="save_to_file: expected bytes, got a str"):
        static.save_to_file(str(tmp_path / "x"), "text")


def _with_adam() -> Any:
    main, startup = hpcdist.Program(), hpcdist.Program()
    main.random_seed = startup.random_seed = 3
    with hpcdist.unique_name.guard(), hpcdist.program_guard(main, startup):
        x = hpcdist.data("x", [None, 3])
        loss = hpcdist.layers.mean(hpcdist.layers.square(hpcdist.layers.fc(x, 4)))
        optimizer.Adam(0.1).minimize(loss)
    return main, startup, loss


def _goes_back(main: Any, startup: Any, loss: Any) -> list[float]:
    exe, scope, found = hpcdist.Executor(), Scope(), []
    exe.run(startup, scope=scope)

    def steps() -> None:
        for step in range(3):
            fed = {"x": np.random.default_rng(step).random((4, 3), np.float32)}
            found.append(float(exe.run(main, fed, [loss], scope=scope)[0]))

    steps()
    state = {n: np.array(t) for n, t in values.state_dict(main, scope=scope).items()}
    steps()
    values.set_state_dict(main, state, scope)
    steps()
    weight = main.all_parameters()[0]
    values.set_value(weight, 2 * np.array(values.get_value(weight, scope)), scope)
    steps()
    exe.close()
    return found + [float(np.abs(state[name]).sum()) for name in sorted(state)]


def test_servers_give_the_state_and_take_it():
    alone = _goes_back(*_with_adam())
    assert alone[3:6] == alone[6:9] != alone[9:12]  # it went back
    jobs = [_with_adam() for _ in range(4)]
    with ranks_as_threads() as run:
        for found in run(2, 2, [lambda one=one: _goes_back(*one) for one in jobs]):
            np.testing.assert_allclose(found, alone, rtol=1e-5)
