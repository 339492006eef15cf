"""The tables of a script that train together: one step of all of them, wherever their rows are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from hpcdist import runtime
from hpcdist.base.errors import CommError, TableError
from hpcdist.base.trace.position import here
from hpcdist.checkpoint.publisher import TablePublisher
from hpcdist.checkpoint.restoring import restore
from hpcdist.checkpoint.saving import save
from hpcdist.checkpoint.shrink import end_day
from hpcdist.comm import loopback
from hpcdist.comm.base import Array, Transport
from hpcdist.ps.batch import LookupBatch, TableSpec
from hpcdist.ps.facts import Facts, OptimizerFacts, Publishing, TableFacts, TrainingMode
from hpcdist.ps.planned_tables import make_table
from hpcdist.ps.sharded_tables import ShardedTables
from hpcdist.ps.table import SparseTable
from hpcdist.ps.table_rpc import TableClient
from hpcdist.runtime.kept.declared import KeptValues
from hpcdist.runtime.pserver.declared import DeclaredOnServers, deadline_s, tell_servers

ROWS_TAG = 4  # of the trainers' communicator for rows
NO_IDS = np.empty(0, np.int64)
Ids = Mapping[str, Array]


class TableSet:
    """Tables that are declared until the first use settles them; then they step together.

    A step is over when every table that is open has been pushed. All trainers do the same.
    """

    def __init__(self, mode: TrainingMode) -> None:
        self.mode = mode
        self.tables: dict[str, TableFacts] = {}
        self.optimizers: dict[str, OptimizerFacts] = {}
        self.rates: dict[str, float] = {}
        self.closed: set[str] = set()
        self.settled = False
        self.steps = 0
        self._pushed: dict[str, tuple[Array, Array]] = {}  # in this step
        self._applied = 0  # steps that the owners are known to have applied
        self._told: dict[str, float] = {}  # the rates that servers have
        self._local: list[SparseTable] = []
        self._served: DeclaredOnServers | None = None
        self.publishing: Publishing | None = None
        self._publisher: TablePublisher | None = None

    def add(self, table: TableFacts, optimizer: OptimizerFacts, rate: float) -> None:
        """Take another table."""
        self.tables[table.name] = table
        self.optimizers[table.name] = optimizer
        self.rates[table.name] = rate

    def publish_to(self, publishing: Publishing) -> None:
        """Publish another table. TableError if others are published elsewhere, or otherwise."""
        known = self.publishing
        if known is None:
            self.publishing = publishing
            return
        if (known.directory, known.every) != (publishing.directory, publishing.every):
            raise TableError(
                f"table {publishing.tables[0]!r}: tables that train together are published "
                f"together, got {publishing.directory} every {publishing.every} steps where others "
                f"have {known.directory} every {known.every}"
            )
        tables, keep = (*known.tables, *publishing.tables), {**known.keep, **publishing.keep}
        self.publishing = replace(known, tables=tables, keep=keep)

    @property
    def names(self) -> list[str]:
        """All tables, in the order that all ranks have."""
        return sorted(self.tables)

    # -- settling --

    def settle(self) -> None:
        """Agree with all ranks on what there is, and connect. Collective, once."""
        if self.settled:
            return
        facts = self._facts()
        self._agree(facts)
        if runtime.server_count():
            job = runtime.current()
            assert job is not None, "there are servers"
            tell_servers(job, facts)
            self._served = DeclaredOnServers(job, facts)
            self._served.connect()
            specs: tuple[TableSpec, ...] = self._served.specs
            self._exchange: TableClient | ShardedTables = self._served.client.tables
            owners = runtime.server_count()
        else:
            if self.mode != TrainingMode():
                raise TableError(
                    f"mode {self.mode.name!r} needs parameter servers: start the job with "
                    "--pservers P, or leave the mode out"
                )
            group = _trainers()
            tables = facts.planned_tables
            specs = tuple(table.spec for table in tables)
            self._local = [make_table(table, group.rank, group.size) for table in tables]
            self._exchange = ShardedTables(group, specs, self._local, deadline_s())
            owners = group.size
        self._specs = specs
        self._places = {spec.name: i for i, spec in enumerate(specs)}
        self._pulls, self._pushes = LookupBatch(specs, owners), LookupBatch(specs, owners)
        self._told = dict(self.rates)
        numbers = {} if self._served is not None else facts.numbers
        arrays = {name: np.array([value], np.float32) for name, value in numbers.items()}
        policies = {name: table.policy for name, table in self.tables.items()}
        self._kept = KeptValues(self._served, self._local, arrays, policies=policies)
        self.settled = True
        if self.publishing is not None:
            self._publisher = TablePublisher(
                lambda: self._kept,
                self.publishing.directory,
                every=self.publishing.every,
                tables=self.publishing.tables,
                keep=self.publishing.keep,
            )

    def _facts(self) -> Facts:
        numbers = {name: number for number, name in enumerate(self.names)}
        tables = [self.tables[name] for name in self.names]
        return Facts(
            tuple(TableFacts(**{**vars(t), "optimizer": numbers[t.name]}) for t in tables),
            (),
            tuple(self.optimizers[name] for name in self.names),
            tuple(self.rates[name] for name in self.names),
            self.mode,
        )

    def _agree(self, facts: Facts) -> None:
        """Refuse trainers that declare different things. Collective."""
        said = json.dumps(facts.payload(), sort_keys=True).encode()
        everyone = runtime.everyones(said, "the other trainers' tables")
        for k, other in enumerate(everyone):
            if other != everyone[0]:
                raise CommError(
                    f"trainers 0 and {k} connect different tables: "
                    f"{everyone[0].decode():.300} and {other.decode():.300}"
                )

    # -- a step --

    def pull(self, name: str, ids: Array, *, create: bool) -> Array:
        """Return the rows [n, width] of ids (int64 [n])."""
        self.settle()
        if name in self._pushed:
            raise TableError(
                f"table {name!r} was pushed in this step, which ends when {self._still()} is "
                "pushed too: pull before, or push every table once in each step"
            )
        exchange, place = self._exchange, self._places[name]
        exchange.finish()
        self._pulls.index([ids if spec.name == name else NO_IDS for spec in self._specs])
        exchange.pull(self._pulls, create=create)
        rows = np.empty((len(ids), self._specs[place].width), np.float32)
        self._pulls.take(np.array([[place, 0, len(ids), rows.ctypes.data]], np.int64))
        return rows

    def push(self, name: str, ids: Array, gradients: Array) -> int:
        """Take gradients [n, width]; the last table's starts the step. Return the step's number."""
        self.settle()
        if name in self._pushed:
            raise TableError(
                f"table {name!r} was pushed twice in one step, while {self._still()} was not: push "
                "every table once in each step, with no ids where there are none"
            )
        self._pushed[name] = ids, gradients
        step = self.steps + 1
        self._step_if_complete()
        return step

    def _still(self) -> str:
        """Return the tables that this step lacks."""
        lacking = [n for n in self.names if n not in self._pushed and n not in self.closed]
        return ", ".join(map(repr, lacking))

    def _step_if_complete(self) -> None:
        if self._still() or not self._pushed:
            return
        self._tell_rates()
        self._exchange.finish()
        given = {name: self._pushed.get(name, (NO_IDS, None)) for name in self._places}
        batch = self._pushes
        batch.index([ids for ids, _ in given.values()])
        batch.clear()
        moves = [
            (self._places[name], 0, len(ids), rows.ctypes.data)
            for name, (ids, rows) in given.items()
            if rows is not None and len(ids)
        ]
        batch.add(np.array(moves, np.int64).reshape(-1, 4))
        batch.check_finite("the sum of gradients")
        self._exchange.push(batch, [self.rates[name] for name in self._places])
        if self._served is not None:
            self._served.end_step()
        self._pushed.clear()
        self.steps += 1
        here.script_step = self.steps
        here.first_step_done()  # from here on the job is started again if it fails
        if self._publisher is not None and self._publisher.is_due(self.steps):
            self._settle_servers()  # they have the rows of this step
            self._publisher.after_step(self.steps)

    def _tell_rates(self) -> None:
        """Send trainer 0's learning rates to the servers, if they have changed."""
        if self._served is None or self.rates == self._told:
            return
        if runtime.is_first():
            self._settle_servers()  # their last step is over
            self._served.set_rates([self.rates[name] for name in self.names])
        self._told = dict(self.rates)

    def wait(self, step: int) -> None:
        """Wait until all that was pushed in a step has been applied; TableError if it is open."""
        if step > self.steps:
            raise TableError(
                f"wait: this step is not complete: {self._still()} has not been pushed; push every "
                "table once in each step, with no ids where there are none"
            )
        if step > self._applied:
            self._settle_servers()
            self._applied = self.steps

    def _settle_servers(self) -> None:
        if isinstance(self._exchange, TableClient):
            self._exchange.settle(self._specs)

    # -- checkpoints, the end --

    def save(self, dirname: str | Path, step: int | None, keep: int | None) -> Path:
        """Save all tables after a step. Collective."""
        self._between_steps("save")
        number = self.steps if step is None else step
        return save(self._kept, dirname, number, keep=keep)

    def restore(self, dirname: str | Path) -> int | None:
        """Restore all tables; return the step that was saved, None without a checkpoint."""
        self._between_steps("restore")
        found = restore(self._kept, dirname)
        if found is None:
            return None
        self.steps = self._applied = found.step
        self._told = {}  # the script's rates count
        return found.step

    def publish(self) -> None:
        """Publish a version now, and wait until it is complete. Collective."""
        self._between_steps("publish")
        if self._publisher is None:
            raise TableError(
                f"publish: none of {', '.join(self.names)} has a directory: connect it with "
                'publish="DIR"'
            )
        self._publisher.wait()
        self._publisher.publish(self.steps)
        self._publisher.wait()

    def shrink(self) -> dict[str, int]:
        """Forget rows that have expired; return how many, by table. Collective."""
        self._between_steps("shrink")
        return end_day(self._kept)

    def _between_steps(self, what: str) -> None:
        self.settle()
        if self._pushed:
            raise TableError(
                f"{what}: {', '.join(map(repr, self._pushed))} was pushed in this step and "
                f"{self._still()} was not: call it between two steps"
            )
        self._settle_servers()
        self._exchange.finish()

    def close(self, name: str) -> bool:
        """Use a table no more; return whether it was the last, and servers are free. Collective."""
        self.closed.add(name)
        self._pushed.pop(name, None)
        if self.closed != set(self.tables):
            if self.settled:
                self._step_if_complete()
            return False
        if self.settled:
            self._settle_servers()
            self._exchange.finish()
        if self._publisher is not None:
            self._publisher.close(self.steps)
        if self._served is not None:
            self._served.leave()
            runtime.everyones(b"", "the other trainers to close their tables")
        self._local.clear()
        return True


def _trainers() -> Transport:
    """Return a transport of all trainers for rows alone. Collective."""
    job = runtime.current()
    if job is None:
        return loopback.world(1)[0]
    return job.trainers.subset(range(job.trainers.size), ROWS_TAG)
