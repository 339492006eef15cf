"""This process's part of a torch job: transports, store, the thread beside the script."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType

import torch
import torch.distributed as dist

from hpcdist import runtime
from hpcdist.base import settings
from hpcdist.base.errors import CommError, LaunchError
from hpcdist.base.signals import forget_children
from hpcdist.comm import lanes, loopback
from hpcdist.comm.base import Transport
from hpcdist.comm.lane_thread import LaneThread
from hpcdist.comm.lanes import Alarm
from hpcdist.comm.process_manager import launched_size
from hpcdist.comm.progress import threads_per_rank
from hpcdist.comm.ulfm import UlfmTransport
from hpcdist.comm.world import mpi_world
from hpcdist.torch import steps
from hpcdist.torch.connections import Connections
from hpcdist.torch.rank_process import RankProcess
from hpcdist.torch.store import Keeper, MpiStore
from hpcdist.torch.watches import ENDED, DeathWatch, EndWatch

# How long a sum in memory that begins in a backward pass is left to the thread that runs the pass,
# which takes it up at the end: beside that it costs more, where no core is left for it.
PATIENCE_S = 0.15
TRIES = 5  # to end the job, where signals whose handlers raise come again and again
ENDING_S = 1.0  # in which what a script has not waited for must end
MESSAGES_TAG, ASKING_TAG, ROWS_TAG = 1, 2, 3  # of communicators that are made at the same time


@dataclass
class Used:
    """What of this package a script uses to train on several ranks."""

    groups: int = 0  # that it has made, of whatever backend
    rows: bool = False  # of tables, or a checkpoint


used = Used()


@dataclass(frozen=True)
class TorchJob:
    """What all process groups of this process share."""

    names: tuple[int, ...]  # the trainers, as the launcher numbers ranks
    transport: Transport  # of all trainers; groups are subsets of it
    asking: Transport  # of all trainers, for the store
    store: MpiStore
    keeper: Keeper | None  # of the store, on rank 0
    mover: LaneThread
    deadline_s: float  # of waits for which the script has set no time-out
    connections: Connections  # of groups
    deaths: DeathWatch | None  # where the job can go on when a rank has died
    ranks_here: int  # on this host
    meetings: Counter[str] = field(default_factory=Counter)  # worlds so far, by address

    @property
    def process(self) -> RankProcess:
        """The process that is this rank."""
        return self.store.process

    @cached_property
    def rows(self) -> Transport:
        """The transport of all trainers for tables and checkpoints. The first use is collective.

        CommError where the script's world is of some ranks only: these would wait for the others,
        or train one table with them.
        """
        if dist.is_initialized() and dist.get_world_size() != self.transport.size:
            raise CommError(
                f"rank {self.process.rank}: tables and hpcdist.torch.Saver are for all "
                f"{self.transport.size} ranks of the job, and the script's default group has "
                f"{dist.get_world_size()}: start a job of these ranks only, or use "
                "torch.nn.Embedding and torch.distributed.checkpoint"
            )
        used.rows = True
        return self.transport.subset(range(self.transport.size), ROWS_TAG)

    @cached_property
    def alarm(self) -> Alarm:
        """What ends waits that can never end, for ranks that have died, or whose scripts have."""
        ends, deaths = EndWatch(self.store), self.deaths
        if deaths is None:
            return ends

        def look(now: float, began: float, describe: Callable[[], str]) -> None:
            deaths(now, began, describe)
            ends(now, began, describe)

        return look

    def note_threads(self) -> None:
        """Update, for sums in memory, how many threads of the script compute by now."""
        cores, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
        has_core = torch.get_num_threads() < threads_per_rank(self.ranks_here, cores, present)
        on_one_host = self.ranks_here == self.transport.size
        self.mover.patience_s = PATIENCE_S if on_one_host and not has_core else 0.0

    def warn_if_alone(self) -> None:
        """Warn on the first of several ranks if it has met no other, at the end of the script."""
        met = used.groups or used.rows
        if self.transport.size > 1 and self.transport.rank == 0 and not met:
            logging.getLogger("hpcdist").warning(
                "the %d ranks of this job never met: the script has made no process group, so each "
                "rank has trained alone, on the same data unless the script divides it by RANK. "
                'Call torch.distributed.init_process_group("gloo"); accelerate does so on CPUs '
                "with Accelerator(cpu=True) or ACCELERATE_USE_CPU=1 only",
                self.transport.size,
            )

    def say_ended(self) -> None:
        """Notify ranks that wait for this one that its script has ended.

        Not if something is under way, which may be what they wait for.
        """
        if self.transport.size == 1 or not self.mover.is_idle(ENDING_S):
            return
        try:
            self.store.set(f"{ENDED}{self.names[self.transport.rank]}", "")
        except CommError as error:  # rank 0 has died: nobody can be told
            logging.getLogger("hpcdist").debug("the end of the script is not told: %s", error)

    def close(self) -> None:
        """End its threads; what is under way is given up."""
        self.mover.close()
        if self.keeper is not None:
            self.keeper.close()

    def leave(self) -> None:
        """Use MPI no more, which ends: threads of the script that wait for it get a CommError."""
        self.close()
        lanes.close_all()
        self.store.close()


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
    """Create a new job of the ranks of ``everyone``, in place of one that has been closed.

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
    if ours is not None:
        ours.failure_policy.meet_first()
    if ours is None and settings.PSERVER_ENDPOINTS.is_set():
        raise LaunchError(
            "servers of a torch job are started by our launcher: mpirun -n N python -m hpcdist "
            "--pservers P train.py"
        )
    if runtime.is_server():
        from hpcdist.fluid.declared.servers import serve  # which runs a Program

        serve()
        raise SystemExit(0)  # the script is for trainers
    deadline_s = settings.RPC_DEADLINE.read() / 1000
    # MPI's own wait for ranks that make a communicator has no deadline.
    (world if ours is None else ours.trainers).barrier(within_s or deadline_s)
    trainers = tuple(range(world.size)) if ours is None else ours.cluster.trainers
    messages = world.subset(trainers, MESSAGES_TAG)
    asking = world.subset(trainers, ASKING_TAG)
    deaths = None
    if ours is not None and ours.failure_policy.may_shrink and isinstance(world, UlfmTransport):
        deaths = DeathWatch(world)
    torch_job = _joined(messages, asking, trainers, deaths)
    if ours is not None:
        ours.failure_policy.shrinks = deaths is not None
        ours.before_end.append(_say_ended)
    steps.observe()

    def leave() -> None:
        for begun in _begun:
            if os.getpid() == begun.process.pid:  # not one that the rank has forked
                begun.leave()

    def leave_together() -> None:
        if os.getpid() != torch_job.process.pid:
            print(
                f"hpcdist: rank {world.rank}: process {os.getpid()}, which the rank has forked, "
                "would leave MPI in its name: end such a process by os._exit(code)",
                file=sys.__stderr__,
                flush=True,
            )
            sys.stdout.flush()
            os._exit(1)  # mpi4py's end would hang
        _say_ended()
        world.barrier(None)  # rank 0 keeps the store until no rank needs it
        leave()

    if launched and not settings.RANK.is_set():  # no launcher of ours ends the job
        sys.excepthook = hook = _EndsJob(world, torch_job.process.pid)
        atexit.register(leave_together)
        for _ in range(TRIES):  # before that
            atexit.register(hook.if_interrupted)
    else:
        atexit.register(leave)
    return torch_job


