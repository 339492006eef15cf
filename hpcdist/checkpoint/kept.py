"""What a front door keeps that checkpoints hold: named arrays and tables, and how they divide."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from hpcdist.checkpoint.described import Described
from hpcdist.checkpoint.divided import Combined, name_of_own
from hpcdist.checkpoint.job import Peers
from hpcdist.checkpoint.layout import path_of
from hpcdist.checkpoint.metadata import Piece
from hpcdist.ps.row_policy import RowPolicy
from hpcdist.ps.table import SparseTable

if TYPE_CHECKING:
    from hpcdist.checkpoint.checkpoint import Checkpoint

SNAPSHOT = "@SNAPSHOT"  # local SGD's names for what trainers started from


@dataclass(frozen=True)
class LocalPiece:
    """A variable ``local`` of this process, which is ``piece`` of the whole."""

    local: str
    piece: Piece
    combined: Combined | None = None  # of several saved values, instead of `piece`'s
    overlaps: bool = False  # only as far as both reach is taken of another shape


def unsliced(name: str, role: str, array: Any) -> LocalPiece:
    """Return a variable that this process holds all of."""
    shape = tuple(array.shape) or (1,)
    piece = Piece(name, role, array.dtype.name, shape, 0, shape[0], path_of(name))
    return LocalPiece(name, piece)


def individually(variable: LocalPiece, trainer: int) -> LocalPiece:
    """Return a variable as this trainer's own; without a number it is what all begin with."""
    name = name_of_own(variable.piece.name, trainer)
    return LocalPiece(variable.local, replace(variable.piece, name=name, path=path_of(name)))


class Values(Protocol):
    """Arrays by name, on whichever device."""

    def array_of(self, name: str) -> Any:
        """Return an array; None if there is none of that name."""

    def take(self, name: str, array: Any) -> None:
        """Hold an array under a name, in place of the present one."""


class Arrays:
    """Arrays on the host, by name, as `Values`."""

    def __init__(self, arrays: Mapping[str, Any] | None = None) -> None:
        self._arrays = dict(arrays or {})

    def array_of(self, name: str) -> Any:
        """Return an array; None if there is none of that name."""
        return self._arrays.get(name)

    def take(self, name: str, array: Any) -> None:
        """Hold an array under a name, in place of the present one."""
        self._arrays[name] = array


@dataclass(frozen=True)
class NamedShards:
    """What a trainer has of a job: arrays that it holds whole, and rows of tables.

    ``elsewhere``: the names of what servers hold. ``individual``: how what each trainer has of its
    own divides (`divided`), by name. ``owned``: what only one trainer holds, with its number.
    """

    pieces: Sequence[LocalPiece] = ()
    tables: Sequence[SparseTable] = ()
    elsewhere: Collection[str] = ()
    individual: Mapping[str, str] = field(default_factory=dict)
    owned: Sequence[tuple[int, LocalPiece]] = ()


@dataclass(frozen=True)
class StepCounter:
    """The step counter of schedules; ``parts``: what asynchronous trainers count of it."""

    name: str
    parts: tuple[str, ...]


class Kept(Protocol):
    """What a trainer keeps, as its front door states it: checkpoints save and restore it."""

    @property
    def peers(self) -> Peers:
        """The other ranks. CheckpointError on a server."""

    @property
    def values(self) -> Values:
        """The arrays."""

    @property
    def tables(self) -> Sequence[SparseTable]:
        """The distributed tables that this process holds rows of."""

    @property
    def policies(self) -> Mapping[str, RowPolicy | None]:
        """The policies of all tables, by name."""

    @property
    def fingerprint(self) -> str:
        """A digest that is equal on ranks that keep the same."""

    @property
    def described(self) -> Described | None:
        """The network, if a restore can say where another one differs."""

    @property
    def lockstep(self) -> bool:
        """Whether trainers take each step together."""

    def settle(self) -> dict[str, int]:
        """Wait until all that was sent has arrived; return what is counted."""

    def catch_up(self) -> None:
        """When all trainers have settled: take over what they have sent."""

    def streams(self) -> dict[str, Any]:
        """Return how far streams of random numbers are, as plain data."""

    def shards(self) -> NamedShards:
        """Return the shards to save. CheckpointError if they cannot be saved now."""

    # -- restoring --
    @property
    def rates(self) -> Collection[str]:
        """The names of learning rates."""

    @property
    def names(self) -> Collection[str]:
        """The names of all arrays that the job keeps, on whichever rank."""

    @property
    def counter(self) -> StepCounter | None:
        """The step counter of schedules, if there is one."""

    def individual(self) -> Mapping[str, str]:
        """Return how what each trainer has of its own divides, by name."""

    def check(self, checkpoint: Checkpoint) -> None:
        """Raise CheckpointError for a checkpoint that this job cannot continue from."""

    def wanted(
        self, checkpoint: Checkpoint, leave: Collection[str], *, partial: bool
    ) -> list[LocalPiece]:
        """Return the pieces this process takes up whole, but for ``leave``.

        With ``partial`` only what has a value, or was saved as it is declared.
        """

    def set_streams(self, streams: Mapping[str, Any], step: int) -> None:
        """Continue streams of random numbers from where they were in a step."""

    def resume(self, counted: Mapping[str, int]) -> None:
        """When all ranks have loaded: continue from what they hold, and from what was counted."""


class KeptOnServer(Protocol):
    """What one parameter server keeps, as checkpoints save and restore it."""

    @property
    def index(self) -> int:
        """Which server this is."""

    @property
    def values(self) -> Values:
        """The arrays."""

    @property
    def tables(self) -> Sequence[SparseTable]:
        """The distributed tables that this server holds rows of."""

    @property
    def counter(self) -> StepCounter | None:
        """The step counter of schedules, if there is one."""

    @property
    def recomputed(self) -> Collection[str]:
        """What is written in a step before it is read: no need to restore it."""

    @property
    def backups(self) -> Mapping[str, Sequence[str]]:
        """The copies that DC-ASGD keeps, by parameter block."""

    def saved(self) -> list[LocalPiece]:
        """Return the pieces this server saves; of those that all have alike server 0 saves all."""

    def held(self) -> list[LocalPiece]:
        """Return all that this server holds, and has to restore."""
