"""Programs as text that people can read, and that ranks can compare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcdist.graph.roles import ROLE_ATTR, ROLE_VAR_ATTR, Role

if TYPE_CHECKING:
    from hpcdist.graph.operator import Operator
    from hpcdist.graph.program import Program

_ROLE_WORDS = {
    Role.BACKWARD: "backward",
    Role.OPTIMIZE: "optimize",
    Role.RPC: "rpc",
    Role.DIST: "dist",
    Role.LR_SCHED: "schedule",
    Role.LOSS: "loss",
}


def role_text(role: Role) -> str:
    """Return a role as words: ``backward``, ``loss``, ``optimize+schedule``; forward is empty."""
    return "+".join(word for bit, word in _ROLE_WORDS.items() if role & bit)


def value_text(value: Any) -> str:
    """Return an attribute's value, long lists shortened to their ends."""
    if hasattr(value, "shape") and not isinstance(value, (int, float)):
        return f"array{list(value.shape)}"
    if isinstance(value, (list, tuple)) and len(value) > 8:
        return f"[{value[0]!r}, {value[1]!r}, ... {value[-1]!r}] ({len(value)} values)"
    return repr(value)


def op_text(op: Operator) -> str:
    """Return one operator on one line, its role and own attributes behind it."""
    attrs = {k: v for k, v in op.attrs.items() if k not in (ROLE_ATTR, ROLE_VAR_ATTR)}
    inside = ", ".join(f"{k}={value_text(v)}" for k, v in sorted(attrs.items()))
    role = role_text(op.role)
    return f"{op}" + (f" {{{inside}}}" if inside else "") + (f"  # {role}" if role else "")


def program_text(program: Program, with_details: bool = True) -> str:
    """Return a Program as text: per block its variables and its operators."""
    lines: list[str] = []
    for block in program.blocks:
        parent = "" if block.parent_idx < 0 else f" (parent {block.parent_idx})"
        lines.append(f"block {block.idx}{parent}:")
        if with_details:
            lines += [f"    var {var}" for var in block.vars.values()]
        lines += [f"    {op_text(op)}" for op in block.ops]
    return "\n".join(lines) + "\n"
