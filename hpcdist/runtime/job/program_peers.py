"""The other ranks of a job that runs Programs, as checkpoints see them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdist.base.errors import CheckpointError
from hpcdist.executor.scope import Scope
from hpcdist.graph.program import Program
from hpcdist.runtime.job.checkpoint_peers import JobPeers


@dataclass(frozen=True)
class JobProgramPeers(JobPeers):
    """A trainer's peers, with what it does for its Programs among them."""

    program: Callable[[Program], Program]  # what this rank runs in place of a Program
    settle: Callable[[Program], dict[str, int]]
    catch_up: Callable[[Program], None]
    resume: Callable[[Program, Mapping[str, int], Scope], None]
    trained: Collection[Scope]  # the scopes in which Programs train
    complete: Callable[[Sequence[str], Scope], None]
    shares_batches: bool

    def trains_in(self, scope: Scope) -> bool:
        """Return whether servers hold what belongs to a scope, or to its parents."""
        place: Scope | None = scope
        while place is not None and place not in self.trained:
            place = place.parent
        return bool(self.servers) and place is not None

    def read(self, server: int, arrays: Mapping[str, Any]) -> None:
        """Overwrite each array with the server's present value of the variable of that name."""
        if self.client is None:
            raise CheckpointError(f"there is no server {server}: this job has no servers")
        self.client().read(self.cluster.endpoints[server], arrays)
