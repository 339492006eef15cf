"""The tables of models in files: their days and publication, and what checkpoints save of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hpcdist.base.errors import TableError
from hpcdist.checkpoint.publisher import TablePublisher
from hpcdist.checkpoint.ranks import peers_here, together
from hpcdist.checkpoint.rows import Choice
from hpcdist.checkpoint.shrink import end_day
from hpcdist.ps.facts import PUBLISH_EVERY
from hpcdist.ps.published.dense import OnnxModel
from hpcdist.runtime.kept.declared import KeptValues
from hpcdist.torch.models import needs_launcher, tables_of
from hpcdist.torch.tables import Tables


class Publisher(TablePublisher):
    """Publishes the tables of a model beside training, for `hpcdist.serving.Lookup`.

    Every trainer makes one, calls `after_step` after each step, and `close` at the end; see
    `hpcdist.checkpoint.Publisher`.

    >>> publisher = hpcdist.torch.Publisher("published", model, every=1000)  # doctest: +SKIP
    """

    def __init__(
        self,
        dirname: str | Path,
        model: nn.Module | torch.optim.Optimizer,
        *,
        every: int = PUBLISH_EVERY,
        base_every: int = 24,
        keep: Mapping[str, Choice] | None = None,
        dense: OnnxModel | None = None,
    ) -> None:
        """``every``: steps from version to version; ``base_every``: versions from base to base.

        ``keep``: by tables that count shows and clicks, which rows are published, None: all;
        ``dense``: a dense part of `onnx_model` that is published, too.

        TableError for a model without tables, and for rows that cannot be chosen, PlanError for
        numbers that cannot be.
        """
        needs_launcher("publish")
        self._of, *others = _with_tables(model, "Publisher")
        if others:
            names = ", ".join(others[0].names)
            raise TableError(
                f"Publisher: tables {names} were made after others had been looked up: publish "
                "them by a Publisher of their own, to a directory of their own"
            )
        options: dict[str, Any] = {
            "every": every,
            "base_every": base_every,
            "keep": keep,
            "dense": dense,
        }
        super().__init__(partial(kept_tables, self._of), dirname, **options)

    def publish(self, step: int | None = None, *, base: bool = False) -> bool:
        """Begin to publish a version now; see the base class. TableError within a step."""
        _between_steps(self._of, "publish")
        return super().publish(step, base=base)


def shrink_tables(model: nn.Module | torch.optim.Optimizer) -> dict[str, int]:
    """End a day of a model's tables: forget rows that have expired by their policy.

    Every trainer calls this, between the same two steps; servers take part by themselves. Returns
    how many rows each table with a policy has forgotten on all ranks together. TableError for a
    model without tables, or within a step; CheckpointError if no table has a policy.

    >>> hpcdist.torch.shrink_tables(model)["words"]  # doctest: +SKIP
    """
    needs_launcher("shrink tables")
    forgotten: dict[str, int] = {}
    for tables in _with_tables(model, "shrink_tables"):
        _between_steps(tables, "shrink_tables")
        forgotten |= end_day(kept_tables(tables))
        tables.rows_are_others()
    return forgotten


def _with_tables(model: object, what: str) -> list[Tables]:
    found = [tables for tables in tables_of([model]) if tables.names]
    if not found:
        raise TableError(
            f"{what}: expected a model with tables, or their optimizer, got a "
            f"{type(model).__name__} without"
        )
    return found


def _between_steps(tables: Tables, what: str) -> None:
    """Wait for all that is under way. Collective; TableError, or CheckpointError, in a step."""

    def check() -> None:
        if tables.is_stepping:
            raise TableError(
                f"{what}: gradients of {', '.join(tables.names)} have come in this step, and not "
                "all optimizers have stepped: call it between two steps"
            )

    together(peers_here(), check)
    tables.pause()
    if tables.served is not None:
        tables.served.client.tables.settle(tables.served.specs)


def kept_tables(tables: Tables) -> KeptValues:
    """Return a model's tables, settled, as they are published: those here, or on servers."""
    local = [table for _, table in sorted(tables.local.items())]
    return KeptValues(tables.served, local, policies=tables.policies)
