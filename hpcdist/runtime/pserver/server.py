"""A server's side: listen_and_serv runs optimize blocks on what the trainers send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdist.base import settings
from hpcdist.base.errors import GraphError
from hpcdist.base.trace.position import here
from hpcdist.checkpoint.serving import ServerStore
from hpcdist.comm.base import ANY, Array, Request, Transport
from hpcdist.comm.cluster import Cluster
from hpcdist.comm.progress import while_waiting
from hpcdist.executor.backend import CPUPlace
from hpcdist.executor.compile import steps_of
from hpcdist.executor.control import Binding
from hpcdist.executor.executor import Executor
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.registry import Call
from hpcdist.ops.common import in_sequence
from hpcdist.ps.messages import REQUEST_TAG, Hello, MessageKind, decode_header
from hpcdist.ps.server import PsServer
from hpcdist.ps.wire import new_header
from hpcdist.runtime.job.failure_policy import FailurePolicy
from hpcdist.runtime.job.link import Link
from hpcdist.runtime.kept.server import ServerShards
from hpcdist.runtime.pserver.exchange_plan import ServerExchange, refuse_unpushed, server_exchange
from hpcdist.runtime.pserver.optimize_block import (
    Apply,
    OptimizeBlock,
    array_of,
    bind_dense,
    bind_sparse,
    later,
    optimize_block,
)
from hpcdist.runtime.pserver.serving import AsynchronousServing, Serving
from hpcdist.runtime.pserver.staged_updates import StagedUpdates, servers_with_blocks
from hpcdist.runtime.pserver.transpiled_for import transpiled_for
from hpcdist.runtime.pserver.update_watch import UpdateWatch
from hpcdist.runtime.tables.make_table import server_table
from hpcdist.transpiler.pserver import ServerPlan, server_plan
from hpcdist.transpiler.substitute import on_server


@dataclass(frozen=True)
class ServerBinding:
    """What a server's Program is bound to: the loop, what it applies, and where it saves."""

    plan: ServerPlan
    server: PsServer
    serving: Serving
    store: ServerStore


