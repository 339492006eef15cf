"""A trainer of a hybrid job: dense gradients are summed by the trainers, servers keep tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hpcdist.base.errors import GraphError, HpcdistError, PlanError
from hpcdist.base.trace.position import here
from hpcdist.comm.base import Transport
from hpcdist.comm.cluster import Cluster
from hpcdist.executor.control import Binding
from hpcdist.executor.scope import Scope, ScopeVariable
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.registry import Call
from hpcdist.ps.client import PsClient
from hpcdist.ps.plan import Plan
from hpcdist.runtime.collective.collective_link import CollectiveLink
from hpcdist.runtime.collective.sum_checks import check_counts
from hpcdist.runtime.pserver.connection import ServerConnection
from hpcdist.runtime.pserver.transpiled_for import PlainScript
from hpcdist.runtime.tables.pull_push import bind_steps
from hpcdist.transpiler.hybrid import served_plan
from hpcdist.transpiler.plan import ProgramPlan
from hpcdist.transpiler.substitute import in_group
from hpcdist.transpiler.table_metadata import tables_looked_up


class ServedTables:
    """The tables of a trainer that servers keep: rows are pulled, and gradients pushed, by id."""

    together: tuple[str, ...] = ("push_sparse",)  # rows may also be looked up by one trainer alone

    def __init__(self, connection: ServerConnection, servers: int) -> None:
        self._connection = connection
        self._servers = servers
        self.plan: ProgramPlan | None = None  # once a Program has told it

    def bind(self, ops: Sequence[Operator], binding: Binding) -> dict[int, Call]:
        """Return the calls of operators of tables in a step, by their id.

        The first Program that trains connects. GraphError for tables that servers do not have.
        """
        served = {table.parameter for table in self.plan.tables} if self.plan is not None else set()
        for op in ops:
            for look_up in op.attrs["lookups"]:
                if look_up.table not in served:
                    raise GraphError(
                        f"table {look_up.table!r} is not on the servers: they keep those of the "
                        "program that trains: run it, or its startup program, first"
                    )
        assert self.plan is not None, "it has the tables"
        if any(op.type == "push_sparse" for op in ops):
            self._connection.connect(self.plan, binding.arrays.__getitem__, [])
        exchange = self._connection.current
        tables = self.plan.specs
        return bind_steps(ops, binding, tables, self._servers, lambda: exchange().tables)


class HybridLink(CollectiveLink):
    """The connection of a trainer to all others, and to the servers of its tables."""

    def __init__(
        self,
        transport: Transport,
        cluster: Cluster,
        trainers: Transport,
        deadline_s: float,
        learn: Callable[[Plan], None],
    ) -> None:
        """``transport`` is of all ranks; ``learn`` is told the plan. Collective among trainers."""
        self._learn = learn
        me = trainers.rank
        self._connection = ServerConnection(transport, cluster, me, deadline_s)
        self._served = ServedTables(self._connection, len(cluster.servers))
        self._script = PlainScript(cluster, me)
        super().__init__(trainers, cluster.trainer_endpoints, deadline_s, self._served)

    def refuse_uneven(self) -> None:
        raise HpcdistError(
            "even_batches(how='join'): a trainer without rows would look none up in the tables "
            "of the servers: use 'pad' or 'cut'"
        )

    # -- before a step -----------------------------------------------------------------------
    def substitute(self, program: Program) -> Program:
        plan = served_plan(program)
        if plan is not None:
            self._served.plan = plan
            self._learn(plan)
        return in_group(program, tables_here=False)

    def transpiled(
        self, mains: Sequence[Program], startup: Program
    ) -> tuple[list[Program], Program]:
        (main,) = mains
        if self._served.plan is not None and not tables_looked_up(main):
            self._refuse_written(main)
            return super().transpiled(mains, startup)
        check_counts(main, self._trainers.size)
        transpiler = self._script.transpiled(mains, startup)
        return [transpiler.get_trainer_program()], transpiler.get_trainer_startup_program()

    def _refuse_written(self, main: Program) -> None:
        """Refuse a Program that servers do not know, but that changes what they compute with."""
        assert self._served.plan is not None, "servers have tables"
        names = {value.name for value in self._served.plan.scheduled}
        for op in main.global_block().ops:
            for name in names.intersection(op.output_arg_names):
                raise PlanError(
                    f"trainer {self._trainers.rank}: {op.place} {op} changes {name!r} in a program "
                    "without tables, but servers update their tables with their own copy: give "
                    "each program its own learning rate, or train without servers (no --pservers)"
                )

    def also_on_servers(self, program: Program) -> frozenset[str]:
        """Return the values that servers compute or keep as trainers do: learning rates, counts."""
        plan = self._served.plan if program.trains else served_plan(program)
        return frozenset(value.name for value in plan.scheduled) if plan else frozenset()

    def unlike_servers(
        self, variables: Sequence[ScopeVariable], by_hand: Sequence[ScopeVariable]
    ) -> dict[str, np.ndarray]:
        plan = self._served.plan
        names = {value.name for value in plan.scheduled} if plan is not None else set()
        for variable in variables:
            if variable.name in names:
                raise PlanError(
                    f"trainer {self._trainers.rank}: {variable.name!r} was changed on the trainer, "
                    "by tensor.set or by a program that writes it, but servers update their "
                    "tables with their own copy: feed a learning rate to the step, let a schedule "
                    "of layers.learning_rate_scheduler compute it, or train without servers (no "
                    "--pservers)"
                )
        return {}

    # -- servers -----------------------------------------------------------------------------
    def current_client(self) -> PsClient:
        """Return the current client of the servers: before the first step it can only ask."""
        return self._connection.current()

    def settle(self, program: Program) -> dict[str, int]:
        """Wait until the servers have applied all steps so far."""
        client = self._connection.client
        if client is not None and self._served.plan is not None:
            here.doing = "waiting for the servers' tables"
            client.tables.settle(self._served.plan.specs)
            here.doing = ""
        return super().settle(program)

    def resume(self, program: Program, counted: Mapping[str, int], scope: Scope) -> None:
        self.current_client().tables.restored += 1
        super().resume(program, counted, scope)

    def close(self) -> None:
        """Notify the others that no more sums come from here, and leave the servers."""
        super().close()
        self.current_client().close()
