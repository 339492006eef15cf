"""Forged files of Fluid's, and forged models, give one CheckpointError, in little memory."""

from __future__ import annotations

import copy
import pickle
import random

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.checkpoint.fluid_files import encoded
from hpcdist.checkpoint.pickled import read_state
from hpcdist.checkpoint.pickled_objects import read_object
from hpcdist.comm.process_manager import launched_size
from hpcdist.errors import CheckpointError, GraphError
from hpcdist.fluid.io.program_data import from_data, to_data
from tests.support.forging import mutated

pytestmark = [
    pytest.mark.skipif(launched_size() is not None, reason="one process is enough for it"),
    pytest.mark.usefixtures("in_little_memory"),
]
MiB = 1 << 20


# -- pickles ---------------------------------------------------------------------------------------
def arrays(size=4):
    return pickle.dumps({"w": np.ones(size, np.float32)}, protocol=2)


HEAD = b"\x80\x02"
PICKLES = {
    "4 GB": b"\x80\x02X\xff\xff\xff\xff",
    "4 GB of memo": b"\x80\x02Nr\xff\xff\xff\x7f.",
    "bytes8": b"\x80\x04\x8e" + b"\xff" * 7 + b"\x3f",
    "deep tuples": HEAD + b")" + b"\x85" * 1_000_000 + b".",
    "doubled tuples": HEAD + b")" + b"q\0h\0\x86" * 64 + b".",
    "deep marks": HEAD + b"(" * 1_000_000 + b".",
    "deep dicts": HEAD + b"}" * 1_000_000 + b".",
    "build on ours": HEAD + b"cnumpy.core.multiarray\n_reconstruct\n}(X\1\0\0\0aK\1ub}.",
    "set on ours": HEAD + b"cnumpy\ndtype\nX\1\0\0\0aK\1s.",
    "no memo": HEAD + b"h\x05.",
    "empty stack": HEAD + b"\x85.",
    "reduce": HEAD + b"K\1K\2R.",
    "memos": HEAD + b"N" + b"\x94" * 3_000_000 + b".",
    "no stop": HEAD + b"N" * 5000,
    "long": HEAD + b"\x8b\xff\xff\xff\x7f",
    "list": HEAD + b"]q\0h\0a.",
    "persistent": HEAD + b"K\1Q.",
    "inst": b"(ios\nsystem\n.",
    "extension": HEAD + b"\x82\x01.",
    "negative": HEAD + b"T\xff\xff\xff\xff.",
    "nothing": b"",
}


@pytest.mark.parametrize("kind", PICKLES)
def test_pickles_that_are_bombs_are_refused(tmp_path, kind):
    path = tmp_path / "m.pdparams"
    path.write_bytes(PICKLES[kind])
    with pytest.raises(CheckpointError, match="not a file of fluid.save"):
        read_state(path)


@pytest.mark.parametrize("kind", PICKLES)
def test_objects_that_are_bombs_are_refused(tmp_path, kind):
    path = tmp_path / "object"
    path.write_bytes(PICKLES[kind])
    if kind in ("doubled tuples", "4 GB of memo"):  # objects, and small: what is shared stays so
        assert read_object(path, np.asarray) is None or kind == "doubled tuples"
        return
    with pytest.raises(CheckpointError, match="not a file of paddle.save"):
        read_object(path, np.asarray)


def test_one_array_many_times_is_no_bomb(tmp_path):
    array = np.ones(MiB, np.float32)
    path = tmp_path / "m.pdparams"
    path.write_bytes(pickle.dumps({str(i): array for i in range(1000)}, protocol=2))
    with pytest.raises(CheckpointError, match="more than three times its size"):
        read_state(path)


def test_functions_stay_what_they_are(tmp_path):
    path = tmp_path / "m.pdparams"
    for _ in range(2):
        for data in PICKLES.values():
            path.write_bytes(data)
            with pytest.raises(CheckpointError):
                read_state(path)
    path.write_bytes(arrays())
    assert read_state(path)["w"].tolist() == [1, 1, 1, 1]


def test_random_operations_are_read_or_refused(tmp_path):
    luck, path = random.Random(1), tmp_path / "m.pdparams"
    codes = b"N\x88\x89)JKM\x8aX\x8cTUBC\x8e\x96(t\x85\x86\x87}su\x94qhc\x93Rb.\x80"
    for _ in range(1500):
        data = bytearray(arrays())
        for _ in range(luck.randrange(1, 12)):
            at = luck.randrange(len(data))
            code = luck.choice(codes) if luck.random() < 0.7 else luck.randrange(256)
            if luck.random() < 0.5:
                data[at] = code
            else:
                data.insert(at, code)
        path.write_bytes(data)
        try:
            found = read_state(path)
        except CheckpointError:
            continue
        assert all(type(a) is np.ndarray for a in found.values())


