"""The communicator: queues and merges a trainer's full gradients, cuts them, joins parameters.

If more than one gradient may be unanswered, a thread sends and receives while the trainer computes
(`Receiver`); otherwise every gradient is answered before its step ends, and the step does it.
Answers arrive in separate buffers and are copied at the end of a step: no parameter changes in the
middle of one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Condition

import numpy as np

from hpcdist.base import settings
from hpcdist.base.errors import CommError
from hpcdist.base.trace.events import Count
from hpcdist.base.trace.recorder import recorder
from hpcdist.comm.base import Array
from hpcdist.graph.registry import Call
from hpcdist.ops.embedding.selected_rows import SelectedRows
from hpcdist.ps.client import PsClient
from hpcdist.runtime.pserver.progress_thread import ProgressThread
from hpcdist.runtime.pserver.row_partition import RowCut


@dataclass(frozen=True)
class Settings:
    """How gradients are queued.

    ``merge`` gradients of a variable become one, their sum or with ``mean`` their mean; when the
    first of them has waited ``wait_s``, fewer do. ``queue`` bounds those that are not yet answered,
    waiting or under way: when so many are, the step waits. Parameters are taken over once
    ``receive_after`` gradients have been sent; with ``eager`` as soon as they are here, else when
    the queue is full.
    """

    merge: int = 1
    queue: int = 1
    receive_after: int = 1
    eager: bool = True
    wait_s: float = 0.05
    mean: bool = False


def read_settings(*, joint: bool) -> Settings:
    """Return the settings of FLAGS_communicator_*, by default those of CPU_NUM (1).

    ``joint``: the threads of a trainer meet at every step and average. A rank is one thread, so
    every gradient is exchanged at once. communicator_thread_pool_size is checked; there is no pool.
    """
    settings.COMMUNICATOR_THREADS.read()
    eager = settings.COMMUNICATOR_EAGER.read()
    wait_s = settings.COMMUNICATOR_WAIT.read() * 0.01  # Fluid's sender looks every 10 ms
    if joint:
        return Settings(eager=eager, wait_s=wait_s, mean=True)
    queue = settings.COMMUNICATOR_QUEUE.read()
    return Settings(
        merge=min(settings.COMMUNICATOR_MERGE.read(), queue),
        queue=queue,
        receive_after=settings.COMMUNICATOR_RECV_AFTER.read(),
        eager=eager,
        wait_s=wait_s,
        mean=not settings.COMMUNICATOR_SUM.read(),
    )


def check_answered(settings: Settings) -> None:
    """Raise CommError, with DC-ASGD, if a gradient may be unanswered when the next one is sent."""
    if settings.queue > 1 or settings.receive_after > 1:
        raise CommError(
            "config.enable_dc_asgd: servers compensate from what a trainer read last, so every "
            "gradient must be answered at once: set FLAGS_communicator_send_queue_size and "
            "FLAGS_communicator_min_send_grad_num_before_recv to 1, or CPU_NUM"
        )


class _MergedGradients:
    """The gradients of one or more steps, added up."""

    def __init__(self, dense: Mapping[str, Array], sparse: Sequence[str]) -> None:
        self.dense = {name: np.zeros_like(array) for name, array in dense.items()}
        self.rows: dict[str, list[tuple[Array, Array]]] = {name: [] for name in sparse}
        self.steps = 0
        self.since = 0.0  # when the first came, in seconds of the monotonic clock

    def add(self, dense: Mapping[str, Array], sparse: Mapping[str, SelectedRows]) -> None:
        """Add a step's gradients; the rows of sparse ones are kept, not copied."""
        for name, summed in self.dense.items():
            if self.steps:
                summed += dense[name]
            else:
                np.copyto(summed, dense[name])
        for name, queued in self.rows.items():
            queued.append((sparse[name].rows, sparse[name].value))
        self.steps += 1

    def clear(self) -> None:
        """Forget all steps."""
        self.steps = 0
        for queued in self.rows.values():
            queued.clear()


