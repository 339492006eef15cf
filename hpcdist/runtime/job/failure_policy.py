"""Whether a job ends or continues with the remaining trainers when a rank dies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from hpcdist.base import settings
from hpcdist.base.errors import PlanError, RankFailure
from hpcdist.comm.base import Transport
from hpcdist.comm.cluster import PSERVER, TRAINER, Cluster
from hpcdist.comm.ulfm import UlfmTransport

if TYPE_CHECKING:  # only jobs with servers and tables load them
    from hpcdist.ps.plan import Plan

OnFailure: TypeAlias = Literal["end", "continue"]


class FailurePolicy:
    """How this rank takes the death of others.

    A job can only continue without trainers, and only where the transport is tolerant.
    ``requested`` is what the user wants; None: continue in asynchronous modes, end in synchronous
    ones. Without servers only jobs of torch's continue, whose scripts ask for it.
    """

    def __init__(
        self,
        transport: Transport,
        cluster: Cluster,
        requested: OnFailure | None = None,
        name_of: Callable[[int], str] | None = None,
        announce: Callable[[str], None] = print,
        stack_of: Callable[[int], str] | None = None,
        name_death: Callable[[int, str], None] | None = None,
    ) -> None:
        self._stack_of = stack_of or (lambda rank: "")
        self._transport = transport
        self._cluster = cluster
        self._requested = requested
        self._name_of = name_of or (lambda rank: f"rank {rank} ({cluster.role_of(rank)})")
        self._announce = announce
        self._name_death = name_death or (lambda rank, text: announce(text))
        # Whether servers wait for all trainers: not known before a Program has been transpiled.
        self.synchronous: bool | None = None
        self._needs_all = False  # of the trainers, in every step
        self.shrinks = False  # whether the script can go on with the ranks that are left
        self.applied: tuple[int, ...] = ()  # by a server that has ended: steps of each trainer

    @property
    def goes_on_always(self) -> bool:
        """Whether servers continue without trainers that die, whatever the job's mode."""
        return self._may_go_on and bool(self._cluster.servers)

    @property
    def may_shrink(self) -> bool:
        """Whether a job without servers may continue with the ranks that are left."""
        return self._may_go_on and not self._cluster.servers

    @property
    def _may_go_on(self) -> bool:
        return self._transport.tolerant and self._requested == "continue"

    def learn(self, plan: Plan | None) -> None:
        """Take note of how the Program that this rank runs is distributed.

        PlanError if a job is to continue without trainers whose sums need all of them.
        """
        if plan is None:
            return
        if plan.mode.dense_summed and self._requested == "continue":
            raise PlanError(
                "--on-failure continue cannot be combined with dense = 'collective': every trainer "
                "contributes to each sum; leave it out, or let servers keep all parameters"
            )
        self.synchronous = plan.mode.synchronous
        self._needs_all = plan.mode.dense_summed

    def meet_first(self) -> None:
        """Take note that nothing is trained before all trainers have met, as scripts of torch's do.

        So the job ends without one that dies before; `learn` says what follows.
        """
        if self.synchronous is None:
            self.synchronous = True

    def goes_on_without(self, rank: int) -> bool | None:
        """Return whether the job continues when ``rank`` dies; None: not known yet."""
        if not self._cluster.servers:
            return self.may_shrink and self.shrinks
        if not self._transport.tolerant:
            return False
        if self._cluster.role_of(rank).kind != TRAINER:
            return False
        if self._requested is not None:
            return self._requested == "continue"
        return None if self.synchronous is None else not self.synchronous

    def advice(self, dead: Sequence[int]) -> str:
        """Return advice for the user about the death of these ranks, or an empty string."""
        if self.shrinks:
            return "a script that catches RankFailure and calls hpcdist.torch.shrink() goes on"
        if any(self._cluster.role_of(rank).kind == PSERVER for rank in dead):
            from hpcdist.checkpoint.recent import newest

            checkpoint = newest()
            if checkpoint is not None:
                return (
                    f"the parameters on servers are lost; resume from the checkpoint {checkpoint}"
                )
            return (
                "the parameters on servers are lost, and there is no checkpoint to resume from; "
                "hpcdist.checkpoint.save(exe, directory, step) saves one"
            )
        if self._transport.tolerant and self.synchronous and not self._needs_all:
            return "with --on-failure continue a job goes on without trainers that die"
        return ""

    def await_end(self) -> bool:
        """Where others may shrink: wait until the scripts of all have ended. False elsewhere."""
        if self.shrinks and isinstance(self._transport, UlfmTransport):
            self._transport.await_end()
        return self.shrinks

    def continue_without(self, trainer: int, steps: int) -> None:
        """Continue serving without a trainer, of which ``steps`` complete steps count, or raise.

        Server 0 tells it.
        """
        rank = self._cluster.trainers[trainer]
        if not self.goes_on_without(rank):
            raise RankFailure(f"serving after step {steps}", (rank,))
        survivors = len(self._cluster.trainers) - len(
            self._transport.failed().intersection(self._cluster.trainers)
        )
        if self._transport.rank == self._cluster.servers[0] and survivors:
            trainers = "1 trainer" if survivors == 1 else f"{survivors} trainers"
            self._name_death(
                rank,
                f"{self._name_of(rank)} died after step {steps}: killed, out of memory or "
                f"crashed; the job goes on with {trainers}",
            )

    def tell_shrunk(self, dead: Sequence[int], left: int) -> None:
        """Report that a job without servers continues without ranks; one of ``left`` calls it."""
        for rank in dead:
            self._name_death(
                rank,
                f"{self._name_of(rank)} died: killed, out of memory or crashed; the job goes on "
                f"with {'1 rank' if left == 1 else f'{left} ranks'}",
            )

    def note_shrunk(self, dead: Sequence[int]) -> None:
        """Note that another rank has told of these deaths."""
        for rank in dead:
            self._name_death(rank, "")

    def tell_silence(self, trainer: int, steps: int, seconds: float) -> None:
        """Report a trainer that sends nothing; the job waits: it may be computing."""
        rank = self._cluster.trainers[trainer]
        self._announce(
            f"{self._name_of(rank)} has sent nothing for {seconds:.0f} s, after step {steps}: it "
            f"is stuck or in a long computation ({settings.WORKER_UPDATE_INTERVAL.name}); the job "
            f"waits\n{self._stack_of(rank)}"
        )
