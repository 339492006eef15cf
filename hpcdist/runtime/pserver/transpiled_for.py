"""Transpiling a plain script for the parameter servers of its job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from hpcdist.base.errors import PlanError
from hpcdist.comm.cluster import Cluster
from hpcdist.graph.printing import exact_text
from hpcdist.graph.program import Program
from hpcdist.ps.plan import Plan
from hpcdist.transpiler import DistributeTranspiler
from hpcdist.transpiler.config import sums_dense
from hpcdist.transpiler.mean_gradient import of_mean_gradient
from hpcdist.transpiler.own_rates import with_rates_scheduled
from hpcdist.transpiler.plan import trainer_plan
from hpcdist.transpiler.trainer import trainer_program
from hpcdist.transpiler.turns import joined, why_not_in_turns

UNKNOWN = "build and minimize all programs, with one startup program, before that is first run"


def transpiled_for(
    cluster: Cluster, trainer_id: int, mains: Sequence[Program], startup: Program
) -> DistributeTranspiler:
    """Return a transpiler that has planned synchronous training with all ranks of a job.

    Several Programs train in turns, see `in_turns`; what it has for trainers is of all of them.
    """
    transpiler = DistributeTranspiler()
    program = mains[0]  # where trainers sum gradients, they clip these themselves
    if not sums_dense(transpiler.config):
        scheduled = [with_rates_scheduled(main) for main in mains]
        program = of_mean_gradient(joined(scheduled), len(cluster.servers))
    transpiler.transpile(
        trainer_id,
        program=program,
        pservers=",".join(cluster.endpoints),
        trainers=len(cluster.trainers),
        startup_program=startup,
    )
    return transpiler


class PlainScript:
    """What the servers of a plain script serve: its first Programs, and others that are alike."""

    def __init__(self, cluster: Cluster, trainer_id: int) -> None:
        self._cluster = cluster
        self._trainer_id = trainer_id
        self._served: DistributeTranspiler | None = None

    def transpiled(self, mains: Sequence[Program], startup: Program) -> DistributeTranspiler:
        """Return the transpiler that planned their training; PlanError if no server knows it."""
        transpiler = transpiled_for(self._cluster, self._trainer_id, mains, startup)
        self._served = self._served or transpiler
        for endpoint in self._cluster.endpoints:
            two = (transpiler, self._served)
            ours, served = (exact_text(t.get_pserver_program(endpoint)) for t in two)
            if ours != served:
                self._refuse(mains[0], startup)
        return transpiler

    def _refuse(self, main: Program, startup: Program) -> NoReturn:
        parameters = [p.name for p in main.all_parameters() if p.trainable]
        raise PlanError(
            f"trainer {self._trainer_id}: a program other than the first would train "
            f"({', '.join(parameters)}), which the parameter servers do not know: "
            f"{why_not_in_turns(startup.mains, len(self._cluster.servers)) or UNKNOWN}; or train "
            "without servers (no --pservers)"
        )


def trainer_programs(
    transpiler: DistributeTranspiler, mains: Sequence[Program], servers: int
) -> list[Program]:
    """Return a trainer's Programs in place of each of the Programs that were transpiled."""
    program = transpiler.get_trainer_program()
    if len(mains) == 1:
        return [program]
    plan = trainer_plan(program)
    assert isinstance(plan, Plan)
    return [
        trainer_program(
            of_mean_gradient(with_rates_scheduled(main), servers), replace(plan, turn=turn)
        )
        for turn, main in enumerate(mains)
    ]
