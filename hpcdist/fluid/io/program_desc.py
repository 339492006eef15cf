"""Programs as Fluid stores them, in ``__model__``: protobuf, read and written without its library.

A message is fields: a varint (number << 3 | wire type), then the value. Nested messages have their
length first. Fields not in `TABLES` are skipped, as protobuf does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcdist.base.errors import CheckpointError
from hpcdist.checkpoint.fluid_files import CODES, NAMES, as_varint
from hpcdist.fluid.io.program_data import VERSION, from_data
from hpcdist.graph.op_role import ROLE_VAR_ATTR
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.registry import lookup
from hpcdist.graph.variable import Variable

# Of each message: number -> (name, what it is, whether it comes many times).
TABLES: dict[str, dict[int, tuple[str, str, bool]]] = {
    "program": {1: ("blocks", "block", True)},
    "block": {
        1: ("idx", "int", False),
        2: ("parent_idx", "int", False),
        3: ("vars", "var", True),
        4: ("ops", "op", True),
    },
    "var": {
        1: ("name", "text", False),
        2: ("type", "type", False),
        3: ("persistable", "int", False),
        4: ("need_check_feed", "int", False),
    },
    "type": {
        1: ("type", "int", False),
        2: ("selected_rows", "tensor", False),
        3: ("lod_tensor", "lod_tensor", False),
    },
    "lod_tensor": {1: ("tensor", "tensor", False), 2: ("lod_level", "int", False)},
    "tensor": {1: ("data_type", "int", False), 2: ("dims", "int", True)},
    "op": {
        1: ("inputs", "slot", True),
        2: ("outputs", "slot", True),
        3: ("type", "text", False),
        4: ("attrs", "attr", True),
    },
    "slot": {1: ("parameter", "text", False), 2: ("arguments", "text", True)},
    "attr": {
        1: ("name", "text", False),
        2: ("type", "int", False),
        3: ("i", "int", False),
        4: ("f", "float", False),
        5: ("s", "text", False),
        6: ("ints", "int", True),
        7: ("floats", "float", True),
        8: ("strings", "text", True),
        10: ("b", "int", False),
        11: ("bools", "int", True),
        12: ("block_idx", "int", False),
        13: ("l", "int", False),
        14: ("blocks_idx", "int", True),
        15: ("longs", "int", True),
    },
}
INT, BLOCK, LONG, BLOCKS = 0, 8, 9, 10
MANY = ("ints", "floats", "strings", "bools", "longs", "blocks_idx")
# Where an attribute of each type is, and what it is here.
ATTRS = {
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
}
LOD_TENSOR, SELECTED_ROWS, FEED, FETCH = 7, 8, 9, 10
BOOKKEEPING = {"op_callstack", "op_device", "op_namescope"}
# What an operator that does not know these attributes does anyway.
ONLY = {
    "data_format": ("NCHW", "AnyLayout", ""),
    "data_layout": ("NCHW", "AnyLayout", ""),
    "padding_algorithm": ("EXPLICIT",),
}


def read_program(data: bytes, file: str) -> dict[str, Any]:
    """Return {"program": as `program_data.from_data` takes it, "feed": names, "fetch": names}.

    CheckpointError naming ``file`` if the bytes are malformed, or say what cannot be run.
    """
    try:
        blocks = _message("program", memoryview(data)).get("blocks", [])
        if not blocks:
            raise ValueError("no blocks")
        feeds, fetches = _ends(blocks[0])
        program = {"version": VERSION, "random_seed": 0, "blocks": [_block(b) for b in blocks]}
        return {"program": program, "feed": feeds, "fetch": fetches}
    except (ValueError, KeyError, IndexError, struct.error, RecursionError) as error:
        raise CheckpointError(
            f"{file}: neither a model of hpcdist nor one of Fluid's ({error})"
        ) from None


def write_program(program: Program, feeds: Sequence[str], fetches: Sequence[str]) -> bytes:
    """Return a Program as Fluid's ``__model__``, with operators that feed and fetch.

    CheckpointError if it has what Fluid's format cannot say.
    """
    blocks = _block_messages(program)
    for name, kind in (("feed", FEED), ("fetch", FETCH)):
        blocks[0]["vars"].append({"name": name, "type": {"type": kind}, "persistable": 1})
    first = [_end("feed", {"X": ["feed"]}, {"Out": [n]}, k) for k, n in enumerate(feeds)]
    last = [_end("fetch", {"X": [n]}, {"Out": ["fetch"]}, k) for k, n in enumerate(fetches)]
    blocks[0]["ops"] = first + blocks[0]["ops"] + last
    return _encoded("program", {"blocks": blocks})


def program_bytes(program: Program) -> bytes:
    """Return a Program in Fluid's format, as it stands; CheckpointError as `write_program`."""
    return _encoded("program", {"blocks": _block_messages(program)})


