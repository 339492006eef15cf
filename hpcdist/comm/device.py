"""Sums of arrays in GPU memory: how they start on a stream, and how their end is detected."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hpcdist.base import settings
from hpcdist.base.device import download, upload
from hpcdist.base.errors import CommError
from hpcdist.comm.base import summable
from hpcdist.comm.collective import Buffer, CollectiveOperations, RankGroup, Reduction
from hpcdist.comm.host_collective import TransportReduction, agreed, sum_of
from hpcdist.comm.reduction_phases import Chain

Enqueue = Callable[[Any], object]  # puts work on a stream


class Stream:
    """A stream beside the one on which kernels run, and the order between the two."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self.stream = cupy.cuda.Stream(non_blocking=True)

    def job(self, enqueue: Enqueue, behind_kernels: bool = True) -> StreamJob:
        """Return work that is to be put on this stream again and again.

        Not ``behind_kernels``: nothing that has been launched elsewhere touches what it touches.
        """
        return StreamJob(self._cupy, self.stream, enqueue, behind_kernels)


class StreamJob:
    """Work on a stream, after all kernels launched so far."""

    def __init__(self, cupy: Any, stream: Any, enqueue: Enqueue, behind_kernels: bool) -> None:
        self._behind_kernels = behind_kernels
        self._current = cupy.cuda.get_current_stream
        self._stream = stream
        self._enqueue = enqueue
        self._ready = cupy.cuda.Event(disable_timing=True)
        self._done = cupy.cuda.Event(disable_timing=True)

    def start(self) -> None:
        """Put the work on the stream and return at once."""
        if self._behind_kernels:
            self._ready.record(self._current())
            self._stream.wait_event(self._ready)
        self._enqueue(self._stream)
        self._done.record(self._stream)

    def ended(self) -> bool:
        """Return whether the work last started has ended."""
        return bool(self._done.done)

    def join(self) -> None:
        """Make all kernels launched from now on wait for the work last started."""
        self._current().wait_event(self._done)


class CopyPhase:
    """A copy between a GPU and pinned host memory, as a phase of a sum."""

    def __init__(self, group: RankGroup, job: StreamJob, operation: Callable[[], str]) -> None:
        self.start = job.start
        self.test = job.ended
        self.wait = group.transport.waiter(
            job.ended,
            lambda: f"rank {group.names[group.rank]} waiting for its GPU, to copy {operation()}",
            group.deadline_s,
        )


class UploadPhase:
    """The last phase of a staged sum: the copy to the GPU is under way, the host has ended."""

    def __init__(self, job: StreamJob) -> None:
        self.start = job.start

    def test(self) -> bool:
        """Return that it has ended: the host waits for nothing."""
        return True

    def wait(self) -> None:
        """Return at once."""


class StagedReduction(Chain):
    """A sum through host memory; kernels, not the host, wait for its way back."""

    def __init__(self, down: CopyPhase, summed: Reduction, up: StreamJob) -> None:
        super().__init__([down, summed, UploadPhase(up)])
        self._up = up

    def wait(self) -> None:
        super().wait()
        self._up.join()


