"""The block and Program of a variable or operator.

The classes themselves are above: `hpcdist.graph.block.Block` and `hpcdist.graph.program.Program`.
"""

from __future__ import annotations

from typing import Any, Protocol

from hpcdist.graph.op_role import OpRole


class OwningProgram(Protocol):
    """A Program, as its blocks see it."""

    blocks: list[Any]
    random_seed: int
    current_role: OpRole
    current_role_var: tuple[str, ...]
    current_device: str

    def block(self, index: int) -> Any:
        """Return a block by index."""

    def global_block(self) -> Any:
        """Return block 0."""

    def touch(self) -> None:
        """Record that the Program changed."""


class OwningBlock(Protocol):
    """A block, as its variables and operators see it."""

    idx: int
    parent_idx: int
    ops: list[Any]
    vars: dict[str, Any]

    @property
    def program(self) -> OwningProgram:
        """The Program that the block is part of."""

    def find_var(self, name: str) -> Any:
        """Look a variable up in the block and its parents; None if there is none."""
