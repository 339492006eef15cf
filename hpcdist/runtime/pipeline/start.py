"""From the first step of a Program that is cut into stages on, ranks are stages of it."""

from __future__ import annotations

from hpcdist.comm.base import Transport
from hpcdist.comm.cluster import Cluster
from hpcdist.errors import PlanError
from hpcdist.graph.program import Program
from hpcdist.runtime.collective.collective_link import CollectiveLink
from hpcdist.runtime.job.link import Link
from hpcdist.runtime.pipeline.pipeline_link import ANOTHER, PipelineLink


def refuse_transpiled(program: Program) -> None:
    """Refuse a Program that was cut into stages, and transpiled."""
    if program.pipeline is not None:
        raise PlanError(
            "PipelineOptimizer cuts this program into stages, and the script transpiles it, too "
            "(DistributeTranspiler, or fleet): leave one of them out"
        )


def start_pipeline(
    link: Link,
    others: bool,
    trainers: Transport,
    cluster: Cluster,
    deadline_s: float,
    main: Program,
    startup: Program,
) -> PipelineLink:
    """Return the connection of a rank that has had ``link`` until now. Collective.

    ``others``: this job has trained another Program. Raises PlanError if the job cannot train this
    one in a pipeline.
    """
    if cluster.servers:
        raise PlanError(
            "a pipeline has no parameter servers, each stage updates its own parameters: start the "
            "job without --pservers, or leave PipelineOptimizer out"
        )
    if others:
        raise PlanError(ANOTHER)
    assert isinstance(link, CollectiveLink)
    return PipelineLink(link, trainers, cluster.trainer_endpoints, deadline_s, main, startup)
