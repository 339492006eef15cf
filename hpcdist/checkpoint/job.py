"""This process's job as checkpoints see it: its ranks."""

from __future__ import annotations

from typing import Any, Protocol


class Peers(Protocol):
    """The other ranks of a job, as checkpoints see them; trainers only have them."""

    @property
    def trainer(self) -> int:
        """Which trainer this is."""

    @property
    def trainers(self) -> int:
        """Number of trainers."""

    @property
    def servers(self) -> int:
        """Number of servers."""

    @property
    def deadline_s(self) -> float:
        """How long to wait for another rank's file."""

    @property
    def group(self) -> Any:
        """The transport of all trainers; None for a process alone."""

    def gather(self, data: bytes, deadlines: int = 1) -> list[bytes]:
        """Return every trainer's ``data``, in trainer order, when all have come. Collective.

        They may be late by so many deadlines.
        """

    def announce(self, data: bytes) -> None:
        """Send up to `ANNOUNCED` bytes to all other trainers, who may come for it or not."""

    def hear(self, awaited: str, deadlines: int = 1) -> bytes | None:
        """Return trainer 0's next announcement; None if it has died. ``awaited`` is waited for."""

    def ask(self, request: object) -> list[Any]:
        """Ask every server; return their answers in order. They answer between steps."""


class JobOfRanks(Protocol):
    """A job that this process is a rank of."""

    def peers(self) -> Peers | None:
        """Return the other ranks; None on a server."""


_job: JobOfRanks | None = None


def install_job(job: JobOfRanks | None) -> None:
    """Set the job whose checkpoints are made; None: a process trains alone."""
    global _job
    _job = job


def job_here() -> JobOfRanks | None:
    """Return the job, None in a process that trains alone."""
    return _job
