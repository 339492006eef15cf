"""The parameter server: one thread that receives, asks the state machine, and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from hpcdist.comm.base import Array, Request, Transport
from hpcdist.comm.cluster import Cluster
from hpcdist.comm.waiting import DEADLINE_S
from hpcdist.errors import CommError, DeadlineError
from hpcdist.ps.exchange import StepExchange
from hpcdist.ps.messages import (
    REPLY_TAG,
    REQUEST_TAG,
    VALUE_TAG,
    Hello,
    Kind,
    decode_header,
    difference,
    parse_hello,
    parse_specs,
)
from hpcdist.ps.packets import VarSpec
from hpcdist.ps.rows import RowServer
from hpcdist.ps.shards import Shards, SyncShards, Update
from hpcdist.ps.wire import new_header, post_message, read_payload

OnStepBegin = Callable[[int], None]  # (step): before the first update of a step
OnPacket = Callable[
    [int, tuple[int, ...]], None
]  # (packet index, contributors): update its variables


_DIFFER = "the ranks have built different programs"


class PsServer:
    """Serves the trainers of a cluster, from their HELLO until the last has closed.

    ``expected`` is what every trainer must announce; an empty fingerprint accepts whichever the
    lowest trainer has. ``arrays`` holds the variables by name, at least all parameters of
    ``expected``; they are read and sent from where they lie, so they must be updated in place.
    ``gradients[name][k]`` is what trainer k sent: the rows of one strided array. Sparse gradients
    count as packets behind the dense ones; ``rows[name][k]`` is the (rows, values) of trainer k.
    ``shards`` decides (default: synchronously); ``own_answers``: see `StepExchange`. With
    ``tracked_rows`` trainers may ask which rows of tables have changed.
    """

    def __init__(
        self,
        transport: Transport,
        cluster: Cluster,
        server_index: int,
        *,
        expected: Hello,
        arrays: Mapping[str, Array],
        deadline_s: float = DEADLINE_S,
        shards: Shards | None = None,
        own_answers: bool = False,
        tracked_rows: bool = False,
    ) -> None:
        self._transport = transport
        self._ranks = cluster.trainers
        self._name = f"server {server_index} ({cluster.endpoints[server_index]})"
        self._expected = expected
        self._arrays = arrays
        self._deadline_s = deadline_s
        self._own_answers = own_answers
        trainers = len(cluster.trainers)
        packets = len(expected.gradients) + len(expected.tables)
        self._shards: Shards = shards or SyncShards(trainers, packets)

        self._exchange = StepExchange(
            transport,
            cluster.trainers,
            expected,
            arrays,
            own_answers=own_answers,
            describe=self._unsent,
            deadline_s=deadline_s,
        )
        self.gradients = self._exchange.gradients
        self._dense = len(expected.gradients)
        self._tables = {spec.name: i for i, spec in enumerate(expected.tables)}
        self._row_server = RowServer(
            transport, cluster.trainers, expected.tables, arrays, deadline_s, tracked=tracked_rows
        )
        self.rows = self._row_server.gradients

        self._greeted = False
        self._hellos: dict[int, Hello] = {}
        self._closed: set[int] = set()
        self._reads: list[tuple[int, int, Any]] = []
        self._headers = [new_header() for _ in self._ranks]
        # Every rank polls one list: a header from each trainer, then trainer-major packets.
        self._requests: list[Request] = [
            transport.recv_init(header, rank, REQUEST_TAG)
            for header, rank in zip(self._headers, self._ranks, strict=True)
        ]

    def serve(self, on_step_begin: OnStepBegin, on_packet: OnPacket) -> None:
        """Run until all trainers have closed; the callbacks update ``arrays`` in place.

        ``on_packet(index, contributors)`` merges those rows of ``gradients`` for the variables of
        packet ``index`` and updates its parameters.
        """
        transport, shards = self._transport, self._shards
        trainers, packets = len(self._ranks), self._dense
        places = [(k, p) for k in range(trainers) for p in range(packets)]
        transport.start(self._requests)
        # The list is shared: it grows by the step path's receives once all trainers are here.
        wait = transport.waiter_some(self._requests, self._awaited, self._deadline_s)
        arrived = shards.arrived
        while not (self._closed and shards.finished):
            try:
                ended = wait()
            except DeadlineError:
                if self._exchange_open():
                    raise
                continue
            for index in ended:
                if index < trainers:
                    self._control(index, on_step_begin, on_packet)
                    continue
                update = arrived(*places[index - trainers])
                if update:
                    self._update(update, on_step_begin, on_packet)
        self._exchange.close()
        transport.release(self._requests)

    # -- the step path --

    def _update(self, update: Update, on_step_begin: OnStepBegin, on_packet: OnPacket) -> None:
        packet, contributors, begins_step, answers = update
        if begins_step:
            on_step_begin(self._shards.step)
        exchange = self._exchange
        if packet >= self._dense:
            on_packet(packet, contributors)
        elif contributors:
            exchange.settle(packet)
            on_packet(packet, contributors)
            if len(contributors) == len(self._ranks) and not self._own_answers:
                exchange.answer_all(packet)
                answers = ()
            else:
                exchange.receive(packet, contributors)
        for answered, trainers in answers:
            if answered < self._dense:
                exchange.answer(answered, trainers)
        if self._reads or self._tables:
            self._answer_reads()

    # -- control messages --

    def _control(self, trainer: int, on_step_begin: OnStepBegin, on_packet: OnPacket) -> None:
        header = decode_header(self._headers[trainer])
        if header.trainer != trainer:
            raise CommError(
                f"{self._name}: rank {self._ranks[trainer]} is trainer {trainer}, "
                f"yet calls itself trainer {header.trainer}"
            )
        payload = read_payload(
            self._transport,
            self._ranks[trainer],
            REQUEST_TAG,
            header,
            lambda: (
                f"{self._name} waiting for the rest of {header.kind.name} from {self._who(trainer)}"
            ),
            self._deadline_s,
        )
        if header.kind is Kind.HELLO:
            self._hello(trainer, payload)
        elif header.kind is Kind.READ:
            self._reads.append((trainer, header.step, payload))
        elif header.kind is Kind.PULL:
            self._row_server.take_pull(trainer, header, payload)
        elif header.kind is Kind.PUSH:
            name = self._row_server.take_push(trainer, payload)
            update = self._shards.arrived(trainer, self._dense + self._tables[name])
            if update:
                self._update(update, on_step_begin, on_packet)
        elif header.kind is Kind.CHANGED:
            self._row_server.answer_changed(trainer, header, payload)
        elif header.kind is Kind.CLOSE:
            self._close(trainer, payload, on_step_begin, on_packet)
        else:
            raise CommError(
                f"{self._name}: unexpected {header.kind.name} from {self._who(trainer)}"
            )
        if header.kind is not Kind.CLOSE:
            self._transport.start([self._requests[trainer]])
        self._answer_reads()

    def _hello(self, trainer: int, payload: Any) -> None:
        if trainer in self._hellos:
            raise CommError(f"{self._name}: a second HELLO from {self._who(trainer)}")
        self._hellos[trainer] = parse_hello(payload)
        self._greet_when_all_are_here()

    def _greet_when_all_are_here(self) -> None:
        """Answer all HELLOs at once: every trainer goes on, or every one has the same error."""
        here = self._closed.union(self._hellos)
        if self._greeted or not self._hellos or len(here) < len(self._ranks):
            return
        self._greeted = True
        reference = self._expected
        refusal = None
        for trainer, hello in sorted(self._hellos.items()):
            if not reference.fingerprint:
                reference = replace(reference, fingerprint=hello.fingerprint)
            found = difference(reference, hello)
            if found:
                refusal = f"{self._who(trainer)} and {self._name} disagree on {found}"
                break
        kind = Kind.REFUSED if refusal else Kind.HELLO_OK
        if not refusal:
            self._requests += self._exchange.open(sorted(set(self._hellos) - self._closed))
        for trainer in sorted(self._hellos):
            self._reply(trainer, kind, 0, refusal)
        if refusal:
            raise CommError(refusal)

    def _close(
        self, trainer: int, payload: Any, on_step_begin: OnStepBegin, on_packet: OnPacket
    ) -> None:
        sent = payload or [0] * (self._dense + len(self._tables))
        if not isinstance(sent, list) or not all(isinstance(n, int) for n in sent):
            raise CommError(f"malformed message: CLOSE payload of {self._who(trainer)}: {sent!r}")
        self._closed.add(trainer)
        for update in self._shards.closed(trainer, sent):
            self._update(update, on_step_begin, on_packet)
        self._greet_when_all_are_here()

    def _answer_reads(self) -> None:
        """Answer what was asked, unless a step is half applied: values are of whole steps only."""
        while self._reads and self._shards.readable:
            self._answer_read(*self._reads.pop(0))
        self._row_server.answer(self._tables_reached)

    def _tables_reached(self, trainer: int, step: int) -> bool:
        """Tell whether all tables are as a trainer must see them in ``step``."""
        reached, first = self._shards.reached, self._dense
        return all(reached(trainer, first + i, step) for i in self._tables.values())

    def _answer_read(self, trainer: int, step: int, payload: Any) -> None:
        specs = parse_specs(payload)
        refusal = next((r for r in map(self._unreadable, specs) if r), None)
        self._reply(trainer, Kind.REFUSED if refusal else Kind.VALUE, step, refusal)
        if refusal:
            return
        values = [
            self._transport.isend(self._arrays[spec.name], self._ranks[trainer], VALUE_TAG)
            for spec in specs
        ]
        names = ", ".join(spec.name for spec in specs)
        self._transport.wait_all(
            values,
            lambda: f"{self._name} sending {names} to {self._who(trainer)}",
            self._deadline_s,
        )

    def _unreadable(self, spec: VarSpec) -> str | None:
        array = self._arrays.get(spec.name)
        if array is None:
            return f"{self._name} has no variable {spec.name}: {_DIFFER}"
        if array.shape != spec.shape or array.dtype.name != spec.dtype:
            got = f"{array.dtype}{list(array.shape)}"
            return f"{self._name} holds {spec.name} as {got}, expected {spec}: {_DIFFER}"
        return None

    def _reply(self, trainer: int, kind: Kind, step: int, payload: Any) -> None:
        requests = post_message(
            self._transport, self._ranks[trainer], REPLY_TAG, kind, trainer, step, payload
        )
        self._transport.wait_all(
            requests,
            lambda: f"{self._name} sending {kind.name} to {self._who(trainer)}",
            self._deadline_s,
        )

    # -- words --

    def _exchange_open(self) -> bool:
        """Whether some trainer has begun what others must complete; only that is bounded."""
        return bool(self._hellos and not self._greeted) or self._shards.begun

    def _awaited(self) -> str:
        if self._hellos and not self._greeted:
            absent = sorted(set(range(len(self._ranks))) - set(self._hellos) - self._closed)
            return f"{self._name} waiting for the first message (HELLO) of {self._whos(absent)}"
        if not self._greeted:
            return f"{self._name} waiting for trainers"
        packets = [*map(str, self._expected.gradients), *self._tables]
        if not self._shards.begun:
            step = self._shards.step + 1
            return f"{self._name}: waiting for step {step}, for {', '.join(packets)}"
        step, packet, missing = self._shards.missing()
        names = packets[packet]
        return f"{self._name}, step {step}: waiting for {names} from {self._whos(missing)}"

    def _unsent(self) -> str:
        return f"{self._name} waiting for trainers to take their parameters"

    def _who(self, trainer: int) -> str:
        return f"trainer {trainer} (rank {self._ranks[trainer]})"

    def _whos(self, trainers: Any) -> str:
        return ", ".join(self._who(trainer) for trainer in trainers)
