"""How a Program is distributed: one frozen value, set by the transpiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


@dataclass(frozen=True)
class VarStruct:
    """The facts of a variable."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    type: str
    lod_level: int
    persistable: bool

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class VarDistributed:
    """Where a variable, or the slice of one that begins ``offset`` elements into it, lies.

    ``vtype`` is Param, Optimizer (an accumulator) or RemotePrefetch (a parameter whose rows are
    looked up and never received).
    """

    origin: VarStruct
    slice: VarStruct
    is_slice: bool
    block_id: int
    offset: int
    vtype: str
    endpoint: str

    def __str__(self) -> str:
        part = f", block {self.block_id} from element {self.offset}" if self.is_slice else ""
        return f"{self.endpoint}: {self.vtype} {self.slice} of {self.origin}{part}"


class VarsDistributed:
    """All records of a plan: parameters first, then each server's accumulators."""

    def __init__(self, records: Sequence[VarDistributed]) -> None:
        self.distributed_vars = tuple(records)

    def get_distributed_var_by_slice(self, var_name: str) -> VarDistributed | None:
        """Return the first record of a block, such as ``w.block1``."""
        return next((r for r in self.distributed_vars if r.slice.name == var_name), None)

    def get_distributed_var_by_origin_and_ep(
        self, origin_var_name: str, endpoint: str
    ) -> VarDistributed | None:
        """Return the first record of a variable on a server."""
        records = (r for r in self.get_distributed_vars_by_ep(endpoint))
        return next((r for r in records if r.origin.name == origin_var_name), None)

    def get_distributed_vars_by_vtypes(
        self, vtypes: Sequence[str], groupby: bool = False
    ) -> list[VarDistributed] | dict[str, list[VarDistributed]]:
        """Return the records of some kinds, in a list or by the name of the original variable."""
        records = [r for r in self.distributed_vars if r.vtype in vtypes]
        if not groupby:
            return records
        groups: dict[str, list[VarDistributed]] = {}
        for record in records:
            groups.setdefault(record.origin.name, []).append(record)
        return groups

    def get_distributed_vars_by_ep(
        self, endpoint: str, vtype: str | None = None
    ) -> list[VarDistributed]:
        """Return the records of a server, of one kind if asked."""
        return [
            r
            for r in self.distributed_vars
            if r.endpoint == endpoint and (not vtype or r.vtype == vtype)
        ]

    def overview(self) -> str:
        """Return all records as text, one on a line."""
        return "\n".join(str(record) for record in self.distributed_vars)


@dataclass(frozen=True)
class ProgramDistribution:
    """How a Program is distributed: not at all, unless it is one of the transpiler's classes.

    These are `Plan` (of a trainer that has servers), `ServerPlan`, `Group` (of trainers without
    servers) and `HybridGroup` (of trainers whose servers have tables only). ``fingerprint`` is
    equal on ranks that built the same program and plan; ``records`` say what lies on which server.
    """

    fingerprint: str | None = field(default=None, kw_only=True)
    records: VarsDistributed | None = field(default=None, kw_only=True, compare=False, repr=False)

    def fluid_fields(self) -> dict[str, object]:
        """Return the attributes that Fluid's transpilers set on a Program."""
        return {}


NOT_DISTRIBUTED = ProgramDistribution()


class FluidField(Generic[T]):
    """An attribute of Programs for Fluid's scripts, see `ProgramDistribution.fluid_fields`."""

    def __init__(self, otherwise: T) -> None:
        self._otherwise = otherwise

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, program: Any, owner: type) -> T:
        return cast(T, program.distribution.fluid_fields().get(self._name, self._otherwise))
