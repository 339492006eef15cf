"""Where a Program is cut into pipeline stages, as set by its optimizer."""

from __future__ import annotations

from dataclasses import dataclass

MICRO = "@MICRO@"  # after the name of a value, before the number of its micro-batch


@dataclass(frozen=True)
class PipelineCut:
    """Stages of a Program, and into how many micro-batches each replica cuts its rows.

    ``cuts[k]`` names what stage k computes for later ones; the last stage computes what is left.
    ``cuts`` None: ``fluid.device_guard`` says which operators form a stage.
    ``micro_batches`` None: twice the number of stages.
    """

    cuts: tuple[tuple[str, ...], ...] | None
    micro_batches: int | None


def of_micro_batch(name: str, micro_batch: int) -> str:
    """Return the name of a value of one micro-batch."""
    return f"{name}{MICRO}{micro_batch}"
