"""fluid.io: the same values back, in HDF5 and in Fluid's own files, or one clear error."""

from __future__ import annotations

import subprocess
import sys
from io import BytesIO

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import io
from hpcdist.checkpoint.files import read_into
from hpcdist.checkpoint.fluid_files import encoded, tensor_of, tensors_of
from hpcdist.compat import aspaddle
from hpcdist.errors import CheckpointError, GraphError, GraphTypeError
from hpcdist.fluid.io.program_data import from_data, to_data
from tests.cases.checkpoint import Servers, build, rows_of
from tests.scripts import read_script
from tests.support.jobs import clean_environment

# Written by Fluid 1.8.5: learning_rate_0 of Adam(0.1).
SCALAR = bytes.fromhex("00000000 0000000000000000 00000000 04000000 08051001 cdcccc3d")


class Net:
    """A small net, trained a little by Adam, in a scope of its own."""

    def __init__(self):
        self.main, self.startup, self.scope = fluid.Program(), fluid.Program(), fluid.Scope()
        self.startup.random_seed = 3
        with fluid.program_guard(self.main, self.startup), fluid.unique_name.guard():
            self.x = fluid.data("x", [None, 4])
            self.z = fluid.layers.softmax(fluid.layers.fc(self.x, 3))
            self.test = self.main.clone(for_test=True)
            fluid.optimizer.Adam(0.1).minimize(fluid.layers.mean(self.z * self.z))
        self.exe = fluid.Executor()
        self.exe.run(self.startup, scope=self.scope)
        for _ in range(3):
            self.exe.run(self.main, feed={"x": np.eye(4, dtype="float32")}, scope=self.scope)

    def values(self):
        named = {
            v.name: self.scope.find_var(v.name).value
            for v in self.main.list_vars()
            if v.persistable
        }
        return {name: value.copy() for name, value in named.items()}

    def spoil(self):
        for name in self.values():
            self.scope.find_var(name).value[...] = 7


@pytest.fixture
def net():
    made = Net()
    with fluid.scope_guard(made.scope):
        yield made


def same(a, b):
    return a.keys() == b.keys() and all(a[n].tobytes() == b[n].tobytes() for n in a)


@pytest.mark.parametrize("filename", [None, "all"])
@pytest.mark.parametrize("format", ["hdf5", "fluid"])
def test_what_was_saved_comes_back(net, tmp_path, format, filename):
    want = net.values()
    io.save_persistables(net.exe, str(tmp_path), net.main, filename, format=format)
    net.spoil()
    io.load_persistables(net.exe, str(tmp_path), net.main, filename)
    assert same(net.values(), want)


def test_only_parameters_are_saved_and_loaded_by_their_functions(net, tmp_path):
    want = net.values()
    io.save_params(net.exe, tmp_path, net.main)
    net.spoil()
    io.load_params(net.exe, tmp_path, net.main)
    got = net.values()
    parameters = {v.name for v in net.main.list_vars() if io.is_parameter(v)}
    assert parameters == {"fc_0.w_0", "fc_0.b_0"}
    assert {v.name for v in net.main.list_vars() if io.is_belong_to_optimizer(v)} == (
        got.keys() - parameters
    )
    for name, value in got.items():
        assert (value == (want[name] if name in parameters else 7)).all()
    with pytest.raises(
        CheckpointError, match=r"manifest.h5: has no variable 'fc_0\.\w+_moment1_0'"
    ):
        io.load_persistables(net.exe, tmp_path, net.main)
    assert same(net.values(), got)  # nothing has changed


def test_variables_are_chosen_by_name_or_by_predicate(net, tmp_path):
    io.save_vars(net.exe, tmp_path, net.main, vars=["fc_0.w_0"])
    net.spoil()
    io.load_vars(net.exe, tmp_path, net.main, predicate=lambda v: v.name == "fc_0.w_0")
    assert not (net.values()["fc_0.w_0"] == 7).any()
    assert (net.values()["fc_0.b_0"] == 7).all()


def test_a_second_save_replaces_the_first(net, tmp_path):
    io.save_params(net.exe, tmp_path, net.main)
    first = sorted(tmp_path.iterdir())
    net.spoil()
    io.save_params(net.exe, tmp_path, net.main)
    assert len(list(tmp_path.iterdir())) == len(first) == 2
    io.load_params(net.exe, tmp_path, net.main)
    assert (net.values()["fc_0.w_0"] == 7).all()


