"""Programs as text: a readable form, and an exact one that ranks compare."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from hpcdist.graph.op_role import ROLE_ATTR, ROLE_VAR_ATTR, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.owner import OwningBlock, OwningProgram
from hpcdist.graph.registry import default_attrs
from hpcdist.graph.variable import Parameter, Variable

_ROLE_WORDS = {
    OpRole.BACKWARD: "backward",
    OpRole.OPTIMIZE: "optimize",
    OpRole.RPC: "rpc",
    OpRole.DIST: "dist",
    OpRole.LR_SCHED: "schedule",
    OpRole.LOSS: "loss",
}
_INDENT = "    "


def role_text(role: OpRole) -> str:
    """Return a role as words: ``backward``, ``loss``, ``optimize+schedule``; forward is empty."""
    return "+".join(word for bit, word in _ROLE_WORDS.items() if role & bit)


def value_text(value: object) -> str:
    """Return an attribute's value, long lists shortened to their ends."""
    if hasattr(value, "shape") and not isinstance(value, (int, float)):
        return f"array{list(value.shape)}"
    if isinstance(value, (list, tuple)) and len(value) > 8:
        return f"[{value[0]!r}, {value[1]!r}, ... {value[-1]!r}] ({len(value)} values)"
    return repr(value)


def op_text(op: Operator, with_details: bool = False) -> str:
    """Return one operator on one line, after it what is special about it, and its role.

    Special are attributes other than the defaults of its type; ``with_details`` shows all.
    """
    defaults = {} if with_details else default_attrs(op.type)
    hidden = () if with_details else (ROLE_ATTR, ROLE_VAR_ATTR, "sub_block")
    attrs = [
        f"{name}={value_text(value)}"
        for name, value in sorted(op.attrs.items())
        if name not in hidden and not (name in defaults and _same(value, defaults[name]))
    ]
    role = role_text(op.role)
    return f"{op}" + (f" {{{', '.join(attrs)}}}" if attrs else "") + (f"  # {role}" if role else "")


def program_text(program: OwningProgram, with_details: bool = False) -> str:
    """Return a Program as text: of each block the variables, then the operators by number.

    The block of a ``conditional_block`` stands below that operator. ``with_details`` shows all
    attributes, and of parameters how they are trained.
    """
    nested = {op.attrs["sub_block"] for b in program.blocks for op in b.ops if _nests(op)}
    return "\n".join(
        line
        for block in program.blocks
        if block.idx not in nested
        for line in _block_lines(block, with_details)
    )


def block_text(block: OwningBlock, with_details: bool = False) -> str:
    """Return one block as it stands in the text of its Program."""
    return "\n".join(_block_lines(block, with_details))


def _block_lines(block: OwningBlock, with_details: bool) -> Iterator[str]:
    parent = "" if block.parent_idx < 0 else f" in block {block.parent_idx}"
    yield f"block {block.idx}{parent}: {len(block.vars)} variables, {len(block.ops)} operators"
    names = max((len(name) for name in block.vars), default=0)
    types = max((len(_type_text(var)) for var in block.vars.values()), default=0)
    for var in block.vars.values():
        kind = _kind_text(var, with_details)
        yield f"{_INDENT}{var.name:{names}}  {_type_text(var):{types}}  {kind}".rstrip()
    digits = len(str(max(0, len(block.ops) - 1)))
    for number, op in enumerate(block.ops):
        yield f"{_INDENT}#{number:<{digits}}  {op_text(op, with_details)}"
        if _nests(op):
            inner = block.program.block(op.attrs["sub_block"])
            yield from (f"{_INDENT * 2}{line}" for line in _block_lines(inner, with_details))


def _nests(op: Operator) -> bool:
    return "sub_block" in op.attrs


def _type_text(var: Variable) -> str:
    # Other kinds hold no numbers of their own, except sparse gradients.
    if var.type not in ("LOD_TENSOR", "SELECTED_ROWS"):
        return var.type
    return f"{var.dtype}{list(var.shape)}" + (" sparse" if var.type == "SELECTED_ROWS" else "")


def _kind_text(var: Variable, with_details: bool) -> str:
    if var.is_data:
        return "data"
    if not isinstance(var, Parameter):
        return "persistable" if var.persistable else ""
    words = ["parameter" if not var.stop_gradient else "parameter, not trainable"]
    if with_details:
        facts = (
            "optimize_attr",
            "regularizer",
            "gradient_clip_attr",
            "is_distributed",
            "row_policy",
        )
        words += [f"{f}={getattr(var, f)}" for f in facts if getattr(var, f)]
    return ", ".join(words)


def _same(value: object, default: object) -> bool:
    return type(value) is type(default) and bool(value == default)


def exact_text(program: OwningProgram) -> str:
    """Return all that a Program computes, nothing shortened: equal text, equal Programs."""
    lines = [f"random_seed {program.random_seed}"]
    for block in program.blocks:
        lines.append(f"block {block.idx} {block.parent_idx}")
        lines += [f"{type(var).__name__} {var} {var.lod_level}" for var in block.vars.values()]
        lines += [f"{var.name} {policy}" for var in block.vars.values() if (policy := _policy(var))]
        for op in block.ops:
            attrs = [f"{name}={_exact_value(value)}" for name, value in sorted(op.attrs.items())]
            lines.append(f"{op} {attrs}")
    return "\n".join(lines)


def _policy(var: Variable) -> object:
    return var.row_policy if isinstance(var, Parameter) else None


def _exact_value(value: Any) -> str:
    if hasattr(value, "tobytes") and not isinstance(value, (int, float)):
        return f"{value.dtype}{value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    return repr(value)
