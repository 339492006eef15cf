"""Batches that trainers share: each takes its rows, and their values are put together again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcdist.comm.base import Transport
from hpcdist.errors import FeedError
from hpcdist.executor.control import Feed, Fetched
from hpcdist.executor.position import here
from hpcdist.executor.scope import Scope
from hpcdist.graph.program import Program
from hpcdist.runtime.areas import Areas
from hpcdist.runtime.joining import How, SharedProgram, loss_weight, pack, unpack
from hpcdist.runtime.sharing import WEIGHT, Share, cut_feed, rows_fed, share_among
from hpcdist.runtime.survivors import Survivors


class Batches:
    """The Programs whose batches are shared, and this trainer's part of the last one.

    Either every trainer is fed the whole batch, and cuts its rows out (`share`); or each is fed
    rows of its own, as many as it has, and tells the others how many (`meet`).
    """

    def __init__(
        self, trainers: Transport, deadline_s: float, survivors: Survivors | None = None
    ) -> None:
        self._trainers = trainers
        self._survivors = survivors or Survivors(trainers, None, deadline_s)
        self._deadline_s = deadline_s
        self._shared: dict[int, SharedProgram] = {}  # by the id of the Program
        self._met: dict[int, tuple[Program, SharedProgram]] = {}
        self._areas: dict[int, Areas] = {}
        self._share: Share | None = None
        self._scope: Scope | None = None  # where the last batch is computed

    def share(self, program: Program, trainers: int) -> None:
        """Note that every trainer is fed the whole batches of a Program.

        Raises PlanError if the trainers' parts cannot make up the step of one process.
        """
        self._shared[id(program)] = SharedProgram(program, trainers)
        self._areas[id(program)] = Areas(program)
        self._survivors.watch()

    def leave(self) -> None:
        """Share no more: this trainer leaves the servers."""
        self._survivors.leave()

    def shares(self, program: Program) -> bool:
        """Tell whether every trainer is fed the whole batches of a Program."""
        return id(program) in self._shared

    def cut(self, program: Program, feed: Feed, scope: Scope) -> Feed:
        """Return this trainer's rows of a batch with what they count, if batches are shared."""
        shared = self._shared.get(id(program))
        if shared is None:
            return feed
        among = self._survivors.begin_batch()
        index = among.index(self._trainers.rank)
        rows, share = cut_feed(feed, shared.batched, index, len(among))
        weight = 1.0 if share is None else loss_weight(shared.loss, share, len(among))
        rows[WEIGHT] = np.array([weight], np.float32)
        self._share, self._scope = share, scope
        return rows

    def meet(self, program: Program, feed: Feed) -> tuple[Feed, bool]:
        """Tell the others how many rows are fed here; return the feed with what they count.

        Collective, at every step. The second value tells whether there are any rows here.
        """
        shared = self._met.setdefault(
            id(program), (program, SharedProgram(program, self._trainers.size))
        )[1]
        own = rows_fed(feed, shared.batched)
        counts = [
            int.from_bytes(data, "little")
            for data in self._trainers.allgather_bytes(
                own.to_bytes(8, "little"),
                self._deadline_s,
                f"how many rows the other trainers have in step {here.step + 1}",
            )
        ]
        if not own:
            return {}, False
        share = share_among(counts, self._trainers.rank)
        weight = loss_weight(shared.loss, share, self._trainers.size)
        return {**feed, WEIGHT: np.array([weight], np.float32)}, True

    def join(self, program: Program) -> Callable[[Fetched], list[Any]] | None:
        """Return what joins the trainers' fetched values, for a Program that is shared."""
        shared = self._shared.get(id(program))
        if shared is None or self._trainers.size == 1:
            return None

        def join(fetched: Fetched) -> list[Any]:
            areas, scope = self._areas[id(program)], self._scope
            hows = [areas.how(name) or shared.how_joined(name) for name, _ in fetched]
            share = self._share
            if share is None or scope is None or all(how is How.SAME for how in hows):
                return [value for _, value in fetched]
            values = [areas.part(name, value, scope) for name, value in fetched]
            mine = share.total.to_bytes(8, "little") + pack(values, hows, share)
            names = ", ".join(name for name, _ in fetched)
            what = f"the other trainers' {names} of step {here.step}"
            everyones = self._survivors.join(mine, what)
            _check_same_batch(self._survivors.among, everyones, share.total)
            packed = [None if message is None else message[8:] for message in everyones]
            joined = unpack(packed, values, hows, share)
            return [areas.whole(name, value, own) for (name, own), value in zip(fetched, joined)]

        return join


def _check_same_batch(among: Sequence[int], messages: Sequence[bytes | None], total: int) -> None:
    """Refuse to join values of different batches; a trainer at its end gives an empty message."""
    for trainer, message in zip(among, messages):
        if message is None:
            continue  # it died
        rows = int.from_bytes(message[:8], "little")
        if rows != total:
            found = f"a batch of {rows} rows" if message else "none, its script has ended"
            raise FeedError(
                f"trainers share every batch, so each must feed the same ones: expected {total} "
                f"rows, got from trainer {trainer} {found}; feed equally many batches on all, or "
                "call DistributeTranspiler.transpile in the script and cut the data there"
            )