# -- Fluid's other files ---------------------------------------------------------------------------
def test_mutated_tensors_are_read_or_refused(tmp_path):
    original = b"".join(bytes(p) for p in encoded(np.ones((3, 4), np.float32)))
    luck, main = random.Random(2), fluid.Program()
    main.global_block().create_var("w", shape=(-1, -1), dtype="float32", persistable=True)
    for _ in range(400):
        data = bytearray(original[: luck.randrange(len(original) + 1)])
        for _ in range(luck.randrange(4) if data else 0):
            data[luck.randrange(min(40, len(data)))] = luck.choice([0, 1, 0x7F, 0xFF, 0x80, 8, 16])
        (tmp_path / "w").write_bytes(data)
        for filename in (None, "w"):
            with fluid.scope_guard(fluid.Scope()):
                try:
                    fluid.io.load_vars(None, str(tmp_path), main, filename=filename)
                except CheckpointError as error:
                    assert str(tmp_path) in str(error)


def model():
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        fluid.layers.fc(fluid.data("x", [None, 3]), 2, act="relu")
    return to_data(main)


@pytest.mark.parametrize("parents", [[0], [-1, 1], [-1, 2, 1], [1, 0], [-1, -1], [-1, 99]])
def test_blocks_around_themselves_are_refused(parents):
    said = model()
    said["blocks"] = [{**copy.deepcopy(said["blocks"][0]), "parent": p} for p in parents]
    with pytest.raises(CheckpointError, match="blocks with parents"):
        from_data(said, "f")


@pytest.mark.parametrize("inner", [0, 99, -1, "1", None, 1.5])
def test_operators_around_themselves_are_refused(inner):
    said = model()
    said["blocks"][0]["ops"][0]["attrs"]["sub_block"] = inner
    with pytest.raises(CheckpointError, match="sub_block"):
        from_data(said, "f")


def test_operators_without_an_input_are_refused():
    said = model()
    inputs = said["blocks"][0]["ops"][0]["inputs"]
    inputs["x"] = inputs.pop("X")
    with pytest.raises(CheckpointError, match="operator mul does not read slot 'x'"):
        from_data(said, "f")
    del inputs["x"]
    with pytest.raises(CheckpointError, match="operator mul with X = None"):
        from_data(said, "f")


def test_an_operator_that_lacks_an_output_that_it_computes_is_refused():
    main = fluid.Program()
    with fluid.program_guard(main, startup := fluid.Program()), fluid.unique_name.guard():
        y = fluid.layers.batch_norm(fluid.data("x", [None, 3]))
    said = to_data(main)
    del said["blocks"][0]["ops"][-1]["outputs"]["SavedMean"]
    with fluid.scope_guard(fluid.Scope()), pytest.raises(GraphError, match="lacks one of its out"):
        fluid.Executor().run(startup)
        fluid.Executor().run(from_data(said, "f"), {"x": np.ones((2, 3), np.float32)}, [y.name])


def test_mutated_programs_are_built_or_refused():
    luck, said = random.Random(4), model()
    for _ in range(1500):
        try:
            from_data(mutated(luck, said), "f")
        except CheckpointError as error:
            assert str(error).startswith("f: ")


# -- operators that call Python, attributes that no layer gives ------------------------------------
@pytest.mark.parametrize("kind", ["py_func", "py_func_grad", "torch_module", "torch_module_grad"])
def test_operators_that_call_python_are_refused_by_every_loader(tmp_path, kind):
    said = model()
    x = said["blocks"][0]["ops"][0]["inputs"]["X"]
    attrs = {"forward_callable_id": 0, "number": 0}
    forged = {"type": kind, "inputs": {"X": x}, "outputs": {"Out": x}, "attrs": attrs}
    said["blocks"][0]["ops"].insert(0, forged)
    with pytest.raises(CheckpointError, match=f"f: .*operator {kind} calls a function"):
        from_data(said, "f")


def test_a_program_in_fluids_bytes_that_calls_python_is_refused():
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        x = fluid.data("x", [None, 3])
        out = main.global_block().create_var(name="out", shape=[-1, 3], dtype="float32")
        fluid.layers.py_func(lambda value: value, x, out)
    with pytest.raises(CheckpointError, match="operator py_func calls a function"):
        fluid.Program.parse_from_string(main.desc.serialize_to_string())


@pytest.mark.parametrize(
    ("name", "value"),
    [("x_num_col_dims", "one"), ("x_num_col_dims", 1 << 70), ("y_num_col_dims", [1]),
     ("x_num_col_dims", 99), ("x_num_col_dims", -7)],
)  # fmt: skip
def test_attributes_that_no_layer_gives_are_refused(name, value):
    said = model()
    said["blocks"][0]["ops"][0]["attrs"][name] = value
    out = said["blocks"][0]["ops"][-1]["outputs"]["Out"]
    with fluid.scope_guard(fluid.Scope()), pytest.raises(fluid.HpcdistError):
        program = from_data(said, "f")
        for var in program.all_parameters():
            scope = fluid.global_scope()
            scope.var(var.name).get_tensor().set(np.ones(var.shape, np.float32), None)
        fluid.Executor().run(program, {"x": np.ones((2, 3), np.float32)}, out)
