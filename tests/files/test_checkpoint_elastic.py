"""A checkpoint of some servers, restored on more or fewer: its rows, its checks, its file."""

from __future__ import annotations

import os

import numpy as np
import pytest

from hpcdist.checkpoint import Checkpoint
from hpcdist.errors import CheckpointError
from hpcdist.ps.table import RowInitializer, RowOptimizer, SparseTable
from tests.cases.checkpoint import (
    TABLE,
    Servers,
    build,
    fill_tables,
)


def test_any_tool_reads_whole_variables_and_tables_in_the_manifest(tmp_path):
    import h5py

    main, startup = build()
    servers, whole = Servers(main, startup, 3, tables=True), {}
    servers.fill(whole)
    ids, rows, _ = fill_tables(servers.tables)
    servers.save(tmp_path, step=12)
    with h5py.File(tmp_path / "manifest.h5") as file:
        for name, value in whole.items():
            assert file[name][...].tobytes() == value.tobytes(), name
            assert file[name].attrs["name"] == name
            assert file[name].attrs["step"] == 12
            assert file[name].attrs["dtype"] == value.dtype.name
            assert file[name].attrs["program"] == "p"
        roles = {name: file[name].attrs["role"] for name in whole}
        order = np.argsort(file["ids_table/ids"][...])
        assert (file["ids_table/ids"][...][order] == ids).all()
        assert (file["ids_table/rows"][...][order] == rows).all()
        assert file["ids_table/moment2"].shape == rows.shape
    assert roles["embedding_0.w_0"] == "parameter"
    assert roles["embedding_0.w_0_moment1_0"] == "optimizer"
    assert roles["@LR_DECAY_COUNTER@"] == "counter"
    with h5py.File(tmp_path / "server-0-of-3.1.h5") as file:
        name = next(name for name in file if name.startswith("embedding_0.w_0.block"))
        assert file[name].chunks is None  # contiguous, as in memory
        assert file[name].attrs["name"] == "embedding_0.w_0"


def test_blocks_that_counted_different_steps_keep_their_own_powers(tmp_path):
    main, startup = build()
    servers = Servers(main, startup, 4)
    copies = [(array, piece) for array, piece in servers.held() if piece.copy]
    for k, (array, _) in enumerate(copies):
        array[...] = 1.0 / (k + 1)
    servers.save(tmp_path)
    servers.spoil()
    servers.load(tmp_path)
    for k, (array, _) in enumerate(copies):
        assert array == np.float32(1.0 / (k + 1))
    # On another number of servers the one that has counted most steps stands for all.
    least = {piece.name: np.float32(1.0 / (k + 1)) for k, (_, piece) in enumerate(copies)}
    fewer = Servers(main, startup, 3)
    fewer.load(tmp_path)
    found = [(array, piece) for array, piece in fewer.held() if piece.name in least]
    assert found
    cut = {piece.begin for _, piece in copies} | {0}
    for array, piece in found:
        if not piece.copy or piece.begin not in cut:
            assert array == least[piece.name], piece


def test_a_reader_reads_no_more_than_its_rows(tmp_path, monkeypatch):
    main, startup = build(rows=90_000, width=64)  # 23 MB of table
    Servers(main, startup, 2).save(tmp_path)
    with Checkpoint(tmp_path) as checkpoint:
        out = np.empty((100, 64), np.float32)
        jobs = checkpoint.jobs("embedding_0.w_0", 44_950, 45_050, out)
        sizes, preadv = [], os.preadv
        with monkeypatch.context() as patch:
            patch.setattr(os, "preadv", lambda *of: sizes.append(preadv(*of)) or sizes[-1])
            for job in jobs:
                job()
    assert len(sizes) == 2  # the last chunk of one server's rows, the first of the other's
    assert sum(sizes) < 2.2e6


