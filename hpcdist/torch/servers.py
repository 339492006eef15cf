"""Servers of a torch job: they keep what trainer 0 announces, without running the script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import xxhash
from torch import nn

from hpcdist import runtime
from hpcdist.base import settings
from hpcdist.base.errors import CommError, TableError
from hpcdist.checkpoint.serving import ASSIGN
from hpcdist.comm.base import Array
from hpcdist.comm.progress import waits_for_ranks
from hpcdist.executor.backend import CPUPlace
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope
from hpcdist.graph.program import Program
from hpcdist.ps.batch import TableSpec
from hpcdist.ps.client import PsClient
from hpcdist.ps.messages import REQUEST_TAG, VALUE_TAG, MessageKind
from hpcdist.ps.wire import post_message, receive_message, unended
from hpcdist.runtime.job.job import Job
from hpcdist.runtime.pserver.connection import StepProtocol
from hpcdist.runtime.pserver.geo_exchange import GeoExchange, GeoStep
from hpcdist.runtime.tables.make_table import specs_of
from hpcdist.torch.facts import Facts, rate_name
from hpcdist.transpiler import DistributeTranspiler
from hpcdist.transpiler.plan import Plan, trainer_plan
from hpcdist.transpiler.slicing import Slice


class Served:
    """What a trainer has on servers, and how it exchanges it with them."""

    def __init__(self, job: Job, facts: Facts, parameters: Mapping[str, nn.Parameter]) -> None:
        """Plan, take the servers' values of ``parameters``, connect. Collective among trainers."""
        transpiler = facts.transpiled_for(job.cluster, job.role.index)
        self.program: Program = transpiler.get_trainer_program()
        self._plan = _plan_of(transpiler)
        self.specs: tuple[TableSpec, ...] = specs_of(self._plan)
        self._facts, self._parameters = facts, parameters
        self._gradients = {
            name: np.zeros(tuple(parameter.shape), np.float32)
            for name, parameter in parameters.items()
        }
        values = {name: parameter.detach().numpy() for name, parameter in parameters.items()}
        self._blocks = blocks_of(self._plan, values)
        if job.role.index == 0:
            self._give(job, self._blocks)
        self._read(job.current_client())
        self._geo: GeoExchange | None = None
        if self._plan.mode.geo:
            local = job.adopt(self.program, GeoStep)
            self._connection, self._geo = local.connection, local.connect(values)
        else:
            arrays = {**self._blocks, **self._gradient_blocks()}
            self._connection = job.adopt(self.program, StepProtocol).connection
            self._connection.connect(self._plan, arrays.__getitem__, list(arrays.values()))

    def read(self) -> None:
        """Overwrite parameters with the servers' present values."""
        self._read(self.client)

    def _read(self, client: PsClient) -> None:
        for endpoint in self._plan.endpoints:
            client.read(
                endpoint, {p.name: self._blocks[p.name] for _, p in self._plan.blocks_on(endpoint)}
            )
        self._note_answer()

    def _note_answer(self) -> None:
        self._answered = {name: _trace(parameter) for name, parameter in self._parameters.items()}

    def _gradient_blocks(self) -> dict[str, Array]:
        return {
            name: _rows(self._gradients[route.parameter], piece)
            for route in self._plan.routes
            for name, piece in zip(self._plan.local_gradients(route), route.slices, strict=True)
        }

    def _give(self, job: Job, first_values: Mapping[str, Array]) -> None:
        """Let every server begin with the values of its blocks here."""
        sent = []
        for rank, endpoint in zip(job.cluster.servers, self._plan.endpoints, strict=True):
            for _, piece in self._plan.blocks_on(endpoint):
                sent.append(job.transport.isend(first_values[piece.name], rank, VALUE_TAG))
        job.transport.wait_all(
            sent, lambda: "giving servers the first values of parameters", _deadline_s()
        )

    @property
    def client(self) -> PsClient:
        """What talks to the servers."""
        return self._connection.current()

    @property
    def moves_nothing(self) -> bool:
        """Whether trainers train by themselves, and servers add up what has changed."""
        return self._geo is not None

    def take(self, optimizer: int) -> None:
        """Record the gradients of an optimizer's parameters, to be sent at the end of the step.

        TableError for values, and for gradients, of which servers would make others than torch.
        """
        moved_by = self._facts.optimizers[optimizer]
        for dense in self._facts.dense:
            if dense.optimizer != optimizer:
                continue
            name, parameter = dense.name, self._parameters[dense.name]
            if self._geo is not None:  # the trainer's own optimizer has used the gradients
                if parameter.data_ptr() != self._answered[name][0]:
                    raise TableError(
                        f"parameter {name!r} has moved in memory since the first step: change "
                        "values in place, as load_state_dict does"
                    )
                continue
            if _trace(parameter) != self._answered[name]:
                raise TableError(
                    f"parameter {name!r} was changed on this rank, but the servers keep another "
                    "value: set values before the first step, or with hpcdist.torch.Saver's "
                    "restore()"
                )
            if parameter.grad is None and not moved_by.zero_is_nothing:
                raise TableError(
                    f"parameter {name!r} has no gradient: servers would take zeros and still move "
                    f"it by {moved_by}, while torch would leave it as it is; set its gradient to "
                    "zeros if that is intended, or freeze it (requires_grad_(False)) from the "
                    "beginning"
                )
            if parameter.grad is None:
                self._gradients[name].fill(0)
            elif parameter.grad.layout is not torch.strided:
                raise TableError(
                    f"parameter {name!r} has a sparse gradient, servers take dense ones: use "
                    "hpcdist.torch.Embedding, or sparse=False"
                )
            else:
                np.copyto(self._gradients[name], parameter.grad.numpy())

    def end_step(self) -> None:
        """End a step whose rows have been pushed: send gradients, take parameters."""
        if self._geo is not None:
            self._geo.end_step({})
            return
        client = self.client
        if not client.packets:
            return  # rows asked for next are answered when all trainers' have been applied
        for number in range(len(client.packets)):
            client.send_packet(number)
        client.post_receives()
        client.wait_receives()
        self._note_answer()
        self._connection.step[0] += 1

    def set_rates(self, rates: Sequence[float]) -> None:
        """Set the learning rates by which servers update rows from now on. Trainer 0 calls this."""
        if self._geo is not None:
            return  # they move nothing
        values = {rate_name(number): rate for number, rate in enumerate(rates)}
        self.client.ask({"do": ASSIGN, "values": values})


