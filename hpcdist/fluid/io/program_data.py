"""Programs as plain data: what an inference model is stored as. No code is ever loaded."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from hpcdist.base.errors import CheckpointError, GraphError
from hpcdist.base.plain_data import typed
from hpcdist.graph.block import Block
from hpcdist.graph.op_role import ROLE_ATTR, ROLE_VAR_ATTR
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.registry import check_read, lookup
from hpcdist.graph.unread import as_read
from hpcdist.graph.variable import Parameter, Variable

VERSION = 1


@dataclass(frozen=True)
class _Facts:
    """What is said of a variable beside its name."""

    shape: Any  # integers, -1 where the batch size goes
    dtype: str
    type: str
    persistable: bool
    stop_gradient: bool
    lod_level: int
    is_data: bool
    checks_feed: bool = True  # as where it is not said: earlier releases checked all


_FACTS = tuple(field.name for field in fields(_Facts))
_TRUTHS = ("persistable", "stop_gradient", "is_data", "checks_feed")


def to_data(program: Program) -> dict[str, Any]:
    """Return a Program as plain data; CheckpointError for attributes that are none."""
    blocks = [
        {
            "parent": block.parent_idx,
            "vars": [_variable(var) for var in block.vars.values()],
            "ops": [_operator(op) for op in block.ops],
        }
        for block in program.blocks
    ]
    return {"version": VERSION, "random_seed": program.random_seed, "blocks": blocks}


def from_data(data: Any, file: str) -> Program:
    """Return the Program that is described; CheckpointError naming ``file`` if none is."""
    try:
        if data["version"] != VERSION:
            raise CheckpointError(
                f"{file}: a program in version {data['version']!r} of the format, this release "
                f"reads version {VERSION}"
            )
        program = Program()
        program.random_seed = int(data["random_seed"])
        parents = [int(block["parent"]) for block in data["blocks"]]
        if any(parent >= i or (parent < 0) != (i == 0) for i, parent in enumerate(parents)):
            raise ValueError(f"blocks with parents {parents!r:.80}")
        program.blocks = [Block(program, i, parent) for i, parent in enumerate(parents)]
        for block, plain in zip(program.blocks, data["blocks"]):
            for var in plain["vars"]:
                block.add_var(_as_variable(block, var))
            for op in plain["ops"]:
                block.add_op(_as_operator(block, op))
        if not program.blocks:
            raise ValueError("no blocks")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, GraphError):
            raise CheckpointError(f"{file}: its program cannot be built: {error}") from None
        raise CheckpointError(f"{file}: malformed program ({error!r})") from None
    return program


def _variable(var: Variable) -> dict[str, Any]:
    facts = {name: getattr(var, name) for name in _FACTS}
    facts |= {name: bool(facts[name]) for name in _TRUTHS}  # a script may have set 1
    return {"name": var.name, "parameter": isinstance(var, Parameter), **facts}


def _as_variable(block: Block, plain: Mapping[str, Any]) -> Variable:
    facts = vars(typed(_Facts, plain)).copy()
    facts["shape"] = tuple(int(d) for d in facts["shape"])
    name = str(plain["name"])
    if not plain["parameter"]:
        return Variable(block, name, **facts)
    trainable = not facts.pop("stop_gradient")
    facts.pop("persistable")
    return Parameter(block, name, trainable=trainable, **facts)


def _operator(op: Operator) -> dict[str, Any]:
    attrs = {}
    for name, value in op.attrs.items():
        try:
            attrs[name] = _plain(value)
        except TypeError:
            raise CheckpointError(
                f"{op.place} {op}: attribute {name!r} is a {type(value).__name__}, which cannot be "
                "saved as plain data"
            ) from None
    return {"type": op.type, "inputs": op.inputs, "outputs": op.outputs, "attrs": attrs}


def _as_operator(block: Block, plain: Mapping[str, Any]) -> Operator:
    definition = lookup(plain["type"])
    if definition.by_number:
        raise GraphError(
            f"operator {plain['type']} calls a function, or a module, of the process that built "
            "the program; a stored program cannot have it: build the program in the script, and "
            "load its parameters only"
        )
    attrs = {str(name): _value(value) for name, value in plain["attrs"].items()}
    attrs = as_read(definition, attrs)
    if "sub_block" in attrs:
        inner = attrs["sub_block"]
        if type(inner) is not int or not block.idx < inner < len(block.program.blocks):
            raise ValueError(f"operator {plain['type']} with sub_block {inner!r:.80}")
    inputs, outputs = (
        {str(slot): [str(n) for n in names] for slot, names in plain[side].items()}
        for side in ("inputs", "outputs")
    )
    check_read(definition, inputs)
    for slot in definition.inputs:
        if not slot.optional and len(inputs.get(slot.name, ())) != 1:
            raise ValueError(f"operator {plain['type']} with {slot.name} = {inputs.get(slot.name)}")
    for name, default in definition.attrs.items():
        if name in attrs and not _fits(attrs[name], default):
            kind = type(default).__name__
            raise ValueError(
                f"operator {plain['type']} with {name}={attrs[name]!r:.80}, expected {kind}"
            )
    typed(tuple[str, ...], attrs.get(ROLE_VAR_ATTR, []))
    typed(int, attrs.get(ROLE_ATTR, 0))
    return Operator(block, str(plain["type"]), inputs, outputs, attrs)


def _fits(value: object, default: object) -> bool:
    """Return whether an attribute may be a value, by its default. Lists may hold anything plain."""
    if default is None:
        return True
    if isinstance(default, (list, tuple)):
        return isinstance(value, (list, tuple))
    if isinstance(default, bool):
        return isinstance(value, bool) or (isinstance(value, int) and value in (0, 1))
    if isinstance(default, int):
        return isinstance(value, int) and abs(value) < 1 << 63
    if isinstance(default, float):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, type(default))


def _plain(value: object) -> Any:
    """Return an attribute as JSON says it; what JSON cannot say is a dict with one key."""
    if isinstance(value, np.ndarray):
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"array": [value.dtype.name, list(value.shape), data]}
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if value is None or isinstance(value, (bool, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    raise TypeError


def _value(plain: Any) -> Any:
    if isinstance(plain, dict):
        ((kind, content),) = plain.items()
        if kind == "float":
            return float(content)
        if kind == "array":
            dtype, shape, data = content
            if np.dtype(str(dtype)).kind not in "biuf":
                raise ValueError(f"array of {dtype}")
            return np.frombuffer(base64.b64decode(data), dtype).reshape(shape).copy()
        raise ValueError(f"attribute of kind {kind!r}")
    return [_value(item) for item in plain] if isinstance(plain, list) else plain
