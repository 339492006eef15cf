"""The rows of a step: looked up here or ahead, and their gradients pushed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from hpcdist.comm.base import Array
from hpcdist.ps.batch import LookupBatch, TableSpec
from hpcdist.ps.sharded_tables import ShardedTables
from hpcdist.ps.table_rpc import TableClient
from hpcdist.torch.look_ups import GivenGradients, Ids


@dataclass
class Announced:
    """The ids that a step will look up, by table, as far as the script has said them."""

    now: Ids = field(default_factory=dict)
    next: Ids = field(default_factory=dict)


class _Pulled:
    """A batch, and the ids by table that it was made for."""

    def __init__(self, specs: Sequence[TableSpec], owners: int) -> None:
        self.batch = LookupBatch(specs, owners)
        self.ids: dict[str, Array] = {}

    def index(self, ids: Ids) -> None:
        """Make the batch for these ids; it must not be under way."""
        nothing = np.empty(0, np.int64)
        self.batch.index([ids.get(spec.name, nothing) for spec in self.batch.tables])
        self.ids = dict(ids)

    def is_of(self, given: Sequence[GivenGradients]) -> bool:
        """Whether it was made for these very look-ups, one of each table, and for no other."""
        of = {g.table: g.ids for g in given}
        same = all(self.ids.get(table) is ids for table, ids in of.items())
        return bool(of) and same and len(given) == len(of) == len(self.ids)


class EmbeddingExchange:
    """Exchanges rows and their gradients with those that have them: servers, or all trainers.

    Rows whose ids were announced come together, in one exchange: from servers as soon as the
    gradients of the step before have been sent, from trainers when the first is looked up.
    """

    def __init__(
        self,
        specs: Sequence[TableSpec],
        exchange: TableClient | ShardedTables,
        owners: int,
        announced: Announced,
    ) -> None:
        """``owners``: the servers, or the trainers, that the tables are divided among."""
        self._specs = specs
        self._exchange = exchange
        self._announced = announced
        self._places = {spec.name: i for i, spec in enumerate(specs)}
        self._latest = _Pulled(specs, owners)  # what was looked up or pushed last
        self._ahead = _Pulled(specs, owners)  # what was announced
        self._asked: Ids | None = None  # the announced ids whose rows were asked for
        self._given_out: set[str] = set()  # tables of which a look-up has had these rows
        self._under_way = False  # whether they are still to come

    def look_up(self, table: str, ids: Array, *, create: bool) -> torch.Tensor:
        """Return the rows [n, width] of ids (int64 [n]); to train them, ``create`` them.

        Collective without servers.
        """
        pulled = self._latest
        self._exchange.finish()
        pulled.index({table: ids})
        self._exchange.pull(pulled.batch, create=create)
        return self._take(pulled, [table])[0]

    def ahead(self, table: str, ids: Array) -> Ids | None:
        """Return all ids of this step that were announced, if these are; their rows are here now.

        Collective without servers. There a table's rows are given out once, so that all trainers
        meet equally often, though on some of them another look-up may be of the same ids.
        """
        announced = self._announced.now
        # An empty look-up that was not announced is an exchange as well: other trainers wait in it.
        known = announced.get(table)
        if known is None or known.shape != ids.shape or (known != ids).any():
            return None
        if self._asked is not announced:
            self._exchange.finish()
            self.wait()
            self._ask(announced)
        elif table in self._given_out and isinstance(self._exchange, ShardedTables):
            return None
        self._given_out.add(table)
        self.wait()
        return announced

    def take_ahead(self, tables: Iterable[str]) -> tuple[torch.Tensor, ...]:
        """Return the rows [n, width] of tables' announced ids, once `ahead` has returned them."""
        return self._take(self._ahead, tables)

    def push(self, given: Sequence[GivenGradients], rates: Mapping[str, float]) -> None:
        """Send the gradients of a step, and ask for the rows of the next. Collective.

        ``rates`` are the learning rates by table, for those that have the rows.
        """
        if not self._specs:
            return
        self._exchange.finish()
        self.wait()
        if self._asked is not None and self._ahead.is_of(given):
            self._latest, self._ahead = self._ahead, self._latest
        self._asked = None
        if not self._latest.is_of(given):
            self._latest.index(_joined(given))
        batch = self._latest.batch
        batch.clear()
        moves, ends = [], dict.fromkeys(self._places, 0)
        for g in given:
            n = len(g.ids)
            moves.append((self._places[g.table], ends[g.table], n, g.gradients.data_ptr()))
            ends[g.table] += n
        batch.add(np.array(moves, np.int64).reshape(-1, 4))
        batch.check_finite("the gradient")
        self._latest.ids = {}  # gradients lie where its rows did
        self._exchange.push(batch, [rates[spec.name] for spec in self._specs])
        if self._announced.next and isinstance(self._exchange, TableClient):
            self._ask(self._announced.next)

    def wait(self) -> None:
        """Wait for rows that were asked for, if there are any."""
        if self._under_way:
            self._exchange.finish_pull(self._ahead.batch)
            self._under_way = False

    def forget(self) -> None:
        """Take no row that was asked for: those that have them have others now."""
        self._asked = None

    def _ask(self, ids: Ids) -> None:
        self._ahead.index(ids)
        self._exchange.start_pull(self._ahead.batch)
        self._asked, self._under_way = ids, True
        self._given_out.clear()

    def _take(self, pulled: _Pulled, tables: Iterable[str]) -> tuple[torch.Tensor, ...]:
        made, moves = [], []
        for table in tables:
            place, count = self._places[table], len(pulled.ids[table])
            rows = torch.empty(count, self._specs[place].width)
            made.append(rows)
            moves.append((place, 0, count, rows.data_ptr()))
        pulled.batch.take(np.array(moves, np.int64))
        return tuple(made)


def _joined(given: Iterable[GivenGradients]) -> dict[str, Array]:
    """Return the ids of several look-ups by table, one after the other."""
    parts: dict[str, list[Array]] = {}
    for g in given:
        parts.setdefault(g.table, []).append(g.ids)
    return {table: np.concatenate(ids) for table, ids in parts.items()}
