"""Files that somebody has forged give one CheckpointError, in little memory, and no more."""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
import resource
import shutil
import struct

import h5py
import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import checkpoint
from hpcdist.checkpoint import Checkpoint, latest
from hpcdist.checkpoint.fluid_files import encoded
from hpcdist.checkpoint.layout import MANIFEST, parse_head
from hpcdist.checkpoint.metadata import from_json
from hpcdist.comm.process_manager import launched_size
from hpcdist.errors import CheckpointError
from hpcdist.io.fluid_state import read_state
from hpcdist.io.program_data import from_data, to_data
from hpcdist.launch.checkpoints import main as command
from tests.checkpoint_cases import TABLE, Servers, build, fill_tables
from tests.forging import facts_in, forge, reseal, write_facts

pytestmark = pytest.mark.skipif(launched_size() is not None, reason="one process is enough for it")
MiB = 1 << 20


@pytest.fixture(autouse=True)
def in_little_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * 1024 < 300 * MiB, f"{grown >> 10} MiB"


class Net:
    """A small net with state of a reader and of streams, in a scope of its own."""

    def __init__(self):
        self.main, startup, self.scope = fluid.Program(), fluid.Program(), fluid.Scope()
        with fluid.program_guard(self.main, startup), fluid.unique_name.guard():
            x = fluid.data("x", [None, 3])
            hidden = fluid.layers.dropout(fluid.layers.fc(x, 4), 0.5)
            self.loss = fluid.layers.mean(fluid.layers.fc(hidden, 1))
            fluid.optimizer.Adam(0.1).minimize(self.loss)
        self.exe = fluid.Executor()
        self.exe.run(startup, scope=self.scope)
        self.reader = checkpoint.resumable(lambda: iter(range(9)))

    def step(self):
        feed = {"x": np.ones((2, 3), np.float32)}
        self.exe.run(self.main, feed, [self.loss], scope=self.scope)

    def save(self, root, step=1, **how):
        how = {"scope": self.scope, "reader": self.reader, **how}
        return checkpoint.save(self.exe, root, step, self.main, **how)

    def restore(self, path):
        return checkpoint.restore(self.exe, path, self.main, scope=self.scope, reader=self.reader)


@pytest.fixture(scope="module")
def net():
    made = Net()
    made.step()
    next(iter(made.reader()))
    return made


@pytest.fixture
def saved(net, tmp_path):
    return net.save(tmp_path / "saved")


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(b"".join(bytes(p) for p in encoded(np.full((3, 4), 7, np.float32))))
    return path


# -- names -----------------------------------------------------------------------------------------
NAMES = [
    "../../x",
    "/abs",
    ".",
    "..",
    "a//b",
    "a/../b",
    "%2E",
    "a\0b",
    "@checkpoint/facts",
    MANIFEST,
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("format", ["hdf5", "fluid"])
def test_any_name_is_saved_below_the_directory_and_comes_back(tmp_path, name, format):
    main, directory = fluid.Program(), tmp_path / "a" / "b" / "c"
    with fluid.scope_guard(fluid.Scope()):
        main.global_block().create_var(name, shape=(2,), dtype="float32", persistable=True)
        tensor = fluid.global_scope().var(name).get_tensor()
        tensor.set(np.array([1, 2], np.float32))
        fluid.io.save_vars(None, str(directory), main, format=format)
        tensor.set(np.zeros(2, np.float32))
        fluid.io.load_vars(None, str(directory), main)
        assert np.array(tensor).tolist() == [1, 2]
    everything = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert everything and all(directory in p.parents for p in everything)
    if format == "fluid":
        assert list(fluid.load_program_state(str(directory))) == [name]


def test_a_model_names_no_file_outside_of_its_directory(tmp_path, secret):
    main = fluid.Program()
    block = main.global_block()
    block.create_var("../secret", shape=(3, 4), dtype="float32", persistable=True)
    (tmp_path / "model").mkdir()
    with fluid.scope_guard(fluid.Scope()), pytest.raises(CheckpointError, match="neither a check"):
        fluid.io.load_persistables(None, str(tmp_path / "model"), main)


# -- links -----------------------------------------------------------------------------------------
def test_links_are_not_followed(net, saved, tmp_path, secret):
    part = next(saved.glob("trainer-*"))
    os.rename(part, tmp_path / "elsewhere")
    part.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="is a symbolic link, which is not followed"):
        Checkpoint(saved)
    model = tmp_path / "model"
    (model / "inner").mkdir(parents=True)
    (model / "w").symlink_to(secret)
    (model / "folder").symlink_to(tmp_path)
    main = fluid.Program()
    for name in ("w", "folder/secret"):
        main.global_block().create_var(name, shape=(3, 4), dtype="float32", persistable=True)
        with fluid.scope_guard(fluid.Scope()), pytest.raises(CheckpointError):
            fluid.io.load_vars(None, str(model), main, vars=[name])
    (model / "net.pdparams").symlink_to(secret)
    with pytest.raises(CheckpointError, match="symbolic link"):
        fluid.load_program_state(str(model / "net"))


