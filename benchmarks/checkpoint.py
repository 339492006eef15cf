"""Saving and restoring 1 GiB of parameters with Adam state, against the disk and against PyTorch.

    python benchmarks/checkpoint.py [--torch-python torch/bin/python] [--directory /tmp]

Each line compares the best of several rounds, in which contenders take turns: saving with writing
the same bytes and fsync, restoring with reading them, from a cold and from a warm page cache (raw
writes and reads take pieces of 1 and of 16 MiB in turn), how long training stands still for an
asynchronous save with copying the same bytes in memory, and how fast a small network trains beside
the write. With --torch-python, torch.distributed.checkpoint saves and loads as much. The exit
status is 1 if a target is missed. One thread trains. About 2 minutes, 5 GiB of memory.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from rich.table import Table
from rounds import CONSOLE, HERE, arguments, json_object, run_text
from threadpoolctl import threadpool_limits

import hpcdist as fluid
from hpcdist import checkpoint
from hpcdist.checkpoint.saving import _memory as snapshots

PIECES = (1 << 20, 16 << 20)  # of raw writes and reads; which is faster differs between machines
UNDISTURBED_S = 1.0  # how long the small network trains alone
Times = dict[str, list[float]]


def timed(call: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def build(gib: float) -> tuple[fluid.Executor, list[np.ndarray]]:
    """Make the default Program hold parameters and Adam's two moments of each; return these."""
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
    arrays = {}
    for var in fluid.default_main_program().list_vars():
        found = fluid.global_scope().find_var(var.name)
        if var.persistable and found is not None and isinstance(found.value, np.ndarray):
            generator = np.random.default_rng(len(arrays))
            found.value[...] = generator.random(found.value.shape, dtype=np.float32)
            arrays[var.name] = found.value
    return exe, list(arrays.values())


def small_network(exe: fluid.Executor) -> Callable[[], object]:
    """Return a step of training 4 layers of 1024 with batches of 64."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        h = fluid.data(name="x", shape=[None, 1024], dtype="float32")
        for _ in range(4):
            h = fluid.layers.fc(h, size=1024, act="relu")
        fluid.optimizer.SGD(0.001).minimize(fluid.layers.mean(h))
    exe.run(startup, scope=scope)
    feed = {"x": np.random.default_rng(0).random((64, 1024), dtype=np.float32)}
    return partial(exe.run, main, feed, [], scope=scope)


def bytes_of(arrays: Sequence[np.ndarray], piece: int) -> list[memoryview]:
    return [
        memoryview(flat[first : first + piece])  # type: ignore[arg-type]
        for flat in (array.reshape(-1).view(np.uint8) for array in arrays)
        for first in range(0, len(flat), piece)
    ]


def raw_write(path: Path, arrays: Sequence[np.ndarray], piece: int) -> None:
    """Write arrays one after the other, and bring them to disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for view in bytes_of(arrays, piece):
        assert os.write(descriptor, view) == len(view)
    os.fsync(descriptor)
    os.close(descriptor)


def raw_read(path: Path, arrays: Sequence[np.ndarray], piece: int) -> None:
    """Read arrays one after the other."""
    descriptor = os.open(path, os.O_RDONLY)
    for view in bytes_of(arrays, piece):
        assert os.readv(descriptor, [view]) == len(view)
    os.close(descriptor)