def parsed_program(data: bytes) -> Program:
    """Return the Program in Fluid's format; CheckpointError if the bytes are none.

    As in Fluid its parameters are variables that are kept from step to step.
    """
    source = "Program.parse_from_string"
    return from_data(read_program(data, source)["program"], source)


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


# -- bytes ---------------------------------------------------------------------------------------
def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            value &= (1 << 64) - 1
            return (value - (1 << 64) if value >> 63 else value), at
    raise ValueError("a number of more than 64 bits")


def _fields(data: memoryview) -> Iterator[tuple[int, int, Any]]:
    """Yield (number, wire type, value) of a message: a number, or bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, wire, value
            continue
        if wire == 2:
            length, at = _varint(data, at)
        else:
            length = {1: 8, 5: 4}[wire]
        if not 0 <= length <= len(data) - at:
            raise ValueError(f"field {number} of {length} bytes reaches beyond the end")
        yield number, wire, data[at : at + length]
        at += length


def _message(kind: str, data: memoryview) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for number, wire, value in _fields(data):
        if number not in TABLES[kind]:
            continue
        name, kind_of_field, many = TABLES[kind][number]
        values = _values(kind_of_field, wire, value)
        if many:
            fields.setdefault(name, []).extend(values)
        else:
            (fields[name],) = values
    return fields


def _values(kind: str, wire: int, value: Any) -> list[Any]:
    """Return what a field holds: of numbers several, if they are packed."""
    if kind == "int" and wire == 0:
        return [value]
    if kind == "float" and wire == 5:
        return list(struct.unpack("<f", value))
    if wire != 2:
        raise ValueError(f"a field of wire type {wire} where {kind} is expected")
    if kind == "text":
        return [bytes(value).decode()]
    if kind == "float":
        return list(struct.unpack(f"<{len(value) // 4}f", value))
    if kind == "int":
        numbers, at = [], 0
        while at < len(value):
            number, at = _varint(value, at)
            numbers.append(number)
        return numbers
    return [_message(kind, value)]


# -- what they mean ------------------------------------------------------------------------------
def _ends(block: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return what is fed and fetched, in order."""
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
    attrs, attrs_of_kind = _attrs(message), lookup(message["type"]).attrs
    for name, value in attrs.items():
        if name in ONLY and name not in attrs_of_kind and value not in ONLY[name]:
            raise ValueError(f"operator {message['type']} with {name}={value!r}")
    return {
        "type": message["type"],
        "inputs": _slots(message, "inputs"),
        "outputs": _slots(message, "outputs"),
        "attrs": attrs,
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
        if message["name"].endswith("dtype") and value in NAMES and kind is int:
            value = NAMES[value]
        attrs[message["name"]] = value
    return attrs


# -- and back ------------------------------------------------------------------------------------
def _encoded(kind: str, message: Mapping[str, Any]) -> bytes:
    parts = []
    for number, (name, kind_of_field, many) in TABLES[kind].items():
        if name not in message:
            continue
        for value in message[name] if many else [message[name]]:
            if kind_of_field == "int":
                parts.append(as_varint(number << 3) + as_varint(value & (1 << 64) - 1))
            elif kind_of_field == "float":
                parts.append(as_varint(number << 3 | 5) + struct.pack("<f", value))
            else:
                data = value.encode() if kind_of_field == "text" else _encoded(kind_of_field, value)
                parts.append(as_varint(number << 3 | 2) + as_varint(len(data)) + data)
    return b"".join(parts)


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
    for name, value in {**defaults, **op.attrs}.items():
        none = value is None or (name == ROLE_VAR_ATTR and not value)
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
