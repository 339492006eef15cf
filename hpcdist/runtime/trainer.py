"""A trainer's side of the network operators: send, recv and the barriers, bound to a PsClient."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcdist.comm.base import Transport
from hpcdist.comm.cluster import Cluster
from hpcdist.errors import CommError
from hpcdist.executor.control import Binding
from hpcdist.executor.position import here
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.registry import Meta
from hpcdist.ops.selected_rows import SelectedRows
from hpcdist.ps.batch import TableSpec
from hpcdist.ps.client import PsClient, ServerPlan
from hpcdist.ps.verdicts import Witness
from hpcdist.runtime.communicator import Communicator, check_runnable, read_settings
from hpcdist.runtime.cuts import is_split, piece_metas, read_cuts
from hpcdist.runtime.exchange import (
    REMOTE_LOOKUP,
    STALENESS,
    STEP,
    ServerExchange,
    buffers_of,
    contiguous_groups,
    is_async,
    is_counter,
    key_of,
    metas_of,
    read_exchange,
    sends_blocks,
)
from hpcdist.runtime.geo import GeoExchange, bind_end, geo_exchanges, held_by_servers
from hpcdist.runtime.lookup import bind_lookup
from hpcdist.runtime.staging import Staging, in_order
from hpcdist.runtime.tables import bind_steps, refuse_queued, spec_of
from hpcdist.transpiler.config import DistributedMode
from hpcdist.transpiler.geo import PARAM_INIT

Call = Callable[[], Any]


class TrainerLink:
    """The connection of one trainer to all servers, shared by the Programs it runs."""

    def __init__(
        self, transport: Transport, cluster: Cluster, trainer_id: int, deadline_s: float
    ) -> None:
        self._transport = transport
        self._cluster = cluster
        self._trainer_id = trainer_id
        self._deadline_s = deadline_s
        self._reader = self._new_client("")
        self._client: PsClient | None = None  # connected when the first step Program is compiled
        self._exchanges: tuple[ServerExchange, ...] = ()
        self._held: list[int] = []
        # Sent where exchanges are numbered: the number of this one, and the steps merged in it.
        self._step = np.array([0, 1], np.int64)
        self._staleness = {e: np.zeros(2, np.int64) for e in cluster.endpoints}
        self._copies: dict[str, np.ndarray] = {}  # host copies of device arrays
        self._communicator: Communicator | None = None
        self._geo: GeoExchange | None = None
        self._restored: dict[str, np.ndarray] | None = None  # what servers of GEO had loaded

    def contiguous(
        self, ops: Sequence[Operator], metas: Mapping[str, Meta], backend: Any
    ) -> list[list[str]]:
        """Return the names that must lie side by side because they travel in one message."""
        if backend.xp is not np:
            return []  # messages leave from host copies
        if not any(sends_blocks(op) for op in ops):
            return []  # a communicator, or GEO, sends copies
        return contiguous_groups(self._read(ops, metas, numbered=is_async(ops)))

    @property
    def staleness(self) -> int:
        """How many updates of others the last step's gradients had missed, at most; 0 if sync."""
        return max((int(array[0]) for array in self._staleness.values()), default=0)

    def bind(self, ops: Sequence[Operator], binding: Binding) -> list[Call | None]:
        """Return what each network operator does at a step; None where another one does it."""
        plan = binding.program._trainer_plan
        if any(is_split(op) for op in ops):
            calls = self._bind_split(ops, binding)
        elif plan is not None and plan.mode.geo:
            first = any(op.input("X") == [PARAM_INIT] for op in ops if op.type == "send")
            bind = self._bind_startup if first else self._bind_geo
            calls = bind(ops, binding)
        elif any(op.type in ("send", "push_sparse") for op in ops):
            calls = self._bind_step(ops, binding)
        else:
            calls = self._bind_startup(ops, binding)
        of_tables = self._bind_tables(ops, binding)
        for i, op in enumerate(ops):
            calls[i] = in_order(of_tables.get(id(op)), calls[i])
            if op.type == REMOTE_LOOKUP:
                calls[i] = bind_lookup(self.current_client, op, binding)
        return calls

    def _bind_tables(self, ops: Sequence[Operator], binding: Binding) -> dict[int, Call]:
        """Return what is done at pulls and pushes of distributed tables' rows."""
        specs, servers = _row_tables(binding), len(self._cluster.servers)
        return bind_steps(ops, binding, specs, servers, lambda: self.current_client().tables)

    def current_client(self) -> PsClient:
        """Return what talks to the servers now: before the first step it can only ask."""
        return self._client or self._reader

    def agree_on_deaths(self, witness: Witness) -> Witness:
        """Return what all trainers that are left know about deaths; each of them calls this."""
        return self.current_client().agree_on_deaths(witness)

    def close(self) -> None:
        """Leave the servers: they go on without this trainer, and end after the last one.

        What is queued or not yet exchanged is sent first.
        """
        for last in (self._communicator, self._geo):
            if last is not None:
                last.flush()
        self.current_client().close()

    # -- checkpoints -------------------------------------------------------------------------
    def settle(self, program: Program) -> dict[str, int]:
        """Send what is queued or not yet exchanged; return when the servers have all of it."""
        if self._communicator is not None:
            self._communicator.settle()
        if self._geo is not None:
            self._geo.flush()
        client, plan = self._client, program._trainer_plan
        if client is None or plan is None or plan.mode.distributed_mode == DistributedMode.SYNC:
            return {}
        for endpoint in plan.endpoints:  # rows are not answered; what is asked after them is
            client.read(endpoint, {STALENESS: np.empty(2, np.int64)})
        return {}

    def catch_up(self, program: Program) -> None:
        """With GEO: take over what other trainers had not yet exchanged."""
        plan = program._trainer_plan
        if self._geo is not None and plan is not None:
            self._geo.catch_up(held_by_servers(plan, self.current_client().read))

    def resume(self, program: Program, counted: Mapping[str, int]) -> None:
        """Forget rows asked for ahead; with GEO, note what the servers have loaded."""
        plan = program._trainer_plan
        self.current_client().tables.restored += 1
        if plan is None or not plan.mode.geo:
            return
        self._restored = held_by_servers(plan, self.current_client().read)
        if self._geo is not None:
            self._geo.restart(self._restored)

    def _new_client(self, fingerprint: str, *, sync_mode: bool = True) -> PsClient:
        return PsClient(
            self._transport,
            self._cluster,
            self._trainer_id,
            fingerprint=fingerprint,
            sync_mode=sync_mode,
            deadline_s=self._deadline_s,
        )

    def _read(
        self, ops: Sequence[Operator], metas: Mapping[str, Meta], *, numbered: bool
    ) -> tuple[ServerExchange, ...]:
        endpoints = self._cluster.endpoints
        return read_exchange(ops, metas, endpoints, self._trainer_id, numbered=numbered)

    def _bind_step(self, ops: Sequence[Operator], binding: Binding) -> list[Call | None]:
        arrays = binding.arrays
        metas = metas_of(ops, arrays)
        numbered = is_async(ops)
        exchanges = self._read(ops, metas, numbered=numbered)
        staging = Staging(arrays, binding.backend, self._copies)
        held = buffers_of(exchanges, staging.host)
        client = self._connected(exchanges, staging.host, held, binding, sync_mode=not numbered)
        parameters = [b.parameter for exchange in exchanges for b in exchange.blocks]
        first = {}  # endpoint -> number of its first packet, as the client counts them
        count = 0
        for exchange in exchanges:
            first[exchange.endpoint] = count
            count += len(exchange.gradients)
        waiting = {}  # packet number -> gradients that it still lacks
        packet_of = {}
        for exchange in exchanges:
            for packet in exchange.gradients:
                number = first[exchange.endpoint] + packet.tag
                waiting[number] = sum(v.name != STEP.name for v in packet.variables)
                packet_of.update({(exchange.endpoint, v.name): number for v in packet.variables})
        keys = {b.gradient: b.key for exchange in exchanges for b in exchange.blocks}

        calls: list[Call | None] = []
        started: set[int] = set()
        for op in ops:
            call: Call | None = None
            if op.type == "send" and isinstance(arrays[op.input("X")[0]], SelectedRows):
                call = self._pusher(client, op, arrays)
            elif op.type == "send" and not is_counter(op):
                complete = []
                for name, endpoint in zip(op.input("X"), op.attrs["epmap"]):
                    number = packet_of[endpoint, keys[name]]
                    waiting[number] -= 1
                    if waiting[number] == 0:
                        complete.append(number)
                started.update(complete)
                call = in_order(staging.down(op.input("X")), _sender(client, complete))
            elif op.type == "send_barrier":
                call = client.post_receives
            elif op.type == "fetch_barrier":
                call = in_order(client.wait_receives, staging.up(parameters))
            calls.append(call)
        if numbered:
            alone = [number for number, lacking in waiting.items() if lacking == 0]
            alone = [n for n in alone if n not in started]
            ends = ("recv", "send", "push_sparse")
            last = max(i for i, op in enumerate(ops) if op.type in ends)
            end = functools.partial(self._end_step, client)
            calls[last] = in_order(calls[last], _sender(client, alone), end, staging.up(parameters))
        return calls

    def _end_step(self, client: PsClient) -> None:
        """Asynchronous: take the answers, which hold what all trainers have sent by now."""
        client.post_receives()
        client.wait_receives()
        self._step[0] += 1

    def _pusher(self, client: PsClient, op: Operator, arrays: Mapping[str, Any]) -> Call:
        parts = [
            (endpoint, key_of(name, self._trainer_id), arrays[name])
            for name, endpoint in zip(op.input("X"), op.attrs["epmap"])
        ]

        def push() -> None:
            for endpoint, key, gradient in parts:
                sent = gradient if isinstance(gradient.rows, np.ndarray) else gradient.get()
                client.push_rows(endpoint, key, sent.rows, sent.value)

        return push

    def _connected(
        self,
        exchanges: tuple[ServerExchange, ...],
        host: Callable[[str], np.ndarray],
        held: list[int],
        binding: Binding,
        *,
        sync_mode: bool,
    ) -> PsClient:
        """Connect at the first step Program; later ones must hold the very same buffers.

        ``host`` returns the array that messages of a block use.
        """
        if self._client is None:
            client = self._new_client(binding.program._fingerprint or "", sync_mode=sync_mode)
            here.doing = "connecting to the parameter servers"
            tables = _row_tables(binding)
            client.connect([self._server_plan(exchange, host, tables) for exchange in exchanges])
            here.doing = ""
            self._client = client
            self._exchanges = exchanges
            self._held = held
        elif exchanges != self._exchanges or held != self._held:
            raise CommError(
                f"trainer {self._trainer_id}: a second Program, or a second scope, would train "
                "with the same parameter servers; use one trainer program in one scope"
            )
        return self._client

    def _server_plan(
        self,
        exchange: ServerExchange,
        host: Callable[[str], np.ndarray],
        tables: tuple[TableSpec, ...],
    ) -> ServerPlan:
        gradients = {b.key: host(b.gradient) for b in exchange.blocks}
        parameters = {b.parameter: host(b.parameter) for b in exchange.blocks}
        return ServerPlan(
            exchange.endpoint,
            exchange.gradients,
            exchange.parameters,
            gradients | {STEP.name: self._step},
            parameters | {STALENESS: self._staleness[exchange.endpoint]},
            exchange.tables,
            tables,
        )

    # -- the step, through a communicator ----------------------------------------------------
    def _bind_split(self, ops: Sequence[Operator], binding: Binding) -> list[Call | None]:
        """Hand whole gradients to the communicator at the end of the step."""
        arrays, cuts = binding.arrays, read_cuts(ops)
        plan = binding.program._trainer_plan
        sync_mode = plan is not None and plan.mode.distributed_mode == DistributedMode.SYNC
        joint = any(op.type == "send_barrier" for op in ops)
        metas = metas_of(ops, arrays)
        metas |= piece_metas(cuts, metas)
        exchanges = self._read(ops, metas, numbered=not sync_mode)
        staging = Staging(arrays, binding.backend, self._copies)
        whole = {c.parameter: staging.host(c.parameter) for c in cuts if c.parameters}
        settings = read_settings(os.environ, joint=joint)
        check_runnable(cuts, settings, arrays, dc_asgd=plan is not None and plan.mode.dc_asgd)
        if settings.queue > 1:
            refuse_queued(_row_tables(binding))
        communicator = self._communicator or Communicator(
            cuts,
            whole,
            settings,
            self._step,
            key_of=functools.partial(key_of, trainer_id=self._trainer_id),
            threads=self._transport.concurrent,
        )
        held = [array.ctypes.data for array in whole.values()]
        pieces = communicator.pieces
        client = self._connected(exchanges, pieces.__getitem__, held, binding, sync_mode=sync_mode)
        if self._communicator is None:
            communicator.attach(client, staging.up(whole))
            self._communicator = communicator
        dense = {c.gradient: staging.host(c.gradient) for c in cuts if c.parameters}
        sparse = {c.gradient: arrays[c.gradient] for c in cuts if not c.parameters}
        end = functools.partial(communicator.end_step, dense, sparse)
        calls: list[Call | None] = [None] * len(ops)
        last = max(i for i, op in enumerate(ops) if op.type in ("send", "send_barrier", "recv"))
        calls[last] = in_order(staging.down(dense), end)
        return calls

    # -- GEO ---------------------------------------------------------------------------------
    def _bind_geo(self, ops: Sequence[Operator], binding: Binding) -> list[Call | None]:
        """Exchange differences at the send that ends every step, when it is time."""
        plan = binding.program._trainer_plan
        assert plan is not None, "it says that this is GEO"
        staging = Staging(binding.arrays, binding.backend, self._copies)
        names = [route.parameter for route in plan.routes]
        down, up = staging.down(names), staging.up(names)
        trained = {name: staging.host(name) for name in names}
        if down is not None and self._geo is None:
            down()
        geo = self._geo or GeoExchange(plan, trained, self._step, self._restored)
        held = [array.ctypes.data for array in trained.values()]
        client = self._connected(
            geo_exchanges(plan), geo.pieces.__getitem__, held, binding, sync_mode=False
        )
        if self._geo is None:
            geo.attach(client, down, up)
            self._geo = geo
        (signal,) = (op for op in ops if op.type == "send")
        end = bind_end(geo, signal, binding)
        return [end if op is signal else None for op in ops]

    # -- startup -----------------------------------------------------------------------------
    def _bind_startup(self, ops: Sequence[Operator], binding: Binding) -> list[Call | None]:
        """Read all parameters when the last network operator runs: one request per server."""
        staging = Staging(binding.arrays, binding.backend, self._copies)
        wanted: dict[str, dict[str, Any]] = {}
        for op in ops:
            if op.type == "recv":
                for name, endpoint in zip(op.output("Out"), op.attrs["epmap"]):
                    wanted.setdefault(endpoint, {})[name] = staging.host(name)

        def read_all() -> None:
            here.doing = "reading the parameters' first values from the servers"
            for endpoint, arrays in wanted.items():
                self._reader.read(endpoint, arrays)
            here.doing = ""

        calls: list[Call | None] = [None] * len(ops)
        reading = [i for i, op in enumerate(ops) if op.type in ("recv", "fetch_barrier")]
        if reading:
            received = [name for arrays in wanted.values() for name in arrays]
            calls[reading[-1]] = in_order(read_all, staging.up(received))
        return calls


def _row_tables(binding: Binding) -> tuple[TableSpec, ...]:
    """Return the distributed tables that the servers of a trainer's Program hold."""
    plan = binding.program._trainer_plan
    return () if plan is None else tuple(spec_of(table) for table in plan.tables)


def _sender(client: PsClient, packets: Sequence[int]) -> Call | None:
    """Return what starts these packets; None if an operator completes no packet."""
    if not packets:
        return None
    if len(packets) == 1:
        return functools.partial(client.send_packet, packets[0])

    def send() -> None:
        for packet in packets:
            client.send_packet(packet)

    return send
