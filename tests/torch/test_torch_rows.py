"""`data.read` as a data set of PyTorch's: its DataLoader, tensors, every row once over ranks."""

from __future__ import annotations

import io

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")
pa = pytest.importorskip("pyarrow", reason="pip install hpcdist[data]")

import pyarrow.parquet as pq  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

import hpcdist as fluid  # noqa: E402
from hpcdist.columnar import certificate  # noqa: E402
from hpcdist.columnar.verify import verify  # noqa: E402
from hpcdist.comm.world import mpi_world  # noqa: E402
from hpcdist.errors import DataError  # noqa: E402
from hpcdist.torch import Saver  # noqa: E402
from tests.jobs import Job, needs_mpirun  # noqa: E402

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


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("lanes", [1, 6])
def test_ranks_together_have_every_row_once(monkeypatch, tmp_path_factory, lanes):
    world = mpi_world()
    own = tmp_path_factory.mktemp("rows")
    if world.rank == 0:
        write(own / "f.parquet")
    folder = world.broadcast_bytes(str(own).encode() if world.rank == 0 else None).decode()

    def part(run, ranks, rank):
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

    # All ranks take five batches; then one fewer go on from there.
    first = part("first", world.size, world.rank)
    seen = []
    for number, batch in enumerate(loader(first), 1):
        seen += batch["id"].tolist()
        if number == 5:
            break
    state = first.state()
    assert state["position"] == 60
    if world.rank < world.size - 1:
        second = part("second", world.size - 1, world.rank)
        second.check([state])
        second.resume(state, None)
        for batch in loader(second):
            seen += batch["id"].tolist()
    told = np.zeros((world.size, ROWS), np.int64)
    told[world.rank, : len(seen)] = np.array(seen, np.int64) + 1
    gathered = b"".join(world.allgather_bytes(told[world.rank].tobytes()))
    used = np.frombuffer(gathered, np.int64)
    used = np.sort(used[used > 0] - 1)
    assert len(used) == ROWS - ROWS % 12 and len(set(used.tolist())) == len(used)
