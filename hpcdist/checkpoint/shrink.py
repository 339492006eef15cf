"""The end of a day of tables that forget rows, on all ranks that have some."""

from __future__ import annotations

from collections import Counter

from hpcdist.base.errors import CheckpointError
from hpcdist.checkpoint.kept import Kept
from hpcdist.checkpoint.ranks import together, with_the_living
from hpcdist.checkpoint.saving import wait
from hpcdist.checkpoint.serving import SHRINK, shrunk


@with_the_living
def end_day(kept: Kept) -> dict[str, int]:
    """Forget rows of tables whose `RowPolicy` says that they have expired; it ends a day.

    Every trainer calls this, between the same two steps; servers take part by themselves. Shows and
    clicks decay, then rows are forgotten that were last looked up too long ago, or whose score is
    too low. Returns how many rows each table with a policy has forgotten on all ranks together.
    Raises CheckpointError, on all trainers, if there is no such table.
    """
    peers = kept.peers
    wait()
    together(peers, kept.settle)  # all steps are over

    def shrink() -> list[dict[str, int]]:
        answers = peers.ask({"do": SHRINK}) if peers.trainer == 0 else []
        return [*answers, shrunk([] if peers.servers else kept.tables)]

    forgotten: Counter[str] = Counter()
    names: set[str] = set()
    for of_rank in (counts for answers in together(peers, shrink) for counts in answers):
        forgotten.update(of_rank)
        names |= of_rank.keys()
    if not names:
        raise CheckpointError(
            "shrink: no table has a policy: give one RowPolicy(expire_days=30), as "
            "docs/tables.md says, or leave the call out"
        )
    return {name: forgotten[name] for name in sorted(names)}