class Server(Link):
    """One parameter server: its Program's blocks, bound to the rows that trainers' packets fill."""

    def __init__(
        self,
        transport: Transport,
        cluster: Cluster,
        index: int,
        deadline_s: float,
        failure_policy: FailurePolicy,
        servers: Transport,
    ) -> None:
        """``servers`` is the transport of all servers."""
        self._transport = transport
        self._cluster = cluster
        self._index = index
        self._deadline_s = deadline_s
        self._failure_policy = failure_policy
        self._servers = servers
        self._has_served = False
        self._farewells: list[tuple[Request, Array]] = []  # of trainers that made no step

    def substitute(self, program: Program) -> Program:
        return on_server(program)

    def transpiled(
        self, mains: Sequence[Program], startup: Program
    ) -> tuple[list[Program], Program]:
        """Serve in place of a script that does not mention servers, then end it on this rank."""
        transpiler = transpiled_for(self._cluster, 0, mains, startup)
        executor = Executor(CPUPlace())
        for program in reversed(
            transpiler.get_pserver_programs(self._cluster.endpoints[self._index])
        ):
            executor.run(program)
        raise SystemExit(0)

    def bind(self, ops: Sequence[Operator], binding: Binding) -> list[Call | None]:
        """Return the call of listen_and_serv: serve until every trainer has closed."""
        return [self._bind(op, binding) for op in ops]

    def _bind(self, op: Operator, binding: Binding) -> Call:
        endpoint = op.attrs["endpoint"]
        expected = self._cluster.endpoints[self._index]
        if endpoint != expected:
            raise GraphError(
                f"server {self._index} is {expected!r}, but its program is for {endpoint!r}: "
                f"call get_pserver_program({expected!r}) (PADDLE_CURRENT_ENDPOINT)"
            )
        if op.attrs["Fanin"] != len(self._cluster.trainers):
            raise GraphError(
                f"the program of {endpoint!r} is for {op.attrs['Fanin']} trainers, "
                f"but the job has {len(self._cluster.trainers)}: transpile(trainers=...) must agree"
            )
        plan = server_plan(binding.program)
        if plan is None:
            raise GraphError(
                f"the program of {endpoint!r} was not made by DistributeTranspiler in this "
                "process, so this server cannot tell what its blocks are for: run "
                "what get_pserver_program() returns"
            )
        if binding.backend.xp is not np:
            raise GraphError(
                f"server {self._index} would serve from a GPU: parameter servers work on the CPU, "
                "use Executor(CPUPlace()) for the programs of a server"
            )
        return lambda: self._serve(self._prepared(plan, binding))

    def _serve(self, served: ServerBinding) -> None:
        """Serve until every trainer has closed."""
        here.doing = f"listen_and_serv as {served.plan.endpoint}"
        self._has_served = True
        served.server.serve(served.serving.begin_step, served.serving.bound)
        self._failure_policy.applied = served.server.steps_applied
        served.store.close()
        here.doing = ""

    def end(self) -> None:
        """From now on, refuse the trainers that ask this server, if its script has not served."""
        if not self._has_served:
            while_waiting(self._refuse_trainers)

    def _refuse_trainers(self) -> None:
        asking = self._transport.iprobe(ANY, REQUEST_TAG)
        if asking is not None and not self._takes_leave(asking[0]):
            trainer = self._cluster.role_of(asking[0])
            raise GraphError(
                f"{trainer} (rank {asking[0]}) asks server {self._index} for its parameters, but "
                "the server's script has ended without serving: expected exe.run() of what "
                f"get_pserver_program({self._cluster.endpoints[self._index]!r}) returns, where "
                "PADDLE_TRAINING_ROLE is PSERVER"
            )

    def _takes_leave(self, rank: int) -> bool:
        """Take a trainer's message, which has come; say whether it only ends, without a step."""
        data = new_header()
        request = self._transport.irecv(data, rank, REQUEST_TAG)
        while not self._transport.test_all([request]):
            pass  # it was probed: this takes no wait for the trainer
        header = decode_header(data)
        if header.kind is not MessageKind.CLOSE:
            return False
        if header.length:  # what it counts is nobody's concern, but its send must end
            body = np.zeros(header.length, np.uint8)
            self._farewells.append((self._transport.irecv(body, rank, REQUEST_TAG), body))
        return True

    def _prepared(self, plan: ServerPlan, binding: Binding) -> ServerBinding:
        """Bind what arrives to the optimize blocks, as the startup Program has left them."""
        refuse_unpushed(plan.plan)
        exchange = server_exchange(plan.plan, plan.endpoint)
        blocks = [optimize_block(binding.program, block) for block in plan.blocks]
        self.served_tables = [
            server_table(binding, served.table.parameter) for served in plan.tables
        ]
        serving = self._serving(plan, exchange, blocks, binding)
        store = ServerStore(
            ServerShards(binding.program, binding.scope),
            len(self._cluster.servers),
            serving.after_load,
            self._servers,
        )
        server = self._ps_server(plan, exchange, serving, store, binding)
        store.settle = server.settle
        staged = self._staged(plan, exchange, binding)
        updates = _bind_packets(plan, exchange, blocks, server, binding, staged)
        parameters = {block.gradient: block.parameter for block in plan.blocks}
        watch = UpdateWatch(self._index, exchange, server, parameters)
        serving.bind(server, updates, exchange.gradients, watch)
        return ServerBinding(plan, server, serving, store)

    def _serving(
        self,
        plan: ServerPlan,
        exchange: ServerExchange,
        blocks: Sequence[OptimizeBlock],
        binding: Binding,
    ) -> Serving:
        """Return how packets are applied in this mode."""
        self._failure_policy.learn(plan.plan)
        packets = len(exchange.gradients) + len(exchange.pushed) + bool(plan.tables)
        schedules = [_schedule_of(index, binding) for index in plan.schedules]
        if plan.mode.synchronous:
            return Serving(plan.plan.trainers, packets, schedules, exchange.turns)
        return AsynchronousServing(plan, packets, schedules[0], blocks, binding)

    def _ps_server(
        self,
        plan: ServerPlan,
        exchange: ServerExchange,
        serving: Serving,
        store: ServerStore,
        binding: Binding,
    ) -> PsServer:
        expected = Hello(
            plan.plan.trainers,
            plan.mode.synchronous,
            plan.fingerprint or "",
            exchange.gradients,
            exchange.parameters,
            exchange.pushed,
            plan.plan.specs,
        )
        return PsServer(
            self._transport,
            self._cluster,
            self._index,
            expected=expected,
            arrays={**_readable(binding.program, binding), **serving.arrays},
            deadline_s=self._deadline_s,
            shards=serving.shards,
            own_answers=not plan.mode.synchronous,
            on_read=serving.on_read,
            tracked_rows=plan.mode.geo,
            on_death=self._failure_policy.continue_without,
            on_silence=self._failure_policy.tell_silence if self._index == 0 else None,
            silence_s=self._silence_s(plan.mode.synchronous),
            tables=self.served_tables,
            on_checkpoint=store.answer,
            whole_steps=plan.sums is not None,
        )

    def _silence_s(self, synchronous: bool) -> float:
        """Return after how long a silent trainer is told: no deadline tells of one elsewhere."""
        interval_s = settings.WORKER_UPDATE_INTERVAL.read()
        return interval_s if synchronous else min(interval_s, self._deadline_s)

    def _staged(
        self, plan: ServerPlan, exchange: ServerExchange, binding: Binding
    ) -> StagedUpdates | None:
        """Return the joint update of all blocks, if some need sums over servers. Collective."""
        if plan.sums is None:
            return None
        takes_part = bool(exchange.gradients or exchange.pushed)
        among = servers_with_blocks(self._servers, takes_part)
        return StagedUpdates(plan.sums, binding, among, self._deadline_s)


