"""`pipeline_send` and `pipeline_recv`: values sent from stage to stage, point to point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcdist.base.device import assign, on_host
from hpcdist.base.trace.position import here
from hpcdist.comm.base import Request, Transport
from hpcdist.comm.progress import waits_for_ranks
from hpcdist.executor.control import Binding
from hpcdist.graph.operator import Operator
from hpcdist.graph.pipeline import MICRO
from hpcdist.graph.registry import Call


class Transfers:
    """Messages between the stages of one replica; ``ranks`` are those of its stages in the job.

    A send copies the value into a buffer and continues. Of each value there are as many buffers as
    stages: none holds more micro-batches, so a buffer is free again when its turn comes.
    """

    def __init__(self, stages: Transport, ranks: tuple[int, ...], deadline_s: float) -> None:
        self._stages = stages
        self._ranks = ranks
        self._deadline_s = deadline_s
        self._buffers: dict[int, list[tuple[np.ndarray, Request]]] = {}  # by tag, oldest first

    def bind(self, op: Operator, binding: Binding) -> Call:
        """Return the operator's call in a step."""
        peer, tag, micro_batch = (op.attrs[n] for n in ("peer", "tag", "micro_batch"))
        sends = op.type == "pipeline_send"
        name = (op.input("X") if sends else op.output("Out"))[0]
        of_step = f"of micro-batch {micro_batch}" if micro_batch >= 0 else "for the update"
        plain = name.partition(MICRO)[0]
        direction = "to" if sends else "from"

        def describe() -> str:
            return (
                f"{plain!r} {of_step} in step {here.step} {direction} stage {peer} "
                f"(rank {self._ranks[peer]})"
            )

        array = binding.arrays[name]
        if sends:
            return lambda: self._send(on_host(array), peer, tag, describe)
        return lambda: self._receive(array, peer, tag, describe)

    def _send(self, array: np.ndarray, peer: int, tag: int, describe: Callable[[], str]) -> None:
        sent = self._buffers.setdefault(tag, [])
        buffer = None
        if len(sent) >= self._stages.size:
            buffer, request = sent.pop(0)
            self._wait(request, peer, describe)
        if buffer is None or buffer.shape != array.shape or buffer.dtype != array.dtype:
            buffer = np.empty(array.shape, array.dtype)
        buffer[...] = array
        sent.append((buffer, self._stages.isend(buffer, peer, tag)))

    def _receive(self, array: Any, peer: int, tag: int, describe: Callable[[], str]) -> None:
        host = array if isinstance(array, np.ndarray) else np.empty(array.shape, array.dtype)
        self._wait(self._stages.irecv(host, peer, tag), peer, describe)
        if host is not array:
            assign(array, host)

    def _wait(self, request: Request, peer: int, describe: Callable[[], str]) -> None:
        with waits_for_ranks(lambda: [self._ranks[peer]]):
            self._stages.wait_all([request], describe, self._deadline_s)

    def end(self) -> None:
        """Wait until all that was sent has arrived."""
        requests = [request for sent in self._buffers.values() for _, request in sent]
        self._stages.wait_all(requests, lambda: "what was sent to other stages", self._deadline_s)
        self._buffers.clear()
