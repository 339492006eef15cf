"""Checkpoints that all ranks write into one file, where HDF5 can do that."""

from __future__ import annotations

from types import SimpleNamespace

import h5py
import pytest

import hpcdist as fluid
from hpcdist.checkpoint import Checkpoint, one_file
from hpcdist.comm.world import mpi_world
from hpcdist.errors import CheckpointError
from tests.mpi.chain_jobs import ALONE, OPTIMIZERS, STEP, bits, dense_net, run, table_net
from tests.mpi.chain_jobs import job as saving_job
from tests.support.job import alone, run_job, values

with_mpi = pytest.mark.skipif(
    not h5py.get_config().mpi,
    reason="this h5py was built without MPI (docs/checkpoints.md says how to build one with it)",
)
OF_TABLES = lambda rate: fluid.optimizer.Adam(rate, lazy_mode=True)  # noqa: E731


def job(net, root, before=None, **how):
    optimizer = OF_TABLES if net is table_net else OPTIMIZERS["Adam"]
    return saving_job(net, optimizer, root, before, **how)


def initialized():
    """Return an executor, and a Program that has something to save."""
    main, startup, exe = fluid.Program(), fluid.Program(), fluid.Executor()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        fluid.layers.fc(fluid.data("x", [None, 2]), 1)
    exe.run(startup)
    return exe, main


@with_mpi
@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize(
    ("net", "chain"),
    [
        (dense_net, [(2, 2), (3, 0), ALONE, (1, 3), (4, 0)]),
        (table_net, [(2, 2), (1, 3), ALONE, (3, 1), (1, 1)]),
    ],
)
def test_one_file_holds_the_same_bits_and_is_restored_by_all(mpi_tmp_path, net, chain):
    root = mpi_tmp_path
    values(run_job(*chain[0], job(net, root / "many")))
    first = bits(root / "many")
    before = root / "many"
    for k, shape in enumerate(chain):
        run(shape, job(net, root / str(k), before, single_file=True))
        before = root / str(k)
        assert bits(before) == first, shape
        files = {path.name for path in (before / f"step-{STEP:06d}").iterdir()}
        trainers, servers = shape
        kind = f"servers-of-{servers}" if servers else f"trainers-of-{trainers}"
        if shape != ALONE:  # what only trainer 0 has beside servers is in a file of its own
            others = (
                {"manifest.h5", f"trainer-0-of-{trainers}.1.h5"} if servers else {"manifest.h5"}
            )
            assert {f"{kind}.1.h5"} < files <= {f"{kind}.1.h5", *others}
    run(chain[0], job(net, root / "again", before))
    assert bits(root / "again") == first


@with_mpi
@pytest.mark.mpi(min_size=4)
def test_any_tool_reads_the_file_and_damage_is_found(mpi_tmp_path):
    values(run_job(4, 0, job(dense_net, mpi_tmp_path, single_file=True)))
    directory = mpi_tmp_path / f"step-{STEP:06d}"
    with Checkpoint(directory) as saved:
        saved.check_data()
        (file,) = saved.files
        with h5py.File(directory / "manifest.h5") as whole:
            for name in saved.variables:
                assert (whole[name][...] == saved.read(name)).all(), name
        piece = saved.facts.pieces[-1]
        assert piece.path.startswith("trainer-3/")
        offset = file.stored(piece.path).offsets[-1]
    world = mpi_world()
    world.barrier()
    if world.rank == 0:
        with open(file.path, "r+b") as raw:
            raw.seek(offset)
            (byte,) = raw.read(1)
            raw.seek(offset)
            raw.write(bytes([byte ^ 1]))
    world.barrier()
    with Checkpoint(directory) as saved, pytest.raises(CheckpointError, match="is damaged"):
        saved.check_data()


@with_mpi
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("trainers", "servers"), [(2, 0), (1, 1)])
def test_a_writer_that_fails_is_an_error_on_all_and_leaves_nothing(
    mpi_tmp_path, monkeypatch, trainers, servers
):
    fails = servers or 1  # the number of the writer among those of its kind
    original = one_file.write_array

    def script(role):
        if (role.kind == "PSERVER") == bool(servers) and role.index == fails - bool(servers):

            def fail(dataset, array):
                raise CheckpointError("no space left")

            monkeypatch.setattr(one_file, "write_array", fail)
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            dense_net(OPTIMIZERS["Adam"])
            exe = fluid.Executor()
            exe.run(fluid.default_startup_program())
            fluid.checkpoint.save(exe, mpi_tmp_path, 1)
            with pytest.raises(CheckpointError, match="no space left"):
                fluid.checkpoint.save(exe, mpi_tmp_path, 2, single_file=True)
            assert fluid.checkpoint.latest(mpi_tmp_path).name == "step-000001"
            assert not list((mpi_tmp_path / "step-000002").glob("*.h5*"))
            if not servers:
                monkeypatch.setattr(one_file, "write_array", original)
                fluid.checkpoint.save(exe, mpi_tmp_path, 2, single_file=True)
                assert fluid.checkpoint.latest(mpi_tmp_path).name == "step-000002"

    values(run_job(trainers, servers, script))
    monkeypatch.setattr(one_file, "write_array", original)


@with_mpi
@pytest.mark.parametrize("how", [{"asynchronous": True}, {"compression": "lz4"}])
def test_what_writing_together_excludes(tmp_path, how):
    with alone():
        exe, main = initialized()
        with pytest.raises(CheckpointError, match=f"which excludes {next(iter(how))}="):
            fluid.checkpoint.save(exe, tmp_path, 1, main, single_file=True, **how)


def test_without_mpi_in_h5py_it_is_one_clear_error(tmp_path, monkeypatch):
    monkeypatch.setattr(h5py, "get_config", lambda: SimpleNamespace(mpi=False))
    with alone():
        exe, main = initialized()
        with pytest.raises(CheckpointError, match="needs an h5py that was built with MPI"):
            fluid.checkpoint.save(exe, tmp_path, 1, main, single_file=True)
    assert not list(tmp_path.iterdir())
