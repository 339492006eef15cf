"""The sums of one training step: buckets of dense values, and rows of sparse gradients."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcdist.base.device import on_host
from hpcdist.base.trace.position import here
from hpcdist.comm.bucket import Fusing, Gradient, buckets
from hpcdist.comm.collective import CollectiveOperations
from hpcdist.comm.reducer import BucketReducer
from hpcdist.executor.backend import Backend
from hpcdist.executor.control import Binding
from hpcdist.executor.memory import adjacent, nbytes_of
from hpcdist.graph.names import grad_name
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import program_of
from hpcdist.graph.registry import Call, Meta
from hpcdist.ops.embedding.selected_rows import SelectedRows
from hpcdist.runtime.staging import in_order
from hpcdist.transpiler.group import Group, group_of


class Bucket:
    """Values that are summed as one array, in the memory of the backend.

    Where they are contiguous, that is they themselves; else it is a copy.
    """

    def __init__(self, names: Sequence[str], arrays: Mapping[str, Any], backend: Backend) -> None:
        self.names = tuple(names)
        self._backend = backend
        values = [arrays[name] for name in names]
        self._addresses = self._addresses_of(values)
        self.pack: Call | None = None
        self.unpack: Call | None = None
        if all(array.flags.c_contiguous for array in values) and adjacent(values, backend):
            self.flat = backend.flat(values)
            return
        nbytes = sum(array.nbytes for array in values)
        self.flat = backend.bytes(nbytes).view(values[0].dtype)
        ends = np.cumsum([array.size for array in values])
        parts = [self.flat[end - a.size : end].reshape(a.shape) for a, end in zip(values, ends)]
        self.pack = functools.partial(_copy, parts, values)
        self.unpack = functools.partial(_copy, values, parts)

    def holds(self, names: Sequence[str], arrays: Mapping[str, Any]) -> bool:
        """Return whether these are the very same values in the same memory."""
        values = [arrays[name] for name in names]
        return self.names == tuple(names) and self._addresses == self._addresses_of(values)

    def _addresses_of(self, arrays: Sequence[Any]) -> list[int]:
        return [self._backend.address(array) for array in arrays]


class Sums:
    """All buckets of a Program: filled and started by name, while the backward pass continues."""

    def __init__(
        self,
        groups: Sequence[CollectiveOperations],
        names: Sequence[Sequence[str]],
        binding: Binding,
        ordered: bool,
    ) -> None:
        """Collective; ``groups`` take turns."""
        self._buckets = [Bucket(group, binding.arrays, binding.backend) for group in names]
        self._of = {name: k for k, group in enumerate(names) for name in group}
        self._reducer = BucketReducer(
            groups,
            [bucket.flat for bucket in self._buckets],
            ordered=ordered,
            describe=self._describe,
        )
        self.progress = self._reducer.progress
        self._lacking: list[set[str]] = []
        self._added: list[int] = []

    def holds(self, names: Sequence[Sequence[str]], arrays: Mapping[str, Any]) -> bool:
        """Return whether these sums are made of the same values in the same memory."""
        return len(names) == len(self._buckets) and all(
            bucket.holds(values, arrays) for bucket, values in zip(self._buckets, names)
        )

    # -- binding: the operators of a Program, in order ----------------------------------------
    def begin(self) -> None:
        """Begin to bind a Program."""
        self._lacking = [set(bucket.names) for bucket in self._buckets]
        self._added = []

    def add(self, name: str) -> Call:
        """Return the call for when a value is ready: the last of a bucket starts its sum."""
        k = self._of[name]
        self._lacking[k].discard(name)
        if self._lacking[k]:
            return self.progress
        self._added.append(k)
        start = in_order(self._buckets[k].pack, functools.partial(self._reducer.start, k))
        assert start is not None
        return start

    def wait_for_added(self) -> Call | None:
        """Return the wait for the sums that were added since the last call."""
        added, self._added = self._added, []
        if not added:
            return None
        waits: list[Call | None] = [functools.partial(self._reducer.wait, k) for k in added]
        if not any(self._lacking):
            waits = [self._reducer.wait_all]  # those before have ended, or are waited for here
        return in_order(*waits, *(self._buckets[k].unpack for k in added))

    def _describe(self, k: int) -> str:
        names = self._buckets[k].names
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return f"the sum of {names[0]}{more} over all trainers, step {here.step}"


class RowsSum:
    """The sum of a sparse gradient: all trainers' rows, one after the other in trainer order."""

    def __init__(
        self, group: CollectiveOperations, gradient: SelectedRows, binding: Binding
    ) -> None:
        self._group = group
        self._adopt = binding.backend.adopt
        self._gradient = gradient
        self._fits = binding.fits
        # What makes the gradient writes here, whatever the gradient holds after a step.
        self._rows, self._value = gradient.rows, gradient.value
        self._seen_at = binding.fits.count

    def gather(self) -> None:
        """Gather the rows of all trainers into the gradient. Collective."""
        if self._seen_at != self._fits.count:  # sequences have other lengths now
            self._rows, self._value = self._gradient.rows, self._gradient.value
            self._seen_at = self._fits.count
        group, width = self._group, self._value.shape[1:]
        rows = on_host(self._rows)
        value = on_host(self._value)
        counts = np.zeros(group.size, np.int64)
        group.allgather(np.array([len(rows)], np.int64), counts)
        most = int(counts.max())
        all_rows = np.empty((group.size, most), np.int64)
        all_values = np.empty((group.size, most, *width), value.dtype)
        group.allgather(_padded(rows, most), all_rows)
        group.allgather(_padded(value, most), all_values)
        here_rows = np.concatenate([all_rows[k, :n] for k, n in enumerate(counts)])
        here_values = np.concatenate([all_values[k, :n] for k, n in enumerate(counts)])
        self._gradient.rows = self._adopt(here_rows)
        self._gradient.value = self._adopt(here_values)


def _padded(array: np.ndarray, length: int) -> np.ndarray:
    out = np.zeros((length, *array.shape[1:]), array.dtype)
    out[: len(array)] = array
    return out


def _copy(targets: Sequence[Any], sources: Sequence[Any]) -> None:
    for target, source in zip(targets, sources):
        target[...] = source


def bucket_names(ops: Sequence[Operator], metas: Mapping[str, Meta]) -> list[list[str]]:
    """Return the names of dense values by the sum they belong to, in the order they are ready.

    A sum holds nothing from both sides of a synchronization.
    """
    buckets: list[list[str]] = []
    pending: list[str] = []
    for op in [*ops, None]:
        if op is None or op.type == "c_sync_comm_stream":
            if pending:
                buckets += _fused(pending, metas, group_of(program_of(ops[0])))
            pending = []
        elif op.type == "c_allreduce_sum" and metas[op.input("X")[0]].type != "SELECTED_ROWS":
            pending.append(op.input("X")[0])
    return buckets


def _fused(names: Sequence[str], metas: Mapping[str, Meta], group: Group | None) -> list[list[str]]:
    if group is not None and not group.fused:
        return [[name] for name in names]
    gradients = [
        Gradient(name.removesuffix(grad_name("")), metas[name].dtype, nbytes_of(metas[name]))
        for name in names
    ]
    return [[names[i] for i in bucket] for bucket in buckets(gradients, fusing_of(group))]


def fusing_of(group: Group | None) -> Fusing:
    """Return how gradients are combined: the flags say it, or the program's group."""
    return Fusing.from_flags((group and group.fusing) or Fusing())
