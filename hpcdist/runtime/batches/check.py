"""Checks by digests that all trainers were fed the same batch.

In every step each trainer sends one key, a digest of every byte that it was fed. If keys differ,
all send records, which show the differing variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest

from hpcdist.base.errors import FeedError
from hpcdist.base.trace.position import here
from hpcdist.comm.base import Array
from hpcdist.graph.lod_tensor import LoDTensor

# Of a record: rows, digests of what was set and of the names, then one for each variable by name.
WORDS = 64
HEAD = 3
ENDED = 2**64 - 1  # a key, or in place of the rows: this trainer's script feeds no more
RECORD_BYTES = 8 * WORDS

CAUSES = (
    "trainers share every batch, each takes its rows of it, so all must feed the same one. Usual "
    "causes: the data is divided already (reader.shard, a slice by rank): feed all of it, or say "
    "`python -m hpcdist --feed local`; random numbers without a seed (np.random.default_rng()): "
    "give them one; an order that differs between processes (a set, os.listdir): sort it"
)


def record_of(feed: Mapping[str, Any], rows: int) -> Array:
    """Return the fingerprint of a batch: uint64 [WORDS].

    ``feed`` maps names to arrays or LoDTensors. Of more than WORDS - HEAD variables the last word
    stands for all that are left.
    """
    record = np.zeros(WORDS, np.uint64)
    names = sorted(feed)
    record[0], record[2] = rows, xxh3_64_intdigest("\n".join(names).encode())
    for place, name in enumerate(names, HEAD):
        last = min(place, WORDS - 1)
        record[last] ^= np.uint64(_digest(feed[name], seed=place))
    return record


def _digest(value: object, seed: int) -> int:
    lod = value.lod() if isinstance(value, LoDTensor) else []
    array = np.asarray(value.value if isinstance(value, LoDTensor) else value)
    head = xxh3_64_intdigest(f"{array.dtype.str}{array.shape}{lod}".encode(), seed)
    if array.dtype.hasobject:  # which the executor refuses
        return head
    return xxh3_64_intdigest(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, head)


class _Keys:
    """Makes one number of all that is fed, whatever the order in which it is named."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[Any, Any, int]] = {}  # of the last: dtype, shape, seed

    def of(self, feed: Mapping[str, Any]) -> int:
        key, known = 0, self._last
        for name, value in feed.items():
            if type(value) is not np.ndarray:
                key ^= _digest(value, xxh3_64_intdigest(name.encode()))
                continue
            last = known.get(name)
            # Most batches are like the one before; comparing is faster than looking shapes up.
            if last is None or last[0] is not value.dtype or last[1] != value.shape:
                last = known[name] = value.dtype, value.shape, _seed(name, value)
            data: Any = value
            try:
                key ^= xxh3_64_intdigest(data, last[2])
            except (ValueError, BufferError):  # not in one piece, or of no type that buffers have
                key ^= _digest(value, last[2])
        return key


def _seed(name: str, array: Array) -> int:
    return xxh3_64_intdigest(f"{name} {array.dtype.str}{array.shape}".encode())


class BatchCheck:
    """What is fed to this trainer in a step, compared with what others tell of theirs.

    ``ranks`` are those of the trainers in the job, for messages.
    """

    def __init__(self, trainer: int, ranks: Sequence[int], ahead: int = 0) -> None:
        """``ahead``: 1 where batches are compared before their step begins."""
        self._ahead = ahead
        self._trainer = trainer
        self._ranks = ranks
        self._feed: Mapping[str, Any] = {}
        self._rows = 0
        self._keys = _Keys()
        self._set: Sequence[str] = ()  # what the script has set by hand before this step
        self._set_key = 0
        self._noted: tuple[Sequence[str], int] = ((), 0)  # for the next step

    def note_set(self, values: Mapping[str, Any]) -> None:
        """Note what the script has set by hand, by name, since the last step."""
        self._noted = tuple(values), self._keys.of(values)

    def begin(self, feed: Mapping[str, Any], rows: int) -> None:
        """Record what is fed in this step, before it is computed."""
        self._feed, self._rows = feed, rows
        self._set, self._set_key = self._noted
        self._noted = (), 0

    def key(self) -> int:
        """Return a number that differs where what is fed, or was set, does."""
        return self._keys.of(self._feed) ^ self._set_key

    def record(self) -> bytes:
        """Return the record by which others see in which variables theirs differ."""
        return self._record().tobytes()

    def _record(self) -> Array:
        record = record_of(self._feed, self._rows)
        record[1] = self._set_key
        return record

    def compare(self, trainer: int, record: bytes) -> None:
        """Raise FeedError if this is not the record of the batch that was fed here.

        A trainer whose script has ended gives none.
        """
        if not record:
            self.refuse_ended(trainer)
        local = self._record()
        if local[1] != np.frombuffer(record, np.uint64)[1]:
            names = ", ".join(map(repr, self._set)) or "nothing"
            raise FeedError(
                f"{self._step()}: before this step {self.name(self._trainer)} has "
                f"set {names} by hand, and {self.name(trainer)} other values or other variables: "
                "all trainers must begin a step with the same values; give random numbers a seed"
            )
        if difference := _difference(local, np.frombuffer(record, np.uint64), self._feed):
            raise FeedError(
                f"{self._step()}: {self.name(trainer)} {difference} than "
                f"{self.name(self._trainer)}: {CAUSES}"
            )

    def refuse_ended(self, trainer: int) -> None:
        """Raise FeedError: another trainer's script has ended before this step."""
        raise FeedError(
            f"{self._step()}: {self.name(self._trainer)} feeds a batch, but the script of "
            f"{self.name(trainer)} has ended: trainers share every batch, so all must feed the "
            "same number of batches; fluid.even_batches(reader, 'cut') makes the numbers equal"
        )

    def _step(self) -> str:
        return f"step {here.step + self._ahead}"

    def name(self, trainer: int) -> str:
        """Return a trainer's label in messages."""
        return f"trainer {trainer}" + (f" (rank {self._ranks[trainer]})" if self._ranks else "")


def _difference(local: Array, theirs: Array, feed: Mapping[str, Any]) -> str:
    """Say how another trainer's record differs from this one's; empty if it does not."""
    if np.array_equal(local, theirs):
        return ""
    names = sorted(feed)
    if theirs[2] != local[2]:
        return f"feeds different variables from {', '.join(names)}"
    differing = np.flatnonzero(local[HEAD:] != theirs[HEAD:])
    different = [name for k, name in enumerate(names) if min(k, WORDS - HEAD - 1) in differing]
    rows = (
        "" if local[0] == theirs[0] else f" ({int(theirs[0])} rows where this one has {local[0]})"
    )
    return f"feeds another {', '.join(map(repr, different))}{rows}"
