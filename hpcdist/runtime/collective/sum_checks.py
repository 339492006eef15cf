"""Checks of Programs that train without servers, and their settings for summing gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcdist.base import settings
from hpcdist.base.errors import HpcdistError, PlanError
from hpcdist.comm.groups import AllreduceOptions
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.registry import Meta
from hpcdist.ops.embedding.selected_rows import SelectedRows
from hpcdist.runtime.tables.pull_push import TABLE_OPS
from hpcdist.transpiler.grad_allreduce import RING_OPS
from hpcdist.transpiler.group import Group


def persistent_names(program: Program) -> set[str]:
    """Return the variables of a Program that outlive a step."""
    return {var.name for var in program.global_block().vars.values() if var.persistable}


def refuse_servers_operators(ops: Sequence[Operator]) -> None:
    """Refuse operators that talk to servers: this job has none."""
    for op in ops:
        if op.type not in (*RING_OPS, *TABLE_OPS):
            raise HpcdistError(
                f"operator {op.type!r} talks to parameter servers, but this job has none: start "
                "it with --pservers P, or transpile in nccl2 or collective mode"
            )


def way_of(group: Group | None) -> AllreduceOptions:
    """Return how the sums of a program's group are to be made."""
    if group is None:
        return AllreduceOptions(carrier=settings.ALLREDUCE.read())
    return AllreduceOptions(
        group.rings, group.hierarchical, group.per_node, settings.ALLREDUCE.read()
    )


def check_counts(main: Program, trainers: int) -> None:
    """Refuse rows that are counted as gradients: each trainer would add those of whole batches."""
    for op in main.global_block().ops:
        if op.type == "data_norm_grad" and trainers > 1:
            raise PlanError(
                f"{op.place} {op} gives numbers of rows as gradients: where trainers sum "
                "these, each would add those of the whole batch; let servers keep all parameters "
                "(--pservers, without --dense collective), or call DistributeTranspiler.transpile "
                "in the script and divide the data there"
            )


def metas_of(ops: Sequence[Operator], arrays: Mapping[str, Any]) -> dict[str, Meta]:
    """Return shape, dtype and kind of what the operators sum, by name."""
    metas = {}
    for op in ops:
        for name in op.input("X"):
            if name in arrays:
                array = arrays[name]
                kind = "SELECTED_ROWS" if is_sparse(array) else "LOD_TENSOR"
                metas[name] = Meta(tuple(array.shape), np.dtype(array.dtype).name, kind)
    return metas


def is_sparse(array: object) -> bool:
    """Return whether a gradient is one of some rows only."""
    return isinstance(array, SelectedRows)


def in_fixed_order() -> bool:
    """Return whether sums are to run in a fixed order; a script may set the flags itself."""
    return settings.CPU_DETERMINISTIC.read() or settings.CUDNN_DETERMINISTIC.read()
