"""Checkpoints that somebody has forged give one CheckpointError, in little memory, and no more."""

from __future__ import annotations

import json
import os
import random
import shutil

import numpy as np
import pytest

from hpcdist.checkpoint import Checkpoint, latest
from hpcdist.checkpoint.layout import MANIFEST, parse_head
from hpcdist.checkpoint.metadata import from_json
from hpcdist.comm.process_manager import launched_size
from hpcdist.errors import CheckpointError
from hpcdist.launch.checkpoints import main as command
from tests.cases.checkpoint import TABLE, Servers, build, fill_tables
from tests.support.forging import facts_in, forge, mutated, write_facts

pytestmark = [
    pytest.mark.skipif(launched_size() is not None, reason="one process is enough for it"),
    pytest.mark.usefixtures("in_little_memory"),
]


# -- data ------------------------------------------------------------------------------------------
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
TABLE_FACTS = {
    "name": "t",
    "path": "t/0",
    "dim": 1,
    "state_width": 0,
    "begins": [0] * 1025,
    "facts": {},
}


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
        (False, put("tables", [dict(TABLE_FACTS, shared=[10**400])])),
        (False, put("pieces", 0, None)),
        (False, put("trainers", ["x"])),
        (False, put("pieces", 0, "divided", "evenly")),
        (False, put("described", ["x"])),
        (False, put("described", "ops", [{"text": 3, "numbers": {}}])),
        (False, put("described", "rates", {"learning_rate_0": 0.1})),
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
    with pytest.raises(CheckpointError, match="malformed state of trainer 0|data has changed"):
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
    with pytest.raises(CheckpointError, match="belong to no dataset that it lists"):
        Checkpoint(saved)


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
    assert "skipping a checkpoint that cannot be read" in caplog.text


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


def test_what_a_file_says_of_its_program_is_shown_as_text_and_not_all_of_it(net, saved):
    def describe(said):
        op = {"text": "\x1b]0;owned\x07" + 10**6 * "x", "numbers": {}}
        said["described"]["ops"] = [{**op, "text": f"{k}{op['text']}"} for k in range(60)]
        said["described"]["variables"]["\x1b"] = "\x1b"

    forge(saved, describe)
    with pytest.raises(CheckpointError, match="differs") as caught:
        net.restore(saved)
    text = str(caught.value)
    assert len(text) < 20_000
    assert all(c.isprintable() or c == "\n" for c in text)


def test_facts_come_back_as_they_were_written(saved):
    for path in saved.glob("*.h5"):
        said = facts_in(path)
        assert from_json(json.dumps(said).encode(), "f") == from_json(
            json.dumps(said).encode(), "g"
        )
