"""The ranks that run a Program together; a single process counts as trainer 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpcdist.base.errors import CheckpointError
from hpcdist.checkpoint.ranks import OnlyTrainer, of_trainer
from hpcdist.executor import control
from hpcdist.executor.control import ProgramPeers
from hpcdist.executor.scope import Scope
from hpcdist.graph.program import Program


class OnlyTrainerOfProgram(OnlyTrainer):
    """A process without a job, seen as the only trainer of its Programs."""

    shares_batches = True

    def program(self, program: Program) -> Program:
        """Return the Program itself."""
        return program

    def trains_in(self, scope: Scope) -> bool:
        """There are no servers."""
        return False

    def read(self, server: int, arrays: Mapping[str, Any]) -> None:
        """There is nobody to read from."""
        raise CheckpointError(f"there is no server {server}: this process is alone")

    def complete(self, names: Sequence[str], scope: Scope) -> None:
        """Everything is here."""

    def settle(self, program: Program) -> dict[str, int]:
        """Nothing is under way, and nothing is counted."""
        return {}

    def catch_up(self, program: Program) -> None:
        """There are no others."""

    def resume(self, program: Program, counted: Mapping[str, int], scope: Scope) -> None:
        """Nothing is counted."""


def program_peers() -> ProgramPeers:
    """Return the ranks of this process's job; CheckpointError on a server."""
    job = control.installed()
    return OnlyTrainerOfProgram() if job is None else of_trainer(job.peers())
