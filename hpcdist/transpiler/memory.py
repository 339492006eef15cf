"""`memory_optimize` and `release_memory`: checked, and without effect.

The executor always reuses buffers by lifetime, so there is nothing left to ask for.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hpcdist.errors import PlanError, PlanTypeError
from hpcdist.graph.program import Program


def memory_optimize(
    input_program: Program,
    skip_opt_set: Collection[Any] | None = None,
    print_log: bool = False,
    level: int = 0,
    skip_grads: bool = False,
) -> None:
    """Check the arguments and leave the program as it is."""
    _check_program("memory_optimize", input_program)
    if level not in (0, 1):
        raise PlanError(f"memory_optimize: level must be 0 or 1, got {level!r}")


def release_memory(input_program: Program, skip_opt_set: Collection[Any] | None = None) -> None:
    """Check the arguments and leave the program as it is."""
    _check_program("release_memory", input_program)


def _check_program(function: str, program: Any) -> None:
    if not isinstance(program, Program):
        raise PlanTypeError(f"{function}: expected a Program, got {type(program).__name__}")
