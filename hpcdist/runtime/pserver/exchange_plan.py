"""What a trainer and a server exchange in a step, derived from the plan by both. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpcdist.base.errors import CommError
from hpcdist.ps.packets import Packet, VarSpec, plan_packets, twin_packets
from hpcdist.ps.plan import Plan, Route

# Asynchronous trainers number their exchanges, and say how many steps are merged in each; the
# answer says how stale what they had read was.
STEP = VarSpec("@STEP@", (2,), "int64")
STALENESS = "@STALENESS@"


@dataclass(frozen=True)
class GradientBlock:
    """A block of rows whose gradient goes to a server, and whose parameter comes back.

    ``key`` is the gradient's name that all ranks know; ``gradient`` its name in the trainer's
    memory.
    """

    gradient: str
    key: str
    parameter: str


@dataclass(frozen=True)
class ServerExchange:
    """The packets between a trainer and one server; ``pushed`` are sparse gradients, sent as rows.

    ``parameters[i]`` answers ``gradients[i]``; what is pushed is not answered. Where several
    Programs train in turns, packet i is exchanged in the steps of number ``turns[i]`` of them.
    """

    endpoint: str
    blocks: tuple[GradientBlock, ...]
    gradients: tuple[Packet, ...]
    parameters: tuple[Packet, ...]
    pushed: tuple[VarSpec, ...]
    turns: tuple[int, ...] = ()


def exchanges_of(plan: Plan) -> tuple[ServerExchange, ...]:
    """Return a trainer's exchange with each server, in the order of the endpoints."""
    return tuple(server_exchange(plan, endpoint) for endpoint in plan.endpoints)


def exchanges_of_this_turn(plan: Plan) -> tuple[ServerExchange, ...]:
    """Return the exchanges of a plan's Program in a step, where several train in turns."""
    if not plan.turns:
        return exchanges_of(plan)
    return tuple(_in_turn(plan, endpoint, plan.turn) for endpoint in plan.endpoints)


def server_exchange(plan: Plan, endpoint: str) -> ServerExchange:
    """Return a trainer's exchange with one server, turn by turn.

    Variables are sorted by key, so that both ends number the packets alike.
    """
    if not plan.turns:
        return _exchange(plan, endpoint, plan.routes)
    parts = [_in_turn(plan, endpoint, turn) for turn in range(len(plan.turns))]
    return ServerExchange(
        endpoint,
        tuple(block for part in parts for block in part.blocks),
        tuple(packet for part in parts for packet in part.gradients),
        tuple(packet for part in parts for packet in part.parameters),
        (),  # what is sparse does not train in turns
        tuple(turn for turn, part in enumerate(parts) for _ in part.gradients),
    )


def _in_turn(plan: Plan, endpoint: str, turn: int) -> ServerExchange:
    """Return the exchange of one turn; tags count over all turns."""
    earlier = range(turn)
    first = sum(len(_exchange(plan, endpoint, plan.routes_of(t)).gradients) for t in earlier)
    exchange = _exchange(plan, endpoint, plan.routes_of(turn))
    gradients, parameters = (
        tuple(replace(packet, tag=first + packet.tag) for packet in packets)
        for packets in (exchange.gradients, exchange.parameters)
    )
    return replace(exchange, gradients=gradients, parameters=parameters)


def _exchange(plan: Plan, endpoint: str, routes: Sequence[Route]) -> ServerExchange:
    blocks: list[GradientBlock] = []
    specs: list[VarSpec] = []
    pushed: list[VarSpec] = []
    for route in routes:
        names = zip(
            route.slices, keys_of(plan, route), plan.local_gradients(route), route.endpoints
        )
        for piece, key, cut_gradient, home in names:
            if home != endpoint:
                continue
            spec = VarSpec(key, piece.shape, route.dtype)
            if is_pushed(plan, route):
                pushed.append(spec)
                continue
            specs.append(spec)
            gradient = key if plan.mode.runtime_split else cut_gradient
            blocks.append(GradientBlock(gradient, key, piece.name))
    answers = {block.key: block.parameter for block in blocks}
    if not plan.mode.synchronous:
        specs.append(STEP)
        answers[STEP.name] = STALENESS
    gradients = plan_packets(sorted(specs, key=_by_name))
    answered = twin_packets(gradients, answers)
    by_name = tuple(sorted(pushed, key=_by_name))
    return ServerExchange(endpoint, tuple(blocks), gradients, answered, by_name)


def keys_of(plan: Plan, route: Route) -> list[str]:
    """Return the names of a gradient's blocks on all ranks; with GEO, of differences."""
    if plan.mode.geo:
        return [delta_of(piece.name) for piece in route.slices]
    return [piece.of(route.gradient) for piece in route.slices]


def delta_of(name: str) -> str:
    """Return the name under which differences of a block travel."""
    return f"{name}.delta"


def is_pushed(plan: Plan, route: Route) -> bool:
    """Return whether a gradient travels as rows, which the parameter does not answer."""
    return route.sparse if plan.mode.geo else route.remote


def refuse_unpushed(plan: Plan) -> None:
    """Raise CommError for a sparse gradient whose parameter would have to come back whole."""
    for route in plan.routes:
        if route.sparse and not is_pushed(plan, route):
            raise CommError(
                f"table {route.parameter!r} has is_sparse=True, but operators other than lookups "
                "read it, so rows alone cannot be exchanged; use is_sparse=False"
            )


def contiguous_groups(exchanges: Sequence[ServerExchange]) -> list[list[str]]:
    """Return the names on a trainer that travel in one message, so must be adjacent."""
    groups = []
    for exchange in exchanges:
        local = {b.key: b.gradient for b in exchange.blocks}
        for gradient, parameter in zip(exchange.gradients, exchange.parameters):
            if len(gradient.variables) > 1:
                groups.append([local[v.name] for v in gradient.variables if v.name in local])
                groups.append([v.name for v in parameter.variables if v.name != STALENESS])
    return groups


def _by_name(spec: VarSpec) -> str:
    return spec.name
