"""Runs of operators that PyTorch computes as one function: their operators, inputs, results.
Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from hpcdist.base.optimizers import OPTIMIZERS
from hpcdist.executor.analysis import reads, writes
from hpcdist.graph.names import EMPTY
from hpcdist.graph.op_role import ROLE_ATTR, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Meta, arguments, attrs_of, gives_open, lookup
from hpcdist.ops.optimize.mixed_precision import ROUNDINGS
from hpcdist.ops.torch_forms import EXACT_FAMILIES, forms

TYPE = "torch_segment"
# Forms that are exact on integers, and there for them: of some families, and some products.
_EXACT_FAMILIES = {*EXACT_FAMILIES, "by_torch"}
_EXACT = {"arg_max", "arg_min", "cumsum", "top_k"} | {
    f"reduce_{name}" for name in ("all", "any", "max", "min", "prod", "sum")
}
_ROUNDING = {"clip", "clip_by_norm", "pad2d", "temporal_shift", "unfold"}
MOVES = {"flatten2", "reshape2", "slice", "transpose2"}  # they keep values as they are


@dataclass(frozen=True, eq=False)
class Segment:
    """Operators one after the other that are computed as one.

    ``reads`` are the names of what they take from outside, ``writes`` of what others read of
    theirs; a name may be in both. What only they read has no memory of the executor's. ``half``
    has those of the ``reads`` whose values were rounded to 16 bits, and their type. ``compiled``:
    inductor makes kernels of it.
    """

    ops: tuple[Operator, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    metas: Mapping[str, Meta]
    half: Mapping[str, str]
    compiled: bool = False

    def __str__(self) -> str:
        return f"{self.ops[0].place} {self.ops[0].type} to {self.ops[-1].place} {self.ops[-1].type}"

    @property
    def operator(self) -> Operator:
        """The operator that stands for all of them."""
        first = self.ops[0]
        role = {ROLE_ATTR: max(int(op.role) for op in self.ops)}
        slots = {"X": list(self.reads)}, {"XOut": list(self.writes)}
        return Operator(first.block, TYPE, *slots, {"segment": self, **role})


def fuse(
    ops: Sequence[Operator],
    metas: Mapping[str, Meta],
    apart: Collection[str],
    keeps: Callable[[str], bool],
    compiled: bool = False,
    rates: bool = False,
) -> list[Operator]:
    """Return the operators with each run of those that have a torch form as one.

    ``apart``: names that are fetched, or read by somebody else. ``rates``: what computes learning
    rates, too; servers compute them without torch, and on hosts they have the same bits. Updates
    are left alone: they move all parameters in one kernel already (`flat_updates`).
    """
    needed: set[str] = set(apart)
    half = _rounded(ops)
    fused: list[Operator] = []
    for joined, group in groupby(
        reversed(ops),
        lambda op: (rates or not op.role & OpRole.LR_SCHED) and _has_form(op, metas),
    ):
        run = list(group)
        if joined and len(run) > 1:
            segment = _segment(run[::-1], metas, half, lambda n: n in needed or keeps(n))
            segment = replace(segment, compiled=compiled)
            run = [segment.operator] if segment.reads else run  # constants, as startup has them
        fused += run
        needed.update(name for op in run for name in reads(op))
    return fused[::-1]


def _segment(
    run: Sequence[Operator],
    metas: Mapping[str, Meta],
    half: Mapping[str, str],
    needed: Callable[[str], bool],
) -> Segment:
    inputs: dict[str, None] = {}
    written: dict[str, None] = {}
    for op in run:
        inputs.update(dict.fromkeys(name for name in reads(op) if name not in written))
        written.update(dict.fromkeys(writes(op)))
    results = tuple(filter(needed, written))
    metas_of_run = {name: metas[name] for name in (*inputs, *written)}
    of_taken = {name: half[name] for name in inputs if name in half}
    return Segment(tuple(run), tuple(inputs), results, metas_of_run, of_taken)


def _rounded(ops: Sequence[Operator]) -> dict[str, str]:
    """Return the type of names whose values are always rounded to 16 bits, or moved from such."""
    halves: dict[str, str | None] = {}
    for op in ops:
        half = ROUNDINGS.get(op.type)
        if op.type in MOVES:
            kinds = {halves.get(name) for name in reads(op)}
            half = kinds.pop() if len(kinds) == 1 else None
        halves.update(
            (name, half if halves.get(name, half) == half else None) for name in writes(op)
        )
    return {name: half for name, half in halves.items() if half is not None}


def inputs_of(op: Operator, values: Mapping[str, object]) -> list[object]:
    """Return the values in an operator's input slots, in the order of its definition."""
    operands = {slot: [values.get(n) for n in names] for slot, names in op.inputs.items()}
    return arguments(lookup(op.type).operands, operands)


def _has_form(op: Operator, metas: Mapping[str, Meta]) -> bool:
    form = forms().get(op.type)
    if form is None or form.draws or op.type in OPTIMIZERS or "sub_block" in op.attrs:
        return False
    definition = lookup(op.type)
    names = [n for n in (*op.input_arg_names, *op.output_arg_names) if n != EMPTY]
    if not all(_dense(metas.get(name)) for name in names):
        return False
    shapes = {n for slot in definition.shape_only for n in op.input(slot)}
    if not all(metas[n].size for n in op.input_arg_names if n != EMPTY and n not in shapes):
        return False
    outs = [metas[n].dtype for n in op.output_arg_names if n != EMPTY]
    exact = op.type in _EXACT or (form.family in _EXACT_FAMILIES and op.type not in _ROUNDING)
    if not exact and not any(dtype.startswith("float") for dtype in outs):
        return False
    if gives_open(op.type, op.inputs, metas):
        return False
    return form.holds(inputs_of(op, metas), attrs_of(op.type, op.attrs, op.inputs, metas))


def _dense(meta: Meta | None) -> bool:
    return (
        meta is not None and meta.type == "LOD_TENSOR" and meta.sequences is None and meta.size >= 0
    )
