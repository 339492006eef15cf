"""What each rank does on several hosts: sum in one level and in two, and count the bytes sent.

Rank 0 prints a JSON line: for each way, in multiples of the array, what its host sent.
"""

from __future__ import annotations

import json

import numpy as np

from hpcdist.comm.hierarchy import HierarchicalCollective
from hpcdist.comm.host_collective import HostCollective
from hpcdist.comm.world import mpi_world
from tests.support.hosts import link_bytes

LENGTH = 500_000


def main() -> None:
    """Sum the same arrays in every way."""
    world = mpi_world()
    flat = HostCollective(world, 60.0)
    levels = HierarchicalCollective(flat)
    shared = flat.empty(4 * LENGTH).view(np.float32)
    alone = np.zeros(LENGTH, np.float32)
    rows = [np.random.default_rng(k).normal(size=LENGTH).astype("f4") for k in range(world.size)]
    ways = {
        "flat": (alone, flat.allreduce_init(alone, ordered=True)),
        "hierarchical": (shared, levels.allreduce_init(shared, ordered=True)),
        "not shared": (alone, levels.allreduce_init(alone)),
    }
    found = {}
    for name, (array, reduction) in ways.items():
        sent = []
        for _ in range(3):
            array[:] = rows[world.rank]
            world.barrier()
            before = link_bytes()  # nobody sends until this rank has come to the next barrier
            world.barrier()
            reduction.start()
            reduction.wait()
            world.barrier()
            sent.append((link_bytes() - before) / array.nbytes)
            np.testing.assert_allclose(array, sum(rows), rtol=1e-4, atol=1e-4)
        assert len(set(world.allgather_bytes(array.tobytes()))) == 1, "ranks differ"
        found[name] = min(sent)
    flat.close()
    if world.rank == 0:
        print(json.dumps({"nodes": str(levels.nodes), "ways": found}), flush=True)


if __name__ == "__main__":
    main()