def test_a_file_is_not_written_through_a_link(net, tmp_path, secret):
    before = secret.read_bytes()
    (tmp_path / "saved" / "step-000001").mkdir(parents=True)
    for name in ("trainer-0-of-1.1.h5.tmp", "manifest.h5.tmp"):
        (tmp_path / "saved" / "step-000001" / name).symlink_to(secret)
    net.save(tmp_path / "saved")
    assert secret.read_bytes() == before
    assert latest(tmp_path / "saved")


def test_a_pipe_does_not_block(net, saved):
    os.unlink(saved / MANIFEST)
    os.mkfifo(saved / MANIFEST)
    with pytest.raises(CheckpointError, match="not a regular file"):
        Checkpoint(saved)


def test_what_hdf5_says_of_other_files_has_no_effect(net, tmp_path, secret):
    pytest.importorskip("hdf5plugin")
    saved = net.save(tmp_path / "saved", compression="zstd")
    (tmp_path / "raw").write_bytes(struct.pack("<12f", *[7] * 12))
    with Checkpoint(saved) as found:
        part, values = found.files[0].path, found.read("fc_0.w_0")
    said = facts_in(part)
    with h5py.File(part, "r+") as file:
        del file["fc_0.w_0"], file["fc_1.w_0"]
        raw = [(str(tmp_path / "raw"), 0, 48)]
        file.create_dataset("fc_0.w_0", (3, 4), np.float32, external=raw)
        file["fc_1.w_0"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "x")
    write_facts(part, said)
    reseal(saved)
    with Checkpoint(saved) as found:
        assert (found.read("fc_0.w_0") == values).all()


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_chunk_that_would_become_larger_is_refused(net, tmp_path, compression):
    pytest.importorskip("hdf5plugin")
    import xxhash

    saved = net.save(tmp_path / "saved", compression=compression)
    with Checkpoint(saved) as found:
        part = found.files[0].path
        stored = found.files[0].stored("fc_0.w_0")
    raw = bytearray(part.read_bytes())
    begin, size = stored.offsets[0], stored.sizes[0]
    if compression == "lz4":
        raw[begin : begin + 8] = (1 << 40).to_bytes(8, "big")
    else:
        raw[begin + 4 : begin + 14] = bytes([0xE0]) + (1 << 40).to_bytes(8, "little") + b"\0"
    part.write_bytes(raw)

    def change(said):
        chunk = bytes(raw[begin : begin + size])
        said["stored"]["fc_0.w_0"]["sums"] = [xxhash.xxh3_64_hexdigest(chunk)]

    forge(saved, change, part=True)
    with Checkpoint(saved) as found, pytest.raises(CheckpointError, match="a chunk would be"):
        found.read("fc_0.w_0")


# -- facts -----------------------------------------------------------------------------------------
def put(*path):
    def change(said):
        *way, last, value = path
        for step in way:
            said = said[step]
        said[last] = value

    return change


