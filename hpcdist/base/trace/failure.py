"""Which rank stopped a failed job first, as far as its recordings show. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.base.trace.files import RankRecording


def failed(recordings: Sequence[RankRecording]) -> list[RankRecording]:
    """Return the ranks of a job that failed, that which stopped first in front.

    Who waited was stopped by others, and servers do little else. Of those who did not, the one
    whose last event ended first is in front: a rank that hangs has noted nothing since.
    """
    ended = [rank for rank in recordings if rank.of.why == "failure"]
    return sorted(ended, key=_order)


def silent(recordings: Sequence[RankRecording]) -> list[int]:
    """Return the ranks of a job that failed which have written nothing."""
    written = {rank.of.rank for rank in recordings}
    world = max((rank.of.world for rank in recordings), default=0)
    return [rank for rank in range(world) if rank not in written] if failed(recordings) else []


def activity(rank: RankRecording) -> str:
    """Return the activity of a rank when it wrote its recording."""
    of = rank.of
    return f"{of.doing}, waiting for {of.waiting}" if of.waiting else of.doing


def _order(rank: RankRecording) -> tuple[bool, bool, int]:
    return bool(rank.of.waiting), rank.of.role == "PSERVER", _last(rank)


def _last(rank: RankRecording) -> int:
    ends = rank.recording.events["end"]
    return int(ends.max()) + rank.of.offset_ns if len(ends) else 0
