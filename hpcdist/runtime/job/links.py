"""Which Link a rank has: its first by its role, another once a Program asks for one."""

from __future__ import annotations

from dataclasses import dataclass

from hpcdist import settings
from hpcdist.comm.base import Transport
from hpcdist.comm.cluster import PSERVER, Cluster, RankRole
from hpcdist.errors import PlanError
from hpcdist.graph.program import Program
from hpcdist.runtime.collective.collective_link import CollectiveLink
from hpcdist.runtime.collective.hybrid_link import HybridLink
from hpcdist.runtime.job.failure_policy import FailurePolicy
from hpcdist.runtime.job.link import Link
from hpcdist.runtime.pipeline.pipeline_link import ANOTHER, PipelineLink
from hpcdist.runtime.pserver.server import Server
from hpcdist.runtime.pserver.trainer_link import TrainerLink


@dataclass(frozen=True)
class Links:
    """Makes the Links of a rank; ``alike`` is the transport of all trainers, or of all servers."""

    transport: Transport
    cluster: Cluster
    role: RankRole
    alike: Transport
    deadline_s: float
    policy: FailurePolicy

    def first(self) -> Link:
        """Return the Link by the role of this rank."""
        index, policy = self.role.index, self.policy
        if self.role.kind == PSERVER:
            return Server(self.transport, self.cluster, index, self.deadline_s, policy, self.alike)
        if self.cluster.servers:
            return TrainerLink(self.transport, self.cluster, index, self.deadline_s, policy.learn)
        return CollectiveLink(self.alike, self.cluster.trainer_endpoints, self.deadline_s)

    @property
    def sums_dense(self) -> bool:
        """Whether trainers of a plain script sum dense gradients, though there are servers."""
        return bool(self.cluster.servers) and settings.DENSE.read() == "collective"

    def hybrid(self) -> Link:
        """Return that of a trainer that sums dense gradients. Collective among the trainers."""
        learn = self.policy.learn
        return HybridLink(self.transport, self.cluster, self.alike, self.deadline_s, learn)

    def pipeline(
        self, link: Link, other_programs: bool, main: Program, startup: Program
    ) -> PipelineLink:
        """Return that of a stage of ``main``, for a rank that has had ``link``. Collective.

        ``other_programs``: this job has trained another Program. Raises PlanError if the job
        cannot train this one in a pipeline.
        """
        if self.cluster.servers:
            raise PlanError(
                "a pipeline has no parameter servers, each stage updates its own parameters: start "
                "the job without --pservers, or leave PipelineOptimizer out"
            )
        if other_programs or not isinstance(link, CollectiveLink):
            raise PlanError(ANOTHER)
        endpoints = self.cluster.trainer_endpoints
        return PipelineLink(link, self.alike, endpoints, self.deadline_s, main, startup)


def refuse_transpiled(program: Program) -> None:
    """Refuse a Program that was cut into stages, and transpiled."""
    if program.pipeline is not None:
        raise PlanError(
            "PipelineOptimizer cuts this program into stages, and the script transpiles it, too "
            "(DistributeTranspiler, or fleet): leave one of them out"
        )
