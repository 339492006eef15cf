"""The samples of all trainers in one random order: each trainer gets an equal part of it.

All trainers draw the same permutation of all samples, so each knows what goes where: only samples
move, a column at a time, and every trainer sends and receives about as much as it holds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcdist.comm.base import Transport
from hpcdist.multi_slot.samples import Column, Samples, joined, taken

TAG = 930
WHAT = "the other trainers' samples, to shuffle them"


def shuffled_among(
    trainers: Transport, samples: Samples, random: np.random.Generator, deadline_s: float
) -> Samples:
    """Return this trainer's part of all samples in a random order. Collective.

    The order is that of trainer 0's samples, then trainer 1's, ..., permuted.
    """
    told = trainers.allgather_bytes(len(samples).to_bytes(8, "little"), deadline_s, WHAT)
    begins = np.cumsum([0, *(int.from_bytes(data, "little") for data in told)])
    order = random.permutation(int(begins[-1]))
    me, size = trainers.rank, trainers.size
    ends = [k * len(order) // size for k in range(size + 1)]  # of the trainers' new parts
    sent = []  # which of the samples here go to each trainer, in their new order
    for k in range(size):
        part = order[ends[k] : ends[k + 1]]
        sent.append(part[(part >= begins[me]) & (part < begins[me + 1])] - begins[me])
    part = order[ends[me] : ends[me + 1]]
    sources = np.searchsorted(begins, part, side="right") - 1
    arrival = np.argsort(sources, kind="stable")  # they come trainer by trainer
    places = np.empty_like(arrival)
    places[arrival] = np.arange(len(arrival))
    counts = np.bincount(sources, minlength=size)
    columns = []
    for column in samples.columns:
        parts = [taken(column, chosen) for chosen in sent]
        columns.append(taken(_exchanged(trainers, parts, counts, deadline_s), places))
    return Samples(samples.slots, columns)


def _exchanged(
    trainers: Transport, parts: Sequence[Column], counts: np.ndarray, deadline_s: float
) -> Column:
    """Send each trainer its part; return what comes, ``counts`` of samples from each trainer."""
    ends = [np.empty(count + 1, np.int64) for count in counts]
    _swap(trainers, [part.offsets for part in parts], ends, deadline_s)
    values = [np.empty(end[-1], parts[0].values.dtype) for end in ends]
    _swap(trainers, [part.values for part in parts], values, deadline_s)
    return joined([Column(v, o) for v, o in zip(values, ends)])


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
