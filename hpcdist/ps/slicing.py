"""How parameters are cut into blocks of rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from hpcdist.base.division import ceil_div
from hpcdist.base.errors import PlanError

SMALLEST_BLOCK = 8192  # elements; Fluid refuses less


class Shaped(Protocol):
    """Anything with a name and a shape."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents, all known."""
        ...


@dataclass(frozen=True)
class Slice:
    """Rows ``begin:end`` of a variable; for a vector a row is one element."""

    variable: str
    index: int
    begin: int
    end: int
    shape: tuple[int, ...]  # of the rows
    uncut: bool  # whether this is all of the variable

    def of(self, name: str) -> str:
        """Return the name of the block of ``name``, cut in the same way."""
        return name if self.uncut else f"{name}.block{self.index}"

    @property
    def name(self) -> str:
        """What the block is called: ``w``, or ``w.block<i>`` if ``w`` is cut."""
        return self.of(self.variable)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def offset(self) -> int:
        """Number of elements of the variable that come before the block."""
        return self.begin * math.prod(self.shape[1:])


def slice_variables(
    variables: Iterable[Shaped], servers: int, min_block_size: int
) -> tuple[Slice, ...]:
    """Cut each variable into at most ``servers`` blocks of whole rows.

    A block has at least ``min_block_size`` elements, as far as rows and equal sizes allow: the
    last one may have fewer. Blocks of a variable follow each other and cover it.
    """
    return tuple(s for v in variables for s in _slice(v, servers, min_block_size))


def _slice(variable: Shaped, servers: int, min_block_size: int) -> list[Slice]:
    shape = variable.shape
    if any(extent < 1 for extent in shape):
        raise PlanError(
            f"parameter {variable.name!r} of shape {list(shape)} cannot be placed on servers: "
            "every dimension must be at least 1"
        )
    elements, width = math.prod(shape), math.prod(shape[1:])
    count = min(servers, max(1, elements // min_block_size))
    rows = ceil_div(ceil_div(elements, count), width)
    total = elements // width
    begins = range(0, total, rows)
    slices = []
    for index, begin in enumerate(begins):
        end = min(begin + rows, total)
        block = shape if len(begins) == 1 else (end - begin, *shape[1:])
        slices.append(Slice(variable.name, index, begin, end, block, len(begins) == 1))
    return slices
