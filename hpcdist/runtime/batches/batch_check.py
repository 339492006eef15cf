"""Whether all trainers were fed the same batch: they compare digests of what is fed.

The record of a batch travels with the values that trainers join in a step. In a step that joins
none, trainer k sends its record to trainer k + 1, the last one to trainer 0 (if all neighbours
agree, all trainers do), and looks at what has come when the next step begins: so it waits for
nothing. The digests read every byte that is fed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xxhash

from hpcdist.comm.base import Array, Transport
from hpcdist.comm.progress import waits_for_ranks
from hpcdist.errors import FeedError
from hpcdist.executor.position import here
from hpcdist.lod_tensor import LoDTensor

WORDS = 64  # of a record: rows, digest of the names, then a digest for each variable by name
HEAD = 2
ENDED = np.uint64(2**64 - 1)  # in place of the rows: this trainer's script feeds no more
RECORD_TAG = 910
RECORD_BYTES = 8 * WORDS

CAUSES = (
    "trainers share every batch, each takes its rows of it, so all must feed the same one. Usual "
    "causes: the data is divided already (reader.shard, a slice by rank): feed all of it, or say "
    "`python -m hpcdist --feed local`; random numbers without a seed (np.random.default_rng()): "
    "give them one; an order that differs between processes (a set, os.listdir): sort it"
)


def record_of(feed: Mapping[str, Any], rows: int) -> Array:
    """Return what identifies a batch: uint64 [WORDS].

    ``feed`` maps names to arrays or LoDTensors. Of more than WORDS - HEAD variables the last word
    stands for all that are left.
    """
    record = np.zeros(WORDS, np.uint64)
    names = sorted(feed)
    record[0], record[1] = rows, xxhash.xxh3_64_intdigest("\n".join(names).encode())
    for place, name in enumerate(names, HEAD):
        last = min(place, WORDS - 1)
        record[last] ^= np.uint64(_digest(feed[name], seed=place))
    return record


def _digest(value: Any, seed: int) -> int:
    lod = value.lod() if isinstance(value, LoDTensor) else []
    array = np.asarray(value.value if isinstance(value, LoDTensor) else value)
    digest = xxhash.xxh3_64(f"{array.dtype.str}{array.shape}{lod}".encode(), seed)
    if not array.dtype.hasobject:  # which the executor refuses
        digest.update(np.ascontiguousarray(array).data)
    return digest.intdigest()


def difference(mine: Array, other: Array, names: Sequence[str]) -> str:
    """Say how another trainer's record differs from this one's; empty if it does not.

    ``names`` are those of this trainer's feed.
    """
    if np.array_equal(mine, other):
        return ""
    if other[1] != mine[1]:
        return f"feeds other variables than {', '.join(sorted(names))}"
    differing = np.flatnonzero(mine[HEAD:] != other[HEAD:])
    known = [name for k, name in enumerate(sorted(names)) if min(k, WORDS - HEAD - 1) in differing]
    rows = "" if mine[0] == other[0] else f" ({int(other[0])} rows where this one has {mine[0]})"
    return f"feeds another {', '.join(map(repr, known))}{rows}"


class BatchCheck:
    """This trainer's record of each batch, compared with another trainer's.

    ``trainers`` is the transport of all trainers, ``ranks`` what the job calls them. Without
    ``ring`` no neighbour is asked: the caller moves records and gives them to `compare`.
    """

    def __init__(
        self, trainers: Transport, deadline_s: float, ranks: Sequence[int], *, ring: bool
    ) -> None:
        self.record = np.zeros(WORDS, np.uint64)
        self._trainer = trainers.rank
        self._ranks = ranks
        self._names: Sequence[str] = ()
        self._pending = False
        self._ring = _Ring(trainers, self.record, deadline_s, self._describe) if ring else None

    def begin(self, feed: Mapping[str, Any], rows: int) -> None:
        """Note what is fed in this step, before it is computed."""
        self.settle()
        self._names = sorted(feed)
        self.record[:] = record_of(feed, rows)

    def tell_neighbour(self) -> None:
        """Send the record of this step, in which no values are joined, to one neighbour."""
        if self._ring is not None:
            self._ring.start()
            self._pending = True

    def settle(self) -> None:
        """Look at the neighbour's record of the last step, if it was sent one; FeedError."""
        if self._ring is not None and self._pending:
            self._pending = False
            previous = self._ring.previous
            with waits_for_ranks([self._ranks[previous]] if self._ranks else []):
                self._ring.wait()
            self.compare(previous, self._ring.received.tobytes())

    def compare(self, trainer: int, record: bytes) -> None:
        """Raise FeedError if this is not the record of the batch that was fed here.

        A trainer whose script has ended gives none.
        """
        other = np.frombuffer(record or ENDED.tobytes(), np.uint64)
        if other[0] == ENDED and self.record[0] != ENDED:
            raise FeedError(
                f"step {here.step}: {self._name(self._trainer)} feeds a batch, but the script of "
                f"{self._name(trainer)} has ended: trainers share every batch, so all must feed "
                "equally many; fluid.even_batches(reader, 'cut') gives all equally many"
            )
        if found := difference(self.record, other, self._names):
            raise FeedError(
                f"step {here.step}: {self._name(trainer)} {found} than "
                f"{self._name(self._trainer)}: {CAUSES}"
            )

    def end(self) -> None:
        """Tell the neighbour that no batch follows. The last call."""
        self.settle()
        self.record[0] = ENDED
        if self._ring is not None:
            self._ring.end()

    def _name(self, trainer: int) -> str:
        return f"trainer {trainer}" + (f" (rank {self._ranks[trainer]})" if self._ranks else "")

    def _describe(self, trainer: int) -> str:
        return f"{self._name(trainer)}'s record of the batch of step {here.step}"


class _Ring:
    """One message a step, to the next trainer and from the one before."""

    def __init__(
        self,
        trainers: Transport,
        record: Array,
        deadline_s: float,
        describe: Callable[[int], str],
    ) -> None:
        self.previous = (trainers.rank - 1) % trainers.size
        self.received = np.zeros_like(record)
        following = (trainers.rank + 1) % trainers.size
        send = trainers.send_init(record, following, RECORD_TAG)
        receive = trainers.recv_init(self.received, self.previous, RECORD_TAG)
        self.start = trainers.starter([send, receive])
        self.wait = trainers.waiter_all(
            [send, receive], lambda: describe(self.previous), deadline_s
        )
        self.end = trainers.starter([send])
