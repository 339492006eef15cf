"""`memory_optimize` and `release_memory`: ask the executor for a low peak of memory.

They change no operators or variables. The request is stored on the Program and its copies, so also
on the trainer's program that a later `transpile` makes; the executor applies it when it compiles,
and knows the sizes of all values.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hpcdist.base.errors import PlanError, PlanTypeError
from hpcdist.graph.memory_saving import MemorySaving
from hpcdist.graph.operator import as_names
from hpcdist.graph.program import Program


def memory_optimize(
    input_program: Program,
    skip_opt_set: Collection[Any] | None = None,
    print_log: bool = False,
    level: int = 0,
    skip_grads: bool = False,
) -> None:
    """Reorder operators in the executor so that fewer temporaries live at once; same results.

    Variables (or names) in ``skip_opt_set`` keep a buffer of their unshared. ``skip_grads`` leaves
    updates, and so the lifetimes of gradients, where they are: for a trainer, before `transpile`.
    ``print_log`` tells what was gained whenever the executor compiles the Program.
    ``level`` 0 and 1 are one: buffers of any size share memory.
    """
    if level not in (0, 1):
        raise PlanError(f"memory_optimize: level must be 0 or 1, got {level!r}")
    _ask("memory_optimize", input_program, skip_opt_set, not skip_grads, bool(print_log))


def release_memory(input_program: Program, skip_opt_set: Collection[Any] | None = None) -> None:
    """Reorder operators in the executor so that values are freed early.

    That is `memory_optimize`, or what an earlier call of it asked for.
    """
    _ask("release_memory", input_program, skip_opt_set, True, False)


def _ask(function: str, program: object, skip: object, move_updates: bool, print_log: bool) -> None:
    """Add to what was asked for before."""
    if not isinstance(program, Program):
        raise PlanTypeError(f"{function}: expected a Program, got {type(program).__name__}")
    earlier = program.memory_saving or MemorySaving()
    program.memory_saving = MemorySaving(
        earlier.unshared | _names(function, skip),
        earlier.move_updates and move_updates,
        earlier.print_log or print_log,
    )
    program.touch()


def _names(function: str, chosen: Any) -> frozenset[str]:
    if isinstance(chosen, str):
        raise PlanTypeError(
            f"{function}: skip_opt_set must be a set of names or Variables, got the string "
            f"{chosen!r}; write {{{chosen!r}}}"
        )
    try:
        return frozenset(as_names(list(chosen or ())))
    except (TypeError, AttributeError):
        raise PlanTypeError(
            f"{function}: skip_opt_set must be a set of names or Variables, got {chosen!r}"
        ) from None
