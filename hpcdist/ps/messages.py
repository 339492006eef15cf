"""Control messages: a fixed little-endian header, then JSON; everything off the step path.

The header is 32 bytes: magic, protocol version, kind, trainer, step, payload length. Nothing is
pickled; bytes that are not such a message raise CommError.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from hpcdist.base.errors import CommError
from hpcdist.comm.base import Array
from hpcdist.ps.batch import TableSpec
from hpcdist.ps.packets import Packet, VarSpec

MAGIC = b"HPCD"
VERSION = 1
HEADER = struct.Struct("<4sHHI4xQQ")
MAX_PAYLOAD = 1 << 28

# Tags. A packet's own tag counts from 0 and is added to these two bases.
GRADIENT_TAG = 1 << 10
PARAMETER_TAG = 1 << 14
REQUEST_TAG = 1  # trainer to server: header, then payload
REPLY_TAG = 2  # server to trainer: header, then payload
VALUE_TAG = 3  # server to trainer: the values asked for by READ or PULL, in the order asked
VERDICT_TAG = 5  # server to trainer: the answer to DIED, which may come between other answers
ROWS_TAG = 4  # trainer to server: the ids of a PULL, the rows and values of a PUSH

ASSIGN = "assign"  # what a request of CHECKPOINT does: set numbers, such as a learning rate


class MessageKind(IntEnum):
    """What a control message asks or answers."""

    HELLO = 1
    HELLO_OK = 2
    REFUSED = 3
    READ = 4
    VALUE = 5
    CLOSE = 6
    PULL = 7
    PUSH = 8
    CHANGED = 9
    CHECKPOINT = 10
    DIED = 11
    KEEP = 12  # what servers that run no script are to keep; before HELLO
    TABLE_PULL = 20  # these three have no JSON after the header: see `tables.py`
    TABLE_PEEK = 21
    TABLE_PUSH = 22


TABLE_KINDS = frozenset((MessageKind.TABLE_PULL, MessageKind.TABLE_PEEK, MessageKind.TABLE_PUSH))


@dataclass(frozen=True)
class Header:
    """The fixed part of a control message."""

    kind: MessageKind
    trainer: int
    step: int
    length: int


def encode(
    kind: MessageKind, trainer: int, step: int, payload: object = None
) -> tuple[Array, Array]:
    """Return (header, payload) as uint8 arrays; ``payload`` is anything JSON can say."""
    body = b"" if payload is None else json.dumps(payload, allow_nan=False).encode()
    return encode_header(kind, trainer, step, len(body)), np.frombuffer(body, np.uint8)


def encode_header(kind: MessageKind, trainer: int, step: int, length: int) -> Array:
    """Return the header of a message whose payload has ``length`` bytes, as uint8."""
    return np.frombuffer(HEADER.pack(MAGIC, VERSION, kind, trainer, step, length), np.uint8)


def decode_header(data: Array) -> Header:
    """Return the header in ``data``, or raise CommError telling what is wrong with it."""
    if data.nbytes != HEADER.size:
        raise CommError(f"malformed message: a header has {HEADER.size} bytes, got {data.nbytes}")
    magic, version, kind, trainer, step, length = HEADER.unpack(data.tobytes())
    if magic != MAGIC:
        raise CommError(f"malformed message: expected magic {MAGIC!r}, got {magic!r}")
    if version != VERSION:
        raise CommError(f"protocol version differs: expected {VERSION}, got {version}")
    if kind not in MessageKind.__members__.values():
        raise CommError(f"malformed message: unknown kind {kind}")
    if length > MAX_PAYLOAD and kind not in TABLE_KINDS:
        raise CommError(f"malformed message: payload of {length} bytes, at most {MAX_PAYLOAD}")
    return Header(MessageKind(kind), trainer, step, length)


def decode_payload(data: Array) -> Any:
    """Return the decoded payload; None for an empty one."""
    if not data.nbytes:
        return None
    try:
        return json.loads(data.tobytes().decode())
    except ValueError as error:
        raise CommError(f"malformed message: payload is not JSON ({error})") from error


@dataclass(frozen=True)
class Hello:
    """What trainer and server must agree on before the first step.

    ``gradients`` are the packets a trainer sends each step, named alike by all trainers;
    ``parameters[i]`` is the answer to ``gradients[i]``. ``tables`` are the sparse gradients, with
    the shape of the server's part of the table; ``row_tables`` are the distributed tables.
    ``fingerprint`` is equal on ranks that run the same Program.
    """

    trainers: int
    sync_mode: bool
    fingerprint: str
    gradients: tuple[Packet, ...]
    parameters: tuple[Packet, ...]
    tables: tuple[VarSpec, ...] = ()
    row_tables: tuple[TableSpec, ...] = ()

    def __post_init__(self) -> None:
        if [p.nbytes for p in self.gradients] != [p.nbytes for p in self.parameters]:
            sizes = [[p.nbytes for p in side] for side in (self.gradients, self.parameters)]
            raise CommError(
                f"every gradient packet is answered by a parameter packet of its size, got "
                f"gradients of {sizes[0]} bytes and parameters of {sizes[1]}"
            )


def hello_payload(hello: Hello) -> dict[str, Any]:
    """Return ``hello`` as JSON says it."""
    return {
        "trainers": hello.trainers,
        "sync_mode": hello.sync_mode,
        "fingerprint": hello.fingerprint,
        "gradients": [_packet_payload(p) for p in hello.gradients],
        "parameters": [_packet_payload(p) for p in hello.parameters],
        "tables": specs_payload(hello.tables),
        "row_tables": [[t.name, t.width, t.dict_size, t.padding] for t in hello.row_tables],
    }


def parse_hello(payload: Any) -> Hello:
    """Return the Hello in a payload, or raise CommError."""
    try:
        return Hello(
            int(payload["trainers"]),
            bool(payload["sync_mode"]),
            str(payload["fingerprint"]),
            tuple(_parse_packet(p) for p in payload["gradients"]),
            tuple(_parse_packet(p) for p in payload["parameters"]),
            parse_specs(payload["tables"]),
            tuple(TableSpec(*table) for table in payload["row_tables"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CommError(f"malformed message: HELLO payload ({error!r})") from error


def specs_payload(specs: Sequence[VarSpec]) -> list[list[Any]]:
    """Return variables as JSON says them."""
    return [[spec.name, list(spec.shape), spec.dtype] for spec in specs]


def parse_specs(payload: Any) -> tuple[VarSpec, ...]:
    """Return the variables in a payload, or raise CommError."""
    try:
        return tuple(
            VarSpec(str(n), tuple(int(d) for d in shape), str(t)) for n, shape, t in payload
        )
    except (TypeError, ValueError) as error:
        raise CommError(f"malformed message: list of variables ({error!r})") from error


def difference(expected: Hello, got: Hello) -> str | None:
    """Return the first thing the two differ in, naming the variable; None if they agree."""
    if got.trainers != expected.trainers:
        return f"number of trainers: expected {expected.trainers}, got {got.trainers}"
    if got.sync_mode != expected.sync_mode:
        return f"sync_mode: expected {expected.sync_mode}, got {got.sync_mode}"
    for label, ours, theirs in (
        ("gradient", expected.gradients, got.gradients),
        ("parameter", expected.parameters, got.parameters),
    ):
        differing = _packets_difference(label, ours, theirs)
        if differing:
            return differing
    if got.tables != expected.tables:
        sides = [", ".join(map(str, hello.tables)) for hello in (expected, got)]
        return f"sparse gradients: expected ({sides[0]}), got ({sides[1]})"
    if got.row_tables != expected.row_tables:
        sides = [", ".join(map(str, hello.row_tables)) for hello in (expected, got)]
        return f"distributed tables: expected ({sides[0]}), got ({sides[1]})"
    if got.fingerprint != expected.fingerprint:
        return (
            f"program fingerprint: expected {expected.fingerprint[:8]}, "
            f"got {got.fingerprint[:8]}; layers, optimizer, regularizer "
            "and the arguments of transpile must be the same on all ranks, and the program "
            "complete when its startup program runs: servers take over what there is then"
        )
    return None


def _packets_difference(
    label: str, expected: tuple[Packet, ...], got: tuple[Packet, ...]
) -> str | None:
    specs = {spec.name: spec for packet in expected for spec in packet.variables}
    came = {spec.name: spec for packet in got for spec in packet.variables}
    for name, spec in specs.items():
        if came.get(name) != spec:
            return f"{label} {name}: expected {spec}, got {came.get(name, 'no such variable')}"
    for name, spec in came.items():
        if name not in specs:
            return f"{label} {name}: expected no such variable, got {spec}"
    for ours, theirs in zip(expected, got, strict=False):
        if ours != theirs:
            return f"{label} packet {ours.tag}: expected ({ours}), got ({theirs})"
    if len(expected) != len(got):
        return f"{label} packets: expected {len(expected)}, got {len(got)}"
    return None


def _packet_payload(packet: Packet) -> dict[str, Any]:
    return {
        "tag": packet.tag,
        "variables": specs_payload(packet.variables),
        "nbytes": packet.nbytes,
        "offsets": list(packet.offsets),
    }


def _parse_packet(payload: Any) -> Packet:
    return Packet(
        int(payload["tag"]),
        parse_specs(payload["variables"]),
        int(payload["nbytes"]),
        tuple(int(o) for o in payload["offsets"]),
    )
