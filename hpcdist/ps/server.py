"""The parameter server: one thread that receives, runs the state machine, and answers."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpcdist.base.errors import CommError, DeadlineError, RankFailure
from hpcdist.base.trace.events import Cause, waits_for_cause
from hpcdist.comm.base import Array, Request, Transport
from hpcdist.comm.cluster import Cluster
from hpcdist.comm.progress import DEADLINE_S, while_waiting
from hpcdist.ps.death_consensus import Verdicts, parse_witness
from hpcdist.ps.handshake import Greetings
from hpcdist.ps.heartbeat import Heartbeat
from hpcdist.ps.messages import (
    REQUEST_TAG,
    TABLE_KINDS,
    VERDICT_TAG,
    Header,
    Hello,
    MessageKind,
    decode_header,
)
from hpcdist.ps.packet_log import PacketLog
from hpcdist.ps.packet_updates import BindPacket, OnStepBegin, PacketUpdates
from hpcdist.ps.persistent_requests import StepExchange
from hpcdist.ps.replies import DIFFER, Answers, OnCheckpoint
from hpcdist.ps.shards import Shards, SyncShards
from hpcdist.ps.sparse_rpc import RowServer
from hpcdist.ps.table import SparseTable
from hpcdist.ps.table_rpc import TableServer
from hpcdist.ps.whole_steps import WholeSteps
from hpcdist.ps.wire import new_header, read_payload

OnDeath = Callable[[int, int], None]  # (trainer, its complete steps): it has died
OnSilence = Callable[[int, int, float], None]  # (trainer, its complete steps, seconds)


class PsServer:
    """Serves the trainers of a cluster, from their HELLO until the last has closed.

    ``expected`` is what every trainer must announce; an empty fingerprint accepts whichever the
    lowest trainer has. ``arrays`` holds the variables by name, at least all parameters of
    ``expected``; they are read and sent from where they lie, so they must be updated in place.
    ``gradients[name][k]`` is what trainer k sent: the rows of one strided array. Sparse gradients
    count as packets after the dense ones; ``rows[name][k]`` is the (rows, values) of trainer k.
    The last packet are the gradients of all ``tables`` together, those of ``expected.row_tables``.
    ``shards`` decides (default: synchronously); ``own_answers``: see `StepExchange`; then trainers
    also begin one by one, and ``on_read`` is told which one is about to read its first values. With
    ``tracked_rows`` trainers may ask which rows of tables have changed. The death of a trainer ends
    the server with RankFailure unless there is an ``on_death``, which may also raise: then it is
    told, and the others continue. ``on_silence`` is told of trainers that send nothing for
    ``silence_s`` seconds, once each time. ``whole_steps``: the packets of a step are applied when
    all of them are due, and answered then.
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
        tables: Sequence[SparseTable] = (),
        on_read: Callable[[int], None] | None = None,
        on_death: OnDeath | None = None,
        on_checkpoint: OnCheckpoint | None = None,
        on_silence: OnSilence | None = None,
        silence_s: float = 900.0,
        whole_steps: bool = False,
    ) -> None:
        self._transport = transport
        self._ranks = cluster.trainers
        self._name = f"server {server_index} ({cluster.endpoints[server_index]})"
        self._expected = expected
        self._deadline_s = deadline_s
        trainers = len(cluster.trainers)
        self._packets = len(expected.gradients) + len(expected.tables) + bool(tables)
        self._shards: Shards = shards or SyncShards(trainers, self._packets)
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
        self.packets = self._exchange.rows
        self._log = PacketLog(expected, cluster.trainers, bool(tables))
        self._updates = PacketUpdates(
            self._shards,
            self._exchange,
            self._log,
            trainers=trainers,
            dense=len(expected.gradients),
            own_answers=own_answers,
            whole_steps=WholeSteps(self._packets) if whole_steps else None,
        )
        self._dense = len(expected.gradients)
        self._tables = {spec.name: i for i, spec in enumerate(expected.tables)}
        self._row_server = RowServer(
            transport, cluster.trainers, expected.tables, arrays, deadline_s, tracked=tracked_rows
        )
        self.rows = self._row_server.gradients
        specs = list(zip(expected.row_tables, tables, strict=True))
        self.tables = TableServer(transport, cluster.trainers, specs, deadline_s)
        self._table_packet = self._packets - 1 if tables else None
        self._moves_rows = bool(self._tables or tables)  # so that trainers may wait for rows
        self._takers: list[list[Callable[[], bool]]] = []  # by trainer, then packet

        self._greetings = Greetings(expected, trainers, one_by_one=own_answers)
        self._closed: set[int] = set()
        self._dead: set[int] = set()
        self._verdicts = Verdicts()
        self._on_read = on_read
        self._on_death = on_death
        self._on_silence = on_silence
        self._heartbeat = Heartbeat(trainers, silence_s)
        self._control_receives = [0] * trainers  # control messages
        self._answers = Answers(
            transport, cluster.trainers, self._name, arrays, deadline_s, on_checkpoint=on_checkpoint
        )
        asked = (self._greetings, self._answers, self._verdicts)
        self._of_trainers = (*asked, self._log, self._row_server, self.tables)
        self._label = self._answers.label
        self._headers = [new_header() for _ in self._ranks]
        # Every rank polls one list: a header from each trainer, then trainer-major packets.
        self._requests: list[Request] = [
            transport.recv_init(header, rank, REQUEST_TAG)
            for header, rank in zip(self._headers, self._ranks, strict=True)
        ]

    def serve(self, on_step_begin: OnStepBegin, bind_packet: BindPacket) -> None:
        """Run until all trainers have closed; what is called updates ``arrays`` in place.

        ``bind_packet(index, contributors)`` returns the calls, for this step and others, that merge
        those rows of ``gradients`` for the variables of packet ``index`` and update its parameters.
        """
        transport, shards = self._transport, self._shards
        self._updates.bind(on_step_begin, bind_packet)
        trainers = len(self._ranks)
        self._takers = [
            [self._updates.taker(k, p) for p in range(self._packets)] for k in range(trainers)
        ]
        places = [(k, p) for k in range(trainers) for p in range(self._dense)]
        owners = [*range(trainers), *(k for k, _ in places)]
        takers = [self._takers[k][p] for k, p in places]
        transport.start(self._requests)
        # The list is shared: it grows by the step path's receives once all trainers are here.
        wait = transport.waiter_some(self._requests, self._awaited, self._deadline_s)
        turns = 0
        stop_looking = while_waiting(self._look)
        while not (self._closed and shards.finished):
            died = None
            turns += 1
            if not turns & 1023:  # trainers that never let the server wait
                self._look()
            try:
                ended: Sequence[int] = wait()
            except DeadlineError as error:
                if self._exchange_open():
                    error.missing = tuple(self._ranks[k] for k in self._missing())
                    raise
                continue
            except RankFailure as failure:
                ended, died = failure.ended, failure
            for index in ended:
                if self._dead and owners[index] in self._dead:
                    continue
                if index < trainers:
                    try:
                        self._control(index)
                    except RankFailure as failure:
                        died = failure
                    continue
                if takers[index - trainers]() and (self._moves_rows or self._answers.waiting):
                    self._answer_reads()
            if died is not None:
                self._bury(died)
        stop_looking()
        self._exchange.close()
        self.tables.close()
        transport.release(self._requests)

    def settle(self) -> None:
        """Wait until the last answers have left: then parameters may be changed in place."""
        self._exchange.settle()

    @property
    def steps_applied(self) -> tuple[int, ...]:
        """How many complete steps of each trainer have been applied."""
        return tuple(map(self._shards.steps_of, range(len(self._ranks))))

    # -- silence and deaths --

    def _look(self) -> None:
        """Report trainers that have been silent for too long."""
        now = time.monotonic()
        if self._on_silence is None or not self._greetings.answered or not self._heartbeat.due(now):
            return
        shards, trainers = self._shards, range(len(self._ranks))
        asking = self._answers.awaited
        heard = [shards.heard(k) + self._control_receives[k] for k in trainers]
        owing = [not (k in self._closed or k in asking or shards.waits(k)) for k in trainers]
        for silence in self._heartbeat.look(now, heard, owing):
            steps = shards.steps_of(silence.trainer)
            self._on_silence(silence.trainer, steps, silence.seconds)

    def _missing(self) -> tuple[int, ...]:
        """Return the trainers that others wait for."""
        if not self._greetings.answered:
            return self._greetings.missing(self._closed)
        return self._shards.missing()[2]

    def _bury(self, failure: RankFailure) -> None:
        """Go on without the trainers that have died, if that is wanted and some are left."""
        if self._on_death is None or not set(failure.ranks) <= set(self._ranks):
            raise failure
        newly_dead = {self._ranks.index(rank) for rank in failure.ranks} - self._dead
        self._dead |= newly_dead
        self._closed |= newly_dead
        for trainer in sorted(newly_dead):
            self._on_death(trainer, self._shards.steps_of(trainer))
            for part in self._of_trainers:
                part.forget(trainer)
            for update in self._shards.died(trainer):
                self._updates.carry_out(update)
        if len(self._dead) == len(self._ranks):
            raise failure
        self._greet()
        self._answer_reads()

    # -- control messages --

    def _control(self, trainer: int) -> None:
        header = decode_header(self._headers[trainer])
        self._control_receives[trainer] += 1
        if header.trainer != trainer:
            raise CommError(
                f"{self._name}: rank {self._ranks[trainer]} is trainer {trainer}, "
                f"but its message says trainer {header.trainer}"
            )
        if header.kind in TABLE_KINDS:
            self._table_message(trainer, header)
            return
        payload = read_payload(
            self._transport,
            self._ranks[trainer],
            REQUEST_TAG,
            header,
            lambda: (
                f"{self._name} waiting for the rest of {header.kind.name} from "
                f"{self._label(trainer)}"
            ),
            self._deadline_s,
        )
        if header.kind is MessageKind.HELLO:
            self._greetings.take(trainer, payload)
            self._greet()
        elif header.kind is MessageKind.READ:
            if self._on_read is not None and trainer not in self._greetings:
                self._on_read(trainer)
            self._answers.add_read(trainer, header.step, payload)
        elif header.kind is MessageKind.CHECKPOINT:
            self._answers.add_checkpoint(trainer, header.step, payload)
        elif header.kind is MessageKind.PULL:
            self._row_server.take_pull(trainer, header, payload)
        elif header.kind is MessageKind.PUSH:
            name = self._row_server.take_push(trainer, payload)
            self._takers[trainer][self._dense + self._tables[name]]()
        elif header.kind is MessageKind.CHANGED:
            self._row_server.answer_changed(trainer, header, payload)
        elif header.kind is MessageKind.DIED:
            self._verdicts.hear(trainer, parse_witness(payload))
        elif header.kind is MessageKind.CLOSE:
            self._close(trainer, payload)
        else:
            raise CommError(
                f"{self._name}: unexpected {header.kind.name} from {self._label(trainer)}"
            )
        if header.kind is not MessageKind.CLOSE:
            self._transport.start([self._requests[trainer]])
        self._answer_reads()

    def _table_message(self, trainer: int, header: Header) -> None:
        if self._table_packet is None:
            raise CommError(
                f"{self._label(trainer)} asked {self._name} for rows, "
                f"but it has no tables: {DIFFER}"
            )
        if header.kind is MessageKind.TABLE_PUSH:
            self.tables.take_push(trainer, header)
            self._takers[trainer][self._table_packet]()
        else:
            self.tables.take_pull(trainer, header)
        self._transport.start([self._requests[trainer]])
        self._answer_reads()

    def _greet(self) -> None:
        """Answer the HELLOs that may be answered; from then on those trainers may send."""
        new = self._greetings.due(self._closed)
        if not new:
            return
        objection = self._greetings.objection(new)
        refusal = None
        if objection:
            refusal = f"{self._label(objection[0])} and {self._name} disagree on {objection[1]}"
        else:
            if not self._greetings.answered:
                self._requests += self._exchange.open()
            self._exchange.admit([k for k in new if k not in self._closed])
        self._greetings.answered.update(new)
        for trainer in new:
            self._answers.reply(
                trainer, MessageKind.REFUSED if refusal else MessageKind.HELLO_OK, 0, refusal
            )
        if refusal:
            raise CommError(refusal)

    def _close(self, trainer: int, payload: object) -> None:
        sent = payload or [0] * self._packets
        if not isinstance(sent, list) or not all(isinstance(n, int) for n in sent):
            raise CommError(f"malformed message: CLOSE payload of {self._label(trainer)}: {sent!r}")
        self._closed.add(trainer)
        for update in self._shards.closed(trainer, sent):
            self._updates.carry_out(update)
        self._greet()

    def _answer_reads(self) -> None:
        """Answer what was asked, unless a step is half applied: values are of complete steps only.

        A trainer that asks after its step sees this step, though others still push rows of it.
        """
        while self._shards.readable and self._answers.next(self._shards.settled):
            pass
        self._row_server.answer(self._tables_reached)
        if self._table_packet is not None:
            packet = self._table_packet
            self.tables.answer(functools.partial(self._updates.reached, packet))
        reached = self._verdicts.reached(set(range(len(self._ranks))) - self._closed)
        if reached is not None:
            verdict, witnesses = reached
            for trainer in witnesses:
                self._answers.reply(trainer, MessageKind.DIED, 0, verdict.payload(), VERDICT_TAG)

    def _tables_reached(self, trainer: int, step: int) -> bool:
        """Return whether all tables are as a trainer must see them in ``step``."""
        packets = [self._dense + i for i in self._tables.values()]
        return all(self._updates.reached(packet, trainer, step) for packet in packets)

    # -- words --

    def _exchange_open(self) -> bool:
        """Whether some trainer has begun what others must complete; only that is bounded."""
        return self._greetings.pending or self._shards.begun

    @waits_for_cause(Cause.GRADIENTS)
    def _awaited(self) -> str:
        if self._greetings.pending:
            absent = self._whos(self._missing())
            return f"{self._name} waiting for the first message (HELLO) of {absent}"
        if not self._greetings.answered:
            return f"{self._name} waiting for trainers"
        packets = [*map(str, self._expected.gradients), *self._tables]
        if self._table_packet is not None:
            packets.append(", ".join(table.name for table in self._expected.row_tables))
        if not self._shards.begun:
            step = self._shards.step + 1
            return f"{self._name}, after step {step}: waiting for {', '.join(packets)}"
        step, packet, missing = self._shards.missing()
        awaited = f"waiting for {packets[packet]} from {self._whos(missing)}"
        return f"{self._name}, after step {step}: {awaited}"

    @waits_for_cause(Cause.SENDS)
    def _unsent(self) -> str:
        return f"{self._name} waiting for trainers to take their parameters"

    def _whos(self, trainers: Any) -> str:
        return ", ".join(self._label(trainer) for trainer in trainers)
