"""Race a server that is sent small packets: hpcdist's, and an echo in bare mpi4py.

    mpirun -n 9 python benchmarks/packets.py

Rank 0 serves, the others send packets of 1 KiB and are answered with as much, each packet by
itself, as in asynchronous training. Both run in turn on the same ranks; the server of hpcdist also
checks, counts and records, and copies its parameter for each answer. The result is packets/s.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI
from rounds import arguments, say

from hpcdist.comm.base import Transport
from hpcdist.comm.cluster import Cluster
from hpcdist.comm.world import mpi_world
from hpcdist.ps.async_shards import AsyncShards
from hpcdist.ps.client import PsClient
from hpcdist.ps.messages import Hello
from hpcdist.ps.packet_exchange import ServerArrays
from hpcdist.ps.packets import Packet, VarSpec
from hpcdist.ps.server import PsServer

FLOATS = 256
GRADIENT, PARAMETER = (
    (Packet(0, (VarSpec(name, (FLOATS,), "float32"),), 4 * FLOATS, (0,)),) for name in ("g", "w")
)


def bare(transport: Transport, packets: int) -> None:
    """Echo: rank 0 answers each packet when it comes."""
    comm: MPI.Comm = transport.native
    peers = [0] if comm.rank else [*range(1, comm.size)]
    came, answers = (np.zeros((len(peers), FLOATS), "float32") for _ in range(2))
    receives = [comm.Recv_init(row, peer, 1) for row, peer in zip(came, peers)]
    sends = [comm.Send_init(row, peer, 1) for row, peer in zip(answers, peers)]
    left = packets * len(peers)
    if comm.rank:
        for _ in range(packets):
            MPI.Prequest.Startall(receives + sends)
            MPI.Request.Waitall(receives + sends)
    else:
        MPI.Prequest.Startall(receives)
        while left:
            ended = MPI.Request.Waitsome(receives) or []
            left -= len(ended)
            for index in ended:
                np.copyto(answers[index], came[index])
                sends[index].Wait()
                receives[index].Start()
                sends[index].Start()
        for request in receives:
            request.Cancel()
        MPI.Request.Waitall(receives + sends)
    for request in receives + sends:
        request.Free()


def ours(transport: Transport, packets: int) -> None:
    """Serve: rank 0 is an asynchronous server without an optimizer."""
    trainers = transport.size - 1
    cluster = Cluster(tuple(range(1, transport.size)), (0,))
    arrays = {name: np.zeros(FLOATS, "float32") for name in "gw"}
    if transport.rank == 0:
        expected = Hello(trainers, False, "", GRADIENT, PARAMETER)
        server = PsServer(
            transport, cluster, 0, expected=expected, arrays=arrays,
            shards=AsyncShards(trainers, 1), own_answers=True,
        )  # fmt: skip
        server.serve(lambda step: None, lambda packet, contributors: ())
        return
    client = PsClient(transport, cluster, transport.rank - 1, fingerprint="", sync_mode=False)
    endpoint = cluster.endpoints[0]
    client.connect(
        [
            ServerArrays(
                endpoint, GRADIENT, PARAMETER, gradient_arrays=arrays, parameter_arrays=arrays
            )
        ]
    )
    exchange = client.exchanger([0])  # as a step of an asynchronous trainer ends
    for _ in range(packets):
        exchange()
    client.close()


def timed(run: Callable[[Transport, int], None], transport: Transport, packets: int) -> float:
    """Return the packets per second that the server has answered."""
    transport.barrier()
    begin = time.perf_counter()
    run(transport, packets)
    transport.barrier()
    return packets * (transport.size - 1) / (time.perf_counter() - begin)


def main() -> None:
    """Run both in turn; rank 0 prints the medians and the median of the rounds' ratios."""
    parser = arguments(__doc__, 7)
    parser.add_argument("--packets", type=int, default=1000, help="of each trainer in a round")
    options = parser.parse_args()
    transport = mpi_world()
    ways = {"bare mpi4py": bare, "hpcdist": ours}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, run in ways.items():
            found[name].append(timed(run, transport, options.packets))
    if transport.rank == 0:
        ratios = [mine / other for mine, other in zip(found["hpcdist"], found["bare mpi4py"])]
        medians = {name: statistics.median(speeds) for name, speeds in found.items()}
        ratio = statistics.median(ratios)
        say(
            [
                {
                    "packets_per_s": medians,
                    "ratio": ratio,
                    "lowest": min(ratios),
                    "highest": max(ratios),
                }
            ]
        )


if __name__ == "__main__":
    main()
