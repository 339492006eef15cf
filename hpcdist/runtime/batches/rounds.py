"""What trainers that share batches exchange in every step: keys of batches, fetched values."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from hpcdist.base.errors import FeedError
from hpcdist.base.trace.position import here
from hpcdist.comm.base import Transport
from hpcdist.comm.collective import RankGroup
from hpcdist.comm.split_allgather import SplitAllgather, split_allgather
from hpcdist.executor.control import Binding, Fetched
from hpcdist.executor.scope import Scope
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Call
from hpcdist.runtime.batches.check import ENDED, RECORD_BYTES, BatchCheck
from hpcdist.runtime.batches.joined_fetch import NOTE_BYTES, JoinedFetch
from hpcdist.runtime.batches.scatter import Division
from hpcdist.runtime.job.membership import Membership


class BatchRounds:
    """One round for each step: a key of what was fed, and the values that are fetched.

    The operator that sends the last gradients starts it; where a death may be survived, all join
    at the end of the step instead, for who is left must agree on whose rows count.
    """

    def __init__(
        self,
        trainers: Transport,
        deadline_s: float,
        membership: Membership,
        check: BatchCheck,
        ranks: tuple[int, ...],
    ) -> None:
        """``ranks`` are those of all trainers in the job, for messages."""
        self._trainers = trainers
        self._deadline_s = deadline_s
        self._membership = membership
        self._check = check
        self._ranks = ranks
        self._rounds: SplitAllgather | None = None
        self._division: Division | None = None  # of the last batch
        self._scope: Scope | None = None  # where the last batch is computed
        self._started: JoinedFetch | None = None  # what this step's round has been started for

    @property
    def connected(self) -> bool:
        """Whether there are rounds: with one trainer, or where a death may be survived, not."""
        return self._rounds is not None

    def connect(self) -> None:
        """Before the first step of a plain script. Collective; later calls do nothing."""
        if self._rounds is not None or self._trainers.size == 1 or self._membership.settles:
            return
        awaited = "all trainers to begin a plain script"
        records = self._trainers.allgather_bytes(b"begin", self._deadline_s, awaited)
        for trainer, data in enumerate(records):
            if not data:
                self._check.refuse_ended(trainer)
        group = RankGroup(self._trainers, self._ranks, self._deadline_s)
        self._rounds = split_allgather(group, NOTE_BYTES, _awaited)

    def leave(self) -> None:
        """Notify the others that this trainer's script feeds no more."""
        if self._rounds is not None:
            self._rounds.begin()
            self._rounds.start(ENDED)

    def end(self) -> None:
        """When all trainers have left: end what is under way. Collective."""
        if self._rounds is not None:
            self._rounds.wait()

    def note_batch(self, division: Division | None, scope: Scope) -> None:
        """Before a step: note how its batch is divided, and where it is computed."""
        self._division, self._scope, self._started = division, scope, None

    def starting(self, joined: JoinedFetch, before: Operator, binding: Binding) -> Call | None:
        """Return the call that starts a step's round before an operator; None if too early."""
        assert self._rounds is not None
        write = joined.early(before, binding, self._rounds)
        return None if write is None else functools.partial(self._start, joined, write)

    def _start(self, joined: JoinedFetch, write: Call) -> None:
        assert self._rounds is not None
        self._rounds.begin()
        write()
        self._rounds.start(joined.key ^ self._check.key())
        self._started = joined

    def join(self, joined: JoinedFetch, fetched: Fetched) -> list[Any]:
        """Return the values of the whole batch. Collective; FeedError if batches differ."""
        rounds, division = self._rounds, self._division
        if rounds is None:
            return self._join_living(joined, fetched)
        if self._started is not joined:
            values = [value for _, value in fetched]
            self._start(joined, functools.partial(joined.write, rounds, values))
        if not rounds.wait():
            self._tell_apart(joined, rounds.keys())
        if division is None or not joined.joins:
            return [value for _, value in fetched]
        if joined.written:
            return joined.read(rounds, fetched, division)
        assert self._scope is not None
        packed = joined.pack(fetched, division, self._scope)
        parts = self._membership.join(packed, _values_of(joined))
        return joined.unpack(parts, fetched, division, self._scope)

    def _join_living(self, joined: JoinedFetch, fetched: Fetched) -> list[Any]:
        """Join the values of those who live, and compare their records."""
        division, scope = self._division, self._scope
        packed = b""
        if division is not None and scope is not None and joined.joins:
            packed = joined.pack(fetched, division, scope)
        parts = self._membership.join(self._check.record() + packed, _values_of(joined))
        for trainer, data in zip(self._membership.among, parts):
            if data is not None:
                self._check.compare(trainer, data[:RECORD_BYTES])
        if division is None or scope is None or not joined.joins:
            return [value for _, value in fetched]
        values = [None if data is None else data[RECORD_BYTES:] for data in parts]
        return joined.unpack(values, fetched, division, scope)

    def _tell_apart(self, joined: JoinedFetch, keys: Sequence[int]) -> None:
        """Raise FeedError that says how this step differs between trainers. Collective."""
        for trainer, key in enumerate(keys):
            if key == ENDED:
                self._check.refuse_ended(trainer)
        record = self._check.record()
        own_key = joined.key.to_bytes(8, "little")
        awaited = f"what the other trainers feed in step {here.step}"
        records = self._membership.join(own_key + record, awaited)
        for trainer, data in enumerate(records):
            if data is not None and data[: len(own_key)] != own_key:
                raise FeedError(
                    f"step {here.step}: {self._check.name(trainer)} runs a different program from "
                    f"{self._check.name(self._trainers.rank)}, or fetches different values from "
                    f"{', '.join(joined.names) or 'none'}: fetched values are gathered from the "
                    "rows of all trainers, so all must run the same program and fetch the same "
                    "values; only printing may be left to one of them"
                )
            if data is not None:
                self._check.compare(trainer, data[len(own_key) :])
        raise FeedError(f"step {here.step}: trainers feed different batches")


def _values_of(joined: JoinedFetch) -> str:
    return f"the other trainers' {', '.join(joined.names) or 'batch'} of step {here.step}"


def _awaited() -> str:
    return f"the other trainers' batch of step {here.step}"
