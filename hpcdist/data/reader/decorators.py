"""Decorators that pick, order and combine samples as they are asked for."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, zip_longest
from typing import Any

from hpcdist.base import settings
from hpcdist.base.errors import DataError

Reader = Callable[[], Iterable[Any]]


class ComposeNotAligned(DataError):
    """The readers given to ``compose`` end at different samples."""


def shuffle(reader: Reader, buf_size: int) -> Reader:
    """Return a reader that shuffles within consecutive windows of ``buf_size`` samples.

    The order comes from the global ``random`` module: seed it for a repeatable one. On several
    trainers shard first and shuffle after, or seed every rank alike.

    Examples:
        >>> mixed = fluid.io.shuffle(lambda: iter([1, 2, 3]), buf_size=3)
        >>> sorted(mixed())
        [1, 2, 3]
    """
    expect_reader("shuffle", reader)
    buf_size = at_least(1, "shuffle", "buf_size", buf_size)

    def shuffled() -> Iterator[Any]:
        samples = iter(reader())
        while window := list(islice(samples, buf_size)):
            random.shuffle(window)
            yield from window

    return shuffled


def batch(reader: Reader, batch_size: int, drop_last: bool = False) -> Reader:
    """Return a reader of lists of ``batch_size`` samples; the last one is short, or dropped.

    Examples:
        >>> batches = fluid.io.batch(lambda: iter([1, 2, 3]), batch_size=2)
        >>> list(batches())
        [[1, 2], [3]]
    """
    expect_reader("batch", reader)
    batch_size = at_least(1, "batch", "batch_size", batch_size)

    def batched() -> Iterator[list[Any]]:
        samples = iter(reader())
        while group := list(islice(samples, batch_size)):
            if len(group) == batch_size or not drop_last:
                yield group

    return batched


def map_readers(func: Callable[..., Any], *readers: Reader) -> Reader:
    """Return a reader of ``func(a, b, ...)`` over the readers' samples; the shortest ends it.

    Examples:
        >>> left, right = lambda: iter([1, 2]), lambda: iter([3, 4])
        >>> list(fluid.io.map_readers(lambda a, b: a + b, left, right)())
        [4, 6]
    """

    def mapped() -> Iterator[Any]:
        return map(func, *(reader() for reader in readers))

    return mapped


def chain(*readers: Reader) -> Reader:
    """Return a reader that gives all samples of the first reader, then of the next.

    Examples:
        >>> list(fluid.io.chain(lambda: iter([1, 2]), lambda: iter([3]))())
        [1, 2, 3]
    """

    def chained() -> Iterator[Any]:
        for reader in readers:
            yield from reader()

    return chained


def compose(*readers: Reader, check_alignment: bool = True) -> Reader:
    """Return a reader of flat tuples, one sample of each reader side by side.

    ``(1, 2)`` and ``3`` become ``(1, 2, 3)``. Readers of different length raise
    ComposeNotAligned; with ``check_alignment=False`` the shortest ends it.

    Examples:
        >>> list(fluid.io.compose(lambda: iter([1, 2]), lambda: iter([3, 4]))())
        [(1, 3), (2, 4)]
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
    """Return a reader of the first ``n`` samples, reading no further.

    Examples:
        >>> list(fluid.io.firstn(lambda: iter(range(100)), 3)())
        [0, 1, 2]
    """
    n = at_least(0, "firstn", "n", n)
    return lambda: islice(reader(), n)


def cache(reader: Reader) -> Reader:
    """Read all samples into memory now, and return a reader of them.

    Examples:
        >>> list(fluid.io.cache(lambda: iter([1, 2, 3]))())
        [1, 2, 3]
    """
    samples = tuple(reader())
    return lambda: iter(samples)


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
    at_least(1, "shard", "num_trainers", trainers)
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


def expect_reader(decorator: str, reader: object) -> None:
    """Raise DataError if this is no reader, but what one returns."""
    if not callable(reader):
        raise DataError(
            f"{decorator}: expected a reader, a function without arguments that returns an "
            f"iterator of samples, got {reader!r:.80}: give the function, and do not call it"
        )


def at_least(least: int, decorator: str, argument: str, value: int) -> int:
    """Return an argument of a decorator as an integer; DataError if it is below ``least``."""
    number = int(value)
    if number < least:
        raise DataError(f"{decorator}: {argument} must be at least {least}, got {value}")
    return number
