"""Going on without ranks that have died: those that are left agree, and make a new job of torch's.

Each attempt succeeds on all of them or on none; another follows when a rank dies meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import distributed_c10d

from hpcdist import runtime
from hpcdist.base.errors import CommError, RankFailure
from hpcdist.comm import lanes
from hpcdist.comm.progress import waiter
from hpcdist.comm.ulfm import UlfmTransport
from hpcdist.comm.world import mpi_world
from hpcdist.torch.job import TorchJob, begin_again, job
from hpcdist.torch.process_group import MpiProcessGroup
from hpcdist.torch.tables import all_in_use

HOW = (
    "mpirun --with-ft ulfm -n N python -m hpcdist --as-torchrun --on-failure continue train.py, "
    "with Open MPI 5"
)


def shrink() -> tuple[int, ...]:
    """Go on without the ranks that have died; return the numbers that these had.

    Every rank that is left calls it, when a wait has raised RankFailure. There is a new store and a
    new default group under the same backend's name; ranks are renumbered in their old order, in
    RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, ... too. Other groups are gone, and so is what
    was made with a group: wrap modules in DistributedDataParallel again, which gives all rank 0's
    parameters. Ranks may have made different numbers of steps, and only rank 0's are sure to fit
    its parameters: let all have its step and its optimizer's state, or restore a checkpoint.

    CommError if nobody has died, or if this job cannot go on; DeadlineError if a rank does not come
    within FLAGS_rpc_deadline.

    >>> try:  # in a job under mpirun --with-ft ulfm
    ...     dist.all_reduce(total)
    ... except hpcdist.torch.RankFailure:
    ...     gone = hpcdist.torch.shrink()  # doctest: +SKIP
    """
    before = job()
    world = _checked(before)
    default = _DefaultGroup.now()
    _give_up(before)
    world.go_on(default.on, before.deadline_s)
    after = job()
    gone = [name for name in before.names if name not in after.names]
    dead = world.look_for_deaths()
    _tell(after, [name for name in gone if name in dead])
    return tuple(before.names.index(name) for name in gone)


def _checked(before: TorchJob) -> UlfmTransport:
    """Return the transport of all ranks; CommError if the job cannot go on, or need not."""
    if runtime.server_count():
        raise CommError(
            "hpcdist.torch.shrink(): a job with parameter servers does not shrink; let it end, and "
            "resume from a checkpoint of hpcdist.torch.Saver with fewer trainers"
        )
    world = mpi_world() if before.deaths is not None else None
    if not isinstance(world, UlfmTransport) or before.deaths is None:
        raise CommError(f"hpcdist.torch.shrink() needs a job that is started by {HOW}")
    if names := [name for tables in all_in_use() for name in tables.names]:
        raise CommError(
            f"hpcdist.torch.shrink(): the rows of table {names[0]!r} were shared out over the "
            "ranks, and those of the dead are lost; let the job end, and resume from a checkpoint "
            "of hpcdist.torch.Saver with fewer ranks"
        )
    if not before.deaths.everyone.look_for_deaths():
        raise CommError(
            f"rank {before.names[before.transport.rank]}: hpcdist.torch.shrink() is for ranks of "
            "which one has died, and all live"
        )
    return world


@dataclass(frozen=True)
class _DefaultGroup:
    """How a script has made its default group."""

    backend: str
    timeout: timedelta

    @classmethod
    def now(cls) -> _DefaultGroup:
        group = distributed_c10d.GroupMember.WORLD
        if not isinstance(group, MpiProcessGroup):
            raise CommError(
                "hpcdist.torch.shrink() makes a new default group, and there is "
                f"{'none' if group is None else 'one that is not of hpcdist'}: let the job end"
            )
        of_job = (*range(job().transport.size),)
        if group.queue.links.ranks != of_job:
            raise CommError(
                "hpcdist.torch.shrink() numbers the ranks that are left as MPI does, and the "
                f"script's own world has ranks {list(group.queue.links.ranks)} of "
                f"{len(of_job)}: leave rank and world_size out of init_process_group"
            )
        return cls(dist.get_backend(), group.queue.timeout)

    def on(self, everyone: UlfmTransport) -> bool:
        """Make job and default group anew; return False if another rank has died meanwhile."""
        _give_up(job())  # what an earlier attempt has made
        try:
            begin_again(everyone)
            runtime.continue_with(everyone.split(0, everyone.rank), everyone.ranks_in_world())
            if dist.is_initialized():
                dist.destroy_process_group()
            distributed_c10d._world.group_count = 0  # names of groups are numbers
            dist.init_process_group(self.backend, timeout=self.timeout)
        except RuntimeError as error:
            if not isinstance(lanes.origin(error), RankFailure):
                raise
            everyone.revoke()
            return False
        return True


def _give_up(ended: TorchJob) -> None:
    """End all that is under way in a job, on the other ranks too, and keep nothing of it."""
    ended.close()
    ours = runtime.current()
    assert ours is not None
    ours.abandon()
    ended.transport.revoke()
    ended.asking.revoke()
    # What still comes would be written into memory that is used for other things by then.
    policy, deadline_s = ended.transport.policy, ended.deadline_s
    waiter(lanes.abandoned_are_over, policy, lambda: "messages to end", deadline_s, ())()
    lanes.forget_failures()


def _tell(after: TorchJob, dead: list[int]) -> None:
    """Report on one rank who has died."""
    ours = runtime.current()
    assert ours is not None and after.deaths is not None
    if after.transport.rank == 0:
        ours.failure_policy.tell_shrunk(dead, len(after.names))
    after.deaths.everyone.barrier(after.deadline_s)
    if after.transport.rank:
        ours.failure_policy.note_shrunk(dead)
