"""torch's handle of a running collective."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hpcdist.base.errors import DeadlineError
from hpcdist.comm.lane_thread import LaneThread
from hpcdist.comm.lanes import Lane, Operation
from hpcdist.torch.memory import outside_modes


class MpiWork(dist.Work):
    """One operation of a process group; ``result()`` are the tensors that it writes."""

    def __init__(self, mover: LaneThread, lane: Lane, result: Sequence[Any]) -> None:
        super().__init__()
        self.operation: Operation  # set right after
        self.source = -1  # of a message: the number in its group of who sends it
        self._mover = mover
        self.lane = lane
        self._result = list(result)
        self._ended: torch.futures.Future[None] | None = None
        self._future: torch.futures.Future[Any] | None = None
        self._guard = threading.Lock()  # of the future

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for the end; ``timeout`` 0: as long as the group's. Raises what went wrong."""
        with outside_modes():
            self._mover.wait(self.lane, self.operation, timeout.total_seconds() or None)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if not self.operation.done:
            with outside_modes():
                self.lane.move()
        return self.operation.done

    def is_success(self) -> bool:
        return self.operation.done and self.operation.error is None

    def exception(self) -> Exception | None:
        return self.operation.error

    def result(self) -> list[Any]:
        return self._result

    def source_rank(self) -> int:
        return self.source

    _source_rank = source_rank

    def covers(self, result: Sequence[Any]) -> None:
        """Also represent earlier operations, which together write ``result``."""
        self._result = list(result)

    def get_future(self) -> torch.futures.Future[Any]:
        with self._guard:
            if self._future is None:
                self._ended = torch.futures.Future()
                # An error set by Python is a value to torch's C++; one raised in a callback is not.
                self._future = self._ended.then(self._outcome)
        if self.operation.done:
            self.tell()
        else:
            # Who waits for a future moves nothing, but at the end of a backward pass.
            self._mover.watch(self.lane, patiently=in_backward())
        return self._future

    def tell(self) -> None:
        """Settle the future, if somebody has asked for it: the operation has ended."""
        with self._guard:
            ended, self._ended = self._ended, None
        if ended is not None:
            ended.set_result(None)

    def _outcome(self, _: torch.futures.Future[None]) -> list[Any]:
        if self.operation.error is not None:
            raise self.operation.error
        return self._result


def in_backward() -> bool:
    """Return whether this thread runs a backward pass."""
    return bool(torch._C._current_graph_task_id() != -1)


def at_its_end(call: Callable[[], None]) -> None:
    """Call ``call`` when this thread's backward pass has computed all gradients.

    What DistributedDataParallel does then, after its last bucket has begun, comes after it.
    """
    torch.autograd.Variable._execution_engine.queue_callback(call)


@contextmanager
def monitored() -> Iterator[None]:
    """Reword the error of a monitored_barrier in torch's words, which scripts look for."""
    try:
        yield
    except DeadlineError as late:
        ranks = ", ".join(map(str, late.missing))
        who = f"Rank{'s' * (len(late.missing) > 1)} {ranks}"
        late.args = (f"{who} failed to pass monitoredBarrier: {late}",)
        raise


def last_of(works: Sequence[MpiWork], result: Sequence[Any]) -> MpiWork:
    """Return the work that ends last, for all of them: they run one after another."""
    works[-1].covers(result)
    return works[-1]