@pytest.mark.parametrize(
    ("part", "change"),
    [
        (False, put("step", 1e400)),
        (False, put("step", -1)),
        (False, put("step", True)),
        (False, put("step", 1 << 70)),
        (False, put("files", 0, "file", "../../secret")),
        (False, put("files", 0, "file", "\ud800")),
        (False, put("files", 0, "file", "x\0")),
        (False, put("files", 3)),
        (False, put("homes", [9] * 40)),
        (False, put("pieces", 0, "whole", [])),
        (False, put("pieces", 0, "whole", [1 << 40, 1 << 40])),
        (False, put("pieces", 0, "dtype", "O")),
        (False, put("pieces", 0, "dtype", "float32,float32")),
        (False, put("pieces", 0, "dtype", {"names": ["a"], "formats": ["O"]})),
        (False, put("pieces", 0, "begin", 1e300)),
        (False, put("pieces", 0, None)),
        (False, put("trainers", ["x"])),
        (True, put("stored", "fc_0.w_0", "axis", 9)),
        (True, put("stored", "fc_0.w_0", "chunk", [0, 0])),
        (True, put("stored", "fc_0.w_0", "chunk", [])),
        (True, put("stored", "fc_0.w_0", "shape", [1 << 60, 4])),
        (True, put("stored", "fc_0.w_0", "offsets", [-1])),
        (True, put("stored", "fc_0.w_0", "offsets", [1 << 61])),
        (True, put("stored", "fc_0.w_0", "sizes", [0])),
        (True, put("stored", "fc_0.w_0", "sums", [])),
        (True, put("stored", "fc_0.w_0", "dtype", "object")),
        (True, put("stored", "fc_0.w_0", {})),
        (True, put("writer", "\x1b[2J")),
        (True, put("step", {})),
    ],
)
def test_forged_facts_are_refused_by_the_name_of_their_file(net, saved, part, change):
    forge(saved, change, part)
    with pytest.raises(CheckpointError, match=r"(manifest|trainer-0-of-1\.1)\.h5"):
        net.restore(saved)


def test_chunks_that_overlap_are_refused(net, saved):
    def change(said):
        first = said["stored"]["fc_0.w_0"]
        said["stored"]["fc_0.w_0_moment1_0"] = first

    forge(saved, change, part=True)
    with pytest.raises(CheckpointError, match="overlap"):
        Checkpoint(saved)


@pytest.mark.parametrize(
    "state",
    [
        {"numpy": 700},
        {"numpy": -5},
        {"python": 10**9},
        {"streams": -9},
        {"streams": 1 << 63},
        {"reader": -3},
        {"reader": 1 << 61},
        {"reader": "x"},
    ],
)
def test_forged_positions_are_refused_and_nothing_moves(net, saved, state):
    ((what, position),) = state.items()

    def change(said):
        mine = said["trainers"][0]
        if what == "numpy":
            mine["random"]["numpy"][2] = position
        elif what == "python":
            mine["random"]["python"][0] = position
        elif what == "reader":
            mine["reader"]["position"] = position
        else:
            mine["streams"] = dict.fromkeys(mine["streams"], position)

    forge(saved, change)
    with pytest.raises(CheckpointError, match="malformed state of trainer 0|other data"):
        net.restore(saved)
    np.random.rand(1000)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"kind":"part","x":[' + b"[]," * 3_000_000 + b"[]]}",
        b'{"kind":"part","step":' + b"9" * 100_000 + b"}",
        b'{"kind":"manifest","step":NaN}',
        b'"part"',
        b"[]",
        b"\xff\xfe",
        b"",
    ],
    ids=["depth", "lists", "digits", "nan", "text", "list", "bytes", "nothing"],
)
def test_bombs_of_facts_are_refused(saved, text):
    write_facts(saved / MANIFEST, text)
    with pytest.raises(CheckpointError, match=r"manifest\.h5: malformed facts"):
        Checkpoint(saved)


def test_a_file_with_a_large_hole_is_not_read_through(saved):
    manifest = saved / MANIFEST
    head = parse_head(manifest.read_bytes()[:512], "")
    os.truncate(manifest, 1 << 42)
    forged = type(head)(head.facts_offset, head.facts_bytes, head.facts, 1 << 42, head.rest)
    with open(manifest, "r+b") as file:
        file.write(forged.encode())
    with pytest.raises(CheckpointError, match="are of nothing that it lists"):
        Checkpoint(saved)


NASTY = [
    None, True, -1, 0, 1, 3, 1 << 31, 1 << 62, 1 << 200, 1e300, 0.5, "", "x", "../x", "\0", "O",
    "\ud800", [], [[]], {}, {"a": []}, "float64", [1], [1 << 61], "A" * 5000,
]  # fmt: skip


