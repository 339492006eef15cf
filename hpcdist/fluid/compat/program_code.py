"""Fluid's ``transpiler.details``: Programs as text, and searches in them, for scripts that look."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import IO

from hpcdist.fluid.compat.public_names import public
from hpcdist.graph.block import Block
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program


def op_to_code(op: Operator, skip_op_callstack: bool = True) -> str:
    """Return an operator as text."""
    return str(op)


def program_to_code(
    prog: Program, fout: IO[str] | None = None, skip_op_callstack: bool = True
) -> None:
    """Write a Program as text, by default to stdout."""
    print(prog, file=fout)


def delete_ops(block: Block, ops: Iterable[Operator]) -> None:
    """Drop these operators of a block."""
    dropped = {id(op) for op in ops}
    for index in reversed([i for i, op in enumerate(block.ops) if id(op) in dropped]):
        block.remove_op(index)


def find_op_by_input_arg(block: Block, arg_name: str) -> int:
    """Return the index of the first operator that reads a variable; -1 if there is none."""
    return next((i for i, op in enumerate(block.ops) if arg_name in op.input_arg_names), -1)


def find_op_by_output_arg(block: Block, arg_name: str, reverse: bool = False) -> int:
    """Return the index of the first operator that writes a variable, or the last one; or -1."""
    indices = [i for i, op in enumerate(block.ops) if arg_name in op.output_arg_names]
    return -1 if not indices else indices[-1 if reverse else 0]


def wait_server_ready(endpoints: Sequence[str]) -> None:
    """Return at once: endpoints are names, and trainers wait when they connect."""


__all__ = public(globals())
