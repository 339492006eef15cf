"""The groups in which a job sums its gradients: library, levels, number of communicators."""

from __future__ import annotations

from dataclasses import dataclass

from hpcdist.base.errors import CommError
from hpcdist.comm.base import Transport
from hpcdist.comm.collective import CollectiveOperations
from hpcdist.comm.hierarchy import HierarchicalCollective
from hpcdist.comm.host_collective import HostCollective
from hpcdist.comm.progress import DEADLINE_S


@dataclass(frozen=True)
class AllreduceOptions:
    """How gradients are to be summed; the names are those of Fluid's strategies."""

    nccl_comm_num: int = 1
    use_hierarchical_allreduce: bool = False
    hierarchical_allreduce_inter_nranks: int = 0
    carrier: str = "nccl"  # of arrays on GPUs; arrays in host memory go over MPI

    def __post_init__(self) -> None:
        if self.nccl_comm_num < 1:
            raise CommError(f"nccl_comm_num: expected 1 or more, got {self.nccl_comm_num}")


def make_groups(
    transport: Transport,
    way: AllreduceOptions,
    device_id: int | None = None,
    deadline_s: float | None = DEADLINE_S,
) -> list[CollectiveOperations]:
    """Return groups of all ranks, which take turns, each with a separate transport. Collective.

    ``device_id`` is this rank's GPU, None where arrays are in host memory. Sums over MPI share one
    group: they do not wait for each other there.
    """
    if device_id is None or way.carrier != "nccl":
        flat = HostCollective(transport.split(0, transport.rank), deadline_s)
        group: CollectiveOperations = flat
        if way.use_hierarchical_allreduce:
            inter_nranks = way.hierarchical_allreduce_inter_nranks
            group = HierarchicalCollective(flat, inter_nranks)
        if device_id is None:
            return [group]
        from hpcdist.comm.device import AwareCollective, StagedCollective

        aware = way.carrier == "mpi-cuda-aware"
        return [AwareCollective(group) if aware else StagedCollective(group)]
    from hpcdist.comm.nccl import NcclCollective
    from hpcdist.comm.nccl_hierarchy import HierarchicalNcclCollective

    groups: list[CollectiveOperations] = []
    for _ in range(way.nccl_comm_num):
        everyone = HostCollective(transport.split(0, transport.rank), deadline_s).group
        ring = NcclCollective(everyone, device_id)
        if way.use_hierarchical_allreduce:
            inter_nranks = way.hierarchical_allreduce_inter_nranks
            groups.append(HierarchicalNcclCollective(ring, device_id, inter_nranks))
        else:
            groups.append(ring)
    return groups
