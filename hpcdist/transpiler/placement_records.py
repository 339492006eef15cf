"""Records of the placement on servers, as Fluid's ``program._parameters_on_pservers``."""

from __future__ import annotations

from collections.abc import Iterator

from hpcdist.graph.distribution import VarDistributed, VarsDistributed, VarStruct
from hpcdist.graph.program import Program
from hpcdist.graph.variable import Variable
from hpcdist.transpiler.plan import ProgramPlan
from hpcdist.transpiler.program_roles import program_roles
from hpcdist.transpiler.pserver import Shard, shards_on

# Inputs of an optimizer that are not its state.
_NOT_STATE = {"Param", "Grad", "LearningRate", "Beta1Tensor", "Beta2Tensor"}


def vars_distributed(program: Program, plan: ProgramPlan) -> VarsDistributed:
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
                origin.persistable and piece.uncut,
            )
            kind = "RemotePrefetch" if route.remote else "Param"
            cut = not piece.uncut
            records.append(
                VarDistributed(origin, part, cut, piece.index, piece.offset, kind, endpoint)
            )
    if not plan.mode.geo:  # where trainers keep the accumulators
        roles = program_roles(program)
        for endpoint in plan.endpoints:
            for shard in shards_on(program, plan, roles, endpoint):
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
            cut = not piece.uncut and shape == piece.shape
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