def blocks_of(plan: Plan, values: Mapping[str, Array]) -> dict[str, Array]:
    """Return the blocks of whole parameters, by their names, where they lie."""
    return {
        piece.name: _rows(values[route.parameter], piece)
        for route in plan.routes
        for piece in route.slices
    }


def _rows(value: Array, piece: Slice) -> Array:
    flat = value.reshape(-1)
    return flat[piece.offset : piece.offset + piece.size].reshape(piece.shape)


def _trace(parameter: nn.Parameter) -> tuple[int, int]:
    """Return what tells other values, or others' memory, from those that servers have answered."""
    return parameter.data_ptr(), xxhash.xxh3_64_intdigest(parameter.detach().numpy().data)


def _plan_of(transpiler: DistributeTranspiler) -> Plan:
    plan = trainer_plan(transpiler.get_trainer_program())
    assert plan is not None, "this is what the transpiler makes"
    return plan


def announce(facts: Facts, parameters: Mapping[str, nn.Parameter]) -> Served:
    """Send the servers what to keep, and connect to them. Every trainer calls this."""
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
                sent, lambda: f"telling servers (rank {missing()}) what to keep", _deadline_s()
            )
    return Served(job, facts, parameters)


def _deadline_s() -> float:
    return settings.RPC_DEADLINE.read() / 1000


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
    if header.kind is MessageKind.CLOSE:
        for trainer in others:
            receive_message(transport, trainer, REQUEST_TAG, describe, None)
        return
    if header.kind is not MessageKind.KEEP:
        raise CommError(f"server {job.role.index}: unexpected {header.kind.name} from trainer 0")
    transpiler = Facts.parse(payload).transpiled_for(job.cluster, 0)
    serving, startup = transpiler.get_pserver_programs(endpoint)
    executor, scope = Executor(CPUPlace()), Scope()
    executor.run(startup, scope=scope)
    coming = []
    for _, piece in _plan_of(transpiler).blocks_on(endpoint):
        value = scope.var(piece.name).value
        coming.append(transport.irecv(value, first, VALUE_TAG))
    transport.wait_all(
        coming, lambda: f"{endpoint} waiting for the first values of parameters", _deadline_s()
    )
    executor.run(serving, scope=scope)