def test_values_of_another_shape_are_refused(net, tmp_path):
    for format, name in (("hdf5", "h"), ("fluid", "f")):
        io.save_params(net.exe, tmp_path / name, net.main, format=format)
        other = fluid.Program()
        other.global_block().create_parameter("fc_0.w_0", shape=(4, 5), dtype="float32")
        refused = pytest.raises(CheckpointError, match=r"'fc_0.w_0' is float32\[4, 3\], expected")
        with fluid.scope_guard(fluid.Scope()), refused:
            io.load_params(net.exe, tmp_path / name, other)


# -- Fluid's files -----------------------------------------------------------------------------
def test_fluids_files_are_written_byte_for_byte(tmp_path):
    written = b"".join(bytes(part) for part in encoded(np.array([0.1], np.float32)))
    assert written == SCALAR
    assert len(b"".join(bytes(p) for p in encoded(np.zeros((150, 150), np.float32)))) == 90028
    (tmp_path / "v").write_bytes(SCALAR)
    assert tensor_of(tmp_path, "v").read().tolist() == [np.float32(0.1)]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "int32", "int64", "float16",
                                   "float64"])  # fmt: skip
def test_every_element_type_comes_back_from_a_fluid_file(tmp_path, dtype):
    array = np.arange(300).reshape(3, 100).astype(dtype)
    (tmp_path / "v").write_bytes(b"".join(bytes(part) for part in encoded(array)))
    tensor = tensor_of(tmp_path, "v")
    assert (tensor.dtype, tensor.shape) == (dtype, (3, 100))
    assert (tensor.read(1, 3) == array[1:]).all()


def test_a_beta_power_that_fluid_appended_several_times_is_read(tmp_path):
    (tmp_path / "v").write_bytes(SCALAR + SCALAR[-4:])  # 32 bytes, with a head that says [1]
    assert tensor_of(tmp_path, "v").read().tolist() == [np.float32(0.1)]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (SCALAR[:10], "truncated"),
        (SCALAR[:-1], "truncated"),
        (SCALAR + b"x", "1 bytes follow"),
        (b"\x01" + SCALAR[1:], "not a parameter file of Fluid"),
        (SCALAR[:4] + b"\xff" * 8 + SCALAR[12:], "not a parameter file of Fluid"),
        (SCALAR[:20] + b"\x08\x63\x10\x01" + SCALAR[24:], "unknown type 99"),
        (SCALAR[:20] + b"\x22\x05\x10\x01" + SCALAR[24:], "malformed description"),
        (SCALAR[:16] + b"\x05\0\0\0\x08\x05\x10\xff\x7f" + SCALAR[24:], "needs 65532 bytes"),
    ],
)
def test_what_is_no_fluid_file_is_refused_by_name(tmp_path, data, words):
    (tmp_path / "w").write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"w: .*{words}"):
        tensor_of(tmp_path, "w")


def test_a_combined_file_must_hold_just_what_is_loaded(net, tmp_path):
    io.save_persistables(net.exe, tmp_path, net.main, "all", format="fluid")
    assert len(tensors_of(tmp_path, "all", 11)) == 11
    with pytest.raises(CheckpointError, match="holds more than 2 variables without names"):
        io.load_params(net.exe, tmp_path, net.main, "all")


# -- servers -----------------------------------------------------------------------------------
@pytest.mark.parametrize("format", ["hdf5", "fluid"])
def test_a_pserver_program_loads_the_rows_of_its_server(tmp_path, format):
    main, startup = build()
    alone, servers, whole = fluid.Scope(), Servers(main, startup, 3), {}
    servers.fill(whole)
    for name, value in whole.items():
        alone.var(name).value = value.copy()
    with fluid.scope_guard(alone):
        io.save_vars(fluid.Executor(), tmp_path, main, vars=sorted(whole), format=format)
    servers.spoil()
    for program, scope in zip(servers.programs, servers.scopes):
        with fluid.scope_guard(scope):
            io.load_persistables(fluid.Executor(), tmp_path, program)
    for array, piece in servers.held():
        want = whole[piece.name] if piece.copy else whole[piece.name][rows_of(piece)]
        assert array.tobytes() == want.tobytes(), piece


# -- inference models --------------------------------------------------------------------------
FRESH = read_script("loads_model")


def test_an_inference_model_runs_alike_in_a_fresh_process(net, tmp_path):
    x = np.random.default_rng(1).random((5, 4), dtype=np.float32)
    want = net.exe.run(net.test, feed={"x": x}, fetch_list=[net.z.name])[0]
    with fluid.unique_name.guard():
        names = io.save_inference_model(str(tmp_path), ["x"], [net.z], net.exe, net.main)
    assert names == ["save_infer_model/scale_0.tmp_0"]  # as Fluid 1.8.5
    np.save(tmp_path / "x.npy", x)
    command = [sys.executable, "-c", FRESH, str(tmp_path)]
    done = subprocess.run(
        command, env=clean_environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "got.npy").tobytes() == want.tobytes()
    ops = ["mul", "elementwise_add", "softmax", "scale"]
    assert done.stdout.strip() == f"['x'] {names} {ops}"


