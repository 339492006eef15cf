"""Cuts the forward pass of a Program into stages, and refuses Programs that cannot be cut. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from hpcdist.base.errors import PlanError
from hpcdist.graph.autodiff.recompute import AGAIN
from hpcdist.graph.block import Block
from hpcdist.graph.dtypes import VarType
from hpcdist.graph.op_role import DEVICE_ATTR, MERGED_STEPS, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import lookup
from hpcdist.graph.variable import Parameter
from hpcdist.ops.optimize.mixed_precision import ROUNDINGS
from hpcdist.transpiler.dependences import access_of, swapped


class Phase(Enum):
    """When an operator runs: once before a step's micro-batches, for each of them, or after."""

    SCHEDULE = "schedule"
    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


def phase_of(op: Operator) -> Phase:
    """Return when an operator runs."""
    if op.role & OpRole.OPTIMIZE:
        return Phase.UPDATE
    if op.role & OpRole.LR_SCHED:
        return Phase.SCHEDULE
    return Phase.BACKWARD if op.role & OpRole.BACKWARD else Phase.FORWARD


# -- what cannot be cut --------------------------------------------------------------------------
def refuse_uncuttable(block: Block, phases: Sequence[Phase], several_parts: bool) -> None:
    """Raise PlanError for what stages cannot compute, or not from divided batches."""
    for op, phase in zip(block.ops, phases):
        if op.role & (OpRole.RPC | OpRole.DIST):
            raise PlanError(f"pipeline: {op.place} {op} was transpiled: do one of both")
        for marks, feature in (
            (MERGED_STEPS in op.attrs, "gradient merge: more micro-batches do the same"),
            (op.type == "check_finite_and_unscale" or op.type in ROUNDINGS, "mixed precision"),
            (op.type.startswith("dgc"), "deep gradient compression"),
            (any(n.endswith(AGAIN) for n in op.output_arg_names), "recompute"),
        ):
            if marks:
                raise PlanError(f"pipeline: it cannot be combined with {feature}")
        if phase not in (Phase.FORWARD, Phase.BACKWARD):
            continue
        if "sub_block" in op.attrs:
            raise PlanError(
                f"pipeline: {op.place} {op} is a loop or a branch, which micro-batches would take "
                "differently: leave it out, or train without the pipeline"
            )
        if lookup(op.type).values is not None:
            raise PlanError(
                f"pipeline: {op.place} {op} gives a shape that only the step knows; stages must "
                "know before it what they receive: leave it out, or train without the pipeline"
            )
        for name in (*op.input_arg_names, *op.output_arg_names):
            value = block.find_var(name)
            if value is not None and value.lod_level:
                raise PlanError(
                    f"pipeline: {name!r} has sequences (lod_level={value.lod_level}), and messages "
                    "between stages have none: pad them, or train without the pipeline"
                )
            if value is not None and (
                value.type != VarType.LOD_TENSOR
                or (isinstance(value, Parameter) and value.is_distributed)
            ):
                raise PlanError(
                    f"pipeline: {name!r} is no array ({op.type}): tables with is_sparse=True or "
                    "is_distributed=True, and arrays of arrays, cannot be cut into stages; use "
                    "embedding(is_sparse=False)"
                )
        moved = [n for n in op.output_arg_names if block.is_persistable(n)]
        if moved and several_parts:
            raise PlanError(
                f"pipeline: {op.place} {op.type} changes {moved[0]!r} in the forward pass, by what "
                "it sees of a micro-batch: the values would not be those of one process; leave it "
                "out of the program that trains (batch_norm: use layer_norm or group_norm), or "
                "train without the pipeline"
            )


def refuse_other_order(block: Block, phases: Sequence[Phase]) -> None:
    """Raise PlanError where phases would run operators in an order that computes something else."""
    order = list(Phase)
    ops = block.ops
    pair = swapped([access_of(op) for op in ops], [order.index(phase) for phase in phases])
    if pair is not None:
        raise PlanError(
            f"pipeline: {pair.among(ops)}, but stages run schedules, forward and backward passes, "
            "then updates: minimize once, after all that belongs to the forward pass, or train "
            "without the pipeline"
        )


# -- the forward pass ----------------------------------------------------------------------------
def stages_by_cuts(forward: Sequence[Operator], cuts: Sequence[Sequence[str]]) -> dict[int, int]:
    """Return the stage of each operator (its id): stage k is what ``cuts[k]`` needs more."""
    stage_of: dict[int, int] = {}
    for stage, names in enumerate(cuts):
        needed = set(names)
        computed = {name for op in forward for name in op.output_arg_names}
        if unknown := sorted(needed - computed):
            raise PlanError(
                f"pipeline: cut_list names {unknown[0]!r}, which the forward pass does not compute"
            )
        for op in reversed(forward):
            if id(op) not in stage_of and needed.intersection(op.output_arg_names):
                stage_of[id(op)] = stage
                needed.update(op.input_arg_names)
    return {id(op): stage_of.get(id(op), len(cuts)) for op in forward}


def stages_by_devices(forward: Sequence[Operator]) -> tuple[int, dict[int, int]]:
    """Return how many devices `device_guard` named, and the stage of each operator (its id).

    Operators of no device belong to the last stage that they read of.
    """
    devices: list[str] = []
    stage_of: dict[int, int] = {}
    stages: dict[str, int] = {}
    for op in forward:
        device = op.attrs.get(DEVICE_ATTR, "")
        if device and device not in devices:
            devices.append(device)
        least = max((stages.get(name, 0) for name in op.input_arg_names), default=0)
        stage = devices.index(device) if device else least
        if stage < least:
            raise PlanError(
                f"pipeline: {op.place} {op} is on {device!r}, stage {stage}, but reads what stage "
                f"{least} computes: values of the forward pass go from a stage to later ones only"
            )
        stage_of[id(op)] = stage
        stages.update(dict.fromkeys(op.output_arg_names, stage))
    if len(devices) < 2:
        raise PlanError(
            f"pipeline: expected operators of 2 devices or more, got {devices}: give "
            "PipelineOptimizer a cut_list, or build stages within fluid.device_guard('gpu:0'), "
            "fluid.device_guard('gpu:1'), ..."
        )
    return len(devices), stage_of
