"""The samples of all trainers in one random order: each trainer gets an equal part of it.

All trainers draw the same permutation of all samples, so each knows what goes where: only samples
move, a column at a time, and every trainer sends and receives about as much as it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hpcdist.comm.base import Transport
from hpcdist.multi_slot.samples import Column, Samples, Slot, permutation, taken

TAG = 930
WHAT = "the other trainers' samples, to shuffle them"


def shuffled_among(
    trainers: Transport, samples: Samples, random: np.random.Generator, deadline_s: float
) -> Samples:
    """Return this trainer's part of all samples in a random order. Collective.

    The order is that of trainer 0's samples, then trainer 1's, ..., permuted. ``samples`` is used
    up: its columns are forgotten one by one as they are sent, so memory holds little more.
    """
    told = trainers.allgather_bytes(len(samples).to_bytes(8, "little"), deadline_s, WHAT)
    begins = np.cumsum([0, *(int.from_bytes(data, "little") for data in told)])
    moves = _moves(trainers.rank, begins, random)
    columns: list[Column] = []
    for slot in samples.slots:
        # Each of these is let go as soon as the next one is there: none is small.
        parts = [taken(samples.columns[0], chosen) for chosen in moves.sent]
        del samples.columns[0]
        offsets = _offsets(trainers, slot, parts, moves, deadline_s)
        sent = [part.values for part in parts]
        del parts
        column = Column(_values(trainers, sent, offsets, moves, deadline_s), offsets)
        del sent, offsets
        columns.append(taken(column, moves.places))
        del column
    return Samples(samples.slots, columns)


@dataclass(frozen=True)
class _Moves:
    """What one trainer sends and receives."""

    sent: Sequence[np.ndarray]  # for each trainer which of the samples here it gets, ascending
    counts: np.ndarray  # how many come from each trainer
    places: np.ndarray  # which of those that came, trainer by trainer, is first, second, ...


def _moves(me: int, begins: np.ndarray, random: np.random.Generator) -> _Moves:
    total, size = int(begins[-1]), len(begins) - 1
    order = permutation(total, random)
    ends = [k * total // size for k in range(size + 1)]  # of the trainers' new parts
    sent = []
    for first, last in pairwise(ends):
        part = order[first:last]
        sent.append(np.sort(part[(part >= begins[me]) & (part < begins[me + 1])] - begins[me]))
    part = order[ends[me] : ends[me + 1]]
    arrival = np.argsort(part)  # trainers send what they have in their own order
    places = np.empty_like(order, shape=len(arrival))
    places[arrival] = np.arange(len(arrival))
    return _Moves(sent, np.diff(np.searchsorted(part[arrival], begins)), places)


def _offsets(
    trainers: Transport, slot: Slot, parts: Sequence[Column], moves: _Moves, deadline_s: float
) -> np.ndarray:
    """Return where the values of each sample begin and end, of those that come."""
    offsets = np.zeros(int(moves.counts.sum()) + 1, np.int64)
    lengths = offsets[1:]
    if slot.shape is None:
        sent = [np.diff(part.offsets) for part in parts]
        received = np.split(lengths, np.cumsum(moves.counts)[:-1])
        _swap(trainers, sent, received, deadline_s)
    else:
        lengths[:] = slot.width
    np.cumsum(lengths, out=lengths)
    return offsets


def _values(
    trainers: Transport,
    sent: Sequence[np.ndarray],
    offsets: np.ndarray,
    moves: _Moves,
    deadline_s: float,
) -> np.ndarray:
    """Send each trainer its values; return those that come, trainer by trainer."""
    values = np.empty(offsets[-1], sent[0].dtype)
    received = np.split(values, offsets[np.cumsum(moves.counts)[:-1]])
    _swap(trainers, sent, received, deadline_s)
    return values


def _swap(
    trainers: Transport,
    sent: Sequence[np.ndarray],
    received: Sequence[np.ndarray],
    deadline_s: float,
) -> None:
    """Send an array to each trainer, and receive one from each."""
    me, others = trainers.rank, [k for k in range(trainers.size) if k != trainers.rank]
    received[me][:] = sent[me]
    requests = [trainers.irecv(received[k], k, TAG) for k in others]
    requests += [trainers.isend(sent[k], k, TAG) for k in others]
    trainers.wait_all(requests, lambda: WHAT, deadline_s)
