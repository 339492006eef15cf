"""This process's part of a torch job: transports, store, the thread beside the script."""

from __future__ import annotations

import atexit
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from types import TracebackType

from hpcdist import runtime, settings
from hpcdist.comm import loopback
from hpcdist.comm.base import Transport
from hpcdist.comm.lanes import Mover
from hpcdist.comm.process_manager import launched_size
from hpcdist.comm.ulfm import UlfmTransport
from hpcdist.comm.world import mpi_world
from hpcdist.errors import LaunchError, RankFailure
from hpcdist.torch import steps
from hpcdist.torch.rank_process import RankProcess
from hpcdist.torch.servers import serve
from hpcdist.torch.store import Keeper, MpiStore

LOOK_S = 0.02  # how often a rank that waits looks whether another has died
MESSAGES_TAG, ASKING_TAG, ROWS_TAG = 1, 2, 3  # of communicators that are made at the same time


@dataclass(frozen=True)
class TorchJob:
    """What all process groups of this process share."""

    names: tuple[int, ...]  # the trainers, as the launcher numbers ranks
    transport: Transport  # of all trainers; groups are subsets of it
    asking: Transport  # of all trainers, for the store
    store: MpiStore
    keeper: Keeper | None  # of the store, on rank 0
    mover: Mover
    deadline_s: float  # of waits for which the script has set no time-out
    watch: DeathWatch | None  # where the job can go on when a rank has died
    rendezvous: Iterator[int] = field(default_factory=count)  # their numbers, the same on all

    @property
    def process(self) -> RankProcess:
        """The process that is this rank."""
        return self.store.process

    @cached_property
    def rows(self) -> Transport:
        """The transport of all trainers for tables and checkpoints. The first use is collective."""
        return self.transport.subset(range(self.transport.size), ROWS_TAG)

    def close(self) -> None:
        """End its threads; what is under way is given up."""
        self.mover.close()
        if self.keeper is not None:
            self.keeper.close()


class DeathWatch:
    """Lets every wait of a torch job fail when one of its ranks has died.

    Not only those for the dead: whoever has noticed waits for nobody any more.
    """

    def __init__(self, everyone: UlfmTransport) -> None:
        """``everyone``: all trainers."""
        self.everyone = everyone
        self._next = 0.0

    def __call__(self, now: float, describe: Callable[[], str]) -> None:
        """Raise RankFailure if a rank has died, as far as this one knows; looks every LOOK_S."""
        if now < self._next:
            return
        self._next = now + LOOK_S
        if dead := self.everyone.look_for_deaths():
            self._next = 0.0  # the next wait is told at once
            raise RankFailure(describe(), dead)


_begun: list[TorchJob] = []  # one at most


def job(within_s: float | None = None) -> TorchJob:
    """Return this process's part in the job; the first call starts it. Collective.

    ``within_s`` bounds the first call's wait for the other ranks, FLAGS_rpc_deadline if it is None.
    A server serves in here, and its script ends. LaunchError if MPI does not allow several threads,
    or others than our launcher have given ranks roles.
    """
    if not _begun:
        _begun.append(_begin(within_s))
    return _begun[0]


def begin_again(everyone: UlfmTransport) -> None:
    """Have a new job, of the ranks of ``everyone``, in place of one that has been closed.

    Collective among them.
    """
    key = everyone.rank
    made = everyone.split(0, key), everyone.split(0, key)
    _begun[:] = [_joined(*made, everyone.ranks_in_world(), DeathWatch(everyone))]


def _begin(within_s: float | None) -> TorchJob:
    launched = launched_size() is not None
    world: Transport = mpi_world() if launched else loopback.world(1)[0]
    if not world.concurrent:
        raise LaunchError(
            "hpcdist.torch sends from several threads and needs MPI_THREAD_MULTIPLE, which this "
            "MPI library does not give; build it with threads, or leave mpi4py.rc.threads and "
            "mpi4py.rc.thread_level as they are"
        )
    ours = runtime.current()
    if ours is None and settings.PSERVER_ENDPOINTS.is_set():
        raise LaunchError(
            "servers of a torch job are started by our launcher: mpirun -n N python -m hpcdist "
            "--pservers P train.py"
        )
    if runtime.is_server():
        serve()
        raise SystemExit(0)  # the script is for trainers
    deadline_s = settings.RPC_DEADLINE.read() / 1000
    # MPI's own wait for ranks that make a communicator has no deadline.
    (world if ours is None else ours.trainers).barrier(within_s or deadline_s)
    trainers = tuple(range(world.size)) if ours is None else ours.cluster.trainers
    messages = world.subset(trainers, MESSAGES_TAG)
    asking = world.subset(trainers, ASKING_TAG)
    watch = None
    if ours is not None and ours.failure_policy.may_shrink and isinstance(world, UlfmTransport):
        watch = DeathWatch(world)
    torch_job = _joined(messages, asking, trainers, watch)
    if ours is not None:
        ours.failure_policy.shrinks = watch is not None
    steps.observe()

    def leave() -> None:
        for begun in _begun:
            begun.close()

    def leave_together() -> None:
        world.barrier(None)  # rank 0 keeps the store until no rank needs it
        leave()

    if launched and not settings.RANK.is_set():  # no launcher of ours ends the job
        sys.excepthook = _EndsJob(world)
        atexit.register(leave_together)
    else:
        atexit.register(leave)
    return torch_job


def _joined(
    messages: Transport, asking: Transport, names: Sequence[int], watch: DeathWatch | None
) -> TorchJob:
    """Return the job of the ranks of two transports, which the launcher calls ``names``."""
    deadline_s = settings.RPC_DEADLINE.read() / 1000
    on_one_host = messages.on_host().size == messages.size
    keeper = Keeper(asking) if messages.rank == 0 else None
    return TorchJob(
        tuple(names),
        messages,
        asking,
        MpiStore(asking, keeper, deadline_s, names),
        keeper,
        Mover(messages.policy, gives_way=on_one_host),
        deadline_s,
        watch,
    )


@dataclass(frozen=True)
class _EndsJob:
    """An exception hook that ends all ranks, which would wait for this one."""

    transport: Transport

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        lines = "".join(traceback.format_exception(kind, error, trace))
        # torch's own hook holds back what is written to sys.stderr.
        print(
            f"hpcdist: rank {self.transport.rank} failed\n{lines}", file=sys.__stderr__, flush=True
        )
        if not issubclass(kind, KeyboardInterrupt):
            self.transport.abort(1)
