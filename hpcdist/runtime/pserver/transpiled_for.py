"""Transpiling a plain script for the parameter servers of its job."""

from __future__ import annotations

from hpcdist.comm.cluster import Cluster
from hpcdist.graph.program import Program
from hpcdist.transpiler import DistributeTranspiler
from hpcdist.transpiler.mean_gradient import of_mean_gradient


def transpiled_for(
    cluster: Cluster, trainer_id: int, main: Program, startup: Program
) -> DistributeTranspiler:
    """Return a transpiler that has planned synchronous training with all ranks of a job."""
    transpiler = DistributeTranspiler()
    transpiler.transpile(
        trainer_id,
        program=of_mean_gradient(main, len(cluster.servers)),
        pservers=",".join(cluster.endpoints),
        trainers=len(cluster.trainers),
        startup_program=startup,
    )
    return transpiler
