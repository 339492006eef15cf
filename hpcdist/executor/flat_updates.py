"""Updates by one rule, one after the other, as one kernel for all their parameters: on a GPU.

Their parameters, states and gradients are contiguous; variables are views of that memory.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from hpcdist.base.optimizers import OPTIMIZERS
from hpcdist.executor.backend import Backend
from hpcdist.executor.memory import adjacent, aligned_offsets, lay_contiguous
from hpcdist.executor.scope import Scope
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Call, Meta, declared_attrs, lookup
from hpcdist.ops.optimize.update import bind_updates, is_plain


@dataclass(frozen=True)
class FlatRun:
    """Updates whose parameters are moved as one; ``unplaced``: gradients have no place yet."""

    ops: tuple[Operator, ...]
    unplaced: bool

    def names(self, slot: str) -> list[str]:
        """Return the variables in a slot of all of them."""
        return [op.input(slot)[0] for op in self.ops]

    @property
    def slots(self) -> list[str]:
        """The slots whose values are contiguous, but for the gradients."""
        return ["Param", *OPTIMIZERS[self.ops[0].type].state]

    def bind(self, arrays: Mapping[str, Any], backend: Backend) -> Call:
        """Return the call that updates all parameters."""
        first = self.ops[0]
        update, attrs = OPTIMIZERS[first.type], declared_attrs(lookup(first.type), first.attrs)
        params, grads, *states = (
            [arrays[n] for n in self.names(slot)] for slot in ("Param", "Grad", *update.state)
        )
        rate = arrays[first.input("LearningRate")[0]] if update.has_rate else params[0]
        by_parameter = list(zip(*states)) or [()] * len(params)
        return bind_updates(backend.xp, first.type, attrs, params, rate, by_parameter, grads)


@dataclass(frozen=True)
class FlatUpdates:
    """All runs of a Program; ``offsets``: where their own gradients lie, in so many ``nbytes``."""

    runs: Sequence[FlatRun]
    offsets: Mapping[str, int]
    nbytes: int

    def bind(self, arrays: Mapping[str, Any], backend: Backend) -> dict[int, Call | None]:
        """Return the calls of their operators, by id: the last of a run does all."""
        calls: dict[int, Call | None] = {id(op): None for run in self.runs for op in run.ops}
        calls.update((id(run.ops[-1]), run.bind(arrays, backend)) for run in self.runs)
        return calls


NO_FLAT_UPDATES = FlatUpdates((), {}, 0)


def lay_flat(
    ops: Sequence[Operator],
    metas: Mapping[str, Meta],
    views: Container[str],
    scope: Scope,
    backend: Backend,
    placed: Callable[[str], Any],
) -> FlatUpdates:
    """Lay what updates move one after the other in the scope, and return which became runs.

    ``placed`` tells where a gradient lies, None if nowhere yet. What has been laid for one Program
    is not moved again for another: its updates stay single if they do not fit.
    """
    runs = []
    for run in _candidates(ops, metas, views, scope, backend, placed):
        slots = [run.names(slot) for slot in run.slots]
        if not any(scope.var_or_new(name).laid for names in slots for name in names):
            lay_contiguous(slots, metas, scope, backend, lambda n, backend: backend.bytes(n))
        laid = ([scope.var_or_new(name).value for name in names] for names in slots)
        if all(adjacent(arrays, backend) for arrays in laid):
            runs.append(run)
    unplaced = [name for run in runs if run.unplaced for name in run.names("Grad")]
    offsets, nbytes = aligned_offsets([metas[name] for name in unplaced], backend.alignment)
    return FlatUpdates(runs, dict(zip(unplaced, offsets)), nbytes)


def _candidates(
    ops: Sequence[Operator],
    metas: Mapping[str, Meta],
    views: Container[str],
    scope: Scope,
    backend: Backend,
    placed: Callable[[str], Any],
) -> Iterator[FlatRun]:
    for key, group in groupby(ops, lambda op: _key(op, metas, views)):
        if key is None:
            continue
        same = list(group)
        grads = [placed(op.input("Grad")[0]) for op in same]
        if all(grad is None for grad in grads):
            params = [scope.var_or_new(op.input("Param")[0]) for op in same]
            if all(param.laid for param in params):
                starts = {id(op): backend.address(p.value) for op, p in zip(same, params)}
                same.sort(key=lambda op: starts[id(op)])
            parts = [same]
        elif any(grad is None for grad in grads):
            continue
        else:
            parts = _side_by_side(same, grads, backend)
        for part in parts:
            run = FlatRun(tuple(part), grads[0] is None)
            if len(part) > 1 and all(_differ(run.names(slot)) for slot in ("Param", "Grad")):
                yield run


def _differ(names: Sequence[str]) -> bool:
    return len(set(names)) == len(names)


def _side_by_side(
    ops: Sequence[Operator], grads: Sequence[Any], backend: Backend
) -> list[list[Operator]]:
    """Return operators by the buffers that their gradients lie in, in the order of memory."""
    parts: list[list[Operator]] = []
    before = None
    for op, grad in sorted(zip(ops, grads), key=lambda pair: backend.address(pair[1])):
        if before is None or not adjacent([before, grad], backend):
            parts.append([])
        parts[-1].append(op)
        before = grad
    return parts


def _key(op: Operator, metas: Mapping[str, Meta], views: Container[str]) -> Any:
    """Return the key of updates that may be fused; None for an operator that cannot be."""
    update = OPTIMIZERS.get(op.type)
    if update is None:
        return None
    (gradient,) = op.input("Grad")
    if gradient in views or metas[gradient].type == "SELECTED_ROWS":
        return None
    attrs = declared_attrs(lookup(op.type), op.attrs)
    moves = any(op.input(s) != op.output(o) for s, o in update.written.items())
    given = any(op.input(slot) for slot in lookup(op.type).giving)
    lacks = not all(op.input(slot) for slot in update.state)
    if moves or given or lacks or not is_plain(op.type, attrs):
        return None
    states = [metas[op.input(slot)[0]] for slot in update.state]
    dtype = metas[op.input("Param")[0]].dtype
    if any(meta.dtype != dtype for meta in states):
        return None
    return op.type, sorted(attrs.items()), op.input("LearningRate"), dtype
