"""Fluid's module ``debugger``: Programs as text, and blocks as graphs for graphviz."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from hpcdist.graph.block import Block
from hpcdist.graph.program import Program

__all__ = ["draw_block_graphviz", "pprint_block_codes", "pprint_program_codes"]


def pprint_program_codes(program: Program) -> None:
    """Print a Program."""
    print(program)


def pprint_block_codes(block: Block, show_backward: bool = False) -> None:
    """Print a block, gradients and all."""
    print(block)


def draw_block_graphviz(
    block: Block, highlights: Collection[str] | None = None, path: str = "./temp.dot"
) -> None:
    """Write what reads and writes what into a file of graphviz; ``dot -Tpdf`` draws it.

    ``highlights``: names of variables that are drawn in colour.
    """
    coloured = set(highlights or ())
    lines = ["digraph G {"]
    names: dict[str, None] = {}
    for number, op in enumerate(block.ops):
        lines.append(f'  op_{number} [label="{op.type}", shape=box];')
        lines += [f'  "{name}" -> op_{number};' for name in op.input_arg_names]
        lines += [f'  op_{number} -> "{name}";' for name in op.output_arg_names]
        names.update(dict.fromkeys([*op.input_arg_names, *op.output_arg_names]))
    for name in names:
        colour = ", style=filled, fillcolor=orange" if name in coloured else ""
        lines.append(f'  "{name}" [shape=ellipse{colour}];')
    Path(path).write_text("\n".join([*lines, "}", ""]), "utf-8")
