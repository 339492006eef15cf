"""What a trainer keeps that no Program says: arrays and tables that a script declares."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hpcdist.checkpoint.checkpoint import Checkpoint
from hpcdist.checkpoint.kept import Arrays, LocalPiece, NamedShards, unsliced
from hpcdist.checkpoint.metadata import COUNTER, OTHER
from hpcdist.checkpoint.ranks import Peers, peers_here
from hpcdist.ps.row_policy import RowPolicy
from hpcdist.ps.table import SparseTable
from hpcdist.runtime.pserver.declared import DeclaredOnServers


@dataclass(frozen=True)
class KeptValues:
    """Arrays and tables of this trainer, and what ``served`` has on servers: see `Kept`.

    ``roles``: those of arrays, by name, where they are not `OTHER`; ``individual``: how arrays of
    which each trainer has its own divide; ``elsewhere``: the names of those that servers hold, too.
    """

    served: DeclaredOnServers | None
    tables: Sequence[SparseTable]
    arrays: Mapping[str, Any] = field(default_factory=dict)
    policies: Mapping[str, RowPolicy | None] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    individually: Mapping[str, str] = field(default_factory=dict)
    elsewhere: Collection[str] = ()
    # Of Programs only: a network that is described, counters, and rates that a script may keep.
    described = None
    counter = None
    rates = ()

    @property
    def peers(self) -> Peers:
        """The other ranks. CheckpointError on a server."""
        return peers_here()

    @property
    def values(self) -> Arrays:
        """The arrays, which are overwritten where they are."""
        return Arrays(self.arrays)

    @property
    def names(self) -> Collection[str]:
        """The names of all arrays."""
        return self.arrays.keys()

    @property
    def fingerprint(self) -> str:
        """A digest that is equal on ranks that keep the same."""
        alike = [asdict(h.piece) for h in self._pieces() if h.local not in self.individually]
        said = json.dumps([alike, [table.name for table in self.tables]])
        return hashlib.sha256(said.encode()).hexdigest()

    @property
    def lockstep(self) -> bool:
        """Whether trainers take each step together."""
        return self.served is None or self.served.lockstep

    def settle(self) -> dict[str, int]:
        """Wait until all that was sent has arrived; nothing is counted."""
        if self.served is not None:
            self.served.settle()
        return {}

    def catch_up(self) -> None:
        """When all trainers have settled: take over what they have sent."""
        if self.served is not None:
            self.served.catch_up()

    def streams(self) -> dict[str, Any]:
        """Return no streams: no operator draws random numbers."""
        return {}

    def shards(self) -> NamedShards:
        """Return the shards to save."""
        return NamedShards(self._pieces(), self.tables, self.elsewhere, self.individually)

    def _pieces(self) -> list[LocalPiece]:
        return [unsliced(name, self._role(name), array) for name, array in self.arrays.items()]

    def _role(self, name: str) -> str:
        return self.roles.get(name, COUNTER if name.startswith("@") else OTHER)

    # -- restoring ---------------------------------------------------------------------------
    def wanted(
        self, checkpoint: Checkpoint, leave: Collection[str], *, partial: bool
    ) -> list[LocalPiece]:
        """Return the arrays that servers do not hold, but for ``leave``."""
        return [h for h in self._pieces() if h.local not in {*self.elsewhere, *leave}]

    def individual(self) -> Mapping[str, str]:
        """Return no names: what is wanted is named as it was saved."""
        return {}

    def check(self, checkpoint: Checkpoint) -> None:
        """Take any checkpoint: what does not fit is found by name."""

    def set_streams(self, streams: Mapping[str, Any], step: int) -> None:
        """Take no streams: no operator draws random numbers."""

    def resume(self, counted: Mapping[str, int]) -> None:
        """When all ranks have loaded: continue from what servers hold."""
        if self.served is not None:
            self.served.resume()
