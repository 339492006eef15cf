"""A stand-in for CUDA graphs of torch's, over the stand-in for cupy: what a step replays.

Tensors of torch's lie in the simulated memory, and a run of operators is computed when the stream
that is current for torch comes to it. A graph records kernels of one stream; what CUDA refuses
meanwhile raises RuntimeError, and so does what a replay would do otherwise: memory that others may
have by then, values of the host. It cannot show that CUDA and torch agree.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from hpcdist.executor.traced import TracedSegment
from tests.support.device import DeviceArray
from tests.support.streams import MACHINE, Event, Stream


class TorchStream:
    """A stream as torch knows it; torch has a current stream of its own."""

    def __init__(self, of: Stream) -> None:
        self.of = of

    def wait_stream(self, other: TorchStream) -> None:
        mark = Event()
        mark.record(other.of)
        self.of.wait_event(mark)


class CUDAGraph:
    """What was recorded, launched at once."""

    def __init__(self) -> None:
        self.works: list[Callable[[], None]] = []

    def replay(self) -> None:
        MACHINE.counts.replays += 1

        def whole() -> None:
            for work in self.works:
                work()

        current_stream().of.launch(whole)


def current_stream() -> TorchStream:
    entered = getattr(MACHINE.here, "of_torch", None)
    return entered[-1] if entered else TorchStream(MACHINE.default())


def _enter(stream: TorchStream) -> None:
    if not hasattr(MACHINE.here, "of_torch"):
        MACHINE.here.of_torch = []
    MACHINE.here.of_torch.append(stream)


@contextlib.contextmanager
def stream(entered: TorchStream) -> Iterator[None]:
    _enter(entered)
    depth = len(MACHINE.here.of_torch)
    try:
        yield
    finally:
        del MACHINE.here.of_torch[depth - 1 :]  # as torch, which sets the one from before


@contextlib.contextmanager
def graph(
    cuda_graph: CUDAGraph, pool: Any = None, stream: Any = None, capture_error_mode: str = "global"
) -> Iterator[None]:
    assert capture_error_mode == "thread_local", "a thread that asks for an event would end it"
    of = stream.of
    MACHINE.wait(lambda: not MACHINE.busy, of)  # torch synchronizes the device first
    of.recorded, MACHINE.here.capturing = cuda_graph.works, of
    _enter(stream)
    try:
        yield
    except RuntimeError:  # as torch does, which leaves its stream only after that
        raise RuntimeError("cudaErrorStreamCaptureInvalidated") from None
    finally:
        of.recorded, MACHINE.here.capturing = None, None
    MACHINE.here.of_torch.pop()


def install(monkeypatch: Any) -> None:
    """Have torch, which is there, compute on the stand-in for cupy; that is installed already."""
    import torch

    on_host = torch.from_dlpack

    def from_dlpack(array: Any) -> Any:
        return torch.from_numpy(array._view) if isinstance(array, DeviceArray) else on_host(array)

    computed = TracedSegment.launch

    def launch(segment: TracedSegment) -> None:
        if segment.on_host:
            computed(segment)
            return
        of = current_stream().of
        if of.recorded is None:
            nodes = segment.graph.graph.nodes
            MACHINE.counts.launches += sum(node.op == "call_function" for node in nodes)
        of.launch(lambda: computed(segment))

    monkeypatch.setattr(torch, "from_dlpack", from_dlpack)
    monkeypatch.setattr(TracedSegment, "launch", launch)
    for name, found in {
        "ExternalStream": lambda ptr: TorchStream(MACHINE.streams[ptr]),
        "CUDAGraph": CUDAGraph,
        "current_stream": current_stream,
        "stream": stream,
        "graph": graph,
    }.items():
        monkeypatch.setattr(torch.cuda, name, found)
