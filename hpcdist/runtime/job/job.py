"""This process's part in a job: the other ranks, and how it ends. Programs are another part."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from hpcdist.base.errors import HpcdistError, PlanError
from hpcdist.checkpoint.job import Peers
from hpcdist.comm.base import Transport
from hpcdist.comm.cluster import PSERVER, Cluster, Ranks
from hpcdist.runtime.job.failure_policy import FailurePolicy
from hpcdist.runtime.job.farewells import Common, Farewells

if TYPE_CHECKING:  # only jobs with servers and tables load them
    from hpcdist.ps.client import PsClient
    from hpcdist.ps.plan import Plan
    from hpcdist.ps.table import TableStatistics
    from hpcdist.runtime.pserver.connection import Adopted, ServerConnection
    from hpcdist.runtime.pserver.trainer_servers import TrainerServers


class ProgramPart(Protocol):
    """What runs Programs as a rank of a job: see `runtime.job.program_job`."""

    def note_adopted(self) -> None:
        """Note that servers keep what no Program says."""

    def leave_servers(self) -> None:
        """Leave servers that go on to serve something else."""

    def expect_one_thread(self) -> None:
        """Raise the HpcdistError of threads that were refused, if any were."""

    def leave(self) -> None:
        """Share and sum no more, and leave the servers."""

    def end(self) -> None:
        """Take in what all others said when they ended. Collective, after `leave` on all."""

    def abandon(self) -> None:
        """Look no more for what the others say."""

    def peers(self) -> Peers | None:
        """Return the other ranks, as checkpoints see them; None on a server."""

    def table_statistics(self) -> list[TableStatistics]:
        """Return the statistics of this server's distributed tables; none on a trainer."""

    @property
    def staleness(self) -> int:
        """How stale this trainer's last gradients were; 0 on a server."""


