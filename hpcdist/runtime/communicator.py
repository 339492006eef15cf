"""The communicator: queues and merges a trainer's whole gradients, cuts them, joins parameters.

It has no threads. What Fluid's sending thread does is done when a step ends, and so is what its
receiving thread does: answers arrive while the trainer computes, into memory of their own, and are
taken over at the end of a step. So an exchange may be under way during later steps, and yet no
parameter changes in the middle of one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdist.comm.base import Array
from hpcdist.errors import CommError
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Meta
from hpcdist.graph.roles import ROLE_VAR_ATTR
from hpcdist.ops.selected_rows import SelectedRows
from hpcdist.ps.client import PsClient
from hpcdist.runtime.exchange import is_counter

PREFIX = "FLAGS_communicator_"
Call = Callable[[], Any]


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


def read_settings(environ: Mapping[str, str], *, joint: bool) -> Settings:
    """Return what FLAGS_communicator_* say, by default what CPU_NUM (1) says.

    ``joint``: the threads of a trainer meet at every step and average. A rank is one thread, so
    every gradient is exchanged at once. communicator_thread_pool_size is checked; there is no pool.
    """
    threads = str(_number(environ, "CPU_NUM", "1", least=1))

    def flag(name: str, default: str, least: int) -> int:
        return _number(environ, PREFIX + name, default, least=least)

    merge = flag("max_merge_var_num", threads, 1)
    queue = flag("send_queue_size", threads, 1)
    receive_after = flag("min_send_grad_num_before_recv", threads, 0)
    flag("thread_pool_size", "5", 1)
    eager = bool(flag("independent_recv_thread", "1", 0))
    wait_s = flag("send_wait_times", "5", 0) * 0.01  # Fluid's sender looks every 10 ms
    mean = not flag("is_sgd_optimizer", "1", 0)
    if joint:
        return Settings(eager=eager, wait_s=wait_s, mean=True)
    return Settings(min(merge, queue), queue, receive_after, eager, wait_s, mean)


def _number(environ: Mapping[str, str], name: str, default: str, *, least: int) -> int:
    said = environ.get(name, default).strip()
    value = {"true": "1", "false": "0"}.get(said.lower(), said)
    if not value.isdigit() or int(value) < least:
        raise CommError(f"{name}: expected a number of at least {least}, got {said!r}")
    return int(value)


@dataclass(frozen=True)
class Cut:
    """A whole gradient and the parameter that answers it, in pieces of rows for the servers.

    Rows ``starts[i]:starts[i + 1]`` are called ``gradients[i]`` and ``parameters[i]``.
    """

    gradient: str
    parameter: str
    starts: tuple[int, ...]
    gradients: tuple[str, ...]
    parameters: tuple[str, ...]  # none for a table that trainers do not receive
    endpoints: tuple[str, ...]

    def rows(self, names: Sequence[str], whole: Any) -> dict[str, Any]:
        """Return the pieces of an array by name."""
        ends = zip(self.starts, self.starts[1:])
        return {name: whole[begin:end] for name, (begin, end) in zip(names, ends)}


def is_split(op: Operator) -> bool:
    """Tell whether a send holds a whole gradient for the communicator to cut."""
    return op.type == "send" and bool(op.attrs.get("sections")) and not is_counter(op)


def read_cuts(ops: Sequence[Operator]) -> tuple[Cut, ...]:
    """Return what the communicator is to cut and join, in the order of the sends."""
    received = {
        op.output("Out")[0]: tuple(op.attrs["recv_varnames"]) for op in ops if op.type == "recv"
    }
    cuts = []
    for op in filter(is_split, ops):
        parameter = op.attrs[ROLE_VAR_ATTR][0]
        starts = tuple(int(n) for n in np.cumsum([0, *op.attrs["sections"]]))
        names, endpoints = tuple(op.attrs["send_varnames"]), tuple(op.attrs["epmap"])
        pieces = received.get(parameter, ())
        cuts.append(Cut(op.input("X")[0], parameter, starts, names, pieces, endpoints))
    return tuple(cuts)


def check_runnable(
    cuts: Sequence[Cut], settings: Settings, arrays: Mapping[str, Any], *, dc_asgd: bool
) -> None:
    """Raise CommError for what would train wrongly."""
    for cut in cuts:
        if cut.parameters and isinstance(arrays[cut.gradient], SelectedRows):
            raise CommError(
                f"table {cut.parameter!r} has is_sparse=True, but is not only looked up in: "
                "a communicator cannot exchange it; use is_sparse=False"
            )
    if dc_asgd and (settings.queue > 1 or settings.receive_after > 1):
        raise CommError(
            "config.enable_dc_asgd: servers compensate from what a trainer read last, so every "
            "gradient must be answered at once: set FLAGS_communicator_send_queue_size and "
            "FLAGS_communicator_min_send_grad_num_before_recv to 1, or CPU_NUM"
        )


def piece_metas(cuts: Sequence[Cut], metas: Mapping[str, Meta]) -> dict[str, Meta]:
    """Return the shapes of the pieces of parameters."""
    found = {}
    for cut in cuts:
        whole = metas.get(cut.parameter)
        for name, begin, end in zip(cut.parameters, cut.starts, cut.starts[1:]):
            assert whole is not None, "what is received is declared"
            found[name] = Meta((end - begin, *whole.shape[1:]), whole.dtype)
    return found


class Communicator:
    """A trainer's queue of gradients, and the exchange that may be under way.

    ``pieces`` are what messages leave from and come to, by name; connect with them, then `attach`.
    ``exchanged`` (int64 [2]) is sent with every exchange: its number, and the steps merged in it.
    """

    def __init__(
        self,
        cuts: Sequence[Cut],
        parameters: Mapping[str, Array],
        settings: Settings,
        exchanged: Array,
        *,
        key_of: Callable[[str], str],
    ) -> None:
        self.settings = settings
        self.dense = [cut for cut in cuts if cut.parameters]
        self.sparse = [cut for cut in cuts if not cut.parameters]  # of tables: no answer
        self.exchanged = exchanged
        self._key_of = key_of
        self._parameters = {cut.parameter: parameters[cut.parameter] for cut in self.dense}
        self._queued = {cut.gradient: np.zeros_like(self._of(cut)) for cut in self.dense}
        self._outgoing = {cut.gradient: np.zeros_like(self._of(cut)) for cut in self.dense}
        self._landing = {cut.parameter: np.zeros_like(self._of(cut)) for cut in self.dense}
        self._rows: dict[str, list[tuple[Array, Array]]] = {cut.gradient: [] for cut in self.sparse}
        self.pieces: dict[str, Array] = {}
        for cut in self.dense:
            self.pieces |= cut.rows(cut.gradients, self._outgoing[cut.gradient])
            self.pieces |= cut.rows(cut.parameters, self._landing[cut.parameter])
        self._client: PsClient | None = None
        self._up: Call | None = None
        self._waiting = 0  # steps whose gradients wait to be sent
        self._flying = 0  # steps whose gradients are sent and not yet answered
        self._since = 0  # steps sent since parameters were taken over
        self._first_queued = 0.0

    def _of(self, cut: Cut) -> Array:
        return self._parameters[cut.parameter]

    def attach(self, client: PsClient, up: Call | None) -> None:
        """Exchange through ``client``; ``up`` copies what was taken over to the device."""
        self._client, self._up = client, up

    def end_step(self, dense: Mapping[str, Array], sparse: Mapping[str, SelectedRows]) -> None:
        """Queue this step's gradients, then send and receive what is due."""
        self._queue(dense, sparse)
        settings, client = self.settings, self._connected
        if self._flying and (self._full or (settings.eager and client.answered())):
            self._receive()
        if not self._flying and (self._waiting >= settings.merge or self._late):
            self._send()
        if self._full:
            self._receive()

    def flush(self) -> None:
        """Send what is queued and take over the answers: no gradient is lost at the end."""
        if self._waiting:
            if self._flying:
                self._receive()
            self._send()
        if self._flying:
            self._since = self.settings.receive_after
            self._receive()

    # -- inside ------------------------------------------------------------------------------
    @property
    def _connected(self) -> PsClient:
        if self._client is None:
            raise CommError("the communicator is not connected to the parameter servers yet")
        return self._client

    @property
    def _full(self) -> bool:
        return self._flying > 0 and self._flying + self._waiting >= self.settings.queue

    @property
    def _late(self) -> bool:
        return time.monotonic() - self._first_queued >= self.settings.wait_s

    def _queue(self, dense: Mapping[str, Array], sparse: Mapping[str, SelectedRows]) -> None:
        first = self._waiting == 0
        if first and self.settings.merge > 1:
            self._first_queued = time.monotonic()
        for name, queued in self._queued.items():
            if first:
                np.copyto(queued, dense[name])
            else:
                queued += dense[name]
        for name, kept in self._rows.items():
            gradient = sparse[name]
            if not isinstance(gradient.rows, np.ndarray):
                gradient = gradient.get()
            kept.append((np.array(gradient.rows), np.array(gradient.value)))
        self._waiting += 1

    def _send(self) -> None:
        merged, client = self._waiting, self._connected
        self.exchanged[1] = merged
        divide = self.settings.mean and merged > 1
        for name, queued in self._queued.items():
            np.copyto(self._outgoing[name], queued)
            if divide:
                self._outgoing[name] *= queued.dtype.type(1.0 / merged)
        client.post_receives()
        for packet in range(len(client.packets)):
            client.send_packet(packet)
        for cut in self.sparse:
            self._push(cut, 1.0 / merged if divide else 1.0)
        self._waiting, self._flying = 0, merged
        self._since += merged

    def _push(self, cut: Cut, scale: float) -> None:
        """Send each server its rows, numbered from its first, though there be none."""
        kept = self._rows[cut.gradient]
        rows = np.concatenate([r for r, _ in kept])
        values = np.concatenate([v for _, v in kept])
        if scale != 1.0:
            values *= values.dtype.type(scale)
        kept.clear()
        for name, endpoint, begin, end in zip(
            cut.gradients, cut.endpoints, cut.starts, cut.starts[1:]
        ):
            here = np.flatnonzero((rows >= begin) & (rows < end))
            key = self._key_of(name)
            self._connected.push_rows(endpoint, key, rows[here] - begin, values[here])

    def _receive(self) -> None:
        """Wait for the answers under way; take them over, if enough has been sent."""
        self._connected.wait_receives()
        self.exchanged[0] += 1
        self._flying = 0
        if self._since < self.settings.receive_after:
            return
        self._since = 0
        for name, landed in self._landing.items():
            np.copyto(self._parameters[name], landed)
        if self._up is not None:
            self._up()
