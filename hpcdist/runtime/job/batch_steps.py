"""Steps divided by rows of the batch: feeds, changed values and fetches of a trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from hpcdist.base.device import on_host
from hpcdist.base.errors import PlanError
from hpcdist.executor.control import Feed, Settled, SharedFetch
from hpcdist.executor.scope import Scope
from hpcdist.graph.program import Program, ProgramCache
from hpcdist.runtime.batches.shared_batches import Batches
from hpcdist.runtime.job.links import Links
from hpcdist.runtime.job.server_side import (
    NOTHING_ON_SERVERS,
    ServerSide,
    fed_rates,
    is_routed,
    rates_of,
)
from hpcdist.runtime.job.set_values import SetValues
from hpcdist.runtime.pserver.scheduled_fetch import bring, names_read
from hpcdist.transpiler.hybrid import served_plan

TellServers = Callable[[Mapping[str, float], str], None]
GiveServers = Callable[[Mapping[str, np.ndarray]], None]


class BatchSteps:
    """The steps of a rank, divided by rows; a server has them too, and divides nothing.

    A script that transpiles by itself (``by_script``) also divides its data by itself.
    """

    def __init__(
        self,
        links: Links,
        batches: Batches,
        changed: SetValues,
        tell_servers: TellServers | None,
        give_servers: GiveServers | None,
    ) -> None:
        """``tell_servers``, which a trainer that has some calls with new rates. Collective.

        ``give_servers``: with new parameters and rates, if servers do not have these yet.
        """
        self._links = links
        self._batches = batches
        self._changed = changed
        self._tell_servers, self._give_servers = tell_servers, give_servers
        self._server_side = NOTHING_ON_SERVERS  # of a plain script
        self._has_trained = False
        self._read: ProgramCache[frozenset[str]] = ProgramCache()
        self.by_script = False

    def share(
        self, mains: Sequence[Program], trainers: Sequence[Program], substitutes: Sequence[Program]
    ) -> None:
        """Before a plain script's ``mains`` are first run. Collective among the trainers.

        ``trainers`` are what they were transpiled to, ``substitutes`` what this rank runs of it.
        """
        if self._tell_servers is not None:
            self._server_side = ServerSide.of(mains, trainers)
        for main, substitute in zip(mains, substitutes):
            self._batches.begin_rounds(main, substitute)

    def begin_step(
        self,
        program: Program,
        substitute: Program,
        feed: Feed,
        scope: Scope,
        fetches: Sequence[str],
    ) -> tuple[Program, Feed]:
        """Return this rank's Program of this step in place of ``program``, and its feed."""
        link = self._links.current
        on_servers: list[str] = []
        if self._tell_servers is not None:
            if not self._is_step(program, substitute):
                kept = filter(substitute.global_block().is_persistable, fetches)
                bring({*self._read.of(substitute, lambda: names_read(substitute)), *kept}, scope)
            on_servers = self._server_side.fed(program, substitute, feed)
            also = [name for name in feed if name in link.also_on_servers(substitute)]
            if also:
                link.settle(substitute)
                self._feed_servers(substitute, {name: feed[name] for name in also})
            self._note_run(program, substitute, scope)
            if not program.trains:
                self._note_fed(program, feed, scope)
        link.begin(substitute, scope)
        if self._changed.some and self._is_step(program, substitute):
            self._take_changed(substitute, scope)
        else:
            self.give_set(scope)  # a test looks rows up there, too
        if substitute.trains and self._batches.counts_rows(program):
            with_rows, without = link.variants(substitute)
            rows, has_rows = self._batches.meet(substitute, feed)
            return with_rows if has_rows else without, rows
        rows = self._batches.cut(program, feed, scope, fetches)
        if on_servers:
            self._feed_servers(substitute, {name: feed[name] for name in on_servers})
            rows = {name: value for name, value in rows.items() if name not in on_servers}
        return link.of_this_step(substitute, scope), rows

    def give_set(self, scope: Scope) -> None:
        """Give servers the parameters of theirs that the script has set, before the next step."""
        if self._changed.some and self._give_servers is not None and not self.by_script:
            by_hand = self._changed.to_give(scope)
            self._give_servers(self._links.current.unlike_servers(by_hand, by_hand))

    def _is_step(self, program: Program, substitute: Program) -> bool:
        """Return whether a Program is a step of training, be its optimizer on servers."""
        return program.trains or (self.by_script and _is_served(substitute))

    def _take_changed(self, substitute: Program, scope: Scope) -> None:
        """Give servers what was changed here, or refuse it; let trainers compare all of it."""
        by_hand, everything = self._changed.take(scope)
        side = ServerSide.planned(substitute) if self.by_script else self._server_side
        # A Program here may have read one that servers have moved since; so may the script, of what
        # a schedule moves.
        rates = frozenset[str]() if self.by_script else rates_of(substitute) - side.written
        set_ = [v for v in by_hand if v.name in rates and v.value is not None]
        side.refuse_changed(v.name for v in everything if v not in set_)
        if self.by_script:  # there parameters last until the servers' come, as in Fluid
            return
        given = self._links.current.unlike_servers(everything, by_hand)
        given |= {v.name: on_host(v.value) for v in set_}
        if self._give_servers is not None:
            self._give_servers(given)
        others = (v for v in everything if is_routed(substitute, v.name) and v not in by_hand)
        self._batches.note_set([*by_hand, *others])
        if set_ and (scheduled := self._links.current.scheduled(substitute)) is not None:
            scheduled.read_there([v.name for v in set_], scope)

    def settled(
        self,
        program: Program,
        substitute: Program,
        fed: Sequence[str],
        scope: Scope,
        fetches: tuple[str, ...],
    ) -> Settled | None:
        """Return the decisions for all steps of a Program that trains, of which one has begun.

        A plain script's batches are divided anew in each; a script that transpiles does so itself.
        """
        link, batches = self._links.current, self._batches
        if not self._is_step(program, substitute) or (not program.trains and program.main):
            return None
        variables = program.global_block().vars
        if any(variables[name].persistable for name in fed if name in variables):
            return None  # it is noted in each that a value was changed
        if batches.counts_rows(program) or not link.is_steady(substitute):
            return None
        if self._tell_servers is not None and (
            self._server_side.fed(program, substitute, fed)
            or not link.also_on_servers(substitute).isdisjoint(fed)
        ):
            return None
        here, join = self.shared_fetch(program, substitute, fetches)

        def begin() -> None:
            if self._changed.some:
                self._take_changed(substitute, scope)

        return Settled(
            substitute, here, join, begin=begin, feed=batches.cutter(program, scope, fetches)
        )

    def _note_run(self, program: Program, substitute: Program, scope: Scope) -> None:
        """Where servers have the parameters: notice what changes them here only."""
        if program.trains:
            self._has_trained = True
        elif program.main is None:
            if served_plan(substitute) is None:  # what servers send does not change here only
                self._changed.note_run(program, scope)
        elif self._has_trained and not self.by_script:
            raise PlanError(
                "the startup program is run again after the first step: servers keep their "
                "parameters, while one process would start again; run it once, start a job for "
                "each training, or train without servers (no --pservers)"
            )
        else:
            self._changed.forget_before(program, scope)

    def _note_fed(self, program: Program, names: Iterable[str], scope: Scope) -> None:
        """Notice what is fed and kept: like `tensor.set`, it stays for the steps that follow."""
        variables = program.global_block().vars
        for name in names:
            if name in variables and variables[name].persistable:
                self._changed.note(scope.var_or_new(name))

    def _feed_servers(self, substitute: Program, fed: Feed) -> None:
        """Send servers the fed values of theirs before any gradient of the step."""
        assert self._tell_servers is not None
        alike = self._batches.alike and not self.by_script
        rates = fed_rates(substitute, fed, fed_alike=alike)
        self._tell_servers(rates, f"the other trainers, to feed {', '.join(fed)}")

    def shared_fetch(
        self, program: Program, substitute: Program, names: tuple[str, ...]
    ) -> SharedFetch:
        """Return the names to fetch here, and their join, for a Program that is shared.

        Learning rates the servers are asked for. Raises FeedError for names of other values that
        trainers do not have, or that cannot be joined.
        """
        scheduled = self._links.current.scheduled(substitute)
        local = None if scheduled is None else scheduled.local(names)
        if scheduled is not None and local is not None:
            fetched, join = self.shared_fetch(program, substitute, local)
            return fetched, scheduled.completing(names, join)
        self._server_side.refuse_fetched(names)
        return names, self._batches.join(program, names)


def _is_served(substitute: Program) -> bool:
    """Return whether a Program is what a trainer runs of a step, and has no optimizer itself."""
    plan = served_plan(substitute)
    return plan is not None and not plan.startup
