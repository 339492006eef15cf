"""A checkpoint of m servers restores on n, bit for bit: all pairs of 1 to 8."""

from __future__ import annotations

import numpy as np
import pytest

from hpcdist.checkpoint import Checkpoint
from hpcdist.errors import CheckpointError
from tests.checkpoint_cases import Servers, all_rows, build, empty_table, fill_tables, rows_of

COUNTS = range(1, 9)


def test_all_pairs_of_servers_give_every_bit_back(tmp_path):
    main, startup = build()
    whole: dict[str, np.ndarray] = {}
    jobs = {n: Servers(main, startup, n, tables=True) for n in COUNTS}
    for m in COUNTS:
        jobs[m].fill(whole)
        rows = fill_tables(jobs[m].tables)
        jobs[m].save(tmp_path / str(m))
    assert {"embedding_0.w_0", "embedding_0.w_0_moment2_0", "@LR_DECAY_COUNTER@"} <= whole.keys()
    cut = [piece for _, piece in jobs[8].held() if piece.end - piece.begin < piece.whole[0]]
    assert len({piece.name for piece in cut}) >= 6
    for n in COUNTS:
        for m in COUNTS:
            jobs[n].spoil()
            for scope in jobs[n].scopes:
                scope.var("ids_table").value = empty_table()
            jobs[n].load(tmp_path / str(m))
            for array, piece in jobs[n].held():
                want = whole[piece.name] if piece.copy else whole[piece.name][rows_of(piece)]
                assert array.tobytes() == want.tobytes(), (m, n, piece)
            tables = [scope.find_var("ids_table").value for scope in jobs[n].scopes]
            for got, want in zip(all_rows(tables), rows):
                assert got.tobytes() == want.tobytes(), (m, n)
            assert all(table.shared.tolist() == [0.25, 0.5] for table in tables)


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
        assert file[name].fletcher32
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


def test_a_reader_reads_no_more_than_its_rows(tmp_path):
    main, startup = build(rows=90_000, width=64)  # 23 MB of table
    Servers(main, startup, 2).save(tmp_path)
    with Checkpoint(tmp_path) as checkpoint:
        out = np.empty((100, 64), np.float32)
        jobs = checkpoint.jobs("embedding_0.w_0", 44_950, 45_050, out)
        sizes = []
        for file in checkpoint.files:
            original = file._read_chunk
            file._read_chunk = lambda path, stored, i, parts, read=original: (
                sizes.append(stored.sizes[i]),
                read(path, stored, i, parts),
            )
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
    with pytest.raises(CheckpointError, match=r"'fc_0\.\w+' is float32\[.*2000.*wanted.*2001"):
        servers.load(tmp_path)
    assert all((array == 7).all() for array, _ in servers.held())
    with Checkpoint(tmp_path) as checkpoint:
        with pytest.raises(CheckpointError, match="has no variable 'nothing'"):
            checkpoint.read("nothing")
        with pytest.raises(CheckpointError, match="wanted float64"):
            checkpoint.jobs("fc_0.b_0", 0, 2000, np.empty(2000))
