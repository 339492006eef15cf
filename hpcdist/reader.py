"""Readers: functions without arguments that return an iterator of samples, and their decorators.

A decorator takes readers and returns a reader, so they nest:
``batch(shuffle(shard(mnist.train()), buf_size=500), batch_size=20)``.
"""

from __future__ import annotations

import multiprocessing
import queue
import random
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice, zip_longest
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from hpcdist import settings
from hpcdist.errors import DataError
from hpcdist.trace.events import Count
from hpcdist.trace.recorder import recorder

__all__ = [
    "ComposeNotAligned",
    "batch",
    "buffered",
    "cache",
    "chain",
    "compose",
    "firstn",
    "map_readers",
    "multiprocess_reader",
    "shard",
    "shuffle",
    "xmap_readers",
]

Reader = Callable[[], Iterable[Any]]

# A reader stuck in I/O cannot be interrupted; the consumer waits this long for it, then leaves it
# to end by itself (the thread is a daemon).
_JOIN_S = 5.0


class ComposeNotAligned(DataError):
    """The readers given to ``compose`` end at different samples."""


def shuffle(reader: Reader, buf_size: int) -> Reader:
    """Return a reader that shuffles within consecutive windows of ``buf_size`` samples.

    The order comes from the global ``random`` module: seed it for a repeatable one. On several
    trainers shard first and shuffle after, or seed every rank alike.
    """
    expect_reader("shuffle", reader)
    buf_size = _at_least(1, "shuffle", "buf_size", buf_size)

    def shuffled() -> Iterator[Any]:
        samples = iter(reader())
        while window := list(islice(samples, buf_size)):
            random.shuffle(window)
            yield from window

    return shuffled


def batch(reader: Reader, batch_size: int, drop_last: bool = False) -> Reader:
    """Return a reader of lists of ``batch_size`` samples; the last one is short, or dropped."""
    expect_reader("batch", reader)
    batch_size = _at_least(1, "batch", "batch_size", batch_size)

    def batched() -> Iterator[list[Any]]:
        samples = iter(reader())
        while group := list(islice(samples, batch_size)):
            if len(group) == batch_size or not drop_last:
                yield group

    return batched


def map_readers(func: Callable[..., Any], *readers: Reader) -> Reader:
    """Return a reader of ``func(a, b, ...)`` over the readers' samples; the shortest ends it."""

    def mapped() -> Iterator[Any]:
        return map(func, *(reader() for reader in readers))

    return mapped


def chain(*readers: Reader) -> Reader:
    """Return a reader that gives all samples of the first reader, then of the next."""

    def chained() -> Iterator[Any]:
        for reader in readers:
            yield from reader()

    return chained


def compose(*readers: Reader, check_alignment: bool = True) -> Reader:
    """Return a reader of flat tuples, one sample of each reader side by side.

    ``(1, 2)`` and ``3`` become ``(1, 2, 3)``. Readers of different length raise
    ComposeNotAligned; with ``check_alignment=False`` the shortest ends it.
    """
    ended = object()

    def composed() -> Iterator[tuple[Any, ...]]:
        samples = [reader() for reader in readers]
        rows = zip_longest(*samples, fillvalue=ended) if check_alignment else zip(*samples)
        for number, row in enumerate(rows):
            short = [i for i, sample in enumerate(row) if sample is ended]
            if short:
                raise ComposeNotAligned(
                    f"compose: readers {short} of {len(readers)} ended after {number} samples, "
                    "the others go on; give readers of one length or check_alignment=False"
                )
            yield sum((s if isinstance(s, tuple) else (s,) for s in row), ())

    return composed


def firstn(reader: Reader, n: int) -> Reader:
    """Return a reader of the first ``n`` samples, reading no further."""
    n = _at_least(0, "firstn", "n", n)
    return lambda: islice(reader(), n)


