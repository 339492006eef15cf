"""Reading on trainers what servers move: rates, counters, rows. They are asked after a step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from hpcdist.base.errors import FeedError
from hpcdist.executor.analysis import is_control
from hpcdist.executor.control import Fetched, Join
from hpcdist.executor.merging import merge_counter
from hpcdist.executor.scope import Scope
from hpcdist.graph.program import Program
from hpcdist.ps.client import PsClient
from hpcdist.ps.plan import Route
from hpcdist.transpiler.plan import ProgramPlan
from hpcdist.transpiler.program_roles import nested
from hpcdist.transpiler.scheduled import ScheduledValue


class ScheduledFetch:
    """What of a fetch list a trainer's Program asks the servers for, if anything.

    A server runs its schedule before the first update of a step, when all trainers have sent
    gradients. So from the end of this trainer's step until it sends again, a server that updates
    something in this step has the values of this step: those that one process fetches.
    """

    def __init__(
        self, program: Program, plan: ProgramPlan | None, client: Callable[[], PsClient]
    ) -> None:
        """``program`` is what the trainer runs, to train by ``plan`` if there is one.

        ``client`` returns what talks to the servers.
        """
        self._client = client
        self._scheduled: dict[str, ScheduledValue] = {}
        self._tables: dict[str, Route] = {}
        self._endpoint = self._refusal = ""
        if plan is None or plan.mode.geo:  # GEO: trainers update, with separate schedules
            return
        self._endpoint, self._refusal = plan.updating, _why_not(program, plan)
        computed = {name for op in program.global_block().ops for name in op.output_arg_names}
        self._scheduled = {v.name: v for v in plan.scheduled if v.name not in computed}
        self._tables = _remote(plan)
        self._in_step = plan.mode.lockstep

    def local(self, names: Sequence[str]) -> tuple[str, ...] | None:
        """Return the names that the trainer fetches itself; None if these are all.

        FeedError if the servers' values belong to no step of this trainer.
        """
        there = self._scheduled.keys() | self._tables.keys()
        if there.isdisjoint(names):
            return None
        for name in names:
            if self._refusal and name in self._scheduled:
                raise FeedError(f"cannot fetch {name!r} on a trainer: {self._refusal}")
            if name in self._tables and not self._in_step:
                raise FeedError(
                    f"cannot fetch {name!r} on a trainer: its rows are on the servers, and in "
                    "asynchronous modes belong to no step of one trainer; look some of them up, or "
                    "let fluid.io.save_persistables write them"
                )
        return tuple(name for name in names if name not in there)

    def read_there(self, names: Sequence[str], scope: Scope) -> None:
        """Read the servers' values again of variables that were set here, and given to them."""
        if not self._scheduled.keys().isdisjoint(names):
            self.install_readers(scope)

    def install_readers(self, scope: Scope) -> None:
        """Set in ``scope`` readers of these variables, which fetch the servers' values."""
        for name, value in self._scheduled.items():
            variable = scope.var_or_new(name)
            if self._refusal:
                variable.refuse_reading(f"cannot read {name!r} on a trainer: {self._refusal}")
            else:  # also where startup has left a first value, which no step here moves
                variable.elsewhere = functools.partial(self._read, value)

    def _read(self, value: ScheduledValue) -> np.ndarray:
        return np.asarray(self.completed([value.name], ())[0])

    def completed(self, names: Sequence[str], values: Iterable[Any]) -> list[Any]:
        """Return all values after a step, ``values`` being those that the trainer has."""
        metas = {n: self._scheduled[n] for n in names if n in self._scheduled}
        came = {name: np.empty(value.shape, value.dtype) for name, value in metas.items()}
        if came:
            self._client().read(self._endpoint, came)
        for name in self._tables.keys() & names:
            came[name] = rows_of(self._client(), self._tables[name])
        local = iter(values)
        return [came[name] if name in came else next(local) for name in names]

    def completing(self, names: Sequence[str], join: Join | None) -> Join:
        """Return the join of fetched values, completed by those of the servers."""

        def complete(fetched: Fetched) -> list[Any]:
            local = [value for _, value in fetched] if join is None else join(fetched)
            return self.completed(names, local)

        return complete


def install_first_values(plan: ProgramPlan, scope: Scope) -> None:
    """Set in ``scope`` the readers of values that start on servers alone: rates, accumulators."""
    if plan.mode.geo:
        return
    first = dict(plan.constants)
    scheduled = {value.name: value for value in plan.scheduled}
    for name in {**first, **scheduled}:
        variable, value = scope.var_or_new(name), scheduled.get(name)
        if variable.value is not None and name != plan.counter:
            continue
        if value is None:
            variable.refuse_reading(
                f"{name!r} is on the parameter servers only: fluid.io.save_persistables writes it"
            )
        elif name in first:
            variable.elsewhere = functools.partial(np.full, value.shape, first[name], value.dtype)
        else:
            variable.refuse_reading(
                f"{name!r} is not computed before the first step, and then on the servers"
            )


def install_table_readers(plan: ProgramPlan, scope: Scope, client: Callable[[], PsClient]) -> None:
    """Set in ``scope`` readers of sparse tables, which fetch rows from the servers.

    They have those of this step until this trainer sends again: in lockstep only.
    """
    for name, route in _remote(plan).items() if plan.mode.lockstep else ():
        scope.var_or_new(name).elsewhere = lambda route=route: rows_of(client(), route)


def rows_of(client: PsClient, route: Route) -> np.ndarray:
    """Return all rows of a sparse table, as servers have them."""
    pieces = [np.empty(piece.shape, route.dtype) for piece in route.slices]
    for piece, endpoint, rows in zip(route.slices, route.endpoints, pieces):
        client.read(endpoint, {piece.name: rows})
    return np.concatenate(pieces)


def _remote(plan: ProgramPlan) -> dict[str, Route]:
    return {route.parameter: route for route in plan.routes if route.remote}


def names_read(program: Program) -> frozenset[str]:
    """Return the kept values that a Program reads by operators that do not talk to servers."""
    block = program.global_block()
    own = (op for op in nested(block.ops) if not is_control(op))
    return frozenset(n for op in own for n in op.input_arg_names if block.is_persistable(n))


def bring(names: Iterable[str], scope: Scope) -> None:
    """Bring what servers have moved of these variables, for a Program that does not train.

    FeedError for those whose values cannot be read on a trainer.
    """
    for name in names:
        variable = scope.find_var(name)
        if variable is not None and variable.elsewhere is not None:
            variable.take(variable.elsewhere())


def _why_not(program: Program, plan: ProgramPlan) -> str:
    """Return why what servers have is not what one process would fetch; empty if it is."""
    if not plan.mode.lockstep:
        return (
            "servers compute it, in asynchronous modes whenever gradients come, so that it belongs "
            "to no step of one trainer; train with sync_mode=True, or compute it in the script"
        )
    if merge_counter(program) is not None:
        return (
            "servers compute it, and only in the steps that update, while gradients are merged; "
            "compute it in the script, or train without servers (no --pservers)"
        )
    return ""
