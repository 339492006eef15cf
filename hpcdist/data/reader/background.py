"""Readers that read ahead of their consumer: in a thread, in several, or in processes."""

from __future__ import annotations

import multiprocessing
import queue
import random
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from hpcdist.base.errors import DataError
from hpcdist.base.trace.events import Count
from hpcdist.base.trace.recorder import recorder
from hpcdist.data.reader.decorators import Reader, at_least

# A reader stuck in I/O cannot be interrupted; the consumer waits this long for it, then leaves it
# to end by itself (the thread is a daemon).
JOIN_S = 5.0


@dataclass(frozen=True)
class _End:
    """The last thing in a buffer: the producer is done, or failed with ``error``."""

    error: BaseException | None = None


def buffered(
    reader: Reader,
    size: int,
    within_s: float | None = None,
    late: Callable[[float], BaseException] | None = None,
    counted: Count | None = None,
) -> Callable[[], Generator[Any, None, None]]:
    """Return a reader that reads up to ``size`` samples ahead in a separate thread.

    An error of the reader is raised in the consumer, after the samples before it. A consumer that
    stops early ends the thread. If a sample does not come ``within_s`` seconds, what ``late`` says
    is raised. ``counted``: as what the recorder notes how many samples are ready.

    Examples:
        >>> list(fluid.io.buffered(lambda: iter([1, 2, 3]), size=2)())
        [1, 2, 3]
    """
    size = at_least(1, "buffered", "size", size)

    def ahead() -> Generator[Any, None, None]:
        samples: queue.Queue[Any] = queue.Queue(size)
        stopped = threading.Event()

        def produce() -> None:
            end = _End()
            try:
                for sample in reader():
                    samples.put(sample)
                    if stopped.is_set():
                        return
            except BaseException as error:  # SystemExit too: or the consumer waits forever
                end = _End(error)
            samples.put(end)

        def following() -> Any:
            if counted is not None:
                recorder.count(counted, samples.qsize())
            try:
                return samples.get(timeout=within_s)
            except queue.Empty:
                error = late(within_s) if late and within_s else None
                raise error or DataError(f"nothing was read within {within_s} s") from None

        thread = threading.Thread(target=produce, name="hpcdist-buffered", daemon=True)
        thread.start()
        try:
            while not isinstance(sample := following(), _End):
                yield sample
            if sample.error is not None:
                raise sample.error
        finally:
            stopped.set()
            # The producer puts at most one thing more: with the queue empty it cannot block.
            while not samples.empty():
                samples.get()
            thread.join(JOIN_S)

    return ahead


def xmap_readers(
    mapper: Callable[[Any], Any],
    reader: Reader,
    process_num: int,
    buffer_size: int,
    order: bool = False,
) -> Reader:
    """Return a reader of ``mapper(sample)``, mapped by ``process_num`` threads.

    At most ``buffer_size`` samples are in the threads and as many wait for the consumer. With
    ``order`` samples keep the reader's order, else they come as they are ready. An error of the
    mapper or the reader is raised in the consumer.

    Examples:
        >>> double = fluid.io.xmap_readers(lambda a: 2 * a, lambda: iter([1, 2]), 2, 4, order=True)
        >>> list(double())
        [2, 4]
    """
    process_num = at_least(1, "xmap_readers", "process_num", process_num)
    buffer_size = at_least(1, "xmap_readers", "buffer_size", buffer_size)
    window = _InOrder if order else _AsReady

    def mapped() -> Iterator[Any]:
        pending = window()
        with ThreadPoolExecutor(process_num, "hpcdist-xmap") as pool:
            try:
                for sample in reader():
                    pending.add(pool.submit(mapper, sample))
                    while len(pending) >= buffer_size or pending.ready():
                        yield pending.pop()
                while len(pending):
                    yield pending.pop()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    return buffered(mapped, buffer_size)


class _InOrder:
    """Results in flight, taken in the order of submission."""

    def __init__(self) -> None:
        self.futures: deque[Future[Any]] = deque()

    def __len__(self) -> int:
        return len(self.futures)

    def add(self, future: Future[Any]) -> None:
        self.futures.append(future)

    def ready(self) -> bool:
        return bool(self.futures) and self.futures[0].done()

    def pop(self) -> Any:
        return self.futures.popleft().result()


class _AsReady:
    """Results in flight, taken as they are done."""

    def __init__(self) -> None:
        self.done: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def add(self, future: Future[Any]) -> None:
        self.count += 1
        future.add_done_callback(self.done.put)

    def ready(self) -> bool:
        return not self.done.empty()

    def pop(self) -> Any:
        self.count -= 1
        return self.done.get().result()


def multiprocess_reader(
    readers: Sequence[Reader], use_pipe: bool = True, queue_size: int = 1000
) -> Reader:
    """Return a reader of all readers' samples; each is read by a separate process.

    They take turns, one sample each, and those that have ended are passed over: the order does not
    depend on which process is fast. A process is forked at the start of a pass, with random states
    that are drawn from ``random``; samples are pickled. A reader that fails, or a process that
    dies, is a DataError. ``use_pipe`` and ``queue_size`` are accepted as Fluid has them: it is
    always a pipe, and holds what fits into one.
    """
    if not readers:
        raise DataError("multiprocess_reader: expected at least one reader")

    def read() -> Iterator[Any]:
        children: list[_Child] = []
        try:
            for number, reader in enumerate(readers):
                children.append(_Child(number, reader, children))
            turn = deque(children)
            while turn:
                child = turn.popleft()
                for sample in child.receive():
                    yield sample
                    turn.append(child)
        finally:
            for child in children:
                child.stop()

    return read


class _Child:
    """A process that reads, and the end of the pipe where its samples arrive."""

    def __init__(self, number: int, reader: Reader, siblings: Sequence[_Child]) -> None:
        self._number = number
        # A closure cannot be sent to a process that is started afresh: it must be forked.
        context = multiprocessing.get_context("fork")
        self._samples, sender = context.Pipe(duplex=False)
        inherited = [self._samples, *(other._samples for other in siblings)]
        self._process = context.Process(
            target=_produce,
            args=(reader, random.getrandbits(64), sender, inherited),
            name=f"hpcdist-reader-{number}",
            daemon=True,
        )
        self._process.start()
        sender.close()

    def receive(self) -> tuple[Any, ...]:
        """Return the next sample, alone in a tuple; nothing after the last one."""
        try:
            sample: tuple[Any, ...] | str = self._samples.recv()
        except EOFError:
            self._process.join(JOIN_S)
            raise DataError(
                f"multiprocess_reader: the process of reader {self._number} has died, with exit "
                f"code {self._process.exitcode}"
            ) from None
        if isinstance(sample, str):
            raise DataError(f"multiprocess_reader: reader {self._number} has failed:\n{sample}")
        return sample

    def stop(self) -> None:
        """End the process, wherever it is."""
        self._samples.close()
        self._process.terminate()
        self._process.join(JOIN_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _produce(
    reader: Reader, seed: int, sender: Connection, inherited: Sequence[Connection]
) -> None:
    """Send a reader's samples, then an empty tuple, or what went wrong as text."""
    for connection in inherited:  # held open here, a pipe would outlive the process that reads it
        connection.close()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        for sample in reader():
            sender.send((sample,))
        sender.send(())
    except BrokenPipeError:
        return  # the pass has been ended
    except Exception:
        sender.send(traceback.format_exc())
