"""Transpiling a plain script for the parameter servers of its job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hpcdist.comm.cluster import Cluster
from hpcdist.graph.program import Program
from hpcdist.transpiler import DistributeTranspiler
from hpcdist.transpiler.mean_gradient import of_mean_gradient
from hpcdist.transpiler.plan import Plan, trainer_plan
from hpcdist.transpiler.trainer import trainer_program
from hpcdist.transpiler.turns import joined


def transpiled_for(
    cluster: Cluster, trainer_id: int, mains: Sequence[Program], startup: Program
) -> DistributeTranspiler:
    """Return a transpiler that has planned synchronous training with all ranks of a job.

    Several Programs train in turns, see `in_turns`; what it has for trainers is of all of them.
    """
    transpiler = DistributeTranspiler()
    transpiler.transpile(
        trainer_id,
        program=of_mean_gradient(joined(mains), len(cluster.servers)),
        pservers=",".join(cluster.endpoints),
        trainers=len(cluster.trainers),
        startup_program=startup,
    )
    return transpiler


def trainer_programs(
    transpiler: DistributeTranspiler, mains: Sequence[Program], servers: int
) -> list[Program]:
    """Return what a trainer runs in place of each of the Programs that were transpiled."""
    whole = transpiler.get_trainer_program()
    if len(mains) == 1:
        return [whole]
    plan = trainer_plan(whole)
    assert isinstance(plan, Plan)
    return [
        trainer_program(of_mean_gradient(main, servers), replace(plan, turn=turn))
        for turn, main in enumerate(mains)
    ]
