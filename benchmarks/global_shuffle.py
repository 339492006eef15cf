"""Shuffle the samples of all ranks, against a shuffle of what each rank has; and peaks of memory.

    mpirun -n 4 python -m hpcdist --quiet benchmarks/global_shuffle.py --samples 10000000

Samples of 3 words, 4 numbers and 4 more ids, made up; shuffles in turn, each rank waits for all
others before and after. Prints one JSON line: seconds by round, the median ratio, and the largest
peak of a rank's memory over the data that it holds (1: nothing but the data).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path

import numpy as np

import hpcdist as fluid
from hpcdist.comm.world import mpi_world
from hpcdist.fluid.multi_slot.samples import Column, Samples, SampleSlot

WORDS, NUMBERS = 3, 4
TIMES, MEMORY = 3.0, 1.5  # targets: times a local shuffle, times the data


def made_up(count: int, seed: int) -> Samples:
    """Return samples with one ragged slot of words, as files of multi-slot text give them."""
    random = np.random.default_rng(seed)
    offsets = np.arange(count + 1) * WORDS
    slots = [SampleSlot("words", "int64", None), SampleSlot("x", "float32", (NUMBERS,))]
    columns = [
        Column(random.integers(1, 1 << 40, count * WORDS), offsets),
        Column(random.random(count * NUMBERS, np.float32), np.arange(count + 1) * NUMBERS),
    ]
    for k in range(4):
        slots.append(SampleSlot(f"c{k}", "int64", (1,)))
        columns.append(Column(random.integers(0, 1000, count), np.arange(count + 1)))
    return Samples(slots, columns)


def resident(what: str) -> int:
    """Return this process's memory, or the peak of it, in bytes."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


def main() -> None:
    """Measure; rank 0 prints, and exits with 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--samples", type=int, default=1_000_000, help="of all ranks")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    world = mpi_world()
    dataset = fluid.InMemoryDataset()
    own = options.samples // world.size
    dataset._samples = made_up(1000, 0)  # compiles kernels, connects ranks
    dataset.global_shuffle(world)
    before = resident("VmRSS")
    dataset._samples = made_up(own, world.rank)
    data = dataset._samples.nbytes
    seconds: dict[str, list[float]] = {"local": [], "global": []}
    peaks = []
    for _ in range(options.rounds):
        for name, shuffle in (
            ("local", dataset.local_shuffle),
            ("global", lambda: dataset.global_shuffle(world)),
        ):
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
            world.barrier()
            begin = time.perf_counter()
            shuffle()
            world.barrier()
            seconds[name].append(time.perf_counter() - begin)
            if name == "global":
                peaks.append((resident("VmHWM") - before) / data)
    told = world.allgather_bytes(np.array(peaks).tobytes())
    peak = max(float(np.frombuffer(some).max()) for some in told)
    ratio = float(np.median([g / s for s, g in zip(seconds["local"], seconds["global"])]))
    if world.rank == 0:
        print(
            json.dumps(
                {
                    "samples": own * world.size,
                    "ranks": world.size,
                    "data_bytes": data * world.size,
                    "seconds": seconds,
                    "global_over_local": ratio,
                    "peak_over_data": peak,
                }
            ),
            flush=True,
        )
        sys.exit(ratio > TIMES or peak > MEMORY)


if __name__ == "__main__":
    main()
