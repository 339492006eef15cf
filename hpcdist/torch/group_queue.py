"""Runs the operations of one process group: in order, checked, within a deadline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from time import monotonic, monotonic_ns
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from hpcdist.base.errors import CommError
from hpcdist.comm.collective import RankGroup
from hpcdist.comm.lanes import Lane, Operation, Steps
from hpcdist.torch import by_messages, in_memory
from hpcdist.torch.channel import Channel
from hpcdist.torch.job import TorchJob, job
from hpcdist.torch.memory import Modes, outside_modes
from hpcdist.torch.signature import Call, agree
from hpcdist.torch.steps import steps as step_log
from hpcdist.torch.work import MpiWork, at_its_end, in_backward

COLLECTIVE_TAG = 0  # single messages have odd tags
# Within a hook of DistributedDataParallel: the lanes of what it has begun.
hook_lanes: ContextVar[list[Lane] | None] = ContextVar("hook_lanes", default=None)


class GroupOptions:
    """What torch's groups have as ``options``: the time-out, to be read and set."""

    def __init__(self, queue: GroupQueue) -> None:
        self._queue = queue

    @property
    def _timeout(self) -> timedelta:
        return timedelta(seconds=self._queue.group.deadline_s or 0)

    @_timeout.setter
    def _timeout(self, timeout: timedelta) -> None:
        self._queue.set_timeout(timeout)


class GroupQueue:
    """The operations of a group: collectives one after another, single messages beside them."""

    def __init__(
        self,
        ours: TorchJob,
        store: dist.Store,
        members: Sequence[int],
        me: int,
        name: str,
        timeout: timedelta,
    ) -> None:
        """``members``: the script's numbers of the group's ranks, in its order; ``me``: the place.

        Collective among them.

        A ``timeout`` other than torch's default bounds every wait, else FLAGS_rpc_deadline does.
        """
        deadline_s = ours.deadline_s if timeout == default_pg_timeout else timeout.total_seconds()
        self._connection = ours.connections.make(store, members, me, name, deadline_s)
        self.links = links = self._connection.links
        self.mover = ours.mover
        self.timeout = timeout
        self._job = ours
        self.group = RankGroup(
            links.transport, tuple(ours.names[rank] for rank in links.ranks), deadline_s
        )
        self.memory = links.memory
        several = links.nodes if links.nodes is not None and len(links.nodes.members) > 1 else None
        self.channel = Channel(links.transport, COLLECTIVE_TAG, several)
        self.checks = dist.get_debug_level() == dist.DebugLevel.DETAIL
        self.sequence = 0  # of the collective that was called last
        self._lane = Lane()

    def set_timeout(self, timeout: timedelta) -> None:
        """Bound every wait of operations that are called from now on."""
        self.timeout = timeout
        self.group = RankGroup(self.group.transport, self.group.names, timeout.total_seconds())

    def add(
        self,
        call: Call,
        operands: Sequence[object],
        then: Callable[[], None],
        result: Sequence[Any],
        opts: object,
        messages: ModuleType = by_messages,
    ) -> MpiWork:
        """Put a collective at the end; it begins at once if it is the first.

        The function that ``call.kind`` names does it: in memory that all ranks share, if there is
        some and all give as many elements, else by ``messages``. ``then`` is called after it, and
        ``result`` are the tensors that it writes.
        """
        self.sequence += 1
        number = self.sequence
        steps = self._steps(call, operands, messages, then, number)
        work = MpiWork(self.mover, self._lane, result)
        return self.go(work, steps, lambda: f"{call} (number {number})", opts)

    def go(
        self,
        work: MpiWork,
        steps: Steps,
        describe: Callable[[], str],
        opts: object = None,
        *,
        any_rank: bool = False,
    ) -> MpiWork:
        """Put an operation at the end of its handle's lane, and move it on as far as it goes.

        ``any_rank``: one of those that it is for is enough.
        CommError in a process that the rank has forked: others would take it for the rank.
        """
        self._job.process.refuse_forked(describe)
        if self._job is not job():
            raise CommError(
                f"rank {self.group.names[self.group.rank]}: a group from before "
                "hpcdist.torch.shrink() is used: make groups again, and what was made with them "
                "(DistributedDataParallel)"
            )
        if torch._C._len_torch_dispatch_stack() and not _has_memory(describe):
            steps = _no_steps()
        timeout = getattr(opts, "timeout", default_pg_timeout)
        is_set = timeout >= timedelta(0) and timeout != default_pg_timeout  # torch: -1 ms is unset
        deadline_s = timeout.total_seconds() if is_set else self.group.deadline_s
        alarm = self._job.deaths if any_rank else self._job.alarm
        ended = partial(self._connection.ended, work)
        work.operation = Operation(self.group, steps, describe, deadline_s, ended, alarm)
        self.links.begin()
        work.lane.add(work.operation)
        if (begun := hook_lanes.get()) is not None:
            begun.append(work.lane)
        with outside_modes():
            is_left = work.lane.move()
        if is_left and getattr(opts, "asyncOp", True):
            helps = in_backward() and self.mover.patience_s > 0
            if helps:
                until = monotonic() + self.mover.patience_s
                at_its_end(partial(self.mover.help, work.lane, work.operation, until))
            self.mover.watch(work.lane, patiently=helps)
        return work

    def _steps(
        self,
        call: Call,
        operands: Sequence[object],
        messages: ModuleType,
        then: Callable[[], None],
        number: int,
    ) -> Steps:
        """Do a collective in shared memory or by messages, once all ranks call the same one.

        In shared memory that costs nothing; else it is asked at a debug level only.
        """
        began = monotonic_ns() if step_log.detailed else 0
        alike = call.length is not None
        if self.memory is not None:
            message = call.encoded()
            self.memory.tell(message)
            steps: Steps = (
                getattr(in_memory, call.kind)(self.memory, *operands)
                if alike
                else in_memory.barrier(self.memory)
            )
            yield next(steps)
            self.memory.agree(message, number)
            yield from steps
        elif self.checks:
            message = call.encoded()
            everyone = torch.empty(self.channel.size, dtype=torch.int64)
            encoded = torch.tensor([message])
            yield from by_messages.all_gather(self.channel, encoded, everyone.split(1))
            agree(message, everyone.tolist(), self.group.names, self.group.rank, number)
        if self.memory is None or not alike:
            yield from getattr(messages, call.kind)(self.channel, *operands)
        then()
        if began:
            step_log.collective(call, began)


def _has_memory(describe: Callable[[], str]) -> bool:
    """Return whether tensors have memory here: not in a FakeTensorMode, where nothing is sent.

    CommError where make_fx records a function: it would record nothing of the collective.
    """
    if torch._C._get_dispatch_mode(Modes.PROXY) is not None:
        raise CommError(
            f"{describe()}: make_fx records functional collectives only, call those of "
            "torch.distributed._functional_collectives; torch.compile and torch.export replace "
            "torch.distributed's themselves"
        )
    return torch._C._get_dispatch_mode(Modes.FAKE) is None


def _no_steps() -> Steps:
    yield from ()
