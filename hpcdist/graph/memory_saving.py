"""What a Program asks of its memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MemorySaving:
    """A wish that the executor orders a Program's operators for a low peak of memory.

    ``unshared`` names variables that share their buffer with no other; without ``move_updates``
    gradients live until the updates where these stand; ``print_log`` tells what was gained.
    """

    unshared: frozenset[str] = frozenset()
    move_updates: bool = True
    print_log: bool = False
