"""The tables and parameters that a script keeps on servers, as facts to send, and their Programs.

Every rank builds the same Programs from the same facts and transpiles them like any other, so
servers, plans, slices, modes and checkpoints are those of Programs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from inspect import signature
from numbers import Real
from typing import Any

from hpcdist.autodiff.backward import append_backward
from hpcdist.base.checks import integer
from hpcdist.base.errors import PlanError, TableError
from hpcdist.comm.cluster import Cluster
from hpcdist.fluid import initializer, layers, optimizer
from hpcdist.fluid.layers.param_attr import ParamAttr
from hpcdist.fluid.regularizer import L2Decay
from hpcdist.graph import names
from hpcdist.graph.program import Program, program_guard
from hpcdist.ps.row_policy import RowPolicy
from hpcdist.ps.table_metadata import RowInitializer
from hpcdist.transpiler import (
    DistributeTranspiler,
    DistributeTranspilerConfig,
    GeoSgdTranspiler,
)
from hpcdist.transpiler.plan import constants_of
from hpcdist.transpiler.table_metadata import OPTIMIZERS

# Those that move each element by itself: a server has slices, of which it knows no norm.
KINDS = (
    *("SGD", "Momentum", "Adagrad", "DecayedAdagrad", "Adadelta"),
    *("Adam", "Adamax", "RMSProp", "Ftrl"),
)
ROW_KINDS = tuple(kind for kind in KINDS if kind.lower() in OPTIMIZERS)
BELOW_1 = ("beta1", "beta2")
OF_ANY_SIGN = ("lr_power",)
OF_PROGRAMS = ("learning_rate", "parameter_list", "regularization", "grad_clip", "name")
PUBLISH_EVERY = 100  # steps
MODES = ("sync", "async", "dc_asgd", "geo")


@dataclass(frozen=True)
class Initial(RowInitializer):
    """The first values of a row; by default as torch's embeddings.

    They follow from ``seed``, 0: the job's, the table's name and the id.
    """

    kind: str = "normal"
    a: float = 0.0
    b: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("seed of first values", self.seed, 0, 1 << 31)

    def of_program(self) -> initializer.Initializer:
        """Return its name in a Program."""
        if self.kind == "constant":
            return initializer.Constant(self.a)
        if self.kind == "uniform":
            return initializer.Uniform(self.a, self.b, self.seed)
        if self.kind == "normal":
            return initializer.Normal(self.a, self.b, self.seed)
        return initializer.TruncatedNormal(self.a, self.b, self.seed)


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
        integer("push_every", self.push_every, 1)
        if self.push_every != 1 and self.name != "geo":
            raise TableError(f'push_every is for mode="geo", not {self.name!r}')


@dataclass(frozen=True)
class Publishing:
    """Where versions of tables are published, and every how many steps."""

    directory: str
    every: int = PUBLISH_EVERY
    tables: tuple[str, ...] = ()


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

    @cached_property
    def programs(self) -> tuple[Program, Program]:
        """The Program that trains all of it, and what gives it its first values.

        Nobody runs the first as it stands: it says what is looked up, and what moves it how.
        """
        main, startup = Program(), Program()
        with program_guard(main, startup), names.guard():
            ends = [_looked_up(table) for table in self.tables]
            ends += [_summed(dense) for dense in self.dense]
            pairs = append_backward(layers.sums(ends))
            of = {table.name: table.optimizer for table in self.tables}
            of |= {dense.name: dense.optimizer for dense in self.dense}
            for number, facts in enumerate(self.optimizers):
                rate = layers.create_global_var(
                    [1], self.rates[number], "float32", persistable=True, name=rate_name(number)
                )
                rule = optimizer_of(facts, rate)
                rule.apply_gradients([pair for pair in pairs if of[pair[0].name] == number])
        return main, startup

    @property
    def numbers(self) -> dict[str, float]:
        """What servers keep beside rows and parameters, and its first values: rates, powers."""
        main, startup = self.programs
        variables = main.global_block().vars
        return {name: v for name, v in constants_of(startup) if variables[name].shape == (1,)}

    def transpiled_for(self, cluster: Cluster, trainer: int) -> DistributeTranspiler:
        """Return the transpiler that has planned who keeps what, for a job with servers."""
        main, startup = self.programs
        config = DistributeTranspilerConfig()
        config.sync_mode = self.mode.name == "sync"
        config.enable_dc_asgd = self.mode.name == "dc_asgd"
        config.max_staleness = self.mode.max_staleness
        config.geo_sgd_need_push_nums = self.mode.push_every
        config.dense = "pserver"  # those that the script gives to servers
        make = GeoSgdTranspiler if self.mode.name == "geo" else DistributeTranspiler
        transpiler = make(config)
        transpiler.transpile(
            trainer,
            program=main,
            pservers=",".join(cluster.endpoints),
            trainers=len(cluster.trainers),
            sync_mode=config.sync_mode,
            startup_program=startup,
        )
        return transpiler


def rate_name(number: int) -> str:
    """Return the name of an optimizer's learning rate."""
    return f"learning_rate_{number}"


def optimizer_of(facts: OptimizerFacts, rate: object) -> optimizer.Optimizer:
    """Return the optimizer; PlanError for one that is not there, or takes other arguments."""
    if facts.kind not in KINDS:
        raise PlanError(
            f"servers have no optimizer {facts.kind!r}: expected one of {', '.join(KINDS)}"
        )
    make: Callable[..., Any] = getattr(optimizer, facts.kind)
    decay = {"regularization": L2Decay(facts.l2_decay)} if facts.l2_decay else {}
    taken = [name for name in signature(make).parameters if name not in OF_PROGRAMS]
    unknown = sorted(facts.arguments.keys() - set(taken))
    if unknown:  # torch's names are others
        raise PlanError(
            f"optimizer {facts.kind} does not take {', '.join(unknown)}: its arguments are "
            f"{', '.join(taken) or 'none but lr'}, as Fluid calls them"
        )
    for name, value in {**facts.arguments, "l2_decay": facts.l2_decay}.items():
        _check_argument(facts.kind, name, value)
    try:
        rule: optimizer.Optimizer = make(rate, **facts.arguments, **decay)
    except TypeError as error:
        raise PlanError(f"optimizer {facts.kind}: {error}") from None
    return rule


def _check_argument(kind: str, name: str, value: object) -> None:
    """Refuse what is no number, or none that torch's optimizers would take either."""
    if not (isinstance(value, Real) and math.isfinite(value)):
        raise PlanError(f"optimizer {kind}: {name}: expected a finite number, got {value!r}")
    number = float(value)
    if name in BELOW_1 and not 0 <= number < 1:
        raise PlanError(f"optimizer {kind}: {name}: expected 0 to 1, not 1 itself, got {value!r}")
    if name not in OF_ANY_SIGN and number < 0:
        raise PlanError(f"optimizer {kind}: {name}: expected no negative number, got {value!r}")


def _looked_up(table: TableFacts) -> Any:
    ids = layers.data(f"{table.name}@IDS", shape=[1], dtype="int64")
    rows = layers.embedding(
        ids,
        size=[table.dict_size, table.width],
        is_sparse=True,
        is_distributed=True,
        padding_idx=table.padding,
        param_attr=ParamAttr(table.name, table.initial.of_program(), row_policy=table.policy),
    )
    return layers.reduce_sum(rows)


def _summed(dense: DenseFacts) -> Any:
    parameter = layers.create_parameter(
        list(dense.shape),
        "float32",
        attr=ParamAttr(name=dense.name),
        default_initializer=initializer.Constant(0.0),
    )
    return layers.reduce_sum(parameter)
