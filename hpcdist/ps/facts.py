"""The tables and parameters that a script keeps on servers, as facts to send. Pure.

Trainers take the plan from them; servers build Programs of them (`fluid.declared.programs`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hpcdist.base import settings
from hpcdist.base.checks import integer
from hpcdist.base.errors import TableError
from hpcdist.comm.cluster import Cluster
from hpcdist.ps.dispatch import RoundRobin
from hpcdist.ps.optimizers import check_optimizer, row_attributes, type_of
from hpcdist.ps.plan import (
    SYNCHRONOUS,
    Plan,
    PlannedParameter,
    UpdateMode,
    asynchronous,
    geo,
    placed,
)
from hpcdist.ps.planned_tables import Fill, PlannedTable, check_policy
from hpcdist.ps.row_policy import RowPolicy
from hpcdist.ps.slicing import SMALLEST_BLOCK
from hpcdist.ps.table_metadata import RowInitializer

PUBLISH_EVERY = 100  # steps
MODES = ("sync", "async", "dc_asgd", "geo")
# The operators that fill a table of a Program with first values, and the names of their numbers.
FILLS = {
    "constant": ("fill_constant", ("value",)),
    "uniform": ("uniform_random", ("min", "max")),
    "normal": ("gaussian_random", ("mean", "std")),
    "truncated_normal": ("truncated_gaussian_random", ("mean", "std")),
}


@dataclass(frozen=True)
class Initial(RowInitializer):
    """The first values of a row; by default as torch's embeddings.

    They follow from ``seed`` (0: the job's), the table's name and the id. ``kind``: "constant",
    ``a``; "uniform", from ``a`` to ``b``; "normal" or "truncated_normal", of mean ``a`` and
    deviation ``b``. TableError for others.

    >>> Initial("uniform", -0.1, 0.1)
    Initial(kind='uniform', a=-0.1, b=0.1, drawn=0, seed=0)
    """

    kind: str = "normal"
    a: float = 0.0
    b: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("seed of first values", self.seed, 0, 1 << 31)

    @property
    def fill(self) -> Fill:
        """How new rows begin, in a plan."""
        type, names = FILLS[self.kind]
        values = zip(names, (float(self.a), float(self.b)))
        return Fill(type, tuple(values), 0 if self.kind == "constant" else self.seed)


@dataclass(frozen=True)
class TableFacts:
    """A table of a module: rows of ``width`` float32; ``dict_size`` ids at most, -1 any number.

    ``optimizer`` is the number of what moves it, -1 before there is one. ``policy``: which ids get
    a row, and which rows are forgotten.
    """

    name: str
    width: int
    dict_size: int
    padding: int | None
    initial: Initial
    optimizer: int = -1
    policy: RowPolicy | None = None


@dataclass(frozen=True)
class DenseFacts:
    """A parameter that servers keep whole, or in slices."""

    name: str
    shape: tuple[int, ...]
    optimizer: int


@dataclass(frozen=True)
class OptimizerFacts:
    """An optimizer of Fluid's, by the name of its class, and its arguments but the rate."""

    kind: str
    arguments: Mapping[str, float] = field(default_factory=dict)
    l2_decay: float = 0.0

    def __str__(self) -> str:
        decay = {"l2_decay": self.l2_decay} if self.l2_decay else {}
        arguments = ", ".join(f"{k}={v}" for k, v in {**self.arguments, **decay}.items())
        return f"{self.kind}({arguments})"

    def check(self) -> None:
        """Raise PlanError for an optimizer that is not there, or takes other arguments."""
        check_optimizer(self.kind, self.arguments, self.l2_decay)

    def check_table(self, name: str, policy: RowPolicy | None) -> None:
        """Raise PlanError for a table whose policy this cannot follow."""
        check_policy(name, policy, type_of(self.kind))

    @property
    def zero_is_nothing(self) -> bool:
        """Whether a gradient of zeros leaves a parameter as it is, as none does in torch."""
        return self.kind in ("SGD", "Adagrad") and not self.l2_decay


@dataclass(frozen=True)
class TrainingMode:
    """How trainers and servers train together, as a script says it.

    ``name``: whether servers wait for all trainers ("sync"), apply what comes ("async"), then
    perhaps bounded by ``max_staleness``, apply it compensated for its delay ("dc_asgd"), or add up
    differences of trainers that train by themselves ("geo"), every ``push_every`` steps.
    "half_async", in which a trainer's threads wait for each other, is another word for "async".
    """

    name: str = "sync"
    max_staleness: int | None = None
    push_every: int = 1

    def __post_init__(self) -> None:
        if self.name == "half_async":  # a trainer is one thread here: it has none to wait for
            object.__setattr__(self, "name", "async")

    def check(self, names: Sequence[str]) -> None:
        """Raise TableError for a mode that is none of ``names``, or for settings of another."""
        if self.name not in names:
            raise TableError(f"mode: expected one of {', '.join(names)}, got {self.name!r}")
        if self.max_staleness is not None and self.name != "async":
            raise TableError(f'max_staleness is for mode="async", not {self.name!r}')
        if self.max_staleness is not None:
            integer("max_staleness", self.max_staleness, 0)
        integer("push_every", self.push_every, 1)
        if self.push_every != 1 and self.name != "geo":
            raise TableError(f'push_every is for mode="geo", not {self.name!r}')

    @property
    def updates(self) -> UpdateMode:
        """How gradients travel, in a plan."""
        if self.name == "sync":
            return SYNCHRONOUS
        if self.name == "geo":
            return geo(self.push_every)
        return asynchronous(dc_asgd=self.name == "dc_asgd", ahead=self.max_staleness)


@dataclass(frozen=True)
class Publishing:
    """Where versions of tables are published, every how many steps, and by names which rows."""

    directory: str
    every: int = PUBLISH_EVERY
    tables: tuple[str, ...] = ()
    keep: Mapping[str, Any] = field(default_factory=dict)  # `checkpoint.Choice`, of those not whole


@dataclass(frozen=True)
class Facts:
    """All that one script wants kept elsewhere, in the order of names.

    ``rates`` are the optimizers' first learning rates.
    """

    tables: tuple[TableFacts, ...]
    dense: tuple[DenseFacts, ...]
    optimizers: tuple[OptimizerFacts, ...]
    rates: tuple[float, ...]
    mode: TrainingMode = TrainingMode()

    def payload(self) -> Any:
        """Return the facts as JSON says them."""
        return asdict(self)

    @staticmethod
    def parse(payload: Any) -> Facts:
        """Return the facts in a payload."""
        return Facts(
            tuple(
                TableFacts(
                    **{
                        **t,
                        "initial": Initial(**t["initial"]),
                        "policy": t["policy"] and RowPolicy.from_plain(t["policy"]),
                    }
                )
                for t in payload["tables"]
            ),
            tuple(DenseFacts(**{**d, "shape": tuple(d["shape"])}) for d in payload["dense"]),
            tuple(OptimizerFacts(**o) for o in payload["optimizers"]),
            tuple(payload["rates"]),
            TrainingMode(**payload["mode"]),
        )

    @property
    def fingerprint(self) -> str:
        """A digest that is equal on ranks that were told the same, and run the same kernels."""
        said = json.dumps([self.payload(), settings.KERNELS.read()], sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()

    def plan(self, cluster: Cluster, trainer: int) -> Plan:
        """Return the plan of a job with servers, equal to that of the Programs of these facts."""
        order = sorted(self.dense, key=lambda dense: dense.optimizer)
        routes = [
            PlannedParameter(dense.name, f"{dense.name}@GRAD", dense.shape, "float32").cut(
                len(cluster.endpoints), SMALLEST_BLOCK
            )
            for dense in order
        ]
        blocks = [piece for route in routes for piece in route.slices]
        chosen = RoundRobin(cluster.endpoints).dispatch(blocks)
        places = range(len(routes))
        return Plan(
            cluster.endpoints,
            len(cluster.trainers),
            trainer,
            placed(routes, places, chosen),
            tuple(places),
            self.mode.updates,
            self.planned_tables,
            fingerprint=self.fingerprint,
        )

    @property
    def planned_tables(self) -> tuple[PlannedTable, ...]:
        """The tables, as a plan has them."""
        return tuple(map(self._planned, self.tables))

    def _planned(self, table: TableFacts) -> PlannedTable:
        moved_by = self.optimizers[table.optimizer]
        attributes = row_attributes(moved_by.kind, moved_by.arguments, moved_by.l2_decay)
        return PlannedTable(
            table.name,
            f"{table.name}@GRAD",
            (table.dict_size, table.width),
            "float32",
            rate_name(table.optimizer),
            type_of(moved_by.kind),
            tuple(sorted(attributes.items())),
            padding=table.padding,
            fill=table.initial.fill,
            policy=table.policy,
        )

    @property
    def numbers(self) -> dict[str, float]:
        """What a job without servers keeps beside rows, and its first values: rates, powers."""
        numbers = {rate_name(k): float(rate) for k, rate in enumerate(self.rates)}
        for table in self.planned_tables:
            for name, value in table.attrs:
                if name == "beta1" or (name == "beta2" and table.optimizer != "adamax"):
                    numbers[f"{table.parameter}_{name}_pow_acc_0"] = value
        return numbers


def rate_name(number: int) -> str:
    """Return the name of an optimizer's learning rate."""
    return f"learning_rate_{number}"
