"""Offsets of temporaries and, with `memory_optimize`, the order of operators."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcdist.executor.analysis import Storage, View, plan_storage, reads, root_of, values_read
from hpcdist.executor.memory import assign_offsets
from hpcdist.executor.ordering import dependences, free_first, update_at_once
from hpcdist.graph.memory_saving import MemorySaving
from hpcdist.graph.operator import Operator


@dataclass(frozen=True)
class Needed:
    """What values need: ``nbytes`` has the temporaries' sizes, the others are names."""

    views: Mapping[str, View]
    nbytes: Mapping[str, int]
    fed: Sequence[str]
    fetched: Sequence[str]
    sparse: frozenset[str]


@dataclass(frozen=True)
class Layout:
    """Operators in the order in which they run, and the pool of ``nbytes`` that this takes."""

    ops: Sequence[Operator]
    storages: Sequence[Storage]
    offsets: Sequence[int]
    nbytes: int


def lay_out(ops: Sequence[Operator], needed: Needed, saving: MemorySaving | None) -> Layout:
    """Lay temporaries out; to save memory, in the order of operators that takes the least."""
    unchanged = _layout(ops, needed, saving)
    if saving is None:
        return unchanged
    orders = _orders(ops, needed, saving)
    best = min([unchanged, *(_layout(order, needed, saving) for order in orders)], key=_size)
    if saving.print_log:
        print(_log(_layout(ops, needed, None), best), flush=True)
    return best


def _size(layout: Layout) -> int:
    return layout.nbytes


def _layout(ops: Sequence[Operator], needed: Needed, saving: MemorySaving | None) -> Layout:
    storages = plan_storage(
        ops,
        needed.nbytes.__contains__,
        needed.views,
        needed.nbytes.__getitem__,
        needed.fed,
        needed.fetched,
        saving.unshared if saving is not None else (),
        reads if saving is None else values_read,
        needed.sparse,
    )
    offsets, total = assign_offsets([storage.lifetime for storage in storages])
    return Layout(ops, storages, offsets, total)


def _orders(ops: Sequence[Operator], needed: Needed, saving: MemorySaving) -> list[list[Operator]]:
    """Return orders that may take less memory than the given one."""
    root = functools.partial(root_of, needed.views)
    needs = dependences(ops, root, saving.move_updates)
    early = update_at_once(ops, needs)
    fed, lasting = map(root, needed.fed), map(root, (*needed.fetched, *saving.unshared))
    freeing = free_first(ops, needs, early, root, needed.nbytes, fed, lasting)
    return [[ops[i] for i in order] for order in (early, freeing)]


def _log(before: Layout, after: Layout) -> str:
    moved = sum(a is not b for a, b in zip(before.ops, after.ops))
    return (
        f"memory_optimize: temporaries take {after.nbytes / 2**20:.2f} MiB instead of "
        f"{before.nbytes / 2**20:.2f} MiB; {moved} of {len(after.ops)} operators moved"
    )