class StagedCollective:
    """A group of ranks with GPUs over one of host memory: arrays go through pinned host memory."""

    def __init__(self, host: CollectiveOperations) -> None:
        self._cupy = importlib.import_module("cupy")
        self._pinned = importlib.import_module("cupyx").empty_pinned
        self._host = host
        self.group = host.group
        self._stream = Stream(self._cupy)
        self.rank, self.size = host.rank, host.size
        self.barrier = host.barrier
        self.close = host.close
        self.abort = host.abort

    def empty(self, nbytes: int) -> Buffer:
        """Return uninitialized uint8[nbytes] on this process's GPU."""
        return self._cupy.empty(nbytes, self._cupy.uint8)

    def allreduce_init(
        self, array: Buffer, *, ordered: bool = False, describe: Callable[[], str] | None = None
    ) -> Reduction:
        """Make the reduction of an array on the GPU, in place, through pinned memory. Collective.

        CommError unless it is in one piece on the GPU, and as the group of the host's.
        """
        on_device(self._cupy, array)
        staging = self._pinned(array.shape, array.dtype)
        summed = self._host.allreduce_init(staging, ordered=ordered, describe=describe)
        if self.size == 1:
            return summed
        operation = describe or (lambda: f"{array.dtype}{list(array.shape)}")

        def down(stream: object) -> None:
            array.get(stream=stream, out=staging, blocking=False)

        def up(stream: object) -> None:
            array.set(staging, stream=stream)

        copied = CopyPhase(self.group, self._stream.job(down), operation)
        return StagedReduction(copied, summed, self._stream.job(up, behind_kernels=False))

    def broadcast(self, array: Buffer, root: int = 0) -> None:
        """Overwrite an array on the GPU with the root's, by way of host memory. Collective."""
        host = download(on_device(self._cupy, array))
        self._host.broadcast(host, root)
        upload(array, host)

    def allgather(self, array: Buffer, out: Buffer) -> None:
        """Write the ranks' arrays, in rank order, into ``out``, all on GPUs. Collective."""
        host = np.empty(on_device(self._cupy, out).shape, out.dtype)
        self._host.allgather(download(on_device(self._cupy, array)), host)
        upload(out, host)

    def reduce(self, array: Buffer, root: int = 0) -> None:
        """Replace the root's array on the GPU by the sum over all ranks. Collective."""
        host = download(on_device(self._cupy, array))
        self._host.reduce(host, root)
        upload(array, host)

    def split(self, color: int, key: int) -> StagedCollective:
        """Return the group of ranks of equal ``color``, by ``key``, on their GPUs. Collective."""
        return type(self)(self._host.split(color, key))


class AwareCollective(StagedCollective):
    """A group over an MPI that takes GPU memory itself; only where the user asks for it."""

    def __init__(self, host: CollectiveOperations) -> None:
        """Collective; CommError on all ranks if the MPI of one cannot do it."""
        transport = host.group.transport
        able = b"1" if transport.takes_device_memory else b""
        replies = transport.allgather_bytes(able, host.group.deadline_s, "the others' word")
        without = [str(host.group.names[rank]) for rank, word in enumerate(replies) if not word]
        if without:
            raise CommError(
                f"{settings.ALLREDUCE.name}=mpi-cuda-aware: MPI was built without CUDA on rank "
                f"{', '.join(without)} (MPIX_Query_cuda_support); use another MPI, or mpi, which "
                "copies through host memory, or nccl"
            )
        super().__init__(host)

    def allreduce_init(
        self, array: Buffer, *, ordered: bool = False, describe: Callable[[], str] | None = None
    ) -> Reduction:
        """Make the reduction of an array on the GPU, in place, which MPI itself reads. Collective.

        With ``ordered`` through pinned memory, as MPI chooses the order. CommError on all
        ranks unless all have arrays of one shape and dtype that can be summed.
        """
        if ordered:  # MPI chooses the order
            return super().allreduce_init(array, ordered=True, describe=describe)
        agreed(self.group, summable(on_device(self._cupy, array)), ordered)
        operation = describe or partial(sum_of, array)
        return AwareReduction(self._cupy, self.group, array, operation)


class AwareReduction(TransportReduction):
    """A sum by MPI of an array in GPU memory."""

    def __init__(
        self, cupy: Any, group: RankGroup, array: Buffer, operation: Callable[[], str]
    ) -> None:
        super().__init__(group, array, operation)
        self._current = cupy.cuda.get_current_stream

    def start(self) -> None:
        """Start one sum, after waiting for the kernels that write the array."""
        # MPI knows no streams: the kernels that write the array must have ended.
        self._current().synchronize()
        super().start()


def on_device(cupy: Any, array: Buffer) -> Any:
    """Return an array, refusing one that is not plain memory of a GPU in one piece."""
    if not isinstance(array, cupy.ndarray):
        raise CommError(f"expected an array on the GPU, got {type(array).__name__}")
    if not array.flags.c_contiguous:
        raise CommError(
            f"an array to sum must be C-contiguous, got shape {array.shape} with strides "
            f"{array.strides}"
        )
    return array
