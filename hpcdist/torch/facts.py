"""What a script's modules want kept elsewhere: facts that travel, and the Programs made of them.

Every rank makes the same Programs of the same facts, and transpiles them as any other. So servers,
plans, slices, modes and checkpoints are those of Programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from hpcdist import initializer, layers, optimizer
from hpcdist.backward import append_backward
from hpcdist.comm.cluster import Cluster
from hpcdist.errors import PlanError
from hpcdist.graph import names
from hpcdist.graph.program import Program, program_guard
from hpcdist.layers.param_attr import ParamAttr
from hpcdist.ps.table_metadata import RowInitializer
from hpcdist.regularizer import L2Decay
from hpcdist.transpiler import DistributeTranspiler, DistributeTranspilerConfig
from hpcdist.transpiler.plan import constants_of

# Those that move each element by itself: a server has slices, of which it knows no norm.
KINDS = (
    *("SGD", "Momentum", "Adagrad", "DecayedAdagrad", "Adadelta"),
    *("Adam", "Adamax", "RMSProp", "Ftrl"),
)
MODES = ("sync", "async", "dc_asgd")


@dataclass(frozen=True)
class Initial(RowInitializer):
    """How a row begins that nobody has touched; by default as torch's embeddings do."""

    kind: str = "normal"
    a: float = 0.0

    def of_program(self) -> initializer.Initializer:
        """Return what a Program calls it."""
        if self.kind == "constant":
            return initializer.Constant(self.a)
        if self.kind == "uniform":
            return initializer.Uniform(self.a, self.b)
        if self.kind == "normal":
            return initializer.Normal(self.a, self.b)
        return initializer.TruncatedNormal(self.a, self.b)


@dataclass(frozen=True)
class TableFacts:
    """A table of a module: rows of ``width`` float32; ``dict_size`` ids at most, -1 any number.

    ``optimizer`` is the number of what moves it, -1 before there is one.
    """

    name: str
    width: int
    dict_size: int
    padding: int | None
    initial: Initial
    optimizer: int = -1


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

    @property
    def zero_is_nothing(self) -> bool:
        """Whether a gradient of zeros leaves a parameter as it is, as none does in torch."""
        return self.kind in ("SGD", "Adagrad") and not self.l2_decay


@dataclass(frozen=True)
class Facts:
    """All that one script wants kept elsewhere, in the order of names.

    ``rates`` are the optimizers' first learning rates. ``mode``: whether servers wait for all
    trainers ("sync"), apply what comes ("async"), then perhaps bounded by ``max_staleness``, or
    apply it compensated for its delay ("dc_asgd").
    """

    tables: tuple[TableFacts, ...]
    dense: tuple[DenseFacts, ...]
    optimizers: tuple[OptimizerFacts, ...]
    rates: tuple[float, ...]
    mode: str = "sync"
    max_staleness: int | None = None

    def payload(self) -> Any:
        """Return the facts as JSON says them."""
        return asdict(self)

    @staticmethod
    def parse(payload: Any) -> Facts:
        """Return the facts in a payload."""
        return Facts(
            tuple(
                TableFacts(**{**t, "initial": Initial(**t["initial"])}) for t in payload["tables"]
            ),
            tuple(DenseFacts(**{**d, "shape": tuple(d["shape"])}) for d in payload["dense"]),
            tuple(OptimizerFacts(**o) for o in payload["optimizers"]),
            tuple(payload["rates"]),
            payload["mode"],
            payload["max_staleness"],
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
                made = optimizer_of(facts, rate)
                made.apply_gradients([pair for pair in pairs if of[pair[0].name] == number])
        return main, startup

    @property
    def numbers(self) -> dict[str, float]:
        """What servers keep beside rows and parameters, and its first values: rates, powers."""
        main, startup = self.programs
        known = main.global_block().vars
        return {name: v for name, v in constants_of(startup) if known[name].shape == (1,)}

    def transpiled_for(self, cluster: Cluster, trainer: int) -> DistributeTranspiler:
        """Return the transpiler that has planned who keeps what, for a job with servers."""
        main, startup = self.programs
        config = DistributeTranspilerConfig()
        config.sync_mode = self.mode == "sync"
        config.enable_dc_asgd = self.mode == "dc_asgd"
        config.max_staleness = self.max_staleness
        config.dense = "pserver"  # those that the script gives to servers
        made = DistributeTranspiler(config)
        made.transpile(
            trainer,
            program=main,
            pservers=",".join(cluster.endpoints),
            trainers=len(cluster.trainers),
            sync_mode=config.sync_mode,
            startup_program=startup,
        )
        return made


def rate_name(number: int) -> str:
    """Return the name of an optimizer's learning rate."""
    return f"learning_rate_{number}"


def optimizer_of(facts: OptimizerFacts, rate: Any) -> optimizer.Optimizer:
    """Return the optimizer; PlanError for one that is not there, or takes other arguments."""
    if facts.kind not in KINDS:
        raise PlanError(
            f"there is no optimizer {facts.kind!r} of what is kept elsewhere: expected one of "
            f"{', '.join(KINDS)}"
        )
    make: Callable[..., Any] = getattr(optimizer, facts.kind)
    decay = {"regularization": L2Decay(facts.l2_decay)} if facts.l2_decay else {}
    try:
        found: optimizer.Optimizer = make(rate, **facts.arguments, **decay)
    except TypeError as error:
        raise PlanError(f"optimizer {facts.kind}: {error}") from None
    return found


def _looked_up(table: TableFacts) -> Any:
    ids = layers.data(f"{table.name}@IDS", shape=[1], dtype="int64")
    rows = layers.embedding(
        ids,
        size=[table.dict_size, table.width],
        is_sparse=True,
        is_distributed=True,
        padding_idx=table.padding,
        param_attr=ParamAttr(name=table.name, initializer=table.initial.of_program()),
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
