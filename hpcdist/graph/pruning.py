"""The part of a Program that computes given targets, and the inputs it needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.graph.op_role import OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.owner import OwningProgram
from hpcdist.graph.variable import Variable

Target = Variable | Operator | str


def names_read(op: Operator) -> list[str]:
    """Return the names an operator reads, with outer ones that its nested block reads."""
    names = list(op.input_arg_names)
    if "sub_block" in op.attrs:
        inner = op.block.program.block(op.attrs["sub_block"])
        names += [n for o in inner.ops for n in names_read(o) if n not in inner.vars]
    return names


def cut_to(
    program: OwningProgram,
    targets: Iterable[str],
    feeds: Iterable[str],
    operators: Sequence[Operator] = (),
) -> set[str]:
    """Keep of block 0 what computes ``targets`` and ``operators``; return what is read.

    Nothing that computes ``feeds`` is kept, and no update of a parameter that is not wanted itself.
    All that writes a variable is: an operator may leave parts of it as they were (a branch that is
    not taken, the other places of an array). The names that are returned are those that no kept
    operator writes before they are read.
    """
    fed_names = set(feeds)
    block = program.global_block()
    target_names = set(targets) - fed_names
    needed = set(target_names)
    live: list[Operator] = []
    used = fed_names | set(targets)
    for op in reversed(block.ops):
        updates = op.role & OpRole.OPTIMIZE and op.input("Param")
        if (needed.intersection(op.output_arg_names) and not updates) or any(
            op is one for one in operators
        ):
            live.append(op)
            reads = names_read(op)
            used.update(reads, op.output_arg_names)
            needed |= set(reads) - fed_names
    block.ops = live[::-1]
    lacking: set[str] = set()
    written = set(fed_names)
    for op in block.ops:
        lacking |= set(names_read(op)) - written
        written.update(op.output_arg_names)
    lacking |= target_names - written
    for inner in program.blocks[1:]:
        used.update(n for op in inner.ops for n in (*op.input_arg_names, *op.output_arg_names))
    for name in [name for name in block.vars if name not in used]:
        block.remove_var(name)
    program.touch()
    return lacking


def prune(program: OwningProgram, feeds: Iterable[str], targets: Target | Sequence[Target]) -> None:
    """Keep of a Program just what computes the targets from what is fed.

    Targets are variables, their names, or operators. GraphTypeError for anything else, GraphError
    for a variable that nothing computes.
    """
    target_list = list(targets) if isinstance(targets, (list, tuple)) else [targets]
    names: list[str] = []
    operators: list[Operator] = []
    for target in target_list:
        if isinstance(target, Operator):
            operators.append(program.block(target.block.idx).ops[target.idx])
        elif isinstance(target, (str, Variable)):
            names.append(target if isinstance(target, str) else target.name)
        else:
            raise GraphTypeError(
                f"prune: expected Variables, names or Operators, got {type(target).__name__}"
            )
    fed = set(feeds)
    written = {name for op in program.global_block().ops for name in op.output_arg_names}
    for name in names:
        if name not in written | fed:
            raise GraphError(f"prune: no operator computes the target {name!r}")
    cut_to(program, names, fed, operators)
