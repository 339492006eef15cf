"""The interface between graph and network: it executes operators that communicate.

The executor itself knows no transport. `hpcdist.runtime` installs the one Control of a job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from hpcdist.base import late
from hpcdist.base.errors import HpcdistError
from hpcdist.checkpoint.job import Peers
from hpcdist.executor.backend import Backend
from hpcdist.executor.scope import Scope, ScopeVariable, on_set
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.registry import Meta

Feed = Mapping[str, Any]
Fetched = Sequence[tuple[str, Any]]  # names with host arrays, in the order of the fetch list
Join = Callable[[Fetched], list[Any]]  # returns the job's values of what was asked for
SharedFetch = tuple[tuple[str, ...], Join | None]  # what to fetch here; None: it needs no joining


@dataclass(frozen=True)
class Settled:
    """What all further steps of a Program have in common, until ``Control.decisions`` grows.

    ``program`` runs in its place; ``fetches`` are fetched, and ``join`` makes of them what was
    asked for. ``admit`` is called before this thread waits for its turn, ``begin`` when it has it,
    then ``feed``, with what is fed to the step: it returns what ``program`` is fed.
    """

    program: Program
    fetches: tuple[str, ...]
    join: Join | None = None
    admit: Callable[[], None] | None = None
    begin: Callable[[], None] | None = None
    feed: Callable[[Feed], Feed] | None = None


@dataclass
class Fits:
    """How often values have got other arrays since a Program was compiled: ragged batches do so."""

    count: int = 0


@dataclass(frozen=True)
class Binding:
    """What a control operator may see while a Program is compiled."""

    program: Program
    scope: Scope
    backend: Backend
    arrays: Mapping[str, Any]  # every value of the compiled block by name, as it is now
    fits: Fits = field(default_factory=Fits)
    fetches: Sequence[str] = ()


class ProgramPeers(Peers, Protocol):
    """The other ranks of a job that runs Programs; trainers only have them."""

    @property
    def shares_batches(self) -> bool:
        """Whether trainers share the batches of a plain script, so that each has some rows."""

    def program(self, program: Program) -> Program:
        """Return the Program that this rank runs in place of ``program``."""

    def trains_in(self, scope: Scope) -> bool:
        """Return whether what servers hold belongs to the variables of this scope."""

    def read(self, server: int, arrays: Mapping[str, Any]) -> None:
        """Overwrite each array with the server's present value of the variable of that name."""

    def complete(self, names: Sequence[str], scope: Scope) -> None:
        """Hold the values of these variables that other trainers keep. Collective."""

    def settle(self, program: Program) -> dict[str, int]:
        """Wait until all that was sent has arrived; return the counts of a Program."""

    def catch_up(self, program: Program) -> None:
        """When all trainers have settled: take over what they have sent."""

    def resume(self, program: Program, counted: Mapping[str, int], scope: Scope) -> None:
        """When all ranks have loaded: continue from what they hold, and from what was counted."""


class NetworkOperators:
    """Executes the operators that have no kernel, and says how their values should lie."""

    def contiguous(
        self, ops: Sequence[Operator], metas: Mapping[str, Meta], backend: Backend
    ) -> list[list[str]]:
        """Return groups of names whose arrays must be contiguous."""
        return []

    def memory(self, nbytes: int, backend: Backend) -> Any:
        """Return memory of a backend, in bytes, for such a group."""
        return backend.bytes(nbytes)

    def bind(self, ops: Sequence[Operator], binding: Binding) -> list[Callable[[], object] | None]:
        """Return, for each control operator of a block in order, what to call at every step."""
        raise NotImplementedError

    def close(self) -> None:
        """Notify the other ranks that this one has finished."""


class Control(NetworkOperators):
    """What this process runs in place of a Program, and with whom.

    ``turn`` is held while a Program runs: a process takes one step at a time, whatever its threads.
    """

    def __init__(self) -> None:
        self.turn: AbstractContextManager[object] = threading.RLock()
        self.decisions = 0  # grows with whatever may change what was `settled`

    def admit(self, program: Program) -> None:
        """Before this thread waits for its turn. Raises HpcdistError if it may not have one."""

    def substitute(
        self, program: Program, feed: Feed, scope: Scope, fetches: Sequence[str]
    ) -> tuple[Program, Feed]:
        """Return the Program that this rank runs in place of another, and its part of the feed."""
        raise NotImplementedError

    def begin(self, program: Program, scope: Scope) -> None:
        """Before a Program trains for the first time: agree with other trainers. Collective."""

    def shared_fetch(self, program: Program, names: tuple[str, ...]) -> SharedFetch:
        """Return the names to fetch here, and the function that joins the job's ``names``."""
        return names, None

    def settled(
        self, program: Program, fed: Sequence[str], scope: Scope, fetches: tuple[str, ...]
    ) -> Settled | None:
        """Return the decisions for further steps like the one just begun: with the same feeds.

        None if each of them has to be begun by `substitute`.
        """
        return None

    def note_trains(self, executor: object) -> None:
        """Note that an Executor runs a Program that trains."""

    def note_closed(self, executor: object) -> None:
        """Leave the others if of all Executors that train the last one is closed."""

    def note_set(self, variable: ScopeVariable) -> None:
        """Note that the script sets a variable by hand, before the next step."""

    def peers(self) -> ProgramPeers | None:
        """Return the other ranks; None on a server, and in a process that trains alone."""
        return None

    def everyones(self, data: bytes, awaited: str) -> list[bytes]:
        """Gather a value from every trainer, in trainer order. Collective."""
        return [data]


_nobodys_turn: AbstractContextManager[object] = threading.RLock()
_installed: Control | None = None
_alone: Control | None = None  # acts where no job does, on operators of a few types
acts: list[Control | None] = [None]  # what `acting` returns, for who has called that once
_alone_types: Sequence[str] = ()


def install(control: Control | None) -> None:
    """Make ``control`` execute control operators in this process; None: nobody does."""
    global _installed
    _installed = control
    acts[0] = _alone if control is None else control
    on_set(None if control is None else control.note_set)


def installed() -> Control | None:
    """Return the job's Control, None in a process that trains alone."""
    late.load()
    return _installed


def install_standalone(control: Control, types: Sequence[str]) -> None:
    """Register operators of these types for processes that train alone."""
    global _alone, _alone_types
    _alone, _alone_types = control, types
    acts[0] = control if _installed is None else _installed


def acting() -> Control | None:
    """Return the job's Control, or the one that acts in a process that trains alone."""
    late.load()
    return acts[0]


def turn() -> AbstractContextManager[object]:
    """Return the lock to hold while a Program runs, or while its values are accessed."""
    control = acting()
    return _nobodys_turn if control is None else control.turn


def required(op: Operator) -> Control:
    """Return the Control that acts; HpcdistError saying how to start a job if there is none."""
    control = acting()
    if control is None or (_installed is None and op.type not in _alone_types):
        raise HpcdistError(
            f"operator {op.type!r} talks to other ranks, but this process was started alone: "
            "use `mpirun -n 4 python -m hpcdist train.py`, with `--pservers 2` for servers"
        )
    return control