def mutated(luck, said):
    """Change a few places of plain data."""
    said = copy.deepcopy(said)
    for _ in range(luck.choice([1, 1, 1, 2, 5])):
        at, way = said, []
        while isinstance(at, (dict, list)) and at and (not way or luck.random() < 0.8):
            key = luck.choice(list(at) if isinstance(at, dict) else range(len(at)))
            way.append((at, key))
            at = at[key]
        if not way:
            break
        holder, key = way[-1]
        kind = luck.random()
        if kind < 0.15:
            del holder[key]
        elif kind < 0.3 and isinstance(holder, list):
            holder.append(copy.deepcopy(at))
        elif kind < 0.45 and type(at) is int:
            holder[key] = at + luck.choice([-1, 1, 2, 512, -512])
        else:
            holder[key] = luck.choice(NASTY)
    return said


@pytest.mark.parametrize("part", [False, True])
def test_mutated_facts_give_a_checkpoint_or_a_checkpoint_error(net, saved, tmp_path, part):
    luck, refused = random.Random(part), 0
    for number in range(150):
        forged = tmp_path / str(number)
        shutil.copytree(saved, forged)

        def change(said):
            new = mutated(luck, said)
            said.clear()
            said.update(new)

        try:
            forge(forged, change, part)
            with Checkpoint(forged) as found:
                found.check_data()
            net.restore(forged)
        except (CheckpointError, UnicodeEncodeError) as error:
            refused += isinstance(error, CheckpointError)
        shutil.rmtree(forged)
    assert refused > 60


def test_one_forged_checkpoint_does_not_block_the_others(net, tmp_path, caplog):
    good, bad = (net.save(tmp_path, step) for step in (1, 2))
    luck, said = random.Random(3), facts_in(bad / MANIFEST)
    for number in range(50):
        write_facts(bad / MANIFEST, mutated(luck, said) if number else [])
        assert latest(tmp_path) in (good, bad)
    assert "passing over a checkpoint that cannot be read" in caplog.text


# -- tables ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["descending", "short", "elsewhere"])
def test_rows_of_a_table_are_not_lost_without_a_word(tmp_path, kind):
    main, startup = build(size=20, rows=30, width=4)
    servers = Servers(main, startup, 1, tables=True)
    servers.fill({})
    fill_tables(servers.tables, 3000)
    servers.save(tmp_path / "c")

    def change(said):
        begins = said["tables"][0]["begins"]
        if kind == "descending":
            begins[1:-1] = begins[1:-1][::-1]
        elif kind == "short":
            begins[:] = [0] * 1025
        else:
            begins[1:-1] = [0] * 1023

    forge(tmp_path / "c", change)
    other = Servers(main, startup, 3, tables=True)
    with pytest.raises(CheckpointError, match=f"(?s){TABLE}|bucket"):
        other.load(tmp_path / "c")


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


def test_one_array_many_times_is_no_bomb(tmp_path):
    array = np.ones(MiB, np.float32)
    path = tmp_path / "m.pdparams"
    path.write_bytes(pickle.dumps({str(i): array for i in range(1000)}, protocol=2))
    with pytest.raises(CheckpointError, match="larger than itself"):
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


def test_mutated_programs_are_built_or_refused():
    luck, said = random.Random(4), model()
    for _ in range(1500):
        try:
            from_data(mutated(luck, said), "f")
        except CheckpointError as error:
            assert str(error).startswith("f: ")


# -- what is shown ---------------------------------------------------------------------------------
def test_what_a_file_says_is_shown_as_text(net, saved, capsys):
    evil = "\x1b]0;owned\x07[red]w[/red]"

    def rename(said):
        for piece in said["pieces"]:
            if piece["name"] == "fc_0.w_0":
                piece["name"] = evil

    forge(saved, rename)
    command(["inspect", str(saved)])
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\x07" not in shown
    assert r"\x1b]0;owned\x07[red]w[/red]" in shown.replace("\n", "")


def test_facts_come_back_as_they_were_written(saved):
    for path in saved.glob("*.h5"):
        said = facts_in(path)
        assert from_json(json.dumps(said).encode(), "f") == from_json(
            json.dumps(said).encode(), "g"
        )