def test_shapes_and_names_that_differ_are_refused_and_nothing_changes(tmp_path):
    main, startup = build()
    Servers(main, startup, 2).save(tmp_path)
    other, other_startup = build(size=2001)
    servers = Servers(other, other_startup, 2)
    servers.spoil()
    with pytest.raises(CheckpointError, match=r"'fc_0\.\w+' is float32\[.*2000.*expected.*2001"):
        servers.load(tmp_path)
    assert all((array == 7).all() for array, _ in servers.held())
    with Checkpoint(tmp_path) as checkpoint:
        with pytest.raises(CheckpointError, match="has no variable 'nothing'"):
            checkpoint.read("nothing")
        with pytest.raises(CheckpointError, match="expected float64"):
            checkpoint.jobs("fc_0.b_0", 0, 2000, np.empty(2000))


def train_tables(tables):
    """Move rows of all tables, and make new ones, as steps would."""
    for k, table in enumerate(tables):
        fresh = np.arange(1000) * len(tables) + k
        known, _, _ = table.export(0, 200)
        ids = np.concatenate([fresh, known])
        table.push(ids, np.full((len(ids), 4), 0.5, np.float32), 0.1)


def everything(servers):
    """Return a copy of all that servers hold, rows of tables in the order they lie in."""
    arrays = [array.copy() for array, _ in servers.held()]
    for table in servers.tables:
        arrays += [*table.export(0, len(table)), table.shared.copy()]
    return [array.tobytes() for array in arrays]


@pytest.mark.parametrize("count", [1, 3])
def test_a_table_with_rows_becomes_what_an_empty_one_would(tmp_path, count):
    """To the order of its rows: those made since are gone, those moved since are back."""
    main, startup = build()
    saved = Servers(main, startup, 2, tables=True)
    saved.fill({})
    fill_tables(saved.tables)
    saved.save(tmp_path)
    empty, used = (Servers(main, startup, count, tables=True) for _ in range(2))
    fill_tables(used.tables, 300)
    train_tables(used.tables)
    for servers in (empty, used):
        servers.check(tmp_path, data=servers is used)
        servers.load(tmp_path)
    assert everything(used) == everything(empty)
    train_tables(empty.tables)
    train_tables(used.tables)
    assert everything(used) == everything(empty)


@pytest.mark.parametrize("what", ["ids_table/0/state", "fc_0.w_0"])
def test_damaged_data_is_found_before_a_table_with_rows_changes(tmp_path, what):
    main, startup = build()
    servers = Servers(main, startup, 2, tables=True)
    servers.fill({})
    fill_tables(servers.tables)
    servers.save(tmp_path)
    train_tables(servers.tables)
    before = everything(servers)
    with Checkpoint(tmp_path) as checkpoint:  # of the last server: the first must wait for it
        file = checkpoint.files[1]
        path = next(p for p in file.facts.stored if p.startswith(what))
        offset = file.stored(path).offsets[0]
    with open(tmp_path / "server-1-of-2.1.h5", "r+b") as file:
        file.seek(offset + 100)
        (byte,) = file.read(1)
        file.seek(offset + 100)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(CheckpointError, match=f"server-1-of-2.1.h5: dataset '{what}.* is damaged"):
        servers.check(tmp_path, data=True)
    assert everything(servers) == before


def test_rows_that_do_not_fit_are_found_before_a_table_with_rows_changes(tmp_path):
    main, startup = build()
    servers = Servers(main, startup, 1, tables=True)
    fill_tables(servers.tables)
    servers.save(tmp_path)
    rows = RowOptimizer("adam"), RowInitializer("constant", 0.0)
    for table, wrong in [
        (SparseTable(TABLE, 4, *rows, 4), "was saved with seed 3, the program has 4"),
        (SparseTable(TABLE, 4, *rows, 3, dict_size=4000), "has .* rows .* but may have 4000"),
    ]:
        table.pull(np.arange(7), np.empty((7, 4), np.float32))
        before = [array.tobytes() for array in table.export(0, 7)]
        servers.scopes[0].var(TABLE).value = table
        with pytest.raises(CheckpointError, match=wrong):
            servers.check(tmp_path)
        assert [array.tobytes() for array in table.export(0, 8)] == before
