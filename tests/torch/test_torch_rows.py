"""`data.read` as a data set of PyTorch's: its DataLoader, tensors, every row once over ranks."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")
pa = pytest.importorskip("pyarrow", reason="pip install hpcdist[data]")

import pyarrow.parquet as pq  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

import hpcdist as fluid  # noqa: E402
from hpcdist.columnar import certificate  # noqa: E402
from hpcdist.comm.world import mpi_world  # noqa: E402
from hpcdist.data.columnar.verify import verify  # noqa: E402
from hpcdist.errors import DataError  # noqa: E402
from tests.scripts import read_script  # noqa: E402
from tests.support.jobs import Job, needs_mpirun  # noqa: E402

ROWS = 200


def write(path):
    """Write numbers, lists of uneven lengths, and texts."""
    columns = {
        "id": np.arange(ROWS),
        "x": np.arange(ROWS, dtype=np.float32) / 8,
        "list": [list(range(n, n + n % 4)) for n in range(ROWS)],
        "text": [" ".join("ab"[k % 2] for k in range(n % 3)) for n in range(ROWS)],
    }
    pq.write_table(pa.table(columns), path, row_group_size=32)
    return path


def loader(rows, **how):
    """Return torch's loader of batches."""
    return DataLoader(rows.torch(), batch_size=None, **how)


def test_batches_are_tensors(tmp_path):
    path = write(tmp_path / "f.parquet")
    words = fluid.data.Vocabulary("ab")
    rows = fluid.data.read(path, batch=30, shuffle=4, window=50, decode={"text": words}, workers=2)
    batches = loader(rows)
    assert len(batches) == 7
    seen = []
    for batch in batches:
        ids = batch["id"].tolist()
        seen += ids
        assert batch["id"].dtype == torch.int64 and batch["x"].dtype == torch.float32
        assert batch["x"].tolist() == [n / 8 for n in ids]
        lists = [part.tolist() for part in batch["list"].unbind()]
        assert lists == [list(range(n, n + n % 4)) for n in ids]
        texts = [part.tolist() for part in batch["text"].unbind()]
        assert texts == [[k % 2 for k in range(n % 3)] for n in ids]
        batch["x"] += 1  # memory of its own
    assert sorted(seen) == list(range(ROWS)) and (rows.epoch, rows.position) == (1, 0)
    assert [next(iter(loader(rows)))["id"].tolist()] != [seen[:30]]  # the next epoch


def test_images_are_tensors(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="pip install hpcdist[images]")
    pixels = np.random.RandomState(1).randint(0, 256, (6, 5, 4, 3)).astype(np.uint8)
    files = [io.BytesIO() for _ in pixels]
    for file, one in zip(files, pixels):
        image.fromarray(one).save(file, "PNG")
    pq.write_table(pa.table({"image": [f.getvalue() for f in files]}), tmp_path / "f.parquet")
    how = fluid.data.Images((5, 4), layout="HWC")
    rows = fluid.data.read(tmp_path / "f.parquet", batch=6, decode={"image": how}, workers=1)
    (batch,) = loader(rows)
    assert torch.equal(batch["image"], torch.from_numpy(pixels))


def test_the_loaders_own_processes_are_refused(tmp_path):
    rows = fluid.data.read(write(tmp_path / "f.parquet"), batch=30)
    with pytest.raises(DataError, match=r"num_workers=0\), and data.read\(..., workers=\)"):
        list(loader(rows, num_workers=2))
    assert rows.position == 0


def part(folder, run, ranks, rank, lanes, monkeypatch):
    """Return a rank's part of the batches, with a certificate."""
    monkeypatch.setattr(certificate, "run_name", lambda: run)
    rows = fluid.data.read(
        f"{folder}/f.parquet",
        batch=12,
        shuffle=4,
        window=50,
        lanes=lanes,
        drop_last=True,
        certificate=f"{folder}/log",
    )
    return rows.shard(ranks, rank)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("lanes", [1, 12])
def test_ranks_together_have_every_row_once(monkeypatch, tmp_path_factory, lanes):
    world = mpi_world()
    own = tmp_path_factory.mktemp("rows")
    if world.rank == 0:
        write(own / "f.parquet")
    folder = world.broadcast_bytes(str(own).encode() if world.rank == 0 else None).decode()
    # All ranks take five batches, and all but one go on from there.
    first = part(folder, "first", world.size, world.rank, lanes, monkeypatch).torch()
    batches = iter(DataLoader(first, batch_size=None))
    seen = [n for _ in range(5) for n in next(batches)["id"].tolist()]
    state = first.state_dict()
    assert state["position"] == 60
    if world.rank < world.size - 1:
        second = part(folder, "second", world.size - 1, world.rank, lanes, monkeypatch).torch()
        second.load_state_dict(state)
        seen += [n for batch in DataLoader(second, batch_size=None) for n in batch["id"].tolist()]
    told = world.allgather_bytes(np.array(seen, np.int64).tobytes())
    used = np.sort(np.frombuffer(b"".join(told), np.int64))
    assert len(used) == ROWS - ROWS % 12 == len(np.unique(used))
    (verdict,) = verify(Path(folder, "log"))
    (epoch,) = verdict.epochs
    assert (epoch.used, epoch.exact, epoch.complete, verdict.runs) == (len(used), True, True, 2)


TRAINS = read_script("torch_rows")


@needs_mpirun
def test_a_killed_job_goes_on_with_the_rows_that_are_left(tmp_path):
    write(tmp_path / "f.parquet")
    codes = []
    for ranks, victim, last in ((3, 1, 7), (2, -1, -1)):
        args = [str(victim), str(last)]
        env = {"OMP_NUM_THREADS": "1"}
        job = Job(tmp_path, TRAINS, "--as-torchrun", "--quiet", ranks=ranks, args=args, env=env)
        codes.append(job.end().code == 0)
    assert codes == [False, True]
    (verdict,) = verify(tmp_path / "log")
    due = ROWS - ROWS % 12
    assert [(e.used, e.complete, e.exact) for e in verdict.epochs] == [(due, True, True)] * 2
    assert verdict.runs == 2 and verdict.rolled_back > 0 and not verdict.damage
