"""Records of what lies on which server, as Fluid's ``program._parameters_on_pservers``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpcdist.graph.program import Program
from hpcdist.graph.variable import Variable
from hpcdist.transpiler.anatomy import dissect
from hpcdist.transpiler.plan import Plan
from hpcdist.transpiler.pserver import Shard, shards_on

# Inputs of an optimizer that are not its state.
_NOT_STATE = {"Param", "Grad", "LearningRate", "Beta1Tensor", "Beta2Tensor"}


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
        found = (r for r in self.get_distributed_vars_by_ep(endpoint))
        return next((r for r in found if r.origin.name == origin_var_name), None)

    def get_distributed_vars_by_vtypes(
        self, vtypes: Sequence[str], groupby: bool = False
    ) -> list[VarDistributed] | dict[str, list[VarDistributed]]:
        """Return the records of some kinds, in a list or by the name of the original variable."""
        found = [r for r in self.distributed_vars if r.vtype in vtypes]
        if not groupby:
            return found
        groups: dict[str, list[VarDistributed]] = {}
        for record in found:
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


def vars_distributed(program: Program, plan: Plan) -> VarsDistributed:
    """Return the records of a training program under a plan."""
    block = program.global_block()
    records = []
    for route in plan.routes:
        origin = _facts(block.var(route.parameter))
        for piece, endpoint in zip(route.slices, route.endpoints):
            part = VarStruct(
                piece.name,
                piece.shape,
                origin.dtype,
                origin.type,
                origin.lod_level,
                origin.persistable and piece.whole,
            )
            kind = "RemotePrefetch" if route.remote else "Param"
            cut = not piece.whole
            records.append(
                VarDistributed(origin, part, cut, piece.index, piece.offset, kind, endpoint)
            )
    if not plan.mode.geo:  # where trainers keep the accumulators
        anatomy = dissect(program)
        for endpoint in plan.endpoints:
            for shard in shards_on(program, plan, anatomy, endpoint):
                records += _accumulators(program, shard, endpoint)
    return VarsDistributed(records)


def _accumulators(program: Program, shard: Shard, endpoint: str) -> Iterator[VarDistributed]:
    block = program.global_block()
    op = block.ops[shard.update.optimizer]
    piece = shard.piece
    for slot in sorted(set(op.input_names) - _NOT_STATE):
        for name in op.input(slot):
            origin = _facts(block.var(name))
            local = shard.local(name)
            shape = shard.local_shape(name, origin.shape)
            cut = not piece.whole and shape == piece.shape
            facts = (origin.dtype, origin.type, origin.lod_level, origin.persistable)
            yield VarDistributed(
                origin,
                VarStruct(local, shape, *facts),
                cut,
                piece.index if cut else 0,
                piece.offset if cut else 0,
                "Optimizer",
                endpoint,
            )


def _facts(var: Variable) -> VarStruct:
    return VarStruct(var.name, var.shape, var.dtype, var.type, var.lod_level, var.persistable)
