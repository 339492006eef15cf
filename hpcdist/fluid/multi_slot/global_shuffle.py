"""Shuffles the samples of all trainers into one random order, in equal parts.

All trainers draw the same permutation of all samples, so each knows where its samples go: only
samples are sent, a column at a time, in rounds, and every trainer sends and receives about as much
as it stores. Received samples are written to their final place, so only one column is in memory
twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from zlib import crc32

import numpy as np

from hpcdist.base.division import equal_parts
from hpcdist.base.errors import DataError
from hpcdist.comm.base import Transport
from hpcdist.fluid.multi_slot.merging import id_keys
from hpcdist.fluid.multi_slot.samples import Column, Samples, SampleSlot, permutation, taken

TAG = 930
AWAITED = "the other trainers' samples, to shuffle them"
_NONE = Column(np.empty(0), np.zeros(1, np.int64))
ROUND_BYTES = 4 << 20  # that a trainer sends to all others in a round


def check_agreed(trainers: Transport, settled: Mapping[str, int], deadline_s: float) -> None:
    """Raise DataError if a trainer has settled something otherwise than trainer 0. Collective.

    Each would lay out samples otherwise, and they would come to other places than they are awaited.
    """
    encoded = json.dumps([*settled.values()])  # a seed may have more than 64 bits
    gathered = trainers.allgather_bytes(encoded.encode(), deadline_s, AWAITED)
    first, *rest = map(json.loads, gathered)
    for trainer, values in enumerate(rest, 1):
        for name, expected, got in zip(settled, first, values):
            if got != expected:
                raise DataError(
                    f"global_shuffle: {name} is {got} on trainer {trainer}, and {expected} on "
                    "trainer 0: all workers must have the same"
                )


def counts_of_all(trainers: Transport, count: int, deadline_s: float) -> list[int]:
    """Return how many samples each trainer has; here they are ``count``. Collective."""
    gathered = trainers.allgather_bytes(count.to_bytes(8, "little"), deadline_s, AWAITED)
    return [int.from_bytes(data, "little") for data in gathered]


def shuffled_among(
    trainers: Transport, samples: Samples, random: np.random.Generator, deadline_s: float
) -> Samples:
    """Return this trainer's part of all samples in a random order. Collective.

    The order is that of trainer 0's samples, then trainer 1's, ..., permuted. ``samples`` is used
    up: its columns are forgotten one by one as they are sent.
    """

    def permuted(begins: np.ndarray) -> Arrangement:
        total = int(begins[-1])
        return permutation(total, random), equal_parts(total, trainers.size)[1:-1]

    return _arranged_among(trainers, samples, permuted, deadline_s)


def by_ids_among(trainers: Transport, samples: Samples, deadline_s: float) -> Samples:
    """Return samples such that all of one line's id are on one trainer, side by side. Collective.

    All trainers' samples, one after the other, are in the order of `id_keys`, and those of one id
    in the order of trainers. ``samples`` is used up.
    """

    def by_id(begins: np.ndarray) -> Arrangement:
        local_keys = id_keys(samples)
        gathered = trainers.allgather_bytes(local_keys.tobytes(), deadline_s, AWAITED)
        keys = np.concatenate([np.frombuffer(data, local_keys.dtype) for data in gathered])
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        cuts = equal_parts(len(keys), trainers.size)[1:-1]
        return order, [int(np.searchsorted(keys, keys[cut])) if cut else 0 for cut in cuts]

    return _arranged_among(trainers, samples, by_id, deadline_s)


# The samples of all trainers in a new order, and where in it each trainer's but the first begin.
Arrangement = tuple[np.ndarray, list[int]]


def _arranged_among(
    trainers: Transport,
    samples: Samples,
    arrange: Callable[[np.ndarray], Arrangement],
    deadline_s: float,
) -> Samples:
    """Return this trainer's part of what ``arrange`` makes of the samples of all.

    It is given where each trainer's samples begin among those of all, and the number of all.
    """
    slots = crc32(repr(list(samples.slots)).encode())
    sizes = np.array([slots, len(samples), *(len(column.values) for column in samples.columns)])
    gathered = trainers.allgather_bytes(sizes.tobytes(), deadline_s, AWAITED)
    all_sizes = [np.frombuffer(data, np.int64) for data in gathered]
    if len({int(some[0]) for some in all_sizes}) > 1:
        raise DataError(
            "global_shuffle: the trainers' datasets have different slots: give set_use_var the "
            "same variables, in the same order"
        )
    _, counts, *values = np.stack(all_sizes, axis=1)
    begins = np.cumsum([0, *counts])
    order, cuts = arrange(begins)
    moves = _moves(trainers.rank, begins, order, [0, *cuts, int(begins[-1])])
    swap = partial(_swap, trainers, deadline_s=deadline_s)
    columns: dict[int, Column] = {}
    equal: dict[int, np.ndarray] = {}  # offsets, one array for all slots of a width
    # The largest last: what others have in common makes room for it.
    for k in sorted(range(len(samples.slots)), key=lambda k: int(values[k].sum())):
        slot, column = samples.slots[k], samples.columns[k]
        samples.columns[k] = _NONE
        most = _most(int(counts.sum()), int(values[k].sum()), slot, trainers.size)
        columns[k] = moved = _moved(slot, column, moves, most, swap, equal.get(slot.width))
        del column
        if slot.shape is not None:
            equal[slot.width] = moved.offsets
    return Samples(samples.slots, [columns[k] for k in range(len(columns))])


@dataclass(frozen=True)
class _Moves:
    """What one trainer sends and receives."""

    sent: list[np.ndarray]  # for each trainer which of the samples here it gets, ascending
    places: list[np.ndarray]  # of each trainer's samples that come, where in the new order

    def rounds(self, most: int) -> Iterator[_Moves]:
        """Cut into moves of at most ``most`` samples from one trainer to another."""
        longest = max(map(len, [*self.sent, *self.places]))
        for begin in range(0, longest, most):
            end = begin + most
            yield _Moves([s[begin:end] for s in self.sent], [p[begin:end] for p in self.places])


Swap = Callable[[list[np.ndarray], list[np.ndarray]], None]


def _moves(me: int, begins: np.ndarray, order: np.ndarray, ends: list[int]) -> _Moves:
    """Return the moves to ``order``, of which trainer k gets ``ends[k] : ends[k + 1]``."""
    sent = []
    for first, last in pairwise(ends):
        part = order[first:last]
        local = part[(part >= begins[me]) & (part < begins[me + 1])]
        local -= local.dtype.type(begins[me])
        local.sort()
        sent.append(local)
    part = order[ends[me] : ends[me + 1]]
    arrival = np.argsort(part)  # trainers send what they have in their own order
    cuts = np.searchsorted(part[arrival], begins[1:-1])
    return _Moves(sent, np.split(arrival.astype(order.dtype), cuts))


def _most(samples: int, values: int, slot: SampleSlot, trainers: int) -> int:
    """Return how many samples go from one trainer to another in a round: the same for all."""
    bytes_each = max(values // max(samples, 1), 1) * np.dtype(slot.dtype).itemsize
    return max(ROUND_BYTES // bytes_each // trainers, 1)


def _moved(
    slot: SampleSlot,
    column: Column,
    moves: _Moves,
    most: int,
    swap: Swap,
    offsets: np.ndarray | None,
) -> Column:
    """Return the column of this trainer's new samples; their ``offsets`` may be known."""
    from hpcdist.fluid.multi_slot.kernels import put_values  # numba takes 0.3 s to import

    if offsets is None or slot.shape is None:
        offsets = _offsets(slot, column, moves, most, swap)
    values = np.empty(offsets[-1], column.values.dtype)
    for part in moves.rounds(most):
        totals = [int((offsets[p + 1] - offsets[p]).sum()) for p in part.places]
        received = [np.empty(total, values.dtype) for total in totals]
        swap([taken(column, s).values for s in part.sent], received)
        for places, arrived in zip(part.places, received):
            put_values(arrived, places, values, offsets)
    return Column(values, offsets)


def _offsets(slot: SampleSlot, column: Column, moves: _Moves, most: int, swap: Swap) -> np.ndarray:
    """Return where the values of each new sample begin and end."""
    offsets = np.zeros(sum(map(len, moves.places)) + 1, np.int64)
    lengths = offsets[1:]
    if slot.shape is not None:
        lengths[:] = slot.width
    else:
        for part in moves.rounds(most):
            counts = [np.empty(len(p), np.int64) for p in part.places]
            swap([column.offsets[s + 1] - column.offsets[s] for s in part.sent], counts)
            for places, count in zip(part.places, counts):
                lengths[places] = count
    np.cumsum(lengths, out=lengths)
    return offsets


def _swap(
    trainers: Transport, sent: list[np.ndarray], received: list[np.ndarray], deadline_s: float
) -> None:
    """Send an array to each trainer, and receive one from each; empty ones are not sent."""
    me, peers = trainers.rank, [k for k in range(trainers.size) if k != trainers.rank]
    received[me] = sent[me]
    requests = [trainers.irecv(received[k], k, TAG) for k in peers if len(received[k])]
    requests += [trainers.isend(sent[k], k, TAG) for k in peers if len(sent[k])]
    trainers.wait_all(requests, lambda: AWAITED, deadline_s)
