"""The Link of a rank: initially by its role, replaced when a Program needs another."""

from __future__ import annotations

from dataclasses import dataclass, field

from hpcdist.comm.base import Transport
from hpcdist.comm.cluster import PSERVER, Cluster, RankRole
from hpcdist.runtime.collective.collective_link import CollectiveLink
from hpcdist.runtime.collective.hybrid_link import HybridLink
from hpcdist.runtime.job.failure_policy import FailurePolicy
from hpcdist.runtime.job.farewells import Common
from hpcdist.runtime.job.link import Link
from hpcdist.runtime.job.substitution import LinkKind
from hpcdist.runtime.pipeline.pipeline_link import PipelineLink
from hpcdist.runtime.pserver.server import Server
from hpcdist.runtime.pserver.trainer_link import TrainerLink
from hpcdist.runtime.pserver.trainer_servers import TrainerServers


@dataclass
class Links:
    """Makes the Links of a rank; `current` is the one that it has.

    ``alike`` is the transport of all trainers, or of all servers; ``servers`` are those of a
    trainer that has some, ``common`` is what trainers without have.
    """

    transport: Transport
    cluster: Cluster
    role: RankRole
    alike: Transport
    deadline_s: float
    policy: FailurePolicy
    servers: TrainerServers | None
    common: Common | None
    current: Link = field(init=False)

    def __post_init__(self) -> None:
        self.current = self._first()

    def _first(self) -> Link:
        transport, cluster, deadline_s = self.transport, self.cluster, self.deadline_s
        index, policy = self.role.index, self.policy
        if self.role.kind == PSERVER:
            return Server(transport, cluster, index, deadline_s, policy, self.alike)
        if self.servers is not None:
            return TrainerLink(self.servers, cluster, index)
        endpoints = cluster.trainer_endpoints
        return CollectiveLink(self.alike, endpoints, deadline_s, common=self.common)

    def link_for(self, kind: LinkKind) -> Link:
        """Return the Link that a Program asks for. Collective among the trainers.

        It is `current` from now on; that of a pipeline, once it could cut the Program.
        """
        current, endpoints = self.current, self.cluster.trainer_endpoints
        if kind is LinkKind.OF_ROLE or self.role.kind == PSERVER:
            return current
        if kind is LinkKind.PIPELINE and not isinstance(current, PipelineLink):
            assert isinstance(current, CollectiveLink), "pipelines have no servers"
            return PipelineLink(current, self.alike, endpoints, self.deadline_s)
        if kind is LinkKind.SUMS_DENSE and not isinstance(current, HybridLink):
            everyone, learn = self.transport, self.policy.learn
            self.current = HybridLink(everyone, self.cluster, self.alike, self.deadline_s, learn)
        return self.current