def cache(reader: Reader) -> Reader:
    """Read all samples into memory now, and return a reader of them."""
    samples = tuple(reader())
    return lambda: iter(samples)


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
    """Return a reader that reads up to ``size`` samples ahead in a thread of its own.

    An error of the reader is raised in the consumer, after the samples before it. A consumer that
    stops early ends the thread. If a sample does not come ``within_s`` seconds, what ``late`` says
    is raised. ``counted``: as what the recorder notes how many samples are ready.
    """
    size = _at_least(1, "buffered", "size", size)

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
            except BaseException as error:  # SystemExit too: or the consumer waits for ever
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
            thread.join(_JOIN_S)

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
    """
    process_num = _at_least(1, "xmap_readers", "process_num", process_num)
    buffer_size = _at_least(1, "xmap_readers", "buffer_size", buffer_size)
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
    """Return a reader of all readers' samples; each is read by a process of its own.

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

    def __init__(self, number: int, reader: Reader, others: Sequence[_Child]) -> None:
        self._number = number
        # A closure cannot be sent to a process that is started afresh: it must be forked.
        context = multiprocessing.get_context("fork")
        self._samples, sender = context.Pipe(duplex=False)
        inherited = [self._samples, *(other._samples for other in others)]
        self._process = context.Process(
            target=_produce,
            args=(reader, random.getrandbits(64), sender, inherited),
            name=f"hpcdist-reader-{number}",
            daemon=True,
        )
        self._process.start()
        sender.close()

    def receive(self) -> tuple[Any, ...]:
        """Return the next sample, alone in a tuple; nothing behind the last one."""
        try:
            sample: tuple[Any, ...] | str = self._samples.recv()
        except EOFError:
            self._process.join(_JOIN_S)
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
        self._process.join(_JOIN_S)
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


def shard(
    reader: Reader,
    num_trainers: int | None = None,
    trainer_id: int | None = None,
    uneven: str = "pad",
) -> Reader:
    """Return this trainer's part: every ``num_trainers``-th sample, starting at ``trainer_id``.

    Every trainer calls it over the same samples in the same order. Defaults come from the
    environment: PADDLE_TRAINERS_NUM or PADDLE_TRAINERS (else 1), PADDLE_TRAINER_ID (else 0).

    When the samples do not divide, ``uneven`` decides: "pad" gives the short parts samples from
    the start of the data again, so that all trainers make equally many steps; "drop" ends all
    parts with the shortest; "keep" leaves them uneven, which a synchronous job cannot use.
    """
    trainers = settings.TRAINERS_NUM.read() if num_trainers is None else int(num_trainers)
    me = settings.TRAINER_ID.read() if trainer_id is None else int(trainer_id)
    _at_least(1, "shard", "num_trainers", trainers)
    if not 0 <= me < trainers:
        raise DataError(f"shard: trainer_id must be 0..{trainers - 1}, got {me}")
    if uneven not in ("pad", "drop", "keep"):
        raise DataError(f'shard: uneven must be "pad", "drop" or "keep", got {uneven!r}')

    def part() -> Iterator[Any]:
        samples = iter(reader())
        first: list[Any] = []
        while group := list(islice(samples, trainers)):
            first = first or group
            if me < len(group) and (len(group) == trainers or uneven != "drop"):
                yield group[me]
            elif uneven == "pad":
                # Fewer samples than trainers: go round more than once.
                yield first[(me - len(group)) % len(first)]

    return part


def expect_reader(what: str, reader: Any) -> None:
    """Raise DataError if this is no reader, but what one returns."""
    if not callable(reader):
        raise DataError(
            f"{what}: expected a reader, a function without arguments that returns an iterator of "
            f"samples, got {reader!r:.80}: give the function, and do not call it"
        )


def _at_least(least: int, decorator: str, what: str, value: int) -> int:
    number = int(value)
    if number < least:
        raise DataError(f"{decorator}: {what} must be at least {least}, got {value}")
    return number
