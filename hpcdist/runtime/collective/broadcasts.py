"""Values of one trainer, copied to all: parameters when training begins, or after its updates."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from hpcdist.executor.control import Binding
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Call
from hpcdist.runtime.collective.bucket_allreduce import Bucket

TOGETHER = 65536  # bytes of a value up to which it is copied to be sent with others
Send = Callable[[Any, int], None]  # (array, root): overwrite the array with the root's. Collective


def bind_broadcasts(
    ops: Sequence[Operator], binding: Binding, rank: int, send: Send
) -> dict[int, Call]:
    """Return the calls of broadcasts by operator: in a run of one root the last does all."""
    calls: dict[int, Call] = {}
    runs = groupby(ops, lambda op: op.attrs["root"] if op.type == "c_broadcast" else None)
    for root, run in runs:
        if root is None:
            continue
        of_run = list(run)
        names = [op.input("X")[0] for op in of_run]
        sent = sent_together(names, binding.arrays)
        buckets = [Bucket(group, binding.arrays, binding.backend) for group in sent]
        calls[id(of_run[-1])] = functools.partial(_broadcast, buckets, root, rank, send)
    return calls


def sent_together(names: Sequence[str], arrays: Mapping[str, Any]) -> list[list[str]]:
    """Return the names of values that are sent as one: the small ones of a type."""
    groups: dict[tuple[str, bool], list[str]] = {}
    for name in names:
        array = arrays[name]
        small = array.nbytes <= TOGETHER
        key = np.dtype(array.dtype).name if small else name
        groups.setdefault((key, small), []).append(name)
    return list(groups.values())


def _broadcast(buckets: Sequence[Bucket], root: int, rank: int, send: Send) -> None:
    for bucket in buckets:
        if bucket.pack is not None and rank == root:
            bucket.pack()
        send(bucket.flat, root)
        if bucket.unpack is not None and rank != root:
            bucket.unpack()