def forget(*paths: Path) -> None:
    """Drop files from the page cache."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def steps_per_s(step: Callable[[], object], go_on: Callable[[], bool]) -> float:
    """Return how fast steps follow each other as long as they are to go on."""
    begin, count = time.perf_counter(), 0
    while go_on():
        step()
        count += 1
    return count / (time.perf_counter() - begin)


def save_and_restore(
    times: Times,
    number: int,
    exe: fluid.Executor,
    arrays: Sequence[np.ndarray],
    copies: Sequence[np.ndarray],
    root: Path,
) -> None:
    """Add the seconds of one round to ``times``."""

    def note(what: str, call: Callable[[], object]) -> None:
        times.setdefault(what, []).append(timed(call))

    raw, saved, piece = root / "raw", root / "saved", PIECES[number % 2]
    os.sync()
    note("raw write", partial(raw_write, raw, arrays, piece))
    os.sync()
    note("save", partial(checkpoint.save, exe, saved, number))
    files = list(checkpoint.latest(saved).iterdir())
    for what, call, paths in (
        ("raw read", partial(raw_read, raw, copies, piece), [raw]),
        ("restore", partial(checkpoint.restore, exe, saved), files),
    ):
        forget(*paths)
        for kind in ("cold", "warm"):
            note(f"{what}, {kind}", call)
    raw.unlink()
    shutil.rmtree(saved)
    note("copy", lambda: [np.copyto(c, a) for c, a in zip(copies, arrays)])
    note("new copy", lambda: [a.copy() for a in arrays])
    snapshots.clear()  # as before the first asynchronous save
    for what in ("first stall", "stall"):
        note(what, partial(checkpoint.save, exe, saved, number, asynchronous=True))
        checkpoint.wait()
        shutil.rmtree(saved)


def train_beside(exe: fluid.Executor, step: Callable[[], object], saved: Path) -> float:
    """Return how fast steps are while a checkpoint is being written, of how fast they are alone."""
    end = time.perf_counter() + UNDISTURBED_S
    alone = steps_per_s(step, lambda: time.perf_counter() < end)
    checkpoint.save(exe, saved, 0, asynchronous=True)
    beside = steps_per_s(step, checkpoint.busy)
    checkpoint.wait()
    shutil.rmtree(saved)
    return beside / alone


def ratios(
    times: Times, beside: list[float], torch: Times | None
) -> list[tuple[str, float, str, float | None]]:
    """Return what is compared, how it went, and the target: a bound and its side."""
    best = {what: min(found) for what, found in times.items()}
    lines: list[tuple[str, float, str, float | None]] = [
        ("save, of a raw write's speed", best["raw write"] / best["save"], ">=", 0.8),
    ]
    for kind in ("cold", "warm"):
        ratio = best[f"raw read, {kind}"] / best[f"restore, {kind}"]
        lines.append((f"restore, {kind}, of a raw read's speed", ratio, ">=", 0.8))
    lines += [
        ("stall, in copies", best["stall"] / best["copy"], "<=", 1.5),
        (
            "first stall, in copies to new memory",
            best["first stall"] / best["new copy"],
            "<=",
            1.5,
        ),
        (
            "training beside a save, of its speed",
            statistics.median(beside),
            ">=",
            None,
        ),
    ]
    if torch is not None:
        for what, ours in (("save", "save"), ("load", "restore, cold")):
            lines.append((f"{ours}, of torch's speed", min(torch[what]) / best[ours], ">=", None))
    return lines


def main() -> None:
    """Print a table of seconds, one of ratios, and one JSON line; exit 1 if a target is missed."""
    parser = arguments(__doc__, 6)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--directory", type=Path, help="on the disk to be measured")
    parser.add_argument("--torch-python", help="a Python that has torch")
    options = parser.parse_args()
    times: Times = {}
    torch = None
    root = Path(tempfile.mkdtemp(dir=options.directory))
    try:
        exe, arrays = build(options.gib)
        nbytes = sum(a.nbytes for a in arrays)
        with threadpool_limits(1):
            checkpoint.save(exe, root / "saved", 0)  # compiles what is compiled once
            shutil.rmtree(root / "saved")
            copies = [np.zeros_like(a) for a in arrays]
            for number in range(options.rounds):
                save_and_restore(times, number, exe, arrays, copies, root)
            # Only now: restoring while a job trains compares everything before it begins.
            step = small_network(exe)
            step()
            beside = [train_beside(exe, step, root / "saved") for _ in range(options.rounds)]
        if options.torch_python:
            shapes = json.dumps([a.shape for a in arrays])
            script = HERE / "torch_checkpoint.py"
            command = [options.torch_python, script, shapes, root / "torch", str(options.rounds)]
            torch = json_object(run_text(command, {}, 900))
    finally:
        shutil.rmtree(root)
    seconds = Table("what", title=f"{nbytes / 2**30:.2f} GiB in {len(arrays)} arrays")
    for heading in ("best, s", "median, s", "best, GiB/s"):
        seconds.add_column(heading, justify="right")
    torchs = {f"torch's {what}": found for what, found in (torch or {}).items()}
    for what, found in (times | torchs).items():
        best = min(found)
        row = (f"{best:.3f}", f"{statistics.median(found):.3f}")
        seconds.add_row(what, *row, f"{nbytes / 2**30 / best:.2f}")
    report = Table("what")
    for heading in ("ratio", "target", ""):
        report.add_column(heading, justify="right")
    missed = 0
    lines = ratios(times, beside, torch)
    for what, ratio, side, target in lines:
        good = target is None or (ratio >= target if side == ">=" else ratio <= target)
        missed += not good
        goal = "" if target is None else f"{side} {target:g}"
        report.add_row(what, f"{ratio:.2f}", goal, goal and ("reached" if good else "MISSED"))
    CONSOLE.print(seconds, report)
    told = {what: ratio for what, ratio, _, _ in lines}
    print(json.dumps({"ratios": told, "seconds": times | torchs, "beside": beside}), flush=True)
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