class Communicator:
    """A trainer's queue of gradients, and the exchange that may be under way.

    ``pieces`` are what messages leave from and come to, by name; connect with them, then `attach`.
    ``exchanged`` (int64 [2]) is sent with every exchange: its number, and the steps merged in it.
    """

    def __init__(
        self,
        cuts: Sequence[RowCut],
        parameters: Mapping[str, Array],
        settings: Settings,
        exchanged: Array,
        *,
        threads: bool = True,
    ) -> None:
        """``threads``: whether the transport may be used by two threads."""
        self.settings = settings
        self.dense = [cut for cut in cuts if cut.parameters]
        self.sparse = [cut for cut in cuts if not cut.parameters]  # of tables: no answer
        self.exchanged = exchanged
        self._parameters = {cut.parameter: parameters[cut.parameter] for cut in self.dense}
        self._queued: deque[_MergedGradients] = deque()  # none of more than ``merge`` steps
        self._spare: list[_MergedGradients] = []
        self._outgoing = {cut.gradient: np.zeros_like(self._of(cut)) for cut in self.dense}
        self._landing = {cut.parameter: np.zeros_like(self._of(cut)) for cut in self.dense}
        self.pieces: dict[str, Array] = {}
        for cut in self.dense:
            self.pieces |= cut.rows(cut.gradients, self._outgoing[cut.gradient])
            self.pieces |= cut.rows(cut.parameters, self._landing[cut.parameter])
        self._threaded = settings.eager and settings.queue > 1 and threads
        # With a thread, answers may come in while those before are not yet taken over.
        landing = self._landing.items()
        self._arrived = {n: np.zeros_like(a) if self._threaded else a for n, a in landing}
        self._client: PsClient | None = None
        self._up: Call | None = None
        self._turn = Condition()  # the client's, once there is one
        self._receiver: ProgressThread | None = None
        self._waiting = 0  # steps whose gradients wait to be sent
        self._flying = 0  # steps whose gradients are sent and not yet answered
        self._since = 0  # steps sent since parameters were taken over
        self._fresh = False  # parameters have arrived and are not yet taken over

    def _of(self, cut: RowCut) -> Array:
        return self._parameters[cut.parameter]

    def attach(self, client: PsClient, up: Call | None) -> None:
        """Exchange through ``client``; ``up`` copies what was taken over to the device."""
        self._client, self._up = client, up
        self._turn = Condition(client.turn)
        if self._threaded:
            self._receiver = ProgressThread(self._turn, idle=self._idle, advance=self._advance)

    def end_step(self, dense: Mapping[str, Array], sparse: Mapping[str, SelectedRows]) -> None:
        """Queue this step's gradients; send and receive what is due, or have the thread do it."""
        with self._turn:
            self._queue(dense, sparse)
            if self._receiver is not None:
                self._receiver.hand_over(lambda: not self._full, self._connected.awaited)
            else:
                self._exchange()
            self._take_over()
            recorder.count(Count.UNANSWERED, self._waiting + self._flying)

    def settle(self) -> None:
        """Send what is queued and take over the answers, between two steps."""
        with self._turn:
            self._since = self.settings.receive_after
            if self._receiver is not None:
                self._receiver.hand_over(self._idle, self._connected.awaited)
            while not self._idle():
                if not self._flying:
                    self._send()
                self._since = self.settings.receive_after
                self._receive()
            self._take_over()

    def flush(self) -> None:
        """Send what is queued, and end: no gradient is lost."""
        if self._receiver is not None:
            self._receiver.end()
            self._receiver = None
        self.settle()

    # -- inside ------------------------------------------------------------------------------
    @property
    def _connected(self) -> PsClient:
        if self._client is None:
            raise CommError("the communicator is not connected to the parameter servers yet")
        return self._client

    @property
    def _full(self) -> bool:
        return self._flying + self._waiting >= self.settings.queue

    @property
    def _late(self) -> bool:
        return time.monotonic() - self._queued[0].since >= self.settings.wait_s

    @property
    def _due(self) -> bool:
        """Whether the oldest gradients are to be sent: so many are merged, or for so long."""
        queued = self._queued
        return bool(queued) and (queued[0].steps >= self.settings.merge or self._late)

    def _exchange(self) -> None:
        """Send what is due, and wait for answers if no more gradients may be unanswered."""
        if self._flying and self._full:
            self._receive()
            self._take_over()
        if not self._flying and self._due:
            self._send()
        if self._flying and self._full:
            self._receive()

    def _idle(self) -> bool:
        return not (self._waiting or self._flying)

    def _advance(self) -> bool:
        """Take an answer that is there, or send what is due; the thread calls it."""
        if self._flying:
            if not self._connected.answered():
                return False
            self._receive()
            return True
        if self._due:
            self._send()
            return True
        return False

    def _queue(self, dense: Mapping[str, Array], sparse: Mapping[str, SelectedRows]) -> None:
        if not self._queued or self._queued[-1].steps >= self.settings.merge:
            merged = self._spare.pop() if self._spare else self._new()
            merged.since = time.monotonic()
            self._queued.append(merged)
        self._queued[-1].add(dense, sparse)
        self._waiting += 1

    def _new(self) -> _MergedGradients:
        dense = {cut.gradient: self._of(cut) for cut in self.dense}
        return _MergedGradients(dense, [cut.gradient for cut in self.sparse])

    def _send(self) -> None:
        merged, client = self._queued.popleft(), self._connected
        steps = self.exchanged[1] = merged.steps
        divide = self.settings.mean and steps > 1
        for name, summed in merged.dense.items():
            np.copyto(self._outgoing[name], summed)
            if divide:
                self._outgoing[name] *= summed.dtype.type(1.0 / steps)
        client.post_receives()
        for packet in range(len(client.packets)):
            client.send_packet(packet)
        for cut in self.sparse:
            self._push(cut, merged.rows[cut.gradient], 1.0 / steps if divide else 1.0)
        merged.clear()
        self._spare.append(merged)
        self._waiting -= steps
        self._flying = steps
        self._since += steps

    def _push(self, cut: RowCut, queued: Sequence[tuple[Array, Array]], scale: float) -> None:
        """Send each server its rows, numbered from its first, though there be none."""
        rows = np.concatenate([r for r, _ in queued])
        values = np.concatenate([v for _, v in queued])
        if scale != 1.0:
            values *= values.dtype.type(scale)
        for name, endpoint, begin, end in zip(
            cut.gradients, cut.endpoints, cut.starts, cut.starts[1:]
        ):
            local = np.flatnonzero((rows >= begin) & (rows < end))
            self._connected.push_rows(
                endpoint, name, rows[local] - begin, values[local], beside_rows=len(rows) > 0
            )

    def _receive(self) -> None:
        """Wait for the answers under way and keep them, if enough has been sent."""
        self._connected.wait_receives()
        self.exchanged[0] += 1
        self._flying = 0
        if self._since < self.settings.receive_after:
            return
        self._since = 0
        if self._threaded:
            for name, landed in self._landing.items():
                np.copyto(self._arrived[name], landed)
        self._fresh = True

    def _take_over(self) -> None:
        """Make the parameters that have arrived those of the next step."""
        if not self._fresh:
            return
        self._fresh = False
        for name, arrived in self._arrived.items():
            np.copyto(self._parameters[name], arrived)
        if self._up is not None:
            self._up()
