"""Which Link a rank has: its first by its role, another once a Program asks for one."""

from __future__ import annotations

from hpcdist.comm.base import Transport
from hpcdist.comm.cluster import PSERVER, Cluster, RankRole
from hpcdist.runtime.collective.collective_link import CollectiveLink
from hpcdist.runtime.collective.hybrid_link import HybridLink
from hpcdist.runtime.job.failure_policy import FailurePolicy
from hpcdist.runtime.job.link import Link
from hpcdist.runtime.job.substitution import LinkKind
from hpcdist.runtime.pipeline.pipeline_link import PipelineLink
from hpcdist.runtime.pserver.server import Server
from hpcdist.runtime.pserver.trainer_link import TrainerLink


class Links:
    """Makes the Links of a rank; ``current`` is the one that it has."""

    def __init__(
        self,
        transport: Transport,
        cluster: Cluster,
        role: RankRole,
        alike: Transport,
        deadline_s: float,
        policy: FailurePolicy,
    ) -> None:
        """``alike`` is the transport of all trainers, or of all servers."""
        self._transport = transport
        self._cluster = cluster
        self._role = role
        self._alike = alike
        self._deadline_s = deadline_s
        self._policy = policy
        self.current = self._first()

    def _first(self) -> Link:
        transport, cluster, deadline_s = self._transport, self._cluster, self._deadline_s
        index, policy = self._role.index, self._policy
        if self._role.kind == PSERVER:
            return Server(transport, cluster, index, deadline_s, policy, self._alike)
        if cluster.servers:
            return TrainerLink(transport, cluster, index, deadline_s, policy.learn)
        return CollectiveLink(self._alike, cluster.trainer_endpoints, deadline_s)

    def asked(self, kind: LinkKind) -> Link:
        """Return the Link that a Program asks for. Collective among the trainers.

        It is `current` from now on; that of a pipeline, once it could cut the Program.
        """
        current, endpoints = self.current, self._cluster.trainer_endpoints
        if kind is LinkKind.OF_ROLE or self._role.kind == PSERVER:
            return current
        if kind is LinkKind.PIPELINE and not isinstance(current, PipelineLink):
            assert isinstance(current, CollectiveLink), "pipelines have no servers"
            return PipelineLink(current, self._alike, endpoints, self._deadline_s)
        if kind is LinkKind.SUMS_DENSE and not isinstance(current, HybridLink):
            everyone, learn = self._transport, self._policy.learn
            self.current = HybridLink(everyone, self._cluster, self._alike, self._deadline_s, learn)
        return self.current
