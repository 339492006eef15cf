"""Sum gradients over all ranks, in several ways in turn. Started by allreduce.py.

    mpirun -n 2 python benchmarks/sum_step.py --case resnet50

`raw` is one MPI_Allreduce of all bytes, in memory that each rank has for itself; `fused` is what a
training step does: buckets in backward order, started one after the other and waited for at the
end; `unfused` is the same with a bucket for every gradient, `calls` an MPI_Allreduce for every
gradient. Rank 0 prints a JSON line with the sums per second of each: the medians of the rounds,
every round being as long as its slowest rank.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI
from resnet50 import gradients, size

from hpcdist.comm.bucket import Fusing, Gradient, buckets
from hpcdist.comm.host_collective import HostCollective
from hpcdist.comm.reducer import BucketReducer
from hpcdist.comm.world import mpi_world

CASES = {
    "resnet50": [size(shape) for _, shape in gradients()],
    "small": [1024] * 1000,
}
FUSING = Fusing(memory_mb=32, groups_size=50)  # fleet 2.0's
ALL_IN_ONE = Fusing(memory_mb=32)


def reducer(group: HostCollective, sizes: list[int], fusing: Fusing | None) -> Callable[[], None]:
    """Return one step's sums; without ``fusing`` every gradient is summed alone."""
    facts = [Gradient(f"w{i}", "float32", 4 * n) for i, n in enumerate(sizes)]
    whole = buckets(facts, fusing) if fusing else tuple((i,) for i in range(len(sizes)))
    lengths = [sum(sizes[i] for i in bucket) for bucket in whole]
    arrays = [group.empty(4 * n).view(np.float32) for n in lengths] if fusing else None
    if arrays is None:
        memory = group.empty(4 * sum(lengths)).view(np.float32)
        ends = np.cumsum(lengths)
        arrays = [memory[end - n : end] for n, end in zip(lengths, ends)]
    for array in arrays:
        array.fill(1)
    sums = BucketReducer([group], arrays)

    def step() -> None:
        for k in range(len(arrays)):
            sums.start(k)
        sums.wait_all()

    step()
    expected = group.size
    assert all((array == expected).all() for array in arrays), "a sum is wrong"
    return step


def main() -> None:
    """Measure one case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=sorted(CASES), default="resnet50")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    world, group = MPI.COMM_WORLD, HostCollective(mpi_world())
    sizes = CASES[options.case]
    private = [np.zeros(n, np.float32) for n in (sum(sizes), *sizes)]

    def calls() -> None:
        for array in private[1:]:
            world.Allreduce(MPI.IN_PLACE, array)

    ways = {
        "raw": lambda: world.Allreduce(MPI.IN_PLACE, private[0]),
        "calls": calls,
        "unfused": reducer(group, sizes, None),
        "fused": reducer(group, sizes, FUSING if options.case == "resnet50" else ALL_IN_ONE),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for index in range(options.rounds + 1):
        for name, way in ways.items():
            world.Barrier()
            begin = time.perf_counter()
            way()
            slowest = world.allreduce(time.perf_counter() - begin, op=MPI.MAX)
            if index:  # the first is the warm-up
                seconds[name].append(slowest)
    group.close()
    if world.rank == 0:
        found = {name: 1 / statistics.median(times) for name, times in seconds.items()}
        print(json.dumps({"steps_per_s": found, "losses": []}), flush=True)


if __name__ == "__main__":
    main()
