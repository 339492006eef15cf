"""Servers of a torch job: what trainer 0 announces, they keep; they need not run the script."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist import runtime
from hpcdist.checkpoint.serving import ASSIGN
from hpcdist.errors import CommError
from hpcdist.executor.backend import CPUPlace
from hpcdist.executor.executor import Executor
from hpcdist.graph.program import Program
from hpcdist.ps.batch import TableSpec
from hpcdist.ps.client import PsClient
from hpcdist.ps.messages import REQUEST_TAG, Kind
from hpcdist.ps.wire import post_message, receive_message
from hpcdist.runtime.job.job import Job
from hpcdist.runtime.tables.pull_push import specs_of
from hpcdist.torch.facts import Facts, rate_name
from hpcdist.transpiler.plan import trainer_plan


class Served:
    """What a trainer has on servers, and how it exchanges it with them."""

    def __init__(self, job: Job, facts: Facts) -> None:
        """Plan, and connect. Collective among trainers."""
        made = facts.transpiled_for(job.cluster, job.role.index)
        self.program: Program = made.get_trainer_program()
        plan = trainer_plan(self.program)
        assert plan is not None, "this is what the transpiler makes"
        self.specs: tuple[TableSpec, ...] = specs_of(plan)
        self._sync = plan.mode.synchronous
        self._connection = job.adopt(self.program, {})

    @property
    def client(self) -> PsClient:
        """What talks to the servers."""
        return self._connection.current()

    def end_step(self) -> None:
        """End a step whose rows have been pushed."""
        if self._sync:
            return  # rows asked for next are answered when all trainers' have been applied
        client = self.client
        for number in range(len(client.packets)):
            client.send_packet(number)
        client.post_receives()
        client.wait_receives()
        self._connection.step[0] += 1

    def set_rates(self, rates: Sequence[float]) -> None:
        """Let servers move rows by these learning rates from now on. Trainer 0 calls this."""
        values = {rate_name(number): rate for number, rate in enumerate(rates)}
        self.client.ask({"do": ASSIGN, "values": values})


def announce(facts: Facts) -> Served:
    """Tell the servers what to keep, and connect to them. Every trainer calls this."""
    job = runtime.current()
    assert job is not None, "there are servers"
    if job.role.index == 0:
        sent = []
        for rank in job.cluster.servers:
            sent += post_message(
                job.transport, rank, REQUEST_TAG, Kind.KEEP, 0, 0, facts.payload()
            )
        job.transport.wait_all(sent, lambda: "telling the servers which tables there are")
    return Served(job, facts)


def serve() -> None:
    """Keep what trainer 0 announces, until every trainer has left.

    A script that makes no tables leaves without announcing any.
    """
    job = runtime.current()
    assert job is not None, "only a job has servers"
    endpoint = job.cluster.endpoints[job.role.index]

    def describe() -> str:
        return f"server {job.role.index} waiting for the first look-up in a table"

    transport, (first, *others) = job.transport, job.cluster.trainers
    header, payload = receive_message(transport, first, REQUEST_TAG, describe, None)
    if header.kind is Kind.CLOSE:
        for trainer in others:
            receive_message(transport, trainer, REQUEST_TAG, describe, None)
        return
    if header.kind is not Kind.KEEP:
        raise CommError(f"server {job.role.index}: unexpected {header.kind.name} of trainer 0")
    made = Facts.parse(payload).transpiled_for(job.cluster, 0)
    executor = Executor(CPUPlace())
    for program in reversed(made.get_pserver_programs(endpoint)):
        executor.run(program)
