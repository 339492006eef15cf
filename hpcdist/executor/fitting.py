"""Fitting a compiled Program to another batch: ragged batches differ in length at every step.

A Program is compiled for one batch. If the next one has the same number of sequences, but of other
lengths, it is not compiled again: values that depend on the ragged input get new offsets in the
same memory, and only their operators are rebound. Memory is reserved for somewhat more than the
longest batch so far, so recompilation soon stops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdist.executor.analysis import Interpreted, View, changed_metas, root_of
from hpcdist.executor.control import Fits
from hpcdist.executor.memory import nbytes_of
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Meta, lookup
from hpcdist.ops.embedding.selected_rows import SelectedRows

HEADROOM = 1.25  # bytes set aside per byte needed, for values whose size changes


@dataclass(frozen=True)
class _Bound:
    """A step that can be bound again: the operator, and what it reads and writes."""

    index: int
    op: Operator
    names: frozenset[str]
    reads_lods: bool

    @staticmethod
    def of(index: int, op: Operator) -> _Bound:
        """Describe the operator of step ``index``."""
        definition = lookup(op.type)
        names = frozenset((*op.input_arg_names, *op.output_arg_names))
        return _Bound(index, op, names, bool(definition.lods or definition.measures))

    def is_touched(self, changed: Mapping[str, Meta], resized: Mapping[str, Meta]) -> bool:
        """Return whether its arrays are others now, or the sequences it reads."""
        if not self.names.isdisjoint(resized):
            return True
        return self.reads_lods and not self.names.isdisjoint(changed)


@dataclass(frozen=True)
class PoolPlace:
    """Where a temporary lies in the pool, and how long it may become there."""

    offset: int
    nbytes: int


@dataclass
class Fitting:
    """The parts of a compiled Program that change with the lengths of what is fed.

    ``ops`` are in the Program's order. ``bound[i]`` made ``steps[i]``, and ``rebind`` makes it
    again (None: it need not). ``carve`` gives a value its memory, at an offset in the pool.
    """

    ops: Sequence[Operator]
    metas: dict[str, Meta]
    views: Mapping[str, View]
    places: Mapping[str, PoolPlace]
    reserve: dict[str, int]  # by name, how many bytes to set aside when it is compiled anew
    arrays: dict[str, Any]
    steps: list[Callable[[], object]]
    bound: Sequence[Operator | None]
    carve: Callable[[int, Meta], Any]
    rebind: Callable[[Operator], Callable[[], object]]
    fits: Fits
    interpreted: Interpreted | None = None

    def __post_init__(self) -> None:
        self._again = [_Bound.of(i, op) for i, op in enumerate(self.bound) if op is not None]

    def fit(self, feeds: Mapping[str, Meta]) -> bool:
        """Make the Program ready for these feeds; False if it must be compiled anew.

        ``reserve`` then says how many bytes to set aside for which value.
        """
        feeds = {n: self._as_before(n, meta) for n, meta in feeds.items()}
        changed = changed_metas(self.ops, self.metas, feeds, self.interpreted)
        if not changed:
            return True
        resized = {n: m for n, m in changed.items() if m != self.metas[n] and n in self.arrays}
        touched = [b for b in self._again if b.is_touched(changed, resized)]
        if not self._all_fit(resized) or any(self._parts(b.op, resized) for b in touched):
            for name, meta in resized.items():
                nbytes = int(nbytes_of(meta) * HEADROOM)
                self.reserve[name] = max(nbytes, self.reserve.get(name, 0))
            return False
        self.metas.update(changed)
        again: dict[object, Any] = {}  # one object for a place, shape and type, see `Compiler`
        for name in self.places:
            # Rows are given back to all that is sparse: a step may have left others there.
            sparse = isinstance(self.arrays.get(name), SelectedRows)
            if sparse or (name in resized and name not in self.views):
                self._place(name, self.metas[name], again)
        for name in self.views:
            if name in resized:
                root = self.arrays[self.views[name].root]
                self.arrays[name] = root.reshape(resized[name].shape)
        self.fits.count += 1
        for bound in touched:
            self.steps[bound.index] = self.rebind(bound.op)
        return True

    def _as_before(self, name: str, meta: Meta) -> Meta:
        """Keep the sequences there are, if the new ones are the same."""
        before = self.metas[name]
        new = meta.sequences
        return before if new is not None and new.same(before.sequences) else meta

    def _place(self, name: str, meta: Meta, again: dict[object, Any]) -> None:
        offset = self.places[name].offset
        array = self.carve(offset, meta)
        before = self.arrays[name]
        if isinstance(array, SelectedRows):  # operators of the network hold this object
            before.rows, before.value = array.rows, array.value
        else:
            self.arrays[name] = again.setdefault((offset, meta.shape, meta.dtype), array)

    def _all_fit(self, resized: Mapping[str, Meta]) -> bool:
        for name, meta in resized.items():
            view = self.views.get(name)
            if view is not None and view.begin is not None:
                return False
            place = self.places.get(root_of(self.views, name))
            if place is None or nbytes_of(meta) > place.nbytes:
                return False
        return True

    def _parts(self, op: Operator, resized: Mapping[str, Meta]) -> bool:
        """Return whether a result lies in its operand's place, and no longer has the same size."""
        for out_slot, in_slot in lookup(op.type).inplace.items():
            for out, source in zip(op.output(out_slot), op.input(in_slot)):
                place = self.places.get(out)
                if place is None or place is not self.places.get(source):
                    continue
                sizes = {nbytes_of(resized.get(n) or self.metas[n]) for n in (out, source)}
                if len(sizes) > 1:
                    return True
        return False
