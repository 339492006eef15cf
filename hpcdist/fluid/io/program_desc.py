"""Programs as Fluid stores them, in ``__model__``: what their messages (`protobuf`) mean."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpcdist.base.element_types import CODES, NAMES
from hpcdist.base.errors import CheckpointError
from hpcdist.fluid.io.program_data import VERSION, from_data
from hpcdist.fluid.io.protobuf import encoded, parsed
from hpcdist.graph.op_role import ROLE_VAR_ATTR
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.registry import INTEGERS, lookup
from hpcdist.graph.variable import Variable
from hpcdist.transpiler.table_metadata import GIVEN_ROWS

Rewrite = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]

INT, BLOCK, LONG, BLOCKS = 0, 8, 9, 10


def _scalar(message: Mapping[str, Any]) -> bool | int | float:
    """Return a number whose type is said beside it."""
    field, kind = SCALARS[message["type"]]
    value: bool | int | float = kind(message.get(field, 0))
    return value


MANY = ("ints", "floats", "strings", "bools", "longs", "blocks_idx", "doubles", "scalars")
SCALARS = {1: ("b", bool), 2: ("i", int), 3: ("r", float)}
# Where an attribute of each type is, and what it is here.
ATTRS: dict[int, tuple[str, Callable[[Any], Any]]] = {
    0: ("i", int),
    1: ("f", float),
    2: ("s", str),
    3: ("ints", int),
    4: ("floats", float),
    5: ("strings", str),
    6: ("b", bool),
    7: ("bools", bool),
    8: ("block_idx", int),
    9: ("l", int),
    10: ("blocks_idx", int),
    11: ("longs", int),
    # Of Paddle 2; what is written is in the types before.
    12: ("doubles", float),
    15: ("d", float),
    16: ("scalar", _scalar),
    17: ("scalars", _scalar),
}
LOD_TENSOR, SELECTED_ROWS, FEED, FETCH = 7, 8, 9, 10
EXACT = ("fill_constant", "fill_constant_batch_size_like")  # a float32, and as text the number
BOOKKEEPING = {"op_callstack", "op_device", "op_namescope", GIVEN_ROWS}


def read_program(data: bytes, file: str, rewrite: Rewrite = list) -> dict[str, Any]:
    """Return {"program": as `program_data.from_data` takes it, "feed": names, "fetch": names}.

    ``rewrite`` replaces operators that there are not here in the blocks.
    CheckpointError naming ``file`` if the bytes are malformed, or say what cannot be run.
    """
    try:
        blocks = parsed("program", memoryview(data)).get("blocks", [])
        if not blocks:
            raise ValueError("no blocks")
        feeds, fetches = _ends(blocks[0])
        plain = rewrite([_block(b) for b in blocks])
        program = {"version": VERSION, "random_seed": 0, "blocks": plain}
        return {"program": program, "feed": feeds, "fetch": fetches}
    except (ValueError, KeyError, IndexError, struct.error, RecursionError) as error:
        raise CheckpointError(
            f"{file}: neither a model of hpcdist nor one of Fluid's ({error})"
        ) from None


def write_program(
    program: Program, feeds: Sequence[str], fetches: Sequence[str], rewrite: Rewrite = list
) -> bytes:
    """Return a Program as Fluid's ``__model__``, with operators that feed and fetch.

    ``rewrite`` replaces operators in the messages of the blocks. CheckpointError if the Program has
    what Fluid's format cannot say.
    """
    blocks = rewrite(_block_messages(program))
    for name, kind in (("feed", FEED), ("fetch", FETCH)):
        blocks[0]["vars"].append({"name": name, "type": {"type": kind}, "persistable": 1})
    first = [_end("feed", {"X": ["feed"]}, {"Out": [n]}, k) for k, n in enumerate(feeds)]
    last = [_end("fetch", {"X": [n]}, {"Out": ["fetch"]}, k) for k, n in enumerate(fetches)]
    blocks[0]["ops"] = first + blocks[0]["ops"] + last
    return encoded("program", {"blocks": blocks})


def program_bytes(program: Program, rewrite: Rewrite = list) -> bytes:
    """Return a Program in Fluid's format, as it stands; CheckpointError as `write_program`."""
    return encoded("program", {"blocks": rewrite(_block_messages(program))})


def parsed_program(
    data: bytes, source: str = "Program.parse_from_string", rewrite: Rewrite = list
) -> Program:
    """Return the Program in Fluid's format; CheckpointError, with the source, if bytes are none.

    As in Fluid its parameters are variables that are kept from step to step.
    """
    return from_data(read_program(data, source, rewrite)["program"], source)


def _block_messages(program: Program) -> list[dict[str, Any]]:
    return [
        {
            "idx": block.idx,
            "parent_idx": block.parent_idx,
            "vars": [_var_message(var) for var in block.vars.values()],
            "ops": [_op_message(op) for op in block.ops],
        }
        for block in program.blocks
    ]


