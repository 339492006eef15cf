"""The Programs that a rank has run, as a page about the job shows them: operators, names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

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
    """A parameter, or a piece of one, that a Program's optimizer moves."""

    name: str
    shape: tuple[int, ...]
    nbytes: int


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
    """A Program: the operators of its blocks, one block behind the other.

    ``moved`` has the types of which it is known beforehand.
    """

    kind: str
    operators: tuple[OperatorFacts, ...]
    parameters: tuple[ParameterFacts, ...] = ()
    left_out: int = 0  # operators behind the first `MOST_OPERATORS`
    moved: tuple[Moved, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Return what `from_plain` takes, as JSON can say it."""
        return asdict(self)


def from_plain(found: Mapping[str, Any]) -> ProgramFacts:
    """Return a Program from a file; TypeError or KeyError if it is none."""
    return ProgramFacts(
        kind=str(found["kind"]),
        operators=tuple(
            OperatorFacts(o["type"], tuple(o["reads"]), tuple(o["writes"]), o["role"])
            for o in found["operators"]
        ),
        parameters=tuple(
            ParameterFacts(p["name"], tuple(p["shape"]), int(p["nbytes"]))
            for p in found["parameters"]
        ),
        left_out=int(found["left_out"]),
        moved=tuple(
            Moved(m["type"], int(m["operators"]), int(m["nbytes"]), _flops(m))
            for m in found.get("moved", ())
        ),
    )


def _flops(moved: Mapping[str, Any]) -> int | None:
    flops = moved.get("flops")
    return None if flops is None else int(flops)
