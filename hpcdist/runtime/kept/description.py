"""What a Program is that is saved, so that a restore can say where another one differs. Pure.

Described is what moves parameters: the variables that are kept, the operators that lead to updates,
and the script's numbers. Names of what is computed on the way do not count, nor do ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from hpcdist.checkpoint.described import LONG, Described, DescribedOp
from hpcdist.executor.merging import merge_counter, merged_gradients
from hpcdist.graph.distribution import NOT_DISTRIBUTED
from hpcdist.graph.dtypes import VarType
from hpcdist.graph.op_role import OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.printing import exact_text
from hpcdist.graph.program import Program
from hpcdist.graph.registry import default_attrs

_UPDATES = OpRole.OPTIMIZE | OpRole.LR_SCHED
# Attributes that follow from how, where or in which order a Program was made.
_NOT_COMPUTED = {
    "is_test",
    "seed",
    "fix_seed",
    "stream",
    "sub_block",
    "use_cudnn",
    "use_mkldnn",
    "force_cpu",
    "min_row_size_to_use_multithread",
}


def fingerprint(program: Program) -> str:
    """Return a digest that is equal for Programs that compute the same."""
    return hashlib.sha256(exact_text(program).encode()).hexdigest()


def describe(program: Program) -> Described | None:
    """Return a Program's description; None if it does not train, or is a rank's own already.

    The latter differs with the number of ranks.
    """
    trains = any(op.input("Param") for op in program.global_block().ops)
    if program.distribution is not NOT_DISTRIBUTED or not trains:
        return None
    # How many steps make an update may change between updates: `restore` compares the numbers.
    merging = {*merged_gradients(program), merge_counter(program)}
    kept = {
        var.name: f"{var.dtype}{list(var.shape)}"
        for var in program.list_vars()
        if var.persistable
        and var.type in (VarType.LOD_TENSOR, VarType.SELECTED_ROWS)
        and var.name not in merging
    }
    ops = list(_that_count(program))
    made: dict[str, str] = {}  # what computes a value: operator and slot
    derived: dict[str, str] = {}  # a digest of all that it is computed from
    described, wiring = [], []
    for op in ops:
        one, digest = _described_op(op, made, derived)
        described.append(one)
        wiring.append(digest)
    rates = {n for op in ops for n in op.input("LearningRate") if n in kept}
    total = hashlib.sha256("\n".join(sorted(wiring)).encode()).hexdigest()
    return Described(kept, tuple(described), _initial(program.startup, rates), total)


def _that_count(program: Program) -> Iterator[Operator]:
    """Yield the operators, of all blocks, that updates come from, but for the backward pass."""
    wanted: set[str] = set()
    counting: set[int] = set()
    for block in reversed(program.blocks):
        for op in reversed(block.ops):
            inside = block.idx > 0
            moves = bool(op.role & _UPDATES)
            if inside or moves or wanted.intersection(op.output_arg_names):
                counting.add(id(op))
                wanted.update(op.input_arg_names)
    for block in program.blocks:
        for op in block.ops:
            communicates = op.type.startswith("c_") or op.role & (OpRole.RPC | OpRole.DIST)
            backward = op.role & OpRole.BACKWARD or op.type.endswith("_grad")
            if id(op) in counting and not backward and not communicates:
                yield op


def _described_op(
    op: Operator, made: dict[str, str], derived: dict[str, str]
) -> tuple[DescribedOp, str]:
    """Describe an operator, and note what it computes; return also the digest of its inputs."""
    slots, sources = [], []
    for slot, names in sorted(op.inputs.items()):
        shown = [made.get(n) or n.partition("@GRAD")[0] + "@GRAD" * ("@GRAD" in n) for n in names]
        slots.append(f"{slot}={','.join(_named(op, n, s) for n, s in zip(names, shown))}")
        sources += [derived.get(n) or s for n, s in zip(names, shown)]
    kept = [n for n in op.output_arg_names if _is_kept(op, n)]
    numbers, fixed = {}, []
    for name, value in sorted({**default_attrs(op.type), **op.attrs}.items()):
        if name in _NOT_COMPUTED or name.startswith("op_"):
            continue
        if isinstance(value, float):
            numbers[name] = repr(value)
        elif not hasattr(value, "ops"):
            fixed.append(f"{name}={value!r:.{LONG}}")
    text = f"{op.type}({', '.join(slots)})" + (f" -> {','.join(kept)}" if kept else "")
    text += f" [{', '.join(fixed)}]" if fixed else ""
    digest = hashlib.sha256(f"{text} {sources}".encode()).hexdigest()
    for slot, names in op.outputs.items():
        for position, name in enumerate(names):
            if not _is_kept(op, name):
                made[name] = f"<{op.type}.{slot}>"
                derived[name] = f"{digest}.{slot}.{position}"
    return DescribedOp(text, numbers), digest


def _named(op: Operator, name: str, shown: str) -> str:
    return name if _is_kept(op, name) else shown


def _is_kept(op: Operator, name: str) -> bool:
    var = op.block.find_var(name)
    return var is not None and bool(var.persistable)


def _initial(startup: Program | None, names: set[str]) -> dict[str, str]:
    """Return the numbers that a startup Program gives to variables."""
    if startup is None:
        return {}
    return {
        name: repr(float(op.attrs["value"]))
        for op in startup.global_block().ops
        if op.type == "fill_constant"
        for name in op.output("Out")
        if name in names
    }