def _say_ended() -> None:
    for begun in _begun:
        begun.warn_if_alone()
        begun.say_ended()


def _joined(
    messages: Transport, asking: Transport, names: Sequence[int], deaths: DeathWatch | None
) -> TorchJob:
    """Return the job of the ranks of two transports, which the launcher calls ``names``."""
    deadline_s = settings.RPC_DEADLINE.read() / 1000
    ranks_here = messages.on_host().size
    keeper = Keeper(asking) if messages.rank == 0 else None
    return TorchJob(
        tuple(names),
        messages,
        asking,
        MpiStore(asking, keeper, deadline_s, names),
        keeper,
        LaneThread(messages.policy, gives_way=ranks_here == messages.size),
        deadline_s,
        Connections(messages, tuple(names)),
        deaths,
        ranks_here,
    )


@dataclass(frozen=True)
class _EndsJob:
    """An exception hook that ends all ranks, which would wait for process ``pid``, this one."""

    transport: Transport
    pid: int

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        forget_children()
        if os.getpid() != self.pid:  # the rank has forked it
            sys.__excepthook__(kind, error, trace)
            return
        lines = "".join(traceback.format_exception(kind, error, trace))
        # torch's own hook holds back what is written to sys.stderr.
        print(
            f"hpcdist: rank {self.transport.rank} failed\n{lines}", file=sys.__stderr__, flush=True
        )
        if not issubclass(kind, KeyboardInterrupt):
            self.transport.abort(1)

    def if_interrupted(self) -> None:
        """Do it at the end of the process, if the handler of a signal has raised in the hook."""
        error = getattr(sys, "last_value", None)
        if error is None or isinstance(error, KeyboardInterrupt) or hasattr(sys, "ps1"):
            return
        if os.getpid() == self.pid:
            self(type(error), error, error.__traceback__)