def _bind_packets(
    plan: ServerPlan,
    exchange: ServerExchange,
    blocks: Sequence[OptimizeBlock],
    server: PsServer,
    binding: Binding,
    staged: StagedUpdates | None,
) -> list[list[Apply]]:
    """Return the calls that apply each packet: dense packets, pushed rows, distributed tables."""
    by_gradient = {block.gradient: block for block in blocks}
    updates = [
        [
            bind_dense(by_gradient[v.name], server.gradients[v.name], binding, staged)
            for v in packet.variables
            if v.name in by_gradient
        ]
        for packet in exchange.gradients
    ]
    for spec in exchange.pushed:
        block, sent = by_gradient[spec.name], server.rows[spec.name]
        updates.append([bind_sparse(block, sent, binding, staged)])
    rates = [array_of(binding, served.table.learning_rate).reshape(-1) for served in plan.tables]
    if plan.tables:
        mean = not plan.mode.dense_summed  # else trainers have divided their losses' gradients

        def move(trainers: tuple[int, ...]) -> None:
            server.tables.apply(trainers, [float(r[0]) for r in rates], mean=mean)

        updates.append([later(move)])
    return updates


def _schedule_of(index: int, binding: Binding) -> Call | None:
    """Return the call of the learning rate's schedule in a block; None if there is none."""
    if index < 0:
        return None
    block = binding.program.block(index)
    return in_sequence(*steps_of(block, block.ops, binding))


def _readable(program: Program, binding: Binding) -> Mapping[str, Any]:
    """Return every initialized persistable variable of a server: what trainers may read."""
    arrays = {}
    for var in program.list_vars():
        variable = binding.scope.find_var(var.name)
        if var.persistable and variable is not None and variable.value is not None:
            arrays[var.name] = variable.value
    return arrays
