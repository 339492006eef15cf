"""What a trainer's Program exchanges with each server in a step, read off its operators. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdist.errors import GraphError
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Meta
from hpcdist.graph.roles import ROLE_VAR_ATTR
from hpcdist.ps.packets import Packet, VarSpec, plan_packets, twin_packets

REMOTE_LOOKUP = "distributed_lookup_table"

# Asynchronous trainers number their exchanges, and say how many steps are merged in each; the
# answer says how stale what they had read was.
STEP = VarSpec("@STEP@", (2,), "int64")
STALENESS = "@STALENESS@"


@dataclass(frozen=True)
class Block:
    """One gradient block that goes to a server, and the parameter block that comes back."""

    gradient: str  # the name on this trainer
    key: str  # the name that all ranks know it by
    parameter: str
    endpoint: str


@dataclass(frozen=True)
class ServerExchange:
    """The packets between one trainer and one server, the same on both ends."""

    endpoint: str
    blocks: tuple[Block, ...]
    gradients: tuple[Packet, ...]
    parameters: tuple[Packet, ...]
    tables: tuple[VarSpec, ...]  # sparse gradients, by the servers' parts of their tables


def packets_of(
    keys: Mapping[str, str], specs: Sequence[VarSpec], *, numbered: bool
) -> tuple[tuple[Packet, ...], tuple[Packet, ...]]:
    """Return the gradient packets, and their twins of parameters, of one server.

    ``keys`` maps gradient keys to parameter names. Trainers see gradients in backward order,
    servers by block; both sort by key, so both number the packets alike. ``numbered`` adds the
    number of the step, which is answered with the staleness.
    """
    if numbered:
        keys, specs = {**keys, STEP.name: STALENESS}, [*specs, STEP]
    gradients = plan_packets(sorted(specs, key=lambda spec: spec.name))
    return gradients, twin_packets(gradients, keys)


def is_counter(op: Operator) -> bool:
    """Tell whether a send carries a trainer's step counter for a schedule on the servers."""
    counted = op.attrs.get(ROLE_VAR_ATTR, [])[:1]  # GEO's send has none
    return op.type == "send" and bool(counted) and counted == op.input("X")


def key_of(gradient: str, trainer_id: int) -> str:
    """Return the name that all ranks know a gradient by: without its trainer."""
    return gradient.removesuffix(f".trainer_{trainer_id}")


def read_exchange(
    ops: Sequence[Operator],
    metas: Mapping[str, Meta],
    endpoints: Sequence[str],
    trainer_id: int,
    *,
    numbered: bool,
) -> tuple[ServerExchange, ...]:
    """Pair every gradient block sent with the parameter block received, server by server.

    The gradient of a table that is looked up remotely has no parameter that comes back. A step
    counter that is sent for a schedule is left out: servers count the steps that arrive.
    """
    received = {
        op.attrs[ROLE_VAR_ATTR][0]: op.attrs.get("recv_varnames") or op.output("Out")
        for op in ops
        if op.type == "recv" and op.attrs.get(ROLE_VAR_ATTR)
    }
    parts = {op.input("W")[0]: op for op in ops if op.type == REMOTE_LOOKUP}
    blocks: list[Block] = []
    tables: dict[str, list[VarSpec]] = {}
    for op in ops:
        if op.type != "send" or is_counter(op):
            continue
        parameter = op.attrs[ROLE_VAR_ATTR][0]
        gradients = op.attrs.get("send_varnames") or op.input("X")
        if parameter in parts:
            table = metas[parameter]
            heights = parts[parameter].attrs["height_sections"]
            for gradient, height, endpoint in zip(gradients, heights, op.attrs["epmap"]):
                shape = (height, *table.shape[1:])
                spec = VarSpec(key_of(gradient, trainer_id), shape, table.dtype)
                tables.setdefault(endpoint, []).append(spec)
            continue
        pieces = received.get(parameter, [])
        if len(pieces) != len(gradients):
            raise GraphError(
                f"{op}: {len(gradients)} gradient blocks go out, "
                f"but {len(pieces)} blocks of {parameter!r} come back"
            )
        for gradient, piece, endpoint in zip(gradients, pieces, op.attrs["epmap"]):
            blocks.append(Block(gradient, key_of(gradient, trainer_id), piece, endpoint))
    return tuple(
        server_exchange(endpoint, blocks, metas, tables.get(endpoint, []), numbered=numbered)
        for endpoint in endpoints
    )


def server_exchange(
    endpoint: str,
    blocks: Sequence[Block],
    metas: Mapping[str, Meta],
    tables: Sequence[VarSpec],
    *,
    numbered: bool,
) -> ServerExchange:
    """Return the packets of one server: its share of ``blocks``, shaped like their parameters."""
    own = tuple(block for block in blocks if block.endpoint == endpoint)
    specs = [VarSpec(b.key, metas[b.parameter].shape, metas[b.parameter].dtype) for b in own]
    keys = {b.key: b.parameter for b in own}
    gradients, parameters = packets_of(keys, specs, numbered=numbered)
    return ServerExchange(endpoint, own, gradients, parameters, sorted_tables(tables))


def sorted_tables(tables: Sequence[VarSpec]) -> tuple[VarSpec, ...]:
    """Return sparse gradients in the order that both ends number them."""
    return tuple(sorted(tables, key=lambda spec: spec.name))


def contiguous_groups(exchanges: Sequence[ServerExchange]) -> list[list[str]]:
    """Return the names on this trainer that travel in one message, so must lie side by side."""
    groups = []
    for exchange in exchanges:
        local = {b.key: b.gradient for b in exchange.blocks}
        for gradient, parameter in zip(exchange.gradients, exchange.parameters):
            if len(gradient.variables) > 1:
                groups.append([local[v.name] for v in gradient.variables if v.name in local])
                groups.append([v.name for v in parameter.variables if v.name != STALENESS])
    return groups


def sends_blocks(op: Operator) -> bool:
    """Tell whether a send holds what goes to servers as it is; GEO's only says: a step is over."""
    return op.type == "send" and ROLE_VAR_ATTR in op.attrs and not op.attrs.get("send_varnames")


def metas_of(ops: Sequence[Operator], arrays: Mapping[str, Any]) -> dict[str, Meta]:
    """Return the shapes of what is sent, received or looked up."""
    return {
        name: Meta(tuple(arrays[name].shape), arrays[name].dtype.name)
        for op in ops
        if op.type in ("send", "recv", REMOTE_LOOKUP)
        for name in (*op.input("X"), *op.output("Out"), *op.input("W"))
        if name in arrays
    }


def is_async(ops: Sequence[Operator]) -> bool:
    """Tell whether a trainer's step has no barriers: servers answer it by itself."""
    return not any(op.type == "send_barrier" for op in ops)


def buffers_of(exchanges: Sequence[ServerExchange], host: Callable[[str], Any]) -> list[int]:
    """Return the addresses that messages leave from and come to."""
    return [
        host(name).ctypes.data
        for exchange in exchanges
        for block in exchange.blocks
        for name in (block.gradient, block.parameter)
    ]
