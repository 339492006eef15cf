"""Orders of the same operators that use less memory. Pure.

Every order gives the same bits: operators that use one buffer keep their order, unless all of them
only read it. No operator moves across a fence: an operator that communicates, such as send, or that
runs a sub-block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from hpcdist.executor.analysis import is_control, reads, values_read, writes
from hpcdist.graph.op_role import OpRole
from hpcdist.graph.operator import Operator

UPDATING = OpRole.OPTIMIZE | OpRole.LR_SCHED

Needs = Sequence[Collection[int]]  # for each operator, the positions of those that run before it


def dependences(
    ops: Sequence[Operator], root: Callable[[str], str], move_updates: bool = True
) -> list[set[int]]:
    """Return for each operator the positions of those that must run before it.

    ``root`` names the buffer that a value lies in. Without ``move_updates`` updates are fences.
    """
    needs: list[set[int]] = []
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    fence = -1
    for index, op in enumerate(ops):
        before = {fence} - {-1}
        if is_control(op) or (op.role & UPDATING and not move_updates):
            before.update(range(fence + 1, index))
            fence = index
        written = {root(name) for name in writes(op)}
        read = {root(name) for name in reads(op)}
        before.update(writer[name] for name in written | read if name in writer)
        for name in written:
            before.update(readers.pop(name, ()))
            writer[name] = index
        for name in read:
            readers.setdefault(name, []).append(index)
        needs.append(before)
    return needs


def update_at_once(ops: Sequence[Operator], needs: Needs) -> list[int]:
    """Put every update, with what only it waits for, after the last operator that it needs.

    The rest keeps its order: gradients do not wait for one another.
    """
    movable = [bool(op.role & UPDATING) and not is_control(op) for op in ops]
    final = list(range(len(ops)))  # the last operator, of those that do not move, that it needs
    awaited: set[int] = set()  # by another update: it comes with that
    for index in [i for i in final if movable[i]]:
        final[index] = max((final[i] for i in needs[index]), default=-1)
        awaited.update(i for i in needs[index] if movable[i])
    behind: dict[int, list[int]] = {}
    for index in range(len(ops)):
        if movable[index] and index not in awaited:
            behind.setdefault(final[index], []).append(index)
    order: dict[int, None] = {}

    def run(index: int) -> None:
        pending = [index]  # a stack, since chains of updates may be long
        while pending:
            missing = [i for i in needs[pending[-1]] if i not in order]
            if missing:
                pending.extend(sorted(missing, reverse=True))
            else:
                order.setdefault(pending.pop())

    for index in range(-1, len(ops)):
        if index >= 0 and not movable[index]:
            run(index)
        for update in behind.get(index, ()):
            run(update)
    return list(order)


def free_first(
    ops: Sequence[Operator],
    needs: Needs,
    order: Sequence[int],
    root: Callable[[str], str],
    nbytes: Mapping[str, int],
    fed: Iterable[str],
    lasting: Iterable[str],
) -> list[int]:
    """Run at once whatever takes no memory on balance, what frees most first; else keep ``order``.

    ``nbytes`` has the buffers that can be freed; of these, ``fed`` are there from the beginning and
    ``lasting`` until the end.
    """
    touched = [
        {r for r in map(root, (*values_read(op), *writes(op))) if nbytes.get(r, 0)} for op in ops
    ]
    readers_left = Counter(name for names in touched for name in names)
    readers_left.update(lasting)
    in_memory = set(fed)
    unmet = [len(before) for before in needs]
    after: dict[int, list[int]] = {}
    for index, before in enumerate(needs):
        for writer in before:
            after.setdefault(writer, []).append(index)

    def growth(index: int) -> int:
        allocated = sum(nbytes[name] for name in touched[index] if name not in in_memory)
        return allocated - sum(nbytes[name] for name in touched[index] if readers_left[name] == 1)

    rank = {index: position for position, index in enumerate(order)}
    ready = {index for index, count in enumerate(unmet) if not count}
    chosen_order = []
    while ready:
        cheapest = min(ready, key=lambda i: (growth(i), rank[i]))
        chosen = cheapest if growth(cheapest) <= 0 else min(ready, key=rank.__getitem__)
        ready.remove(chosen)
        chosen_order.append(chosen)
        readers_left.subtract(touched[chosen])
        in_memory.update(touched[chosen])
        for index in after.get(chosen, ()):
            unmet[index] -= 1
            if not unmet[index]:
                ready.add(index)
    return chosen_order
