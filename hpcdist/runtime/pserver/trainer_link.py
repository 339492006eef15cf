"""A trainer's side of the network operators: each mode's step protocol, bound to a PsClient."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np

from hpcdist.base.device import on_host
from hpcdist.base.errors import CommError, PlanError
from hpcdist.comm.cluster import Cluster
from hpcdist.executor.backend import Backend
from hpcdist.executor.control import Binding
from hpcdist.executor.scope import Scope, ScopeVariable, holds_averages
from hpcdist.graph.op_role import AFTER_UPDATES
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program, ProgramCache, program_of
from hpcdist.graph.registry import Call, Meta
from hpcdist.ps.client import PsClient
from hpcdist.ps.death_consensus import Witness
from hpcdist.ps.plan import UpdateMode
from hpcdist.runtime.job.link import Link
from hpcdist.runtime.pserver.asynchronous import Asynchronous
from hpcdist.runtime.pserver.bound_steps import BoundSteps
from hpcdist.runtime.pserver.communicator_step import CommunicatorStep
from hpcdist.runtime.pserver.exchange_plan import refuse_unpushed
from hpcdist.runtime.pserver.geo_steps import BoundGeo
from hpcdist.runtime.pserver.scheduled_fetch import (
    ScheduledFetch,
    install_first_values,
    install_table_readers,
)
from hpcdist.runtime.pserver.startup import bind_startup
from hpcdist.runtime.pserver.synchronous import Synchronous
from hpcdist.runtime.pserver.trainer_servers import TrainerServers
from hpcdist.runtime.pserver.transpiled_for import PlainScript, trainer_programs
from hpcdist.runtime.staging import in_order
from hpcdist.runtime.tables.pull_push import RowExchange, bind_steps
from hpcdist.runtime.tables.remote_lookup import bind_lookup
from hpcdist.transpiler.plan import ProgramPlan, trainer_plan
from hpcdist.transpiler.substitute import on_trainer

SENDS = ("send", "push_sparse")  # a Program with none of them only looks rows up


class TrainerLink(Link):
    """The connection of one trainer to all servers, shared by the Programs it runs."""

    def __init__(self, servers: TrainerServers, cluster: Cluster, trainer_id: int) -> None:
        self._cluster = cluster
        self._trainer_id = trainer_id
        self._servers = servers
        self._plan: ProgramPlan | None = None  # once it runs its part of a Program
        self._script = PlainScript(cluster, trainer_id)
        self._scheduled: ProgramCache[ScheduledFetch] = ProgramCache()

    def substitute(self, program: Program) -> Program:
        plan = trainer_plan(program)
        if plan is not None:
            self._plan = plan
            self._servers.learn(plan)
        return on_trainer(program, self._plan)

    def transpiled(
        self, mains: Sequence[Program], startup: Program
    ) -> tuple[list[Program], Program]:
        transpiler = self._script.transpiled(mains, startup)
        programs = trainer_programs(transpiler, mains, len(self._cluster.servers))
        return programs, transpiler.get_trainer_startup_program()

    def scheduled(self, program: Program) -> ScheduledFetch:
        return self._scheduled.of(program, lambda: self._scheduled_of(program))

    def _scheduled_of(self, program: Program) -> ScheduledFetch:
        plan = trainer_plan(program)
        trains = plan is not None and _trains(program.global_block().ops, plan)
        return ScheduledFetch(program, plan if trains else None, self.current_client)

    def contiguous(
        self, ops: Sequence[Operator], metas: Mapping[str, Meta], backend: Backend
    ) -> list[list[str]]:
        """Return the names that must be adjacent because they travel in one message."""
        plan = trainer_plan(program_of(ops[0]))
        if backend.xp is not np or plan is None or not _trains(ops, plan):
            return []  # from a device, messages leave from host copies
        refuse_unpushed(plan)
        return self._protocol_of(plan).contiguous()

    @property
    def staleness(self) -> int:
        return self._servers.staleness

    def bind(self, ops: Sequence[Operator], binding: Binding) -> list[Call | None]:
        """Return each network operator's call in a step; None where another one does it."""
        plan = _plan_of(ops[0])
        calls: list[Call | None] = [None] * len(ops)
        if plan.startup:
            calls = bind_startup(ops, plan, self._servers.connection, binding)
            install_first_values(plan, binding.scope)
            install_table_readers(plan, binding.scope, self.current_client)
        elif _trains(ops, plan):
            self.scheduled(program_of(ops[0])).install_readers(binding.scope)
            calls = self._protocol_of(plan).bind(ops, binding)
        ahead = not plan.mode.averaged
        tables = plan.specs, len(self._cluster.servers), self._tables
        pulls_and_pushes = bind_steps(ops, binding, *tables, ahead=ahead)
        if any(AFTER_UPDATES in op.attrs for op in ops[0].block.ops):
            calls[0] = in_order(functools.partial(_refuse_averages, binding.scope), calls[0])
        for i, op in enumerate(ops):
            calls[i] = in_order(pulls_and_pushes.get(id(op)), calls[i])
            if op.type == "distributed_lookup_table":
                calls[i] = bind_lookup(self.current_client, op, binding)
        return calls

    def current_client(self) -> PsClient:
        """Return the current client of the servers: before the first step it can only ask."""
        return self._servers.client()

    def agree_on_deaths(self, witness: Witness) -> Witness:
        """Return the deaths known to any surviving trainer; each of them calls this."""
        return self.current_client().agree_on_deaths(witness)

    def close(self) -> None:
        """Leave the servers; what is queued or not yet exchanged is sent first."""
        self._servers.close()

    def leave_servers(self) -> None:
        """Leave servers that go on to serve something else, and be connected anew for that."""
        self._servers.leave()
        self._plan = None

    def unlike_servers(
        self, variables: Sequence[ScopeVariable], by_hand: Sequence[ScopeVariable]
    ) -> dict[str, np.ndarray]:
        """Compare parameters that were changed here with those of the servers."""
        unlike: dict[str, np.ndarray] = {}
        if self._plan is None:
            return unlike
        routes = {r.parameter: r for r in self._plan.routes}
        tables = {table.parameter for table in self._plan.tables}
        for variable in variables:
            route = routes.get(variable.name)
            remote = route is not None and route.remote
            given = self._plan.mode.lockstep and variable in by_hand
            if variable.name in tables or (remote and not given):
                self._refuse_changed(variable.name)
            if route is None or variable.value is None:
                continue
            value = on_host(variable.value)
            for piece, endpoint in zip(route.slices, route.endpoints):
                answered = np.empty(piece.shape, route.dtype)
                self.current_client().read(endpoint, {piece.name: answered})
                local = value[piece.begin : piece.end] if route.cut else value
                if answered.tobytes() != local.tobytes():
                    _refuse_averages(variable.scope)
                    if not self._plan.mode.lockstep:
                        self._refuse_changed(route.parameter)
                    unlike[piece.name] = local
            if remote:  # the servers' rows are read, now as before
                install_table_readers(self._plan, variable.scope, self.current_client)
        return unlike

    def _refuse_changed(self, name: str) -> NoReturn:
        raise PlanError(
            f"trainer {self._trainer_id}: {name!r} was changed on the trainer, by tensor.set, a "
            "feed or a program that writes it, but the parameter servers would continue with "
            "their value: let an initializer set it (initializer.NumpyArrayInitializer), "
            "fluid.io.load_params, or train without servers (no --pservers)"
        )

    # -- checkpoints -------------------------------------------------------------------------
    def settle(self, program: Program) -> dict[str, int]:
        """Send what is queued or not yet exchanged; return when the servers have all of it."""
        self._servers.settle(trainer_plan(program))
        return {}

    def catch_up(self, program: Program) -> None:
        """With GEO: take over what other trainers had not yet exchanged."""
        self._servers.catch_up()

    def resume(self, program: Program, counted: Mapping[str, int], scope: Scope) -> None:
        """Forget rows asked for ahead; with GEO, note what the servers have loaded."""
        self.current_client().tables.restored += 1
        plan = trainer_plan(program)
        if plan is None:
            return
        protocol = self._servers.protocols.get(plan.turn)
        if protocol is None or isinstance(protocol, BoundSteps):  # others are of no Program
            protocol = self._protocol_of(plan)
        protocol.resume()

    # -- inside ------------------------------------------------------------------------------
    def _tables(self) -> RowExchange:
        return self.current_client().tables

    def _protocol_of(self, plan: ProgramPlan) -> BoundSteps:
        protocol = self._servers.protocols.get(plan.turn)
        if not isinstance(protocol, BoundSteps) or protocol.plan != plan:
            protocol = protocol_of(plan.mode)(plan, self._servers.connection)
            self._servers.protocols[plan.turn] = protocol
        return protocol


def protocol_of(mode: UpdateMode) -> type[BoundSteps]:
    """Return the protocol of the network operators in this mode."""
    if mode.geo:
        return BoundGeo
    if mode.runtime_split:
        return CommunicatorStep
    return Synchronous if mode.synchronous else Asynchronous


def _refuse_averages(scope: Scope) -> None:
    """Refuse a step of parameters that have their averages on this trainer, not on the servers."""
    if holds_averages(scope):
        raise PlanError(
            "inside apply() parameters have their averages, but the servers would continue from "
            "the original values: leave the `with`, or call restore(exe), before the next step"
        )


def _trains(ops: Sequence[Operator], plan: ProgramPlan) -> bool:
    return not plan.startup and any(op.type in SENDS for op in ops)


def _plan_of(op: Operator) -> ProgramPlan:
    """Return the plan of the Program of a network operator; CommError if it carries none."""
    plan = trainer_plan(program_of(op))
    if plan is None:
        raise CommError(
            f"operator {op.type!r} talks to parameter servers, but its program was not made by "
            "DistributeTranspiler in this process, so there is no plan to follow: run what "
            "transpile() hands out, not a program loaded from a file or put together by hand"
        )
    return plan
