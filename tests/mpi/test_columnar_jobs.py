"""Jobs that read columnar files: one process's losses, and each row once over restarts."""

from pathlib import Path

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow", reason="pip install hpcdist[data]")

import pyarrow.parquet as pq  # noqa: E402

import hpcdist as fluid  # noqa: E402
from hpcdist import checkpoint, layers  # noqa: E402
from hpcdist.columnar import certificate  # noqa: E402
from hpcdist.comm.cluster import PSERVER  # noqa: E402
from hpcdist.comm.world import mpi_world  # noqa: E402
from hpcdist.data.columnar.verify import verify  # noqa: E402
from tests.support.job import alone, begin, run_job, values  # noqa: E402

ROWS, BATCH = 100, 12  # a last batch of 4


@pytest.fixture
def folder(tmp_path_factory):
    """Return a directory that all ranks see, with files of uneven sizes in it."""
    world = mpi_world()
    own = tmp_path_factory.mktemp("rows")
    if world.rank == 0:
        random, first = np.random.RandomState(3), 0
        for number, size in enumerate((61, 9, 30)):
            columns = {f"x{k}": random.rand(size).astype(np.float32) for k in range(4)}
            columns["id"] = np.arange(first, first + size)
            pq.write_table(pa.table(columns), own / f"p{number}.parquet", row_group_size=16)
            first += size
    return world.broadcast_bytes(str(own).encode() if world.rank == 0 else None).decode()


def network():
    """Return programs of a small regression, its inputs, and its loss."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x = fluid.data("x", [None, 3], "float32")
        y = fluid.data("y", [None, 1], "float32")
        number = fluid.data("id", [None, 1], "int64")
        hidden = layers.fc(x, 5, act="tanh")
        loss = layers.mean(layers.square_error_cost(layers.fc(hidden, 1), y))
        fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    return main, startup, [x, y, number], loss


def read(folder, feed_list):
    """Read the files in an order of their own, with a certificate."""
    columns = {"x": ["x0", "x1", "x2"], "y": "x3"}
    return fluid.data.read(
        f"{folder}/*.parquet",
        columns,
        feed_list=feed_list,
        batch=BATCH,
        shuffle=5,
        window=40,
        certificate=f"{folder}/log",
    )


def loop(exe, program, loss, rows, folder, steps):
    """Train some steps, saving after every third; return ids and losses by step."""
    saver = checkpoint.Saver(exe, f"{folder}/saved", every=3, reader=rows, main_program=program)
    saver.restore()
    found = {}
    batches = None
    while len(found) < steps:
        batch = next(batches, None) if batches else None
        if batch is None:
            batches = rows()
            continue
        (value,) = exe.run(program, feed=batch, fetch_list=[loss])
        saver.after_step()
        found[saver.step] = batch["id"].ravel().tolist(), float(np.mean(value))
    checkpoint.wait()
    batches.close()
    exe.close()
    return found


def plain(folder, steps):
    """Train as a plain script does: every trainer reads whole batches."""
    main, startup, inputs, loss = network()
    exe = fluid.Executor()
    exe.run(startup)
    return loop(exe, main, loss, read(folder, inputs), folder, steps)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("before", "after"), [((2, 0), (1, 0)), ((1, 1), (2, 1)), ((3, 0), (2, 2))]
)
def test_plain_scripts_go_on_with_other_trainers(monkeypatch, folder, before, after):
    if mpi_world().size < max(sum(before), sum(after)):
        pytest.skip("needs more ranks")
    monkeypatch.setattr(certificate, "run_name", lambda: "whole")
    with alone():
        own = Path(folder, f"of-{mpi_world().rank}")
        own.mkdir()
        for path in Path(folder).glob("*.parquet"):
            (own / path.name).symlink_to(path)
        expected = plain(own, 20)

    def script(run, steps):
        def begun(role):
            monkeypatch.setattr(certificate, "run_name", lambda: run)
            monkeypatch.setenv("PADDLE_TRAINER_ID", str(role.index))  # as the launcher does
            return plain(folder, steps)

        return begun

    first = values(run_job(*before, script("before", 7)))
    second = values(run_job(*after, script("after", 14)))
    for found in [*first, *second]:
        for step, (ids, loss) in found.items():
            assert ids == expected[step][0]
            assert loss == pytest.approx(expected[step][1], rel=1e-4)
    assert [*second[0]] == list(range(7, 21))  # the seventh again: it was not saved
    (verdict,) = verify(Path(folder, "log"))
    assert verdict.damage == [] and verdict.runs == 2 and verdict.rolled_back == BATCH
    assert [(e.used, e.complete, e.exact) for e in verdict.epochs[:2]] == [(ROWS, True, True)] * 2


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("sync_mode", [True, False])
def test_scripts_that_divide_batches_go_on_with_other_trainers(monkeypatch, folder, sync_mode):
    def script(trainers, steps):
        def run(role):
            main, startup, inputs, loss = network()
            exe, program = begin(role, trainers, 1, main, startup, sync_mode=sync_mode)
            rows = read(folder, inputs)
            if role.kind != PSERVER and trainers > 1:
                rows = rows.shard(trainers, role.index)
            return loop(exe, program, loss, rows, folder, steps)

        return run

    monkeypatch.setattr(certificate, "run_name", lambda: "before")
    first = values(run_job(2, 1, script(2, 7)))
    monkeypatch.setattr(certificate, "run_name", lambda: "after")
    second = values(run_job(1, 1, script(1, 3)))
    used = [ids for found in first for step, (ids, _) in found.items() if step < 7]
    used += [ids for ids, _ in second[0].values()]
    assert sorted(number for ids in used for number in ids) == list(range(ROWS))
    (verdict,) = verify(Path(folder, "log"))
    assert verdict.damage == [] and verdict.runs == 2
    (epoch,) = verdict.epochs
    assert not epoch.missing and not epoch.repeated
    assert len(epoch.in_flight) == 4  # the loop was left in the last batch
