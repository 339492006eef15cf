"""Values of a plain script that only servers have: feeding, changing and fetching them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdist.base.errors import FeedError, PlanError
from hpcdist.graph.program import Program
from hpcdist.graph.variable import Parameter
from hpcdist.transpiler.hybrid import served_plan
from hpcdist.transpiler.plan import trainer_plan
from hpcdist.transpiler.program_roles import nested


@dataclass(frozen=True)
class ServerSide:
    """Names of variables that the servers of a plain script have."""

    written: frozenset[str] = frozenset()  # by an operator that trainers do not run
    unused: frozenset[str] = frozenset()  # by any operator of trainers

    @classmethod
    def of(cls, mains: Sequence[Program], on_trainers: Sequence[Program]) -> ServerSide:
        """Return the values of ``mains`` that the trainers' Programs in their place lack."""
        written = (_written(main) - _written(one) for main, one in zip(mains, on_trainers))
        used = frozenset[str]().union(*map(_used, mains))
        return cls(frozenset[str]().union(*written), used.difference(*map(_used, on_trainers)))

    @classmethod
    def planned(cls, substitute: Program) -> ServerSide:
        """Return the servers' values, beside parameters, of a script that transpiles by itself."""
        plan = served_plan(substitute)
        if plan is None or plan.mode.geo or plan.records is None:
            return NOTHING_ON_SERVERS  # with GEO trainers have all of it, too
        rates = {value.name for value in plan.scheduled}
        kept = {record.origin.name for record in plan.records.distributed_vars}
        kept -= {route.parameter for route in plan.routes}
        return cls(unused=frozenset((rates | kept) - _used(substitute)))

    def fed(self, program: Program, substitute: Program, feed: Iterable[str]) -> list[str]:
        """Return the fed values of servers: parameters, and those trainers lack, as rates."""
        variables, remaining = program.global_block().vars, substitute.global_block().vars
        return [
            name
            for name in feed
            if name in variables
            and (
                (program.trains and name in self.unused)
                or name not in remaining
                or (isinstance(variables[name], Parameter) and is_routed(substitute, name))
            )
        ]

    def refuse_changed(self, names: Iterable[str]) -> None:
        """Refuse a change, on a trainer, of what only servers read. Raises PlanError."""
        for name in names:
            if name in self.unused:
                raise PlanError(
                    f"{name!r} was changed on a trainer, by tensor.set, a feed or a "
                    "program that writes it, but only the parameter servers hold and read it: let "
                    "a schedule of layers.learning_rate_scheduler compute it, or train in a plain "
                    "script (without a transpiler), synchronously, or without servers (no "
                    "--pservers)"
                )

    def refuse_fetched(self, names: Collection[str]) -> None:
        """Refuse to fetch, on a trainer, what servers compute. Raises FeedError."""
        for name in self.written.intersection(names):
            raise FeedError(
                f"cannot fetch {name!r} on a trainer: it is computed on the servers; "
                "fluid.io.save_persistables saves what they keep from step to step"
            )


NOTHING_ON_SERVERS = ServerSide()


def fed_rates(substitute: Program, fed: Mapping[str, Any], *, fed_alike: bool) -> dict[str, float]:
    """Return the learning rates that servers are to be fed. FeedError if it is anything else.

    ``fed_alike``: all trainers of a plain script are fed the same.
    """
    plan = served_plan(substitute)
    alike = plan is not None and plan.mode.lockstep and fed_alike
    rates = {value.name for value in plan.scheduled} if plan is not None else set()
    for name, value in fed.items():
        if not alike or name not in rates or np.size(value) != 1:
            raise FeedError(
                f"feed {name!r}: the parameter servers hold and read it; they can be fed "
                "learning rates, one number each, in a plain script whose trainers are all fed "
                "the same; let a schedule of layers.learning_rate_scheduler compute it, or "
                "train without servers (no --pservers)"
            )
    return {name: float(np.reshape(value, -1)[0]) for name, value in fed.items()}


def rates_of(substitute: Program) -> frozenset[str]:
    """Return the rates and counts of servers, where trainers go through the same steps."""
    plan = served_plan(substitute)
    if plan is None or not plan.mode.lockstep:
        return frozenset()
    return frozenset(value.name for value in plan.scheduled)


def is_routed(substitute: Program, parameter: str) -> bool:
    """Return whether a parameter of what a trainer runs is on servers."""
    plan = trainer_plan(substitute)
    return plan is not None and any(route.parameter == parameter for route in plan.routes)


def _used(program: Program) -> set[str]:
    ops = nested(program.global_block().ops)
    return {name for op in ops for name in (*op.input_arg_names, *op.output_arg_names)}


def _written(program: Program) -> set[str]:
    return {name for op in program.global_block().ops for name in op.output_arg_names}