def test_a_model_needs_what_its_targets_are_computed_from(net, tmp_path):
    with pytest.raises(GraphError, match="cannot be computed from nothing: x would have to be fed"):
        io.save_inference_model(tmp_path, [], [net.z], net.exe, net.main)
    with pytest.raises(GraphError, match="no variable 'nope'"):
        io.save_inference_model(tmp_path, ["nope"], [net.z], net.exe, net.main)
    with pytest.raises(GraphTypeError, match="expected Variables"):
        io.save_inference_model(tmp_path, ["x"], ["z"], net.exe, net.main)
    (tmp_path / "__model__").write_bytes(b"\x0a\x8f\x1bprotobuf")
    with pytest.raises(CheckpointError, match=r"__model__: neither a model of hpcdist nor"):
        io.load_inference_model(str(tmp_path), net.exe)


def test_a_program_is_plain_data_and_back(net):
    data = to_data(net.main)
    assert str(from_data(data, "f")) == str(net.main)
    data["blocks"][0]["ops"][0]["type"] = "run_shell"
    with pytest.raises(CheckpointError, match='f: its program cannot be built: Operator "'):
        from_data(data, "f")
    for broken in (None, {}, {"version": 1}, {"version": 1, "random_seed": 0, "blocks": [{}]}):
        with pytest.raises(CheckpointError, match="f: malformed program"):
            from_data(broken, "f")
    net.main.global_block().ops[0].attrs["code"] = print
    with pytest.raises(CheckpointError, match="attribute 'code' is a builtin_function"):
        to_data(net.main)


def test_a_file_that_the_system_gives_in_pieces_is_read_whole():
    class Pieces(BytesIO):
        def readinto(self, view):
            return super().readinto(view[:7])

    out = bytearray(20)
    assert read_into(Pieces(bytes(range(30))), memoryview(out))
    assert out == bytes(range(20))
    assert not read_into(Pieces(b"short"), memoryview(out))


@pytest.mark.parametrize("kind", [{}, {"is_distributed": True}], ids=["sparse", "distributed"])
def test_a_trainers_program_that_asks_servers_is_not_saved_as_a_model(tmp_path, kind):
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        ids = fluid.data("ids", [None, 1], "int64")
        rows = fluid.embedding(ids, [100, 4], is_sparse=True, **kind)
        fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(rows))
    transpiler = fluid.DistributeTranspiler()
    transpiler.transpile(0, main, "a:1", 1, startup_program=startup)
    program = transpiler.get_trainer_program()
    target = program.global_block().var(rows.name)
    with pytest.raises(GraphError, match="give the program that was transpiled"):
        io.save_inference_model(tmp_path, ["ids"], [target], fluid.Executor(), program)


def test_a_script_that_says_paddle_finds_a_file_for_each_variable(net, tmp_path):
    before = net.values()
    io.save_persistables(net.exe, tmp_path, net.main)  # in HDF5
    net.spoil()
    aspaddle.install()
    try:
        io.save_persistables(net.exe, tmp_path, net.main)
        io.save_inference_model(tmp_path / "model", ["x"], [net.z], net.exe, net.main)
        fluid.save(net.main, str(tmp_path / "state"))
        with pytest.raises(CheckpointError, match="cannot be compressed"):
            io.save_params(net.exe, tmp_path, net.main, format="fluid", compression="gzip")
    finally:
        aspaddle.uninstall()
    there = [v for v in net.main.list_vars() if (tmp_path / v.name).exists()]
    assert {v.name for v in there} == set(before)
    assert (tmp_path / "model" / "fc_0.w_0").exists() and (tmp_path / "model/__model__").exists()
    net.scope.find_var("fc_0.w_0").value[...] = 0
    io.load_vars(net.exe, tmp_path, net.main, there)  # the latest save counts, not the earlier one
    assert all((value == 7).all() for value in net.values().values())
    fluid.load(net.main, str(tmp_path / "state"))
    _, feeds, fetches = io.load_inference_model(tmp_path / "model", net.exe)
    assert feeds == ["x"] and len(fetches) == 1


def test_saving_no_variable_is_warned_of(tmp_path):
    with pytest.warns(UserWarning, match="^no variable in your model, please ensure"):
        fluid.io.save_persistables(fluid.Executor(), str(tmp_path), fluid.Program())
