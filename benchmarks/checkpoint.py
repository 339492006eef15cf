"""Saving and restoring 1 GiB of parameters with Adam state, against the disk and against PyTorch.

    python benchmarks/checkpoint.py [--gib 1] [--torch-python /path/to/python] [--directory /tmp]

Figures are ratios within one run: saving to writing the same bytes and fsync, the stall of an
asynchronous save to copying the same bytes, restoring to reading the same bytes, from a cold and
from a warm page cache. With --torch-python, torch.distributed.checkpoint saves and loads the same.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

import hpcdist as fluid
from hpcdist import checkpoint

PIECE = 16 << 20
ROUNDS = 4
TORCH = """
import sys, time, os, torch
import torch.distributed.checkpoint as dcp
sizes, directory, rounds = eval(sys.argv[1]), sys.argv[2], int(sys.argv[3])
torch.set_num_threads(2)
state = {f"v{i}": torch.rand(shape) for i, shape in enumerate(sizes)}
def cold(root):
    for base, _, names in os.walk(root):
        for name in names:
            fd = os.open(os.path.join(base, name), os.O_RDONLY)
            os.fsync(fd); os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED); os.close(fd)
saves, loads = [], []
for i in range(rounds):
    t = time.perf_counter()
    dcp.save(state, storage_writer=dcp.FileSystemWriter(f"{directory}/{i}", sync_files=True))
    saves.append(time.perf_counter() - t)
    cold(directory)
    t = time.perf_counter()
    dcp.load(state, storage_reader=dcp.FileSystemReader(f"{directory}/{i}"))
    loads.append(time.perf_counter() - t)
    import shutil; shutil.rmtree(f"{directory}/{i}")
print(min(saves), min(loads))
"""


def timed(call) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def build(gib: float):
    """Return (executor, scope arrays by name): parameters and Adam's two moments of each."""
    width = 2048
    rows = int(gib * 2**30 / 4 / 3 / 8 / width)
    x = fluid.data(name="x", shape=[None, rows], dtype="float32")
    total = None
    for _ in range(8):
        y = fluid.layers.reduce_mean(fluid.layers.fc(x, size=width, bias_attr=False))
        total = y if total is None else fluid.layers.elementwise_add(total, y)
    fluid.optimizer.Adam(0.001).minimize(total)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    scope = fluid.global_scope()
    arrays = {}
    for var in fluid.default_main_program().list_vars():
        found = scope.find_var(var.name)
        if var.persistable and found is not None and isinstance(found.value, np.ndarray):
            found.value[...] = np.random.default_rng(len(arrays)).random(
                found.value.shape, dtype=np.float32
            )
            arrays[var.name] = found.value
    return exe, arrays


def raw_write(path: Path, arrays) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for array in arrays:
        view = memoryview(array.reshape(-1).view(np.uint8))
        done = 0
        while done < len(view):
            done += os.write(descriptor, view[done : done + PIECE])
    os.fsync(descriptor)
    os.close(descriptor)


def raw_read(path: Path, arrays) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    for array in arrays:
        view = memoryview(array.reshape(-1).view(np.uint8))
        done = 0
        while done < len(view):
            done += os.readv(descriptor, [view[done : done + PIECE]])
    os.close(descriptor)


def forget(*paths: Path) -> None:
    """Drop files from the page cache."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument("--torch-python", help="a python that has torch")
    asked = parser.parse_args()
    root = Path(tempfile.mkdtemp(dir=asked.directory))
    try:
        measure(asked.gib, root, asked.torch_python)
    finally:
        shutil.rmtree(root)


def measure(gib: float, root: Path, torch: str | None) -> None:
    exe, named = build(gib)
    arrays = list(named.values())
    nbytes = sum(a.nbytes for a in arrays)
    print(f"{nbytes / 2**30:.2f} GiB in {len(arrays)} arrays; the best of {ROUNDS} rounds each")
    copies = [np.zeros_like(a) for a in arrays]
    times: dict[str, list[float]] = {}

    def note(what: str, seconds: float) -> None:
        times.setdefault(what, []).append(seconds)

    raw, saved = root / "raw", root / "c"
    checkpoint.save(exe, root / "warm", 0)  # compiles what is compiled once
    shutil.rmtree(root / "warm")
    for step in range(1, ROUNDS + 1):
        raw.unlink(missing_ok=True)
        os.sync()
        note("raw write", timed(lambda: raw_write(raw, arrays)))
        shutil.rmtree(saved, ignore_errors=True)
        os.sync()
        note("save", timed(partial(checkpoint.save, exe, saved, step)))
        files = list((saved / f"step-{step:06d}").iterdir())
        for kind in ("cold", "warm"):
            for what, call in (
                ("raw read", lambda: raw_read(raw, copies)),
                ("restore", lambda: checkpoint.restore(exe, saved)),
            ):
                if kind == "cold":
                    forget(raw, *files)
                note(f"{what}, {kind}", timed(call))
        note("copy", timed(lambda: [np.copyto(c, a) for c, a in zip(copies, arrays)]))
        beside = partial(checkpoint.save, exe, root / "a", step, keep=1, asynchronous=True)
        stall = timed(beside)
        checkpoint.wait()
        note("stall, first" if step == 1 else "stall", stall)
    best = {what: min(found) for what, found in times.items()}
    for what, seconds in best.items():
        print(f"  {what:18} {seconds:7.3f} s  {nbytes / 2**30 / seconds:6.2f} GiB/s")
    print(f"save / raw write + fsync        {best['raw write'] / best['save']:.2f} of its speed")
    for kind in ("cold", "warm"):
        ratio = best[f"raw read, {kind}"] / best[f"restore, {kind}"]
        print(f"restore / raw read, {kind}        {ratio:.2f} of its speed")
    print(f"stall / memory copy             {best['stall'] / best['copy']:.2f} times")
    if torch:
        shapes = [a.shape for a in arrays]
        command = [torch, "-c", TORCH, repr(shapes), str(root / "torch"), str(ROUNDS)]
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "OMP_"))}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
        save_s, load_s = map(float, done.stdout.split())
        print(
            f"torch.distributed.checkpoint    save {save_s:.3f} s, load {load_s:.3f} s: "
            f"{save_s / best['save']:.2f} and {load_s / best['restore, cold']:.2f} of its time"
            " in ours"
        )


if __name__ == "__main__":
    main()
