"""The Programs that a rank has run, for the page about a job: operators and names."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hpcdist.base.plain_data import typed

MOST_PROGRAMS = 8  # of a rank, the first that it runs
MOST_OPERATORS = 4000  # of a Program, its first

TRAINS, SERVES, STARTS, RUNS = "trains", "serves", "starts", "runs"  # what a Program is for
FORWARD, BACKWARD, UPDATE, EXCHANGE = "forward", "backward", "update", "exchange"


@dataclass(frozen=True)
class OperatorFacts:
    """An operator: its type, the variables that it reads and writes, and what it is there for."""

    type: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    role: str = FORWARD


@dataclass(frozen=True)
class ParameterFacts:
    """A parameter, or a piece of one, that a Program's optimizer moves.

    ``shape``: None for the rows of a table, of which there may be any number.
    """

    name: str
    shape: tuple[int | None, ...]
    nbytes: int

    @property
    def extents(self) -> str:
        """The shape as text, such as ``any x 16``."""
        return " x ".join("any" if size is None else str(size) for size in self.shape)


@dataclass(frozen=True)
class Moved:
    """What all operators of a type together do in one run, by the shapes of a batch.

    ``flops``: multiplications and additions of their products; None: they compute something of
    which the bytes that they read and write say little.
    """

    type: str
    operators: int
    nbytes: int
    flops: int | None = None


@dataclass(frozen=True)
class ProgramFacts:
    """A Program: the operators of its blocks, one block after the other.

    ``moved`` has the types of which it is known beforehand.
    """

    kind: str
    operators: tuple[OperatorFacts, ...]
    parameters: tuple[ParameterFacts, ...] = ()
    left_out: int = 0  # operators after the first `MOST_OPERATORS`
    moved: tuple[Moved, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Return the argument of `from_plain`, as JSON can express it."""
        return asdict(self)


def from_plain(plain: object) -> ProgramFacts:
    """Return a Program from JSON of a file; ValueError or KeyError if it is none."""
    facts: ProgramFacts = typed(ProgramFacts, plain)
    if facts.kind not in (TRAINS, SERVES, STARTS, RUNS):
        raise ValueError(f"unknown kind of Program: {facts.kind!r:.80}")
    return facts
