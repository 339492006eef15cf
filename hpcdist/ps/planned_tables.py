"""The tables of a plan: what is known of one before it is made, and what makes it. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from hpcdist.base import settings
from hpcdist.base.errors import GraphError, PlanError
from hpcdist.ps.batch import TableSpec
from hpcdist.ps.policy_table import PolicyTable
from hpcdist.ps.row_policy import RowPolicy
from hpcdist.ps.table import RowInitializer, RowOptimizer, SparseTable


class RowSource(Protocol):
    """Rows that a table begins with."""

    def load(self, table: SparseTable, owner: int, owners: int) -> None:
        """Put those that live on this one of the table's owners into it."""


@dataclass(frozen=True)
class Fill:
    """How the startup Program fills a table: the type of operator, and its constants.

    ``seed`` 0 stands for the job's. ``given``: rows that it begins with, see
    `runtime.tables.given_rows`; the fill is of the others.
    """

    type: str
    attrs: tuple[tuple[str, float], ...]
    seed: int = 0
    given: RowSource | None = None


@dataclass(frozen=True)
class PlannedTable:
    """A distributed table: its rows are moved by ``optimizer``, an operator's type.

    ``attrs`` are that operator's; ``state`` are its accumulators that are shaped like the table,
    ``first`` their values in new rows. ``padding`` is the id that stands for nothing, None if all
    stand for something. ``fill`` says how new rows begin; it and ``first`` are not known before the
    startup Program is read (`with_startup`). ``policy`` says which ids get rows, and which rows are
    forgotten; None: all, and none.
    """

    parameter: str
    gradient: str
    shape: tuple[int, ...]
    dtype: str
    learning_rate: str
    optimizer: str = "sgd"
    attrs: tuple[tuple[str, Any], ...] = ()
    state: tuple[str, ...] = ()
    first: tuple[float, ...] = ()
    padding: int | None = None
    fill: Fill | None = None
    policy: RowPolicy | None = None

    @property
    def width(self) -> int:
        """The number of elements of a row."""
        return self.shape[1]

    @property
    def dict_size(self) -> int | None:
        """How many ids it is for; None: any number."""
        return self.shape[0] if self.shape[0] >= 0 else None

    @property
    def names(self) -> tuple[str, ...]:
        """What no rank has as an array: the table and its accumulators."""
        return (self.parameter, *self.state)

    @property
    def spec(self) -> TableSpec:
        """The table as trainers and servers know it."""
        shows = 2 if self.policy is not None and self.policy.shows else 0
        return TableSpec(self.parameter, self.width + shows, self.dict_size, self.padding)


def check_policy(name: str, policy: RowPolicy | None, optimizer: str) -> None:
    """Raise PlanError for a table's policy that the optimizer of its rows cannot follow."""
    if policy is not None and policy.row_wise and optimizer != "adagrad":
        raise PlanError(
            f"table {name!r}: RowPolicy(row_wise=True), one moment for a row, is for Adagrad, and "
            f"{optimizer} is to move it: leave it out, or use Adagrad"
        )


def make_table(table: PlannedTable, owner: int, owners: int) -> SparseTable:
    """Return the table that a startup Program describes, with those given rows that it owns.

    Its rows begin alike on all servers: the seed follows from the Program's, or the job's, and
    from the table's name.
    """
    fill = table.fill
    assert fill is not None, "the startup Program has been read"
    seed = fill.seed or settings.SEED.read()
    facts = (
        table.parameter,
        table.width,
        _optimizer(table),
        _initializer(fill.type, dict(fill.attrs)),
        zlib.crc32(f"{seed}/{table.parameter}".encode()),
        table.dict_size,
    )
    if table.policy is None or table.policy.keeps_all:
        kept = table.policy or RowPolicy()
        made = SparseTable(*facts, storage=kept.storage, tier=kept.tier)
    else:
        made = PolicyTable(*facts, policy=table.policy)
        made.check_servers(owners)
    if fill.given is not None:
        fill.given.load(made, owner, owners)
    return made


def _optimizer(table: PlannedTable) -> RowOptimizer:
    fields = RowOptimizer.__dataclass_fields__
    attrs = {name: value for name, value in table.attrs if name in fields}
    if table.policy is not None:
        attrs["row_wise"] = table.policy.row_wise
        attrs["clip_norm"] = float(table.policy.clip_norm)
        attrs["weight_bounds"] = table.policy.weight_bounds
    if table.optimizer == "adagrad" and table.first:
        attrs["initial_moment"] = table.first[0]
    elif any(table.first):
        raise GraphError(
            f"table {table.parameter!r}: accumulators of {table.optimizer} begin with 0, "
            f"got {table.first}"
        )
    return RowOptimizer(table.optimizer, **attrs)


def _initializer(type: str, attrs: Mapping[str, float]) -> RowInitializer:
    if type == "fill_constant":
        return RowInitializer("constant", attrs["value"])
    if type == "uniform_random":
        return RowInitializer("uniform", attrs["min"], attrs["max"])
    kind = "normal" if type == "gaussian_random" else "truncated_normal"
    return RowInitializer(kind, attrs["mean"], attrs["std"])


def check_moves(sparse_table: SparseTable, table: PlannedTable) -> None:
    """Refuse a table whose startup Program did not know what moves it, such as a copy of one."""
    initial, moved = (
        replace(o, initial_moment=0.0) for o in (sparse_table.optimizer, _optimizer(table))
    )
    if initial != moved:
        raise GraphError(
            f"table {sparse_table.name!r} was made for {initial.kind}, but this program updates "
            f"it by {moved.kind}, or with other hyperparameters: run the startup program that this "
            "one was built with, not a copy"
        )
