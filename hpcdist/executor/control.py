"""The seam between the graph and the network: who executes operators that act on the world.

The executor itself knows no transport. `hpcdist.runtime` installs the one Control of a job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hpcdist.errors import HpcdistError
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.registry import Meta

if TYPE_CHECKING:
    from hpcdist.executor.scope import Scope


Feed = Mapping[str, Any]
Fetched = Sequence[tuple[str, Any]]  # names with host arrays, in the order of the fetch list


@dataclass(frozen=True)
class Binding:
    """What a control operator may see while a Program is compiled."""

    program: Program
    scope: Scope
    backend: Any
    arrays: Mapping[str, Any]  # every value of the compiled block by name


class Control(Protocol):
    """Executes the operators that have no kernel, and says how their values should lie."""

    def resolve(self, program: Program) -> Program:
        """Return the Program that this rank runs in place of ``program``."""

    def shared_feed(self, program: Program) -> Callable[[Feed], Feed] | None:
        """Return what cuts a global batch down to this rank's rows, if it is to be cut."""

    def shared_fetch(self, program: Program) -> Callable[[Fetched], list[Any]] | None:
        """Return what turns values fetched here into the job's values, if they are to be turned."""

    def contiguous(self, ops: Sequence[Operator], metas: Mapping[str, Meta]) -> list[list[str]]:
        """Return groups of names whose arrays must lie one behind the other."""

    def bind(self, ops: Sequence[Operator], binding: Binding) -> list[Callable[[], Any] | None]:
        """Return, for each control operator of a block in order, what to call at every step."""

    def close(self) -> None:
        """Tell the servers that this trainer has finished."""


_installed: Control | None = None


def install(control: Control | None) -> None:
    """Make ``control`` execute control operators in this process; None: nobody does."""
    global _installed
    _installed = control


def installed() -> Control | None:
    """Return the job's Control, None in a process that trains alone."""
    return _installed


def required(op: Operator) -> Control:
    """Return the job's Control; HpcdistError saying how to start one if there is none."""
    if _installed is None:
        raise HpcdistError(
            f"operator {op.type!r} talks to other ranks, but this process was started alone: "
            "use `mpirun -n 4 python -m hpcdist --pservers 2 train.py`"
        )
    return _installed
