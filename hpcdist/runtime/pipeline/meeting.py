"""Checks that all ranks of a pipeline are about to run and fetch the same."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from hpcdist.base.errors import CommError, FeedError
from hpcdist.base.trace.position import here
from hpcdist.comm.base import Transport, ranks_that_differ
from hpcdist.runtime.batches.check import RECORD_BYTES, BatchCheck


class Meeting:
    """Compares what the script of this rank does with the scripts of all ranks, ``trainers``."""

    def __init__(self, trainers: Transport, deadline_s: float) -> None:
        self._trainers = trainers
        self._deadline_s = deadline_s
        self.check = BatchCheck(trainers.rank, (), ahead=1)
        self.startups = 0  # how often the startup program has run

    def agree(self, text: str, awaited: str) -> None:
        """Refuse to continue if ranks have built different Programs (CommError). Collective."""
        different = ranks_that_differ(self._trainers, text, self._deadline_s, awaited)
        if different:
            raise CommError(
                f"rank {self._trainers.rank}: the program built here differs from that of ranks "
                f"{different}: all ranks must build the same network, with equal settings"
            )

    def begin_step(
        self, arrays: Mapping[str, np.ndarray], rows: int, fetches: Sequence[str]
    ) -> None:
        """Compare what is fed, and asked for, with all other ranks. Collective.

        Raises FeedError or CommError where another rank does something else.
        """
        self.check.begin(arrays, rows)
        fetch_digest = hashlib.sha256("\n".join(fetches).encode()).digest()[:8]
        extra = fetch_digest + self.startups.to_bytes(8, "little")
        awaited = f"the other ranks' batch of step {here.step + 1}"
        records = self.exchange("a step", self.check.record() + extra, awaited, "trains")
        for rank, data in enumerate(records):
            self.check.compare(rank, data[:RECORD_BYTES])
            if data[RECORD_BYTES:][: len(fetch_digest)] != fetch_digest:
                raise FeedError(
                    f"step {here.step + 1}: rank {rank} fetches other values than "
                    f"{', '.join(fetches) or 'none'}, as rank {self._trainers.rank} does: all "
                    "ranks of a pipeline must fetch the same; only printing may be left to one"
                )
            if data[RECORD_BYTES:] != extra:
                raise CommError(
                    f"runs of the startup program until step {here.step + 1}: {self.startups} by "
                    f"rank {self._trainers.rank}, {int.from_bytes(data[-8:], 'little')} by rank "
                    f"{rank}: all ranks of a pipeline must run the same programs"
                )

    def exchange(self, purpose: str, body: bytes, awaited: str, doing: str) -> list[bytes]:
        """Exchange messages of all ranks for the same ``purpose``, b"" of one that has ended.

        Collective. ``doing`` and ``awaited`` are for messages. Raises CommError if a rank tells
        something for another purpose.
        """
        head = hashlib.sha256(purpose.encode()).digest()
        gathered = self._trainers.allgather_bytes(head + body, self._deadline_s, awaited)
        for rank, data in enumerate(gathered):
            if data and data[: len(head)] != head:
                raise CommError(
                    f"rank {self._trainers.rank} {doing}, but rank {rank} does something else: all "
                    "ranks of a pipeline must run the same programs, and save together"
                )
        return [data[len(head) :] for data in gathered]