# -- what they mean ------------------------------------------------------------------------------
def _ends(block: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the names of feeds and fetches, in order."""
    feeds: dict[int, str] = {}
    fetches: dict[int, str] = {}
    for op in block.get("ops", []):
        for kind, side, names in (("feed", "outputs", feeds), ("fetch", "inputs", fetches)):
            if op["type"] == kind:
                ((name,),) = _slots(op, side).values()
                names[_attrs(op)["col"]] = name
    return [feeds[k] for k in sorted(feeds)], [fetches[k] for k in sorted(fetches)]


def _block(message: Mapping[str, Any]) -> dict[str, Any]:
    ops = [op for op in message.get("ops", []) if op["type"] not in ("feed", "fetch")]
    variables = [_var(var) for var in message.get("vars", [])]
    return {
        "parent": message["parent_idx"],
        "vars": [var for var in variables if var is not None],
        "ops": [_op(op) for op in ops],
    }


def _var(message: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a variable; None for what only Fluid's feed and fetch operators use."""
    kind, of = message["type"]["type"], message["type"]
    level = 0
    if kind == LOD_TENSOR:
        tensor, level = of["lod_tensor"]["tensor"], of["lod_tensor"].get("lod_level", 0)
    elif kind == SELECTED_ROWS:
        tensor = of["selected_rows"]
    else:
        return None
    if tensor["data_type"] not in NAMES:
        raise ValueError(f"variable {message['name']!r} of data type {tensor['data_type']}")
    return {
        "name": message["name"],
        "parameter": False,
        "shape": tensor.get("dims", []),
        "dtype": NAMES[tensor["data_type"]],
        "type": "LOD_TENSOR" if kind == LOD_TENSOR else "SELECTED_ROWS",
        "persistable": bool(message.get("persistable", 0)),
        "stop_gradient": False,
        "lod_level": level,
        "is_data": bool(message.get("need_check_feed", 0)),
        "checks_feed": bool(message.get("need_check_feed", 0)),
    }


def _op(message: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": message["type"],
        "inputs": _slots(message, "inputs"),
        "outputs": _slots(message, "outputs"),
        "attrs": _attrs(message),
    }


def _slots(op: Mapping[str, Any], side: str) -> dict[str, list[str]]:
    slots = {slot["parameter"]: slot.get("arguments", []) for slot in op.get(side, [])}
    return {name: names for name, names in slots.items() if names}


def _attrs(op: Mapping[str, Any]) -> dict[str, Any]:
    attrs: dict[str, Any] = {}
    for message in op.get("attrs", []):
        if message["name"] in BOOKKEEPING or (
            message["name"] == ROLE_VAR_ATTR and "strings" not in message
        ):
            continue
        field, kind = ATTRS[message["type"]]
        if field in MANY:
            value: Any = [kind(v) for v in message.get(field, [])]
        else:
            value = kind(message[field])
        if message["name"].endswith("dtype") and kind is int:
            if value == -1:  # Fluid's default: none is said
                continue
            value = NAMES.get(value, value)
        attrs[message["name"]] = value
    return attrs


# -- and back ------------------------------------------------------------------------------------
def _var_message(var: Variable) -> dict[str, Any]:
    tensor = {"data_type": CODES[var.dtype], "dims": list(var.shape)}
    kind: dict[str, Any] = {"type": SELECTED_ROWS, "selected_rows": tensor}
    if var.type == "LOD_TENSOR":
        dense = {"tensor": tensor, "lod_level": var.lod_level}
        kind = {"type": LOD_TENSOR, "lod_tensor": dense}
    persistable, fed = int(var.persistable), int(var.is_data)
    return {"name": var.name, "type": kind, "persistable": persistable, "need_check_feed": fed}


def attr_type(op: Operator, name: str) -> int:
    """Return the number that Fluid's format has for the type of an attribute, as in `ATTRS`."""
    return int(_attr_message(op, name, op.attrs[name], lookup(op.type).attrs.get(name))["type"])


def _end(type: str, inputs: Any, outputs: Any, column: int) -> dict[str, Any]:
    attrs = [{"name": "col", "type": INT, "i": column}]
    return {
        "type": type,
        "inputs": _slot_messages(inputs),
        "outputs": _slot_messages(outputs),
        "attrs": attrs,
    }


def _op_message(op: Operator) -> dict[str, Any]:
    defaults = lookup(op.type).attrs
    attrs = []
    said = {**defaults, **op.attrs}
    if op.type in EXACT:
        kind = int if said["dtype"] in INTEGERS else float
        said["str_value"] = str(kind(said["value"]))
    for name, value in said.items():
        # Of an empty list nobody knows the type; readers have the same default.
        empty = isinstance(value, (list, tuple)) and not value
        none = value is None or (empty and not defaults.get(name, True))
        none = none or (name == ROLE_VAR_ATTR and not value)
        if not none and name not in BOOKKEEPING:
            attrs.append({"name": name, **_attr_message(op, name, value, defaults.get(name))})
    return {
        "type": op.type,
        "inputs": _slot_messages(op.inputs),
        "outputs": _slot_messages(op.outputs),
        "attrs": attrs,
    }


def _slot_messages(slots: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    return [{"parameter": slot, "arguments": list(names)} for slot, names in slots.items()]


def _attr_message(op: Operator, name: str, value: Any, default: Any) -> dict[str, Any]:
    """Return an attribute with Fluid's type, which follows from the default's, or the value's."""
    if name == "sub_block":
        return {"type": BLOCK, "block_idx": value}
    if name == "optimize_blocks":
        return {"type": BLOCKS, "blocks_idx": value}
    if name.endswith("dtype") and value in CODES:
        return {"type": INT, "i": CODES[value]}
    many = isinstance(value, (list, tuple))
    values = list(value) if many else [value]
    kind = type(default) if default is not None and not many else type(values[0] if values else 0)
    for number, (field, kind_of_attr) in ATTRS.items():
        if kind_of_attr is kind and (field in MANY) == many:
            plain = [int(v) if kind is bool else v for v in values]
            wide = kind is int and any(not -(1 << 31) <= v < 1 << 31 for v in plain)
            if wide:
                number, field = (11, "longs") if many else (LONG, "l")
            return {"type": number, field: plain if many else plain[0]}
    raise CheckpointError(
        f"{op.place} {op}: attribute {name!r} is a {type(value).__name__}, which Fluid's format "
        "cannot hold"
    )
