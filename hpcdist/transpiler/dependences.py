"""What operators read and write, and which orders of them compute the same. Pure.

One process runs operators in the order of the Program. A job runs them in phases, and in places, of
its own: that computes the same if an operator that writes a variable, and another one that reads or
writes it, stay in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hpcdist.graph.names import EMPTY
from hpcdist.graph.operator import Operator


@dataclass(frozen=True)
class Access:
    """The variables that an operator reads and writes, those of its sub-blocks included."""

    reads: frozenset[str]
    writes: frozenset[str]


@dataclass(frozen=True)
class Swapped:
    """Two operators, by position, that an order exchanges though one moves what both use.

    ``written``: whether the earlier one writes ``name``; else it reads what the later one writes.
    """

    earlier: int
    later: int
    name: str
    written: bool

    def among(self, ops: Sequence[Operator]) -> str:
        """Return which two of these operators they are, and what both use, for an error."""
        earlier, later = ops[self.earlier], ops[self.later]
        how = "writes" if self.written else "reads"
        return (
            f"{later.place} {later} comes after {earlier.place} {earlier}, which {how} "
            f"{self.name!r}"
        )


def access_of(op: Operator) -> Access:
    """Return the names an operator reads and writes."""
    reads, writes = set(op.input_arg_names), set(op.output_arg_names)
    if "sub_block" in op.attrs:
        for inner in op.block.program.block(op.attrs["sub_block"]).ops:
            access = access_of(inner)
            reads |= access.reads
            writes |= access.writes
    return Access(frozenset(reads - {EMPTY}), frozenset(writes - {EMPTY}))


def swapped(accesses: Sequence[Access], phases: Sequence[int]) -> Swapped | None:
    """Return the first pair that phases exchange; None if they compute what the Program does.

    Phases run in ascending order, and within a phase operators run in the order of the Program.
    """
    last_read: dict[str, int] = {}  # by variable: the operator of the latest phase so far
    last_write: dict[str, int] = {}
    for i, (access, phase) in enumerate(zip(accesses, phases, strict=True)):
        for name in sorted(access.reads | access.writes):
            earlier = last_write.get(name)
            if earlier is not None and phases[earlier] > phase:
                return Swapped(earlier, i, name, written=True)
            earlier = last_read.get(name) if name in access.writes else None
            if earlier is not None and phases[earlier] > phase:
                return Swapped(earlier, i, name, written=False)
        _note(last_read, access.reads, i, phases)
        _note(last_write, access.writes, i, phases)
    return None


def _note(last: dict[str, int], names: Iterable[str], i: int, phases: Sequence[int]) -> None:
    for name in names:
        if name not in last or phases[last[name]] <= phases[i]:
            last[name] = i


def following(accesses: Sequence[Access], moving: Mapping[int, frozenset[str]]) -> dict[int, str]:
    """Return the operators that must run after others, by position, and why: what these move.

    ``moving`` has what these others move, by their position. Who reads it later in the Program
    follows; so does who reads or overwrites what those that follow write, or writes what they use.
    """
    moved: dict[str, str] = {}  # what has its value of now only after the others: because of what
    used: dict[str, str] = {}  # by those that follow
    found: dict[int, str] = {}
    for i, access in enumerate(accesses):
        if i in moving:
            moved |= {name: name for name in moving[i]}
            continue
        causes = {moved[n] for n in moved.keys() & (access.reads | access.writes)}
        causes |= {used[n] for n in used.keys() & access.writes}
        if causes:
            found[i] = cause = min(causes)
            moved |= dict.fromkeys(access.writes, cause)
            used = dict.fromkeys(access.reads, cause) | used
    return found


@dataclass
class Stages:
    """Gives operators stages, in the order of the Program: each the first one that it may be in.

    Stages run in ascending order. In each, those that are ``ahead`` run before the others, and
    within these two parts operators run in the order of the Program.
    """

    _written: dict[str, int] = field(default_factory=dict)  # by variable: the part of a stage
    _used: dict[str, int] = field(default_factory=dict)  # in which it was last written, or read

    def stage_of(self, access: Access, *, ahead: bool = False) -> int:
        """Return the first stage for an operator that reads values as they are now."""
        part = max((self._written.get(name, 0) for name in access.reads | access.writes), default=0)
        part = max((part, *(self._used.get(name, 0) for name in access.writes)))
        return (part + ahead) // 2

    def note(
        self, access: Access, stage: int, *, ahead: bool = False, result_ahead: bool = False
    ) -> None:
        """Note in which stage an operator has read, and has its results.

        ``result_ahead``: others of this stage may read these, those that are ahead as well.
        """
        part = 2 * stage + (not ahead)
        for name in access.reads:
            self._used[name] = max(self._used.get(name, 0), part)
        self._written.update(dict.fromkeys(access.writes, part - (result_ahead and not ahead)))
