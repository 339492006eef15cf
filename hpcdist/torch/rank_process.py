"""The process that is a rank, told from those that it has forked."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from hpcdist.base.errors import CommError


@dataclass(frozen=True)
class RankProcess:
    """The process that makes this is rank ``rank``, as the launcher numbers ranks."""

    rank: int
    pid: int = field(default_factory=os.getpid)

    def refuse_forked(self, describe: Callable[[], str]) -> None:
        """Raise CommError in a process that the rank has forked: others would take it for the rank.

        ``describe()`` names what it calls.
        """
        if os.getpid() != self.pid:
            raise CommError(
                f"rank {self.rank}: process {os.getpid()}, which the rank (process {self.pid}) has "
                f"forked, calls {describe()}: only the rank itself can; let processes such as a "
                "DataLoader's workers communicate nothing"
            )
