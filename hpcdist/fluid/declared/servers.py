"""Servers of scripts without a Program: they keep what trainer 0 announces, one model at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from hpcdist import runtime
from hpcdist.base import settings
from hpcdist.base.errors import CommError
from hpcdist.checkpoint.serving import ASSIGN
from hpcdist.comm.base import Array
from hpcdist.comm.progress import waits_for_ranks
from hpcdist.executor.backend import CPUPlace
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope
from hpcdist.fluid.declared.facts import Facts, rate_name
from hpcdist.graph.program import Program
from hpcdist.ps.batch import TableSpec
from hpcdist.ps.client import PsClient
from hpcdist.ps.messages import REPLY_TAG, REQUEST_TAG, VALUE_TAG, MessageKind
from hpcdist.ps.wire import post_message, receive_message, unended
from hpcdist.runtime.job.job import Job
from hpcdist.runtime.pserver.connection import ServerConnection, StepProtocol
from hpcdist.runtime.tables.make_table import specs_of
from hpcdist.transpiler import DistributeTranspiler
from hpcdist.transpiler.plan import Plan, trainer_plan

FOLLOWS = "another_model_follows"  # the variable by which trainer 0 tells a server


class DeclaredOnServers:
    """The tables that a trainer has on servers, and its connection to these."""

    _connection: ServerConnection

    def __init__(self, job: Job, facts: Facts) -> None:
        """Plan who keeps what; `connect` connects."""
        transpiler = facts.transpiled_for(job.cluster, job.role.index)
        self.program: Program = transpiler.get_trainer_program()
        self._plan = plan_of(transpiler)
        self.specs: tuple[TableSpec, ...] = specs_of(self._plan)
        self._job, self._facts = job, facts

    def connect(self, arrays: Mapping[str, Array] | None = None) -> None:
        """Connect to the servers; ``arrays``: blocks and gradients. Every trainer calls this."""
        arrays = arrays or {}
        self._connection = self._job.adopt(self.program, StepProtocol).connection
        self._connection.connect(self._plan, arrays.__getitem__, list(arrays.values()))

    @property
    def client(self) -> PsClient:
        """What talks to the servers."""
        return self._connection.current()

    def end_step(self) -> None:
        """End a step whose rows have been pushed: exchange the packets, if there are any."""
        client = self.client
        if not client.packets:
            return  # rows asked for next are answered when all trainers' have been applied
        for number in range(len(client.packets)):
            client.send_packet(number)
        client.post_receives()
        client.wait_receives()
        self._connection.step[0] += 1

    def leave(self) -> None:
        """Clear the servers, and wait for what they shall keep next. Collective.

        Trainer 0 comes back when they do; the others must wait for it.
        """
        job = self._job
        if job.role.index == 0:
            self.client.ask({"do": ASSIGN, "values": {FOLLOWS: 1.0}})
        job.leave_servers()
        if job.role.index == 0:
            for rank in job.cluster.servers:
                receive_message(
                    job.transport,
                    rank,
                    REPLY_TAG,
                    partial("server (rank {}) to drop a model".format, rank),
                    deadline_s(),
                )

    def set_rates(self, rates: Sequence[float]) -> None:
        """Set the learning rates by which servers update rows from now on. Trainer 0 calls this."""
        values = {rate_name(number): rate for number, rate in enumerate(rates)}
        self.client.ask({"do": ASSIGN, "values": values})


def plan_of(transpiler: DistributeTranspiler) -> Plan:
    """Return the plan of a trainer's Program."""
    plan = trainer_plan(transpiler.get_trainer_program())
    assert plan is not None, "this is what the transpiler makes"
    return plan


def tell_servers(facts: Facts) -> Job:
    """Send the servers what to keep, from trainer 0; return the job. Every trainer calls this."""
    job = runtime.current()
    assert job is not None, "there are servers"
    if job.role.index == 0:
        told, sent = [], []  # the server of each message
        for rank in job.cluster.servers:
            messages = post_message(
                job.transport, rank, REQUEST_TAG, MessageKind.KEEP, 0, 0, facts.payload()
            )
            sent += messages
            told += [rank] * len(messages)

        def missing() -> list[int]:
            return sorted({told[i] for i in unended(job.transport, sent)})

        with waits_for_ranks(missing):
            job.transport.wait_all(
                sent, lambda: f"telling servers (rank {missing()}) what to keep", deadline_s()
            )
    return job


def deadline_s() -> float:
    """Return how long a rank may keep others waiting."""
    return settings.RPC_DEADLINE.read() / 1000


def serve() -> None:
    """Keep what trainer 0 announces, one model after another, until every trainer has left."""
    while _serve_model():
        pass


def _serve_model() -> bool:
    """Keep one model; return whether another may follow.

    A script that makes no tables leaves without announcing any.
    """
    job = runtime.current()
    assert job is not None, "only a job has servers"
    endpoint = job.cluster.endpoints[job.role.index]

    def describe() -> str:
        return f"server {job.role.index} waiting for the first look-up in a table"

    transport, (first, *others) = job.transport, job.cluster.trainers
    header, payload = receive_message(transport, first, REQUEST_TAG, describe, None)
    if header.kind is MessageKind.CLOSE:
        for trainer in others:
            receive_message(transport, trainer, REQUEST_TAG, describe, None)
        return False
    if header.kind is not MessageKind.KEEP:
        raise CommError(f"server {job.role.index}: unexpected {header.kind.name} from trainer 0")
    transpiler = Facts.parse(payload).transpiled_for(job.cluster, 0)
    serving, startup = transpiler.get_pserver_programs(endpoint)
    executor, scope = Executor(CPUPlace()), Scope()
    executor.run(startup, scope=scope)
    follows = np.zeros(1, np.float32)
    scope.var(FOLLOWS).hold(follows)
    coming = []
    for _, piece in plan_of(transpiler).blocks_on(endpoint):
        value = scope.var(piece.name).value
        coming.append(transport.irecv(value, first, VALUE_TAG))
    transport.wait_all(
        coming, lambda: f"{endpoint} waiting for the first values of parameters", deadline_s()
    )
    executor.run(serving, scope=scope)
    if not follows[0]:
        return False
    told = post_message(transport, first, REPLY_TAG, MessageKind.VALUE, 0, 0, None)
    transport.wait_all(told, lambda: f"{endpoint} telling trainer 0 that it is free", deadline_s())
    return True