class Job:
    """The part of a process that is one of many, whatever its script uses to train.

    ``programs`` is what runs Programs, once there is one; PyTorch's trainers have none. Without
    servers all ranks are trainers.
    """

    def __init__(
        self,
        transport: Transport,
        cluster: Cluster,
        *,
        seed: int,
        deadline_s: float,
        failure_policy: FailurePolicy | None = None,
        local_feed: bool = False,
    ) -> None:
        self.transport = transport
        self.cluster = cluster
        self.role = cluster.role_of(transport.rank)
        self.seed = seed
        self.deadline_s = deadline_s
        self.local_feed = local_feed
        self.before_end: list[Callable[[], None]] = []  # called when the script has ended well
        self.failure_policy = policy = failure_policy or FailurePolicy(transport, cluster)
        self.serves = self.role.kind == PSERVER
        if local_feed and policy.goes_on_always and not self.serves:
            raise PlanError(
                "--feed local cannot be combined with --on-failure continue: the rows of a "
                "trainer that dies are lost with it; leave one of them out"
            )
        # All trainers; on a server, all servers.
        self.alike = group = transport.split(int(self.serves), self.role.index)
        self.servers: TrainerServers | None = None
        self.common: Common | None = None
        if not cluster.servers:
            sums = group.split(0, group.rank)
            self.common = Common(sums, Farewells(group, deadline_s))
        elif not self.serves:
            index, learn = self.role.index, policy.learn
            from hpcdist.runtime.pserver.trainer_servers import TrainerServers

            self.servers = TrainerServers(transport, cluster, index, deadline_s, learn)
        self.programs: ProgramPart | None = None
        self.gone: set[int] = set()  # trainers that had died when all made a checkpoint
        self.adopted = False  # whether servers keep what no Program says
        self.closed = False

    @property
    def trainers(self) -> Transport:
        """The transport of all trainers, on a trainer."""
        return self.alike

    # -- servers -----------------------------------------------------------------------------
    def adopt(self, plan: Plan, protocol: Callable[[Plan, ServerConnection], Adopted]) -> Adopted:
        """Return the protocol by which a trainer exchanges by itself what is planned.

        As torch's do; it is told when checkpoints are made, and when the job ends.
        """
        if self.servers is None:
            raise HpcdistError(f"rank {self.transport.rank} has no servers to connect to")
        self.adopted = True
        if self.programs is not None:
            self.programs.note_adopted()
        return self.servers.adopt(plan, protocol)

    def leave_servers(self) -> None:
        """End what `adopt` has begun: servers may serve another plan. On every trainer."""
        if self.programs is not None:
            self.programs.leave_servers()
        elif self.servers is not None:
            self.servers.leave()

    def current_client(self) -> PsClient:
        """Return the current client of the servers, on a trainer that has some."""
        assert self.servers is not None, "there are servers"
        return self.servers.client()

    def table_statistics(self) -> list[TableStatistics]:
        """Return the statistics of this server's distributed tables; none on a trainer."""
        return [] if self.programs is None else self.programs.table_statistics()

    @property
    def staleness(self) -> int:
        """How stale this trainer's last gradients were; 0 on a server."""
        if self.programs is not None:
            return self.programs.staleness
        return 0 if self.servers is None else self.servers.staleness

    def peers(self) -> Peers | None:
        """Return the other ranks, as checkpoints see them; None on a server."""
        if self.serves or self.programs is not None:
            return None if self.programs is None else self.programs.peers()
        from hpcdist.runtime.job.checkpoint_peers import JobPeers

        client = self.current_client if self.cluster.servers else None
        return JobPeers(self.gone, self.cluster, self.alike, client, self.deadline_s)

    # -- other ranks, the end ----------------------------------------------------------------
    def everyones(self, data: bytes, awaited: str, among: Ranks = Ranks.TRAINERS) -> list[bytes]:
        """Gather a value from each living rank, trainers' before servers'. Collective."""
        group = self.transport if among is Ranks.ALL else self.alike
        if among is not Ranks.ALL and self.serves != (among is Ranks.SERVERS):
            raise HpcdistError(f"rank {self.transport.rank} is {self.role}: it has no {awaited}")
        came = group.allgather_living(data, self.deadline_s, awaited)
        if among is Ranks.ALL:
            came = [came[rank] for rank in self.cluster.trainers + self.cluster.servers]
        return [values for values in came if values is not None]

    def close(self) -> None:
        """Leave the servers; they end when the last trainer has left. Harmless on a server."""
        closed, self.closed = self.closed, True
        if closed or self.serves:
            return
        if self.programs is not None:
            self.programs.leave()
        elif self.servers is not None:
            self.servers.close()
        elif self.common is not None:
            self.common.farewells.tell()

    def end_together(self) -> None:
        """Close, and wait until all trainers' scripts have ended.

        Every trainer calls this once; one that still joins values instead is told why it cannot.
        Raises what a thread of the script was refused: it may have ended without a word.
        """
        if self.programs is not None:
            self.programs.expect_one_thread()
        for call in self.before_end:
            call()
        self.close()
        if self.failure_policy.await_end():
            return  # who has died says nothing of its end
        if not self.serves:
            self.alike.allgather_living(b"", None, "the others' end")
        if self.programs is not None:
            self.programs.end()
        elif self.common is not None:
            self.common.farewells.take_all()

    def abandon(self) -> None:
        """Fail all pending waits among trainers, some of whom have died; monitor them no more."""
        if self.programs is not None:
            self.programs.abandon()
        elif self.common is not None:
            self.common.farewells.stop_watching()
        self.alike.revoke()

    def survivors_job(self, transport: Transport) -> Job:
        """Return the job of the trainers that are left, when all have abandoned this one.

        Collective among those of ``transport``; there are no servers.
        """
        job = Job(
            transport,
            Cluster(tuple(range(transport.size))),
            seed=self.seed,
            deadline_s=self.deadline_s,
            failure_policy=self.failure_policy,
        )
        job.before_end = self.before_end
        return job
