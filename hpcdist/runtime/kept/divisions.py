"""How what a Program's forward pass keeps divides among trainers. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hpcdist.checkpoint.divided import LARGEST, OWN, SAME, SMALLEST, SUMMED, SUMS, WINDOWED
from hpcdist.graph.block import block_of
from hpcdist.graph.op_role import OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.registry import is_defined, lookup

_ADDS = {"sum", "elementwise_add", "elementwise_sub"}
_KEEPS = {"assign", "reshape2", "cast"}
_EXTREMES = {"elementwise_max": LARGEST, "elementwise_min": SMALLEST}


def left_to_first(program: Program, trainer: int) -> dict[str, str]:
    """Return the sums, and how they are made, that a trainer leaves to the first one.

    All trainers load what one has saved, but the sum of what they count shall be that.
    """
    found = divisions(program, shared=True) if trainer else {}
    return {name: how for name, how in found.items() if how in SUMS}


def sums_of(program: Program) -> list[str]:
    """Return the variables that operators declare as sums over the rows of all trainers."""
    return sorted(left_to_first(program, 1))


def divisions(program: Program, *, shared: bool) -> dict[str, str]:
    """Return how what the forward pass keeps from step to step divides among trainers, by name.

    What an operator declares as sums over rows is summed. Where each trainer has data of its own,
    so is what a Program adds to itself from its data, and likewise with maxima and minima; what is
    computed otherwise is each trainer's own. Trainers that share batches (``shared``) compute all
    else from whole ones: it is the same on all.
    """
    block = program.global_block()
    ops = [op for op in block.ops if op.role & ~OpRole.LOSS == OpRole.FORWARD]
    kept = {n for op in ops for n in op.output_arg_names if block.is_persistable(n)}
    if shared:
        return dict.fromkeys(kept, SAME) | _declared(ops)
    of_data = _of_data(ops)
    found = {name: _kept_by(ops, name, of_data) for name in kept}
    return found | _declared(ops)


def _declared(ops: Sequence[Operator]) -> dict[str, str]:
    """Return the sums over rows that operators declare to keep."""
    return {
        name: WINDOWED if op.attrs.get("slide_steps") else SUMMED
        for op in ops
        if is_defined(op.type)
        for slot in lookup(op.type).sums
        for name in op.output(slot)
    }


def _kept_by(ops: Sequence[Operator], name: str, of_data: set[str]) -> str:
    """Return how a value divides that these operators read and write in every step."""
    held: dict[str, frozenset[str]] = {name: frozenset()}  # what has become of the kept value
    for op in ops:
        read = held.keys() & op.input_arg_names
        way = _way(op, read, of_data) if read else None
        for written in op.output_arg_names:
            if way is not None:
                held[written] = frozenset({way}).union(*(held[n] for n in read))
            elif written != name:
                held.pop(written, None)
            elif read or written in of_data:
                return OWN
            else:
                held[name] = frozenset()
    ways = held[name] - {SAME}
    if len(ways) == 1:
        return next(iter(ways))
    return OWN if ways else SAME


def _way(op: Operator, read: Collection[str], of_data: set[str]) -> str | None:
    """Return an operator's effect on a kept value; None if that is no longer the kept one."""
    others = [n for n in op.input_arg_names if n not in read]
    if op.type in _KEEPS or op.type == "increment":
        return SAME
    if op.type == "scale" and (op.attrs.get("scale", 1.0), op.attrs.get("bias", 0.0)) == (1, 0):
        return SAME
    from_data = bool(of_data.intersection(others))
    if op.type in _ADDS and sum(n in read for names in op.inputs.values() for n in names) == 1:
        if op.type == "elementwise_sub" and op.input("Y")[0] in read:
            return None
        return SUMMED if from_data else SAME
    if op.type in _EXTREMES:
        return _EXTREMES[op.type] if from_data else SAME
    return None


def _of_data(ops: Sequence[Operator]) -> set[str]:
    """Return the values that depend on what a trainer is fed, or reads."""
    made = {n for op in ops for n in op.output_arg_names}
    found: set[str] = set()
    for op in ops:
        block = block_of(op)
        fed = any(
            n not in made and not block.is_persistable(n) for n in op.input_arg_names
        ) or op.type in ("read", "create_custom_reader")
        if fed or found.intersection(op.input_arg_names):
            found.update(op.output_arg_names)
    return found
