"""What a Program is that was saved, so that a restore can say where another one differs. Pure.

Described is what moves parameters: the variables that are kept, the operators that lead to updates,
and the script's numbers. Names of what is computed on the way do not count, nor do ranks.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpcdist.executor.merging import merge_counter, merged_gradients
from hpcdist.graph.distribution import NOT_DISTRIBUTED
from hpcdist.graph.dtypes import VarType
from hpcdist.graph.op_role import OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.registry import default_attrs

SHOWN = 40  # differences in one error
_LONG = 160  # characters of one
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


@dataclass(frozen=True)
class DescribedOp:
    """An operator: what it does with what, and its numbers, as text, by attribute."""

    text: str
    numbers: Mapping[str, str]


@dataclass(frozen=True)
class Described:
    """A Program that trains: what it keeps, by name, its operators, and its learning rates.

    ``wiring`` is a digest of how the operators are connected.
    """

    variables: Mapping[str, str]
    ops: tuple[DescribedOp, ...]
    rates: Mapping[str, str]
    wiring: str


@dataclass(frozen=True)
class Differences:
    """Where a Program differs: in what it computes, in its numbers, in the rates it begins with.

    ``numbers``: (what, then, now); ``rates``: the same, by variable.
    """

    network: tuple[str, ...] = ()
    numbers: tuple[tuple[str, str, str], ...] = ()
    rates: tuple[tuple[str, str, str], ...] = ()


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


def differences(saved: Described, now: Described) -> Differences:
    """Return where a Program differs from the one that was saved."""
    network = []
    for name in sorted(saved.variables.keys() | now.variables.keys()):
        then, here = saved.variables.get(name), now.variables.get(name)
        if then == here:
            continue
        if here is None:
            network.append(f"{name!r}: {then} in the checkpoint, not in the program")
        elif then is None:
            network.append(f"{name!r}: {here} in the program, not in the checkpoint")
        else:
            network.append(f"{name!r}: {then} in the checkpoint, {here} in the program")
    network = [_short(text) for text in network]
    before, after = Counter(o.text for o in saved.ops), Counter(o.text for o in now.ops)
    network += [f"only in the checkpoint: {_short(text)}" for text in before - after]
    network += [f"only in the program: {_short(text)}" for text in after - before]
    if not network and saved.wiring != now.wiring:
        network.append("the same operators are connected in another way")
    rates = tuple(
        (name, _short(saved.rates[name]), rate)
        for name, rate in now.rates.items()
        if saved.rates.get(name, rate) != rate
    )
    return Differences(tuple(network), tuple(_numbers(saved.ops, now.ops)), rates)


def listed(differences: Sequence[str]) -> str:
    """Return differences as the end of an error, not too many of them."""
    more = len(differences) - SHOWN
    lines = [f"\n  {line}" for line in differences[:SHOWN]]
    return "".join(lines) + (f"\n  ... and {more} more" if more > 0 else "")


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
            fixed.append(f"{name}={value!r:.{_LONG}}")
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


def _numbers(
    before: Sequence[DescribedOp], after: Sequence[DescribedOp]
) -> Iterator[tuple[str, str, str]]:
    """Yield the numbers that differ of operators that are alike, each once."""
    by_text: dict[str, list[DescribedOp]] = {}
    for op in reversed(before):
        by_text.setdefault(op.text, []).append(op)
    told = set()
    for op in after:
        alike = by_text.get(op.text)
        if not alike:
            continue
        then = alike.pop().numbers
        for name, number in op.numbers.items():
            what = f"{op.text.partition('(')[0]}: {name}", _short(then.get(name, number)), number
            if what[1] != number and what not in told:
                told.add(what)
                yield what


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


def _short(text: str) -> str:
    """Return a text, which may be anybody's, as it may be shown."""
    shown = "".join(c if c.isprintable() else "?" for c in text[:_LONG])
    return shown if len(text) <= _LONG else f"{shown}..."
