"""Save and load arrays with torch.distributed.checkpoint; print the seconds of each as JSON.

    torch/bin/python benchmarks/torch_checkpoint.py '[[1000, 2048], [8]]' directory rounds

For `checkpoint.py`. Rounds take one and two threads in turn. Loads begin with a cold page cache.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp


def forget(root: Path) -> None:
    """Drop a directory's files from the page cache."""
    for path in root.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def main() -> None:
    shapes, root, rounds = json.loads(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(2)
    state = {f"v{i}": torch.rand(shape) for i, shape in enumerate(shapes)}
    times: dict[str, list[float]] = {"save": [], "load": []}
    for step in range(rounds):
        os.sync()
        writer = dcp.FileSystemWriter(root, sync_files=True, thread_count=1 + step % 2)
        begin = time.perf_counter()
        dcp.save(state, storage_writer=writer)
        times["save"].append(time.perf_counter() - begin)
        forget(root)
        begin = time.perf_counter()
        dcp.load(state, storage_reader=dcp.FileSystemReader(root))
        times["load"].append(time.perf_counter() - begin)
        shutil.rmtree(root)
    print(json.dumps(times), flush=True)


if __name__ == "__main__":
    main()
