"""This process's part of a torch job: transports, store, the thread beside the script."""

from __future__ import annotations

import atexit
import sys
import traceback
from dataclasses import dataclass
from types import TracebackType

from hpcdist import runtime, settings
from hpcdist.comm import loopback
from hpcdist.comm.base import Transport
from hpcdist.comm.lanes import Mover
from hpcdist.comm.process_manager import launched_size
from hpcdist.comm.world import mpi_world
from hpcdist.errors import LaunchError
from hpcdist.torch import steps
from hpcdist.torch.servers import serve
from hpcdist.torch.store import Keeper, MpiStore


@dataclass(frozen=True)
class TorchJob:
    """What all process groups of this process share."""

    transport: Transport  # of all trainers; groups are subsets of it
    store: MpiStore
    mover: Mover
    deadline_s: float  # of waits for which the script has set no time-out


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


def _begin(within_s: float | None) -> TorchJob:
    launched = launched_size() is not None
    world: Transport = mpi_world() if launched else loopback.world(1)[0]
    if not world.concurrent:
        raise LaunchError(
            "hpcdist.torch sends from several threads and needs MPI_THREAD_MULTIPLE, which this "
            "MPI library does not give; build it with threads, or leave mpi4py.rc.thread_level "
            "at 'multiple'"
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
    trainers = range(world.size) if ours is None else ours.cluster.trainers
    messages = world.subset(trainers, 1)
    asking = world.subset(trainers, 2)
    keeper = Keeper(asking) if messages.rank == 0 else None
    store = MpiStore(asking, keeper, deadline_s)
    steps.observe()
    mover = Mover(world.policy, gives_way=messages.on_host().size == messages.size)
    torch_job = TorchJob(messages, store, mover, deadline_s)

    def leave() -> None:
        torch_job.mover.close()
        if keeper is not None:
            keeper.close()

    def leave_together() -> None:
        world.barrier(None)  # rank 0 keeps the store until no rank needs it
        leave()

    if launched and not settings.RANK.is_set():  # no launcher of ours ends the job
        sys.excepthook = _EndsJob(world)
        atexit.register(leave_together)
    else:
        atexit.register(leave)
    return torch_job


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
