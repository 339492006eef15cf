"""Building nested blocks: which outer variables they read and write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hpcdist.fluid.layers.helper import LayerHelper
from hpcdist.graph import names
from hpcdist.graph.block import Block
from hpcdist.graph.operator import read_before_written
from hpcdist.graph.program import Program
from hpcdist.graph.variable import Variable


class Nested:
    """A block that stands within another, when it is built."""

    def __init__(self, block: Block, parent: Block) -> None:
        self.block, self.parent = block, parent

    def written(self) -> list[str]:
        """Names of outer variables that it writes."""
        written_names = [name for op in self.block.ops for name in op.output_arg_names]
        return [
            name for name in dict.fromkeys(written_names) if self.parent.find_var(name) is not None
        ]

    def taken(self) -> list[str]:
        """Names of outer variables whose values, from before, it needs.

        Among them are those that it writes and that had a value before: what it leaves of that, if
        its condition does not hold, is part of the result.
        """
        names = dict.fromkeys(read_before_written(self.block.ops))
        for name in self.written():
            var = self.parent.find_var(name)
            assert var is not None, "what is written outside is there"
            if not var.persistable and not var.stop_gradient and _has_value(self.parent, name):
                names[name] = None
        return [name for name in names if self.parent.find_var(name) is not None]


def _has_value(block: Block | None, name: str) -> bool:
    while block is not None:
        if any(name in op.output_arg_names for op in block.ops):
            return True
        block = block.parent
    return False


@contextmanager
def nested(program: Program) -> Iterator[Nested]:
    """Build a block within the current one; its operators are all there after the ``with``."""
    parent = program.current_block()
    inside = Nested(program.create_block(), parent)
    try:
        yield inside
    finally:
        program.rollback()


@contextmanager
def conditional_block(conditions: Sequence[Variable], is_scalar: bool) -> Iterator[Block]:
    """Append what is built inside the ``with`` as a block that runs if its conditions hold.

    ``is_scalar``: the first element of the one condition; else whether all conditions have
    elements. Gives the block around it.
    """
    with nested(LayerHelper("conditional_block").main_program) as inside:
        yield inside.parent
    scope = inside.parent.create_var(names.generate("_generated_var"), type="STEP_SCOPES")
    inside.parent.append_op(
        "conditional_block",
        {"Cond": list(conditions), "Input": inside.taken()},
        {"Out": inside.written(), "Scope": scope},
        {"sub_block": inside.block.idx, "is_scalar_condition": is_scalar},
    )
