"""The tables and served parameters of a model: where they are, and one common step."""

from __future__ import annotations

import gc
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from weakref import WeakSet

import numpy as np
import torch
from torch import nn

from hpcdist import runtime
from hpcdist.base.errors import CommError, TableError
from hpcdist.comm.base import Array, Transport
from hpcdist.ps.batch import TableSpec
from hpcdist.ps.facts import DenseFacts, Facts, OptimizerFacts, TableFacts, TrainingMode
from hpcdist.ps.planned_tables import make_table
from hpcdist.ps.row_policy import RowPolicy
from hpcdist.ps.sharded_tables import ShardedTables
from hpcdist.ps.table import SparseTable
from hpcdist.ps.table_rpc import TableClient
from hpcdist.torch.embedding_exchange import Announced, EmbeddingExchange
from hpcdist.torch.job import job
from hpcdist.torch.look_ups import GivenGradients, LookUps
from hpcdist.torch.servers import Served, announce

_every: WeakSet[Tables] = WeakSet()


class Tables:
    """What a script makes before the first look-up, which settles what there is and where it lives.

    What is made after that is another model's, with steps of its own; see `open_tables`.
    """

    def __init__(self) -> None:
        from hpcdist.torch.advice import FirstSteps

        _every.add(self)
        self._users: WeakSet[object] = WeakSet()  # modules and optimizers
        self.dropped = False
        self._facts: dict[str, TableFacts] = {}
        self._dense: dict[str, tuple[DenseFacts, nn.Parameter]] = {}
        self._optimizers: list[OptimizerFacts] = []
        self.rates: list[float] = []
        self._mode = TrainingMode()
        self._numbers = itertools.count()
        self._given: list[GivenGradients] = []
        self._taken: list[GivenGradients] = []  # by optimizers that have stepped, in this step
        self.announced = Announced()
        self._ahead: LookUps | None = None  # what was announced for this step, once looked up
        self._stepped: set[int] = set()  # optimizers, in this step
        self._told: list[float] = []  # the rates that the tables have now
        self._advice = FirstSteps()
        self.facts: Facts | None = None  # once settled
        self.local: dict[str, SparseTable] = {}  # this trainer's parts, without servers
        self.served: Served | None = None

    # -- before the first look-up --

    def add(self, module: object, table: TableFacts) -> None:
        """Take a module's table. TableError for a name that is taken."""
        if table.name in self._facts:
            raise TableError(
                f"two tables have the name {table.name!r}: give them different names (name=), the "
                "same on all ranks"
            )
        self._facts[table.name] = table
        self._users.add(module)

    def use(self, optimizer: object) -> None:
        """Take note of an optimizer that steps."""
        self._users.add(optimizer)

    def in_use(self) -> bool:
        """Return whether the script still has one of its modules or optimizers."""
        if not self.dropped and self._users:
            gc.collect()  # modules refer to themselves
        return not self.dropped and bool(self._users)

    def new_name(self) -> str:
        """Return a name that follows from the order in which a script makes its tables."""
        taken = (f"embedding_{k}" for k in itertools.count())
        return next(name for name in taken if name not in self._facts)

    def optimize(
        self,
        names: Sequence[str],
        optimizer: OptimizerFacts,
        rate: float,
        mode: TrainingMode,
    ) -> int:
        """Register an optimizer of tables; return its number."""
        for name in names:
            if self._facts[name].optimizer >= 0:
                raise TableError(f"table {name!r} has two optimizers")
            optimizer.check_table(name, self._facts[name].policy)
        number = self._enter(optimizer, rate, mode)
        for name in names:
            self._facts[name] = replace(self._facts[name], optimizer=number)
        return number

    def serve(
        self,
        parameters: Mapping[str, nn.Parameter],
        optimizer: OptimizerFacts,
        rate: float,
        mode: TrainingMode,
    ) -> int:
        """Register parameters that servers keep, moved by an optimizer; return its number."""
        served = {id(parameter) for _, parameter in self._dense.values()}
        for name, parameter in parameters.items():
            if id(parameter) in served:
                raise TableError(f"parameter {name!r} has two optimizers on servers")
            if name in self._dense:
                raise TableError(
                    f"two models have a parameter {name!r} on servers: give them different names, "
                    "ServedOptimizer(model, ..., name=...)"
                )
        number = self._enter(optimizer, rate, mode)
        for name, parameter in parameters.items():
            self._dense[name] = DenseFacts(name, tuple(parameter.shape), number), parameter
        return number

    def _enter(self, optimizer: OptimizerFacts, rate: float, mode: TrainingMode) -> int:
        if self._optimizers and mode != self._mode:
            raise TableError(
                f"tables and parameters on servers have one mode, got {self._mode} and {mode}"
            )
        self._mode = mode
        self._optimizers.append(optimizer)
        self.rates.append(rate)
        return len(self._optimizers) - 1

    @property
    def names(self) -> list[str]:
        """The names of all tables."""
        return sorted(self._facts)

    @property
    def policies(self) -> dict[str, RowPolicy | None]:
        """The policies of all tables, by name."""
        return {name: table.policy for name, table in self._facts.items()}

    @property
    def served_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that servers keep, by the names that they know them by."""
        return {name: parameter for name, (_, parameter) in sorted(self._dense.items())}

    # -- settling --

    @property
    def group(self) -> Transport:
        """The transport of all trainers for what is done here. The first use is collective."""
        return job().rows

    def pause(self) -> None:
        """Settle if there is anything to keep, and let nothing be under way. Collective."""
        if self._facts or self._dense:
            self.settle()
            self._rows.wait()

    @property
    def is_stepping(self) -> bool:
        """Whether a step has begun, of which not all optimizers have stepped."""
        return bool(self._given or self._taken or self._stepped)

    def settle(self) -> None:
        """Agree with all ranks on what there is, and connect. Collective, once."""
        if self.dropped:
            what = ", ".join([*self._facts, *self._dense])
            raise TableError(
                f"{what}: was dropped, by hpcdist.torch.drop_tables or by the first look-up of the "
                "next model on servers: make the model and its optimizers again"
            )
        if self.facts is not None:
            return
        without = [name for name, table in self._facts.items() if table.optimizer < 0]
        if without:
            raise TableError(
                f"table {without[0]!r} has no optimizer: make "
                "hpcdist.torch.TableOptimizer(model, ...) before the first look-up"
            )
        facts = Facts(
            tuple(self._facts[name] for name in sorted(self._facts)),
            tuple(self._dense[name][0] for name in sorted(self._dense)),
            tuple(self._optimizers),
            tuple(self.rates),
            self._mode,
        )
        self._agree(json.dumps(facts.payload(), sort_keys=True), "tables or optimizers")
        self._told = list(self.rates)
        if runtime.server_count():
            self._take_servers()
            self.served = announce(facts, self.served_parameters)
            specs: tuple[TableSpec, ...] = self.served.specs
            exchange: TableClient | ShardedTables = self.served.client.tables
            owners = runtime.server_count()
        else:
            if self._dense:
                raise TableError(
                    "ServedOptimizer needs parameter servers: start the job with --pservers P, or "
                    "use torch's own optimizer"
                )
            if self._mode != TrainingMode():
                raise TableError(
                    f"mode {self._mode.name!r} needs parameter servers: start the job with "
                    "--pservers P, or leave the mode out"
                )
            tables = facts.planned_tables
            specs = tuple(table.spec for table in tables)
            made = [make_table(table, self.group.rank, self.group.size) for table in tables]
            self.local = {table.name: table for table in made}
            exchange = ShardedTables(self.group, specs, made, job().deadline_s)
            owners = self.group.size
        self._rows = EmbeddingExchange(specs, exchange, owners, self.announced)
        self.facts = facts
        _begin_next(self)

    def _take_servers(self) -> None:
        """Make the servers keep this model from now on, and no other. Collective."""
        for before in _on_servers:
            using = self.group.allgather_bytes(
                bytes([before.in_use()]), job().deadline_s, "what the other trainers still use"
            )
            if any(map(any, using)):
                names = ", ".join([*before._facts, *before._dense])
                raise TableError(
                    f"servers keep {names} of a model that trainer {[*map(any, using)].index(True)}"
                    " still uses, and can keep one model at a time: make all models before the "
                    "first look-up, or drop that one first (hpcdist.torch.drop_tables(model), or "
                    "del model, optimizer)"
                )
            before.drop()
        _on_servers[:] = [self]

    def drop(self) -> None:
        """Give up all rows, here and on servers. Collective with servers, else of this rank."""
        if self.dropped:
            return
        if self.served is not None:
            self._rows.wait()
            self.served.leave()
            self.group.barrier(job().deadline_s)
            _on_servers.clear()
        self.dropped = True
        _begin_next(self)
        self.local, self.served, self.facts = {}, None, None
        self._given.clear()
        self._taken.clear()
        self.announced.now, self.announced.next = {}, {}
        vars(self).pop("_rows", None)
        self._ahead = None

    def _agree(self, said: str, what: str) -> None:
        """Refuse trainers that say different things. Collective."""
        everyone = self.group.allgather_bytes(
            said.encode(), job().deadline_s, f"the other trainers' {what}"
        )
        for k, other in enumerate(everyone):
            if other != everyone[0]:
                raise CommError(
                    f"trainers 0 and {k} have different {what}: "
                    f"{everyone[0].decode():.300} and {other.decode():.300}"
                )

    # -- a step --

    def look_up(self, table: str, ids: Array, *, train: bool) -> torch.Tensor:
        """Return the rows [n, width] of ids (int64 [n]); to ``train`` them, rows are made.

        Collective without servers. The gradients of rows to train are noted as they come. CommError
        in a process that the rank has forked: its rows and messages would be mixed up with these.
        """
        job().process.refuse_forked(lambda: f"for rows of table {table!r}")
        self.settle()
        if not train:
            return self._rows.look_up(table, np.ascontiguousarray(ids), create=False)
        announced = self._rows.ahead(table, ids)
        if announced is None:
            ids = ids.copy()  # the script may change its own
            look_ups = LookUps(
                {table: ids},
                lambda _: (self._rows.look_up(table, ids, create=True),),
                self._note,
            )
        else:
            if self._ahead is None or self._ahead.ids is not announced:
                self._ahead = LookUps(announced, self._rows.take_ahead, self._note)
            look_ups = self._ahead
            if table not in look_ups:  # it is looked up again
                again = {table: announced[table]}
                look_ups = LookUps(again, self._rows.take_ahead, self._note)
        return look_ups.hand_out(table, next(self._numbers))

    def _note(self, given: GivenGradients) -> None:
        self._given.append(given)
        if self.group.rank == 0:
            self._advice.of_gradients(len(self._given))

    def forget(self, optimizer: int) -> None:
        """Drop the gradients that have come for an optimizer since it stepped."""
        kept = self._without(optimizer)
        if len(kept) < len(self._given) and self.group.rank == 0:
            self._advice.of_dropped()
        self._given = kept

    def _without(self, optimizer: int) -> list[GivenGradients]:
        return [g for g in self._given if self._facts[g.table].optimizer != optimizer]

    def restored(self) -> None:
        """Note that what is kept elsewhere is other, and that its learning rates are."""
        self._given.clear()
        self._taken.clear()
        self._stepped.clear()
        self._told = []
        self.rows_are_others()
        if self.served is not None:
            self.served.read()

    def rows_are_others(self) -> None:
        """Take none of the rows that came, or were asked for, before they changed elsewhere."""
        self._ahead = None
        if self.facts is not None:
            self._rows.forget()

    def step(self, optimizer: int) -> None:
        """Take an optimizer's gradients; its step is the last one's, which moves all. Collective.

        TableError if one steps again before all others have.
        """
        if optimizer in self._stepped:
            behind = sorted(set(range(len(self._optimizers))) - self._stepped)
            raise TableError(
                f"optimizer {optimizer} of tables or of parameters on servers steps twice "
                f"while {behind} have not: each must step once in every step of the job"
            )
        self.settle()
        self._taken += [g for g in self._given if self._facts[g.table].optimizer == optimizer]
        self._given = self._without(optimizer)
        if self.served is not None:
            self.served.take(optimizer)
        self._stepped.add(optimizer)
        if len(self._stepped) < len(self._optimizers):
            return
        self._stepped.clear()
        if self.served is not None and self.group.rank == 0:
            self._tell_rates(self.served)
        alone = {look_up.table for look_up in self._taken} - set(self.announced.now)
        elsewhere = self.served is not None or self.group.size > 1
        self._advice.of_step(alone if elsewhere and self.group.rank == 0 else ())
        self._ahead = None
        rates = {name: self.rates[table.optimizer] for name, table in self._facts.items()}
        self._rows.push(sorted(self._taken, key=lambda given: given.number), rates)
        if self.served is not None:
            self.served.end_step()
        self._taken.clear()

    def _tell_rates(self, served: Served) -> None:
        """Send trainer 0's learning rates to the servers, if they have changed."""
        if self.rates == self._told:
            return
        if served.specs:
            served.client.tables.settle(served.specs)  # the servers' last step is over
        served.set_rates(self.rates)
        self._told = list(self.rates)


_open = [Tables()]  # the last one, which takes what is made now until it is settled
_on_servers: list[Tables] = []  # one at most


def open_tables() -> Tables:
    """Return the `Tables` that collect the tables and optimizers made now.

    Those of the model before, once one of them has been looked up, are others: two models train
    side by side, or one after the other, each in steps of its own.
    """
    return _open[0]


def _begin_next(tables: Tables) -> None:
    """Start another model with all that is made from now on, and do not keep this one."""
    if _open[0] is tables:
        _open[0] = Tables()


def all_in_use() -> list[Tables]:
    """Return all `Tables` that the script has made and still uses."""
    return [tables for tables in [*_every] if tables.in_use()]


def reset() -> None:
    """Begin as a script does, for tests: what there was stays as it is."""
    _open[0] = Tables()
    _on_servers.clear()
