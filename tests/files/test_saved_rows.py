"""Inference models with distributed tables: rows in files, found by id, read when looked up."""

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import io
from hpcdist.checkpoint.checkpoint import Checkpoint
from hpcdist.checkpoint.layout import MANIFEST
from hpcdist.checkpoint.saved_rows import SavedRows
from hpcdist.errors import CheckpointError
from tests.cases.checkpoint import TABLE, Servers, all_rows, build, fill_tables

IDS = np.array([3, -5, 2**62, -(2**63), 2**63 - 1, 0], np.int64)
NEVER = np.array([77, -77, 3, 12, 0, 2**61], np.int64)


@pytest.fixture(params=[fluid.layers.embedding, fluid.embedding], ids=["v1", "v2"])
def trained(request):
    """Train a table of any ids by Adam; yield (executor, test program, answer)."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 7
    with fluid.scope_guard(fluid.Scope()), fluid.program_guard(main, startup):
        with fluid.unique_name.guard():
            ids = fluid.data("ids", [None, 1], "int64")
            rows = request.param(
                ids, [-1, 5], is_sparse=True, is_distributed=True, padding_idx=12, param_attr="t"
            )
            answer = fluid.layers.fc(rows, 2, act="tanh")
            test = main.clone(for_test=True)
            fluid.optimizer.Adam(0.1).minimize(fluid.layers.mean(answer))
        exe = fluid.Executor()
        exe.run(startup)
        for _ in range(3):
            exe.run(main, feed={"ids": IDS[:, None]})
        yield exe, test, answer


@pytest.mark.parametrize("filename", [None, "all"])
def test_a_loaded_model_answers_as_a_test_program_for_any_ids(trained, tmp_path, filename):
    exe, test, answer = trained
    feeds = [{"ids": ids[:, None]} for ids in (IDS, NEVER, np.tile(IDS, 3)[:7], IDS[:0])]
    want = [exe.run(test, feed=feed, fetch_list=[answer])[0] for feed in feeds]
    io.save_inference_model(str(tmp_path), ["ids"], [answer], exe, test, None, filename)
    with fluid.scope_guard(fluid.Scope()):
        program, names, fetches = io.load_inference_model(str(tmp_path), exe, None, filename)
        assert names == ["ids"]
        for feed, value in zip(feeds, want):
            got = exe.run(program, feed=feed, fetch_list=fetches)[0]
            assert got.tobytes() == value.tobytes()
        assert not any("moment" in name for name in fluid.global_scope().local_var_names())


def test_what_is_loaded_is_apart_from_a_table_that_trains_on_in_the_same_scope(trained, tmp_path):
    exe, test, answer = trained
    feed = {"ids": IDS[:, None]}
    io.save_inference_model(str(tmp_path), ["ids"], [answer], exe, test)
    table = fluid.global_scope().find_var("t").value
    program, _, fetches = io.load_inference_model(str(tmp_path), exe)
    assert fluid.global_scope().find_var("t").value is table
    first = exe.run(program, feed=feed, fetch_list=fetches)[0]
    table.push(IDS, np.ones((6, 5), np.float32), 0.5)
    assert exe.run(program, feed=feed, fetch_list=fetches)[0].tobytes() == first.tobytes()


def test_rows_of_several_servers_are_found_by_id(tmp_path):
    servers = Servers(*build(size=20, rows=40), 3, tables=True)
    ids, rows, _ = fill_tables(servers.tables)
    servers.save(tmp_path, rows_of=[TABLE])
    with Checkpoint(tmp_path) as checkpoint:
        saved = SavedRows(checkpoint, TABLE)
        checkpoint.check_data()
    wanted = np.concatenate([ids[::-2], [5, -(2**63)], ids[:3]])
    found = np.empty((len(wanted), 4), np.float32)
    saved.look_up(wanted, found)
    want = np.concatenate([rows[::-2], np.zeros((2, 4)), rows[:3]])  # they begin with zeros
    assert (found == want).all()
    assert all((a == b).all() for a, b in zip(all_rows(servers.tables)[:2], (ids, rows)))


def test_only_what_is_looked_up_is_read(tmp_path):
    """Damage in one MiB is found by those ids alone whose rows lie there."""
    servers = Servers(*build(size=20, rows=40), 1, tables=True)
    random = np.random.default_rng(1)
    ids = random.integers(-(2**62), 2**62, 200_000)
    rows = random.random((len(ids), 4), dtype=np.float32)
    servers.tables[0].load(ids, rows, np.zeros((len(ids), 8), np.float32))
    servers.save(tmp_path, rows_of=[TABLE])
    with Checkpoint(tmp_path) as checkpoint:
        stored = checkpoint.files[0].stored(f"{TABLE}/0/rows")
    part = tmp_path / "server-0-of-1.1.h5"
    data = bytearray(part.read_bytes())
    data[stored.offsets[2] + 5] ^= 1
    part.write_bytes(data)
    with Checkpoint(tmp_path) as checkpoint:
        saved = SavedRows(checkpoint, TABLE)
    out = np.empty((1, 4), np.float32)
    refused = 0
    for k in range(0, len(ids), 500):
        try:
            saved.look_up(ids[k : k + 1], out)
        except CheckpointError as error:
            assert f"'{TABLE}/0/rows', chunk 2 of 4" in str(error)
            refused += 1
        else:
            assert (out == rows[k]).all()
    assert 50 < refused < 150  # one row in four


def test_what_cannot_be_looked_up_is_refused(trained, tmp_path):
    exe, test, answer = trained
    args = ["ids"], [answer], exe, test
    with pytest.raises(CheckpointError, match="leave compression out"):
        io.save_inference_model(str(tmp_path), *args, compression="zstd")
    with pytest.raises(CheckpointError, match="Fluid's files cannot hold the rows of t"):
        io.save_inference_model(str(tmp_path), *args, format="fluid")
    empty = pytest.raises(CheckpointError, match="no (value|rows) in this scope")
    with fluid.scope_guard(fluid.Scope()), empty:
        io.save_inference_model(str(tmp_path), *args)
    io.save_inference_model(str(tmp_path), *args, program_only=True)
    io.save_persistables(exe, str(tmp_path), test)  # a checkpoint: its rows are in another order
    with pytest.raises(CheckpointError, match="'t' were saved for resuming"):
        io.load_inference_model(str(tmp_path), exe)
    io.save_params(exe, str(tmp_path), fluid.Program())
    with pytest.raises(CheckpointError, match="no rows of table 't'"):
        io.load_inference_model(str(tmp_path), exe)
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(CheckpointError, match="no such file"):
        io.load_inference_model(str(tmp_path), exe)
