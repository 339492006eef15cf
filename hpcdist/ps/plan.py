"""The plan of a distributed training: which rows of which parameter live on which server. Pure.

Who plans states the parameters: the transpiler takes them from a Program, `facts_plan` from facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TypeVar

from hpcdist.ps.batch import TableSpec
from hpcdist.ps.planned_tables import PlannedTable
from hpcdist.ps.slicing import Slice, slice_variables

AnyPlan = TypeVar("AnyPlan", bound="Plan")


class DistributedMode(IntEnum):
    """How servers apply gradients: the ``distributed_mode`` of listen_and_serv."""

    SYNC = 0
    ASYNC = 1
    HALF_ASYNC = 2
    GEO = 3


@dataclass(frozen=True)
class UpdateMode:
    """How gradients travel and how servers apply them.

    ``distributed_mode`` is what servers are told. ``lockstep``: trainers run separate barriers
    after sending and after receiving. ``averaged``: servers average over the trainers' gradients,
    so each trainer's has a separate name. ``runtime_split``: full gradients and parameters
    stand in send and recv, and the runtime's communicator cuts and joins them; ``joint``: its
    threads meet at a barrier. ``dc_asgd``: servers compensate the delay of each gradient.
    ``max_staleness``: how many steps ahead of the slowest a trainer may be, None any number.
    ``push_every``: in GEO mode, after how many local steps differences are exchanged.
    ``dense_summed``: parameters that are no distributed tables live on the trainers, which sum
    their gradients; servers keep tables, whose rows' gradients come divided by the trainers.
    """

    distributed_mode: DistributedMode = DistributedMode.SYNC
    lockstep: bool = True
    averaged: bool = True
    runtime_split: bool = False
    joint: bool = False
    dc_asgd: bool = False
    push_every: int = 0
    max_staleness: int | None = None
    dense_summed: bool = False

    @property
    def synchronous(self) -> bool:
        """Whether servers wait for all trainers before they answer."""
        return self.distributed_mode == DistributedMode.SYNC

    @property
    def geo(self) -> bool:
        """Whether trainers update by themselves and exchange differences."""
        return self.distributed_mode == DistributedMode.GEO


SYNCHRONOUS = UpdateMode()


def asynchronous(
    *, split: bool = False, joint: bool = False, dc_asgd: bool = False, ahead: int | None = None
) -> UpdateMode:
    """Return the mode in which servers apply each gradient as it comes, ``ahead`` at most."""
    return UpdateMode(
        DistributedMode.ASYNC if split else DistributedMode.HALF_ASYNC,
        lockstep=False,
        averaged=False,
        runtime_split=split,
        joint=joint,
        dc_asgd=dc_asgd,
        max_staleness=ahead,
    )


def geo(push_every: int) -> UpdateMode:
    """Return the mode in which trainers update, and exchange differences every few steps."""
    return UpdateMode(
        DistributedMode.GEO,
        lockstep=False,
        averaged=False,
        runtime_split=True,
        push_every=push_every,
    )


@dataclass(frozen=True)
class PlannedParameter:
    """A parameter that servers are to keep, and the name of its gradient.

    ``sparse``: the gradient is of rows; ``moved_whole``: its update also moves rows which that
    does not list. ``remote``: trainers do not receive the parameter but ask servers for the rows
    they look up.
    """

    name: str
    gradient: str
    shape: tuple[int, ...]
    dtype: str
    sparse: bool = False
    remote: bool = False
    moved_whole: bool = False

    def cut(self, servers: int, min_block_size: int) -> Route:
        """Return its route, in blocks for so many servers, none of which has one yet."""
        return Route(
            self.name,
            self.gradient,
            self.shape,
            self.dtype,
            slice_variables([self], servers, min_block_size),
            (),
            self.sparse,
            self.remote,
            self.moved_whole,
        )


@dataclass(frozen=True)
class Route:
    """Where one parameter goes: its blocks and, one for each, the servers' endpoints.

    ``sparse``: its gradient is SelectedRows; ``moved_whole``: its update also moves rows which that
    does not list. ``remote``: trainers do not receive the parameter but ask servers for the rows
    they look up.
    """

    parameter: str
    gradient: str
    shape: tuple[int, ...]
    dtype: str
    slices: tuple[Slice, ...]
    endpoints: tuple[str, ...]
    sparse: bool = False
    remote: bool = False
    moved_whole: bool = False

    @property
    def cut(self) -> bool:
        """Whether the parameter is in more than one block."""
        return len(self.slices) > 1

    def on(self, endpoint: str) -> list[Slice]:
        """Return the blocks that live on a server."""
        return [s for s, held_by in zip(self.slices, self.endpoints) if held_by == endpoint]


def placed(
    routes: Sequence[Route], order: Sequence[int], chosen: Sequence[str]
) -> tuple[Route, ...]:
    """Return the routes with their endpoints, ``chosen`` for all blocks in an order of routes."""
    found = list(routes)
    remaining = iter(chosen)
    for i in order:
        endpoints = tuple(next(remaining) for _ in routes[i].slices)
        found[i] = replace(routes[i], endpoints=endpoints)
    return tuple(found)


@dataclass(frozen=True)
class Plan:
    """How a training is distributed: who takes part, and where parameters live.

    ``routes`` has one for each parameter, in the order of its first update. ``order`` are the
    positions of the routes in the order in which they were dispatched. Distributed ``tables`` have
    no route, each of their rows has. Where several Programs train in ``turns``, these are the
    parameters that each of them moves, and this is number ``turn`` of them; ``routes`` are those of
    all. ``fingerprint`` is equal on ranks that were told the same.
    """

    endpoints: tuple[str, ...]
    trainers: int
    trainer_id: int
    routes: tuple[Route, ...]
    order: tuple[int, ...]
    mode: UpdateMode
    tables: tuple[PlannedTable, ...] = ()
    turns: tuple[tuple[str, ...], ...] = ()
    turn: int = 0
    fingerprint: str | None = field(default=None, kw_only=True)

    @property
    def specs(self) -> tuple[TableSpec, ...]:
        """The distributed tables that the servers hold."""
        return tuple(table.spec for table in self.tables)

    @property
    def dispatched(self) -> list[Route]:
        """The routes in the order of dispatch."""
        return [self.routes[i] for i in self.order]

    def blocks_on(self, endpoint: str) -> Iterator[tuple[Route, Slice]]:
        """Yield the blocks of a server in the order of dispatch."""
        for route in self.dispatched:
            for piece in route.on(endpoint):
                yield route, piece

    def routes_of(self, turn: int) -> tuple[Route, ...]:
        """Return the routes of the parameters that one of the Programs moves."""
        if not self.turns:
            return self.routes
        return tuple(route for route in self.routes if route.parameter in self.turns[turn])

    def of_this_turn(self: AnyPlan) -> AnyPlan:
        """Return the plan of the parameters that a trainer's Program updates."""
        if not self.turns:
            return self
        routes = self.routes_of(self.turn)
        index = {route.parameter: i for i, route in enumerate(routes)}
        order = tuple(index[r.parameter] for r in self.dispatched if r.parameter in index)
        return replace(self, routes=routes, order=order)

    @property
    def updating(self) -> str:
        """A server that updates something in every step of a trainer's Program."""
        routes = self.of_this_turn().routes
        return routes[0].endpoints[0] if routes else self.endpoints[0]

    @property
    def merged(self) -> bool:
        """Whether servers have several trainers' gradients to average."""
        return self.mode.averaged and self.trainers > 1

    def received(self, gradient: str) -> tuple[str, ...]:
        """Return the names under which a gradient block comes to its server."""
        if not self.merged:
            return (gradient,)
        return tuple(f"{gradient}.trainer_{trainer}" for trainer in range(self.trainers))

    def sent(self, route: Route) -> list[str]:
        """Return the names under which this trainer's blocks of a gradient come to servers."""
        whose = self.trainer_id if self.merged else 0
        return [self.received(s.of(route.gradient))[whose] for s in route.slices]

    def local_gradients(self, route: Route) -> list[str]:
        """Return the names of a gradient's blocks in the trainer's program."""
        if self.mode.lockstep:
            return self.sent(route)
        return [s.of(route.gradient) for s in route.slices]

    def role_gradient(self, route: Route) -> str:
        """Return the gradient that stands in op_role_var: renamed if it is sent in one piece."""
        return route.gradient if route.cut else self.local_gradients(route)[0]
