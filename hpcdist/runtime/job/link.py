"""`Link`: a rank's connection to the others, as its job uses it; each role has a class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hpcdist.base.errors import HpcdistError
from hpcdist.executor.control import NetworkOperators
from hpcdist.executor.scope import Scope, ScopeVariable
from hpcdist.graph.program import Program
from hpcdist.ps.client import PsClient
from hpcdist.ps.table import SparseTable
from hpcdist.runtime.job.membership import Settle
from hpcdist.runtime.pserver.scheduled_fetch import ScheduledFetch


class Link(NetworkOperators):
    """A rank's connection to the others, which does nothing where its role has nothing to do."""

    agree_on_deaths: Settle | None = None  # None where a death ends the job
    served_tables: Sequence[SparseTable] = ()  # of the Program that a server serves, or has served

    @property
    def staleness(self) -> int:
        """How stale a trainer's last gradients were."""
        return 0

    def substitute(self, program: Program) -> Program:
        """Return the Program that this rank runs in place of one that no rank has to transpile."""
        raise NotImplementedError

    def transpiled(
        self, mains: Sequence[Program], startup: Program
    ) -> tuple[list[Program], Program]:
        """Return this rank's Programs in place of a plain script's main and startup Programs."""
        raise NotImplementedError

    def refuse_uneven(self) -> None:
        """Raise HpcdistError where no step can count the rows that each trainer has."""
        raise HpcdistError(
            "even_batches(how='join') is for jobs without parameter servers: with servers, "
            "trainers that have more batches continue by themselves"
        )

    def leave_servers(self) -> None:
        """Leave servers that go on to serve something else, and be connected anew for that."""
        raise NotImplementedError

    def current_client(self) -> PsClient:
        """Return the current client of the servers: before the first step it can only ask."""
        raise NotImplementedError

    def begin(self, program: Program, scope: Scope) -> None:
        """Before a Program trains for the first time: let all trainers begin alike."""

    def unlike_servers(
        self, variables: Sequence[ScopeVariable], by_hand: Sequence[ScopeVariable]
    ) -> dict[str, np.ndarray]:
        """Return of these, by name, the pieces that servers hold with other values.

        PlanError if they cannot be given these, and would continue with theirs. Of those that are
        set ``by_hand`` the value here counts, whatever it was before.
        """
        return {}

    def also_on_servers(self, program: Program) -> frozenset[str]:
        """Return a trainer's values of a Program that servers have too, and would continue with."""
        return frozenset()

    def of_this_step(self, program: Program, scope: Scope) -> Program:
        """Return a Program's form of its next step."""
        return program

    def is_steady(self, program: Program) -> bool:
        """Return whether `of_this_step` returns the Program itself, whichever step it is."""
        return True

    def scheduled(self, program: Program) -> ScheduledFetch | None:
        """Return the reader of the servers' learning rates, for a Program that a trainer runs."""
        return None

    def variants(self, program: Program) -> tuple[Program, Program]:
        """Return the Programs for steps that count rows: with rows on this rank, and without."""
        raise NotImplementedError

    def node_count(self) -> int:
        """Return on how many hosts the trainers of a job without servers are. Collective."""
        return 1

    def complete(self, names: Sequence[str], scope: Scope) -> None:
        """Hold the values of these variables that other trainers keep. Collective."""

    def settle(self, program: Program) -> dict[str, int]:
        """Wait until all that was sent has arrived; return the counts of a Program."""
        return {}

    def catch_up(self, program: Program) -> None:
        """When all trainers have settled: take over what they have sent."""

    def resume(self, program: Program, counted: Mapping[str, int], scope: Scope) -> None:
        """When all ranks have loaded a checkpoint: continue from there."""

    def abandon(self) -> None:
        """Look no more for what the others say: some have died, and those left begin anew."""

    def end(self) -> None:
        """Take in what all others said when they ended. Collective, after `close` on all."""
