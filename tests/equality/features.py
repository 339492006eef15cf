"""The features that can be combined, as one declaration: a line for each level.

The first level of a feature is what a Program has if nothing is said, so that a new feature leaves
the Programs that have been recorded what they were. A level's value is what `programs.py` builds
with: an optimizer, a clip, a layer of the network. A feature of `HIDDEN` is a layer of its own and
needs no other line anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Generic, TypeVar

import hpcdist as fluid
from hpcdist import layers
from hpcdist.clip import ErrorClipByValue
from hpcdist.graph import Variable
from tests.equality import blocks
from tests.equality.network import Net, Update

T = TypeVar("T")
Choice = Mapping[str, str]  # the level of every feature, by name
Pairs = list[tuple[Variable, Variable]]  # parameters and their gradients


@dataclass(frozen=True)
class Feature(Generic[T]):
    """One thing that a Program may have in several ways, of which the first is the usual one."""

    name: str
    levels: Mapping[str, T] = field(hash=False)
    extra: tuple[str, ...] = ()  # levels that need a package which may not be installed

    @property
    def usual(self) -> str:
        return next(iter(self.levels))

    def of(self, choice: Choice) -> T:
        return self.levels[choice.get(self.name, self.usual)]


@dataclass(frozen=True)
class Impossible:
    """Levels that cannot meet in one Program: no script could say it. ``why`` is for the reader."""

    levels: Mapping[str, Sequence[str]] = field(hash=False)
    why: str


@dataclass(frozen=True)
class Shape:
    """Numbers of trainers and servers."""

    trainers: int
    servers: int = 0


@dataclass(frozen=True)
class Mode:
    """How a job trains. ``settings`` are environment variables, ``fields`` the transpiler's."""

    served: bool
    local: bool = False
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)
    fields: Mapping[str, Any] | None = field(default=None, hash=False)


@dataclass(frozen=True)
class Resume:
    """Between which jobs a checkpoint is handed on; None is the job itself, alone one process."""

    saver: Shape | None = None
    goes_on: Shape | None = None


ALONE = Shape(1)
opt, clips, decay = fluid.optimizer, fluid.clip, fluid.regularizer

OPTIMIZER: Feature[Callable[[Update], Any]] = Feature(
    "optimizer",
    {
        "SGD": lambda u: opt.SGD(u.rate, **u.how),
        "Momentum": lambda u: opt.Momentum(u.rate, 0.9, **u.how),
        "Nesterov": lambda u: opt.Momentum(u.rate, 0.9, use_nesterov=True, **u.how),
        "LarsMomentum": lambda u: opt.LarsMomentum(u.rate, 0.9, lars_coeff=0.1, **u.how),
        "Adagrad": lambda u: opt.Adagrad(u.rate, epsilon=0.1, **u.how),
        "DecayedAdagrad": lambda u: opt.DecayedAdagrad(u.rate, epsilon=0.1, **u.how),
        "Adam": lambda u: opt.Adam(u.rate, epsilon=0.1, **u.how),
        "lazy Adam": lambda u: opt.Adam(u.rate, epsilon=0.1, lazy_mode=True, **u.how),
        "Adamax": lambda u: opt.Adamax(u.rate, epsilon=0.1, **u.how),
        "RMSProp": lambda u: opt.RMSProp(u.rate, epsilon=0.1, momentum=0.5, **u.how),
        "centered RMSProp": lambda u: opt.RMSProp(u.rate, epsilon=0.1, centered=True, **u.how),
        "Ftrl": lambda u: opt.Ftrl(u.rate, l1=0.01, l2=0.01, **u.how),
        "Adadelta": lambda u: opt.Adadelta(u.rate, epsilon=1e-3, **u.how),
        "Lamb": lambda u: opt.Lamb(u.rate, epsilon=0.1, **u.how),
        "Dpsgd": lambda u: opt.Dpsgd(u.rate, clip=1.0, batch_size=6.0, sigma=0.0),
    },
)
CLIP: Feature[Any] = Feature(
    "clip",
    {
        "none": None,
        "by value": clips.GradientClipByValue(0.02),
        "by norm": clips.GradientClipByNorm(0.05),
        "by global norm": clips.GradientClipByGlobalNorm(0.1),
        "error clip": ErrorClipByValue(0.01),
    },
)
REGULARIZER: Feature[Any] = Feature(
    "regularizer",
    {
        "none": (None, None),
        "L2": (decay.L2Decay(0.05), None),
        "L1": (decay.L1Decay(0.02), None),
        "of one parameter": (None, decay.L2Decay(0.1)),
    },
)
SCHEDULE: Feature[Callable[[], Any]] = Feature(
    "schedule",
    {
        "none": lambda: 0.1,
        "exponential": lambda: layers.exponential_decay(0.1, 2, 0.5),
        "staircase": lambda: layers.natural_exp_decay(0.1, 2, 0.5, staircase=True),
        "inverse time": lambda: layers.inverse_time_decay(0.1, 2, 0.5),
        "polynomial": lambda: layers.polynomial_decay(0.1, 3, 0.01, cycle=True),
        "piecewise": lambda: layers.piecewise_decay([1, 3], [0.1, 0.05, 0.02]),
        "Noam": lambda: layers.noam_decay(8, 2),
        "cosine": lambda: layers.cosine_decay(0.1, 2, 3),
        "warm-up": lambda: layers.linear_lr_warmup(0.1, 3, 0.05, 0.1),  # more: Ftrl diverges
        "set by the script": lambda: layers.create_global_var(
            [1], 0.1, "float32", persistable=True, name="own_rate"
        ),
    },
)
AVERAGE: Feature[Callable[[], Any] | None] = Feature(
    "average",
    {
        "none": None,
        "ModelAverage": lambda: opt.ModelAverage(0.5, 2, 3),
        "EMA": blocks.moving_average,
    },
)
STRATEGY: Feature[Callable[[Any, Net], Any] | None] = Feature(
    "strategy",
    {
        "none": None,
        "merged gradients": lambda o, net: opt.GradientMergeOptimizer(o, k_steps=2),
        "Lookahead": lambda o, net: opt.LookaheadOptimizer(o, 0.5, 2),
        "recompute": lambda o, net: blocks.recomputing(o, net),
        "bfloat16": lambda o, net: fluid.contrib.mixed_precision.bf16.decorate_bf16(o),
        "float16": lambda o, net: fluid.contrib.mixed_precision.decorate(o, init_loss_scaling=64.0),
    },
)
PROCESSED: Feature[Callable[[Pairs], Pairs] | None] = Feature(
    "processed gradients",  # between `backward` and `apply_gradients`
    {
        "none": None,
        "scaled": lambda pairs: [(p, layers.scale(g, 0.5)) for p, g in pairs],
        "cut": lambda pairs: [(p, layers.clip(g, -0.02, 0.02)) for p, g in pairs],
        "by the norm of all": blocks.by_norm_of_all,
    },
)
DTYPE: Feature[str] = Feature("dtype", {"float32": "float32", "float64": "float64"})
LOSS: Feature[Callable[[Variable], Variable]] = Feature(
    "loss",
    {
        "mean": layers.mean,
        "sum": lambda cost: layers.scale(layers.reduce_sum(cost), 0.1),
        "mean and penalty": blocks.with_penalty,
    },
)
METRIC: Feature[Callable[[Net, Variable], list[Variable]]] = Feature(
    "metric",
    {"none": lambda net, h: [], "accuracy": blocks.accuracy, "AUC": blocks.area},
)
MINIMIZE: Feature[str] = Feature(
    "minimize",
    {name: name for name in ("once", "parts", "two losses", "twice")},
)
PROGRAMS: Feature[str] = Feature(
    "programs", {name: name for name in ("one", "in turns", "sharing in turns")}
)
BATCHES: Feature[list[int]] = Feature(
    "batches",
    {
        "even": [6, 6, 6, 6, 6],
        "uneven": [7, 5, 6, 5, 7],
        "last is partial": [6, 6, 6, 6, 1],
        "fewer than trainers": [2, 1, 2, 1, 2],
    },
)
EVALUATION: Feature[bool] = Feature("evaluation", {"at the end": False, "after each step": True})
RUN: Feature[str] = Feature(
    "run", {name: name for name in ("plain", "compiled", "memory_optimize")}
)
LATE: Feature[int | None] = Feature("late", {"nobody": None, "first": 0, "last": -1})
SAVE: Feature[Resume | None] = Feature(
    "save",
    {
        "none": None,
        "same ranks": Resume(),
        "on one process": Resume(goes_on=ALONE),
        "of one process": Resume(saver=ALONE),
        "on other ranks": Resume(goes_on=Shape(3, 2)),
        "of other ranks": Resume(saver=Shape(2, 3)),
    },
)
MODE: Feature[Mode] = Feature(
    "mode",
    {
        "servers": Mode(True),
        "no servers": Mode(False),
        "servers for tables": Mode(True, settings={"HPCDIST_DENSE": "collective"}),
        "own rows": Mode(False, local=True),
        "own rows, servers": Mode(True, local=True),
        "transpiled": Mode(True, fields={"sync_mode": True}),
        "asynchronous": Mode(True, fields={"sync_mode": False}),
        "communicator": Mode(True, fields={"sync_mode": False, "runtime_split_send_recv": True}),
        "half-asynchronous": Mode(
            True, fields={"sync_mode": False, "runtime_split_send_recv": True, "half_async": True}
        ),
        "GEO": Mode(True, fields={"sync_mode": False, "geo_sgd_need_push_nums": 1}),
    },
)
TRAINERS: Feature[int] = Feature("trainers", {"2": 2, "1": 1, "3": 3})
SERVERS: Feature[int] = Feature("servers", {"2": 2, "1": 1, "3": 3})  # where a mode has servers
KERNELS: Feature[Mapping[str, str]] = Feature(
    "kernels",
    {"own": {"HPCDIST_KERNELS": "own"}}
    | ({"fused": {"HPCDIST_KERNELS": "fused"}} if find_spec("torch") else {}),
    extra=("fused",),
)

# Layers between the first and the last: (rows of 8, the network) to rows of 8.
Layer = Callable[[Variable, Net], Variable]
HIDDEN: list[Feature[Layer]] = [
    Feature(
        "table",
        {
            "none": lambda h, net: h,
            "dense": lambda h, net: blocks.looked_up(h, net),
            "sparse": lambda h, net: blocks.looked_up(h, net, is_sparse=True),
            "distributed": lambda h, net: blocks.looked_up(
                h, net, is_sparse=True, is_distributed=True
            ),
        },
    ),
    Feature(
        "sharing",
        {
            "none": lambda h, net: h,
            "weight": blocks.shared_weight,
            "dense table": lambda h, net: blocks.two_look_ups(h, net, is_sparse=False),
            "sparse table": lambda h, net: blocks.two_look_ups(h, net, is_sparse=True),
        },
    ),
    Feature(
        "control flow",
        {
            "none": lambda h, net: h,
            "cond by step": blocks.cond_by_step,
            "cond by batch": blocks.cond_by_batch,
            "While": blocks.loop,
            "StaticRNN": blocks.static_rnn,
            "IfElse": blocks.if_else,
        },
    ),
    Feature(
        "ragged",
        {
            "none": lambda h, net: h,
            "pool": blocks.pooled,
            "LSTM": blocks.lstm,
            "DynamicRNN": blocks.dynamic_rnn,
        },
    ),
    Feature(
        "normalization",
        {
            "none": lambda h, net: h,
            # Of its tanh: of a bias right in front the gradient would be nothing but rounding.
            "batch": lambda h, net: layers.batch_norm(layers.tanh(h), epsilon=0.1, act="tanh"),
            "layer": lambda h, net: layers.layer_norm(h, epsilon=0.1),
            "data": lambda h, net: layers.data_norm(h, epsilon=0.1),
        },
    ),
    Feature(
        "dropout",
        {
            "none": lambda h, net: h,
            "drawn": lambda h, net: layers.dropout(h, 0.3),
            "of a seed": lambda h, net: layers.dropout(h, 0.3, seed=5),
        },
    ),
    Feature("image", {"none": lambda h, net: h, "convolution": blocks.convolution}),
]

FEATURES: list[Feature[Any]] = [
    MODE,
    TRAINERS,
    SERVERS,
    OPTIMIZER,
    CLIP,
    REGULARIZER,
    SCHEDULE,
    AVERAGE,
    STRATEGY,
    PROCESSED,
    DTYPE,
    MINIMIZE,
    PROGRAMS,
    *HIDDEN,
    LOSS,
    METRIC,
    BATCHES,
    EVALUATION,
    SAVE,
    RUN,
    LATE,
    KERNELS,
]

SERVED = [name for name, mode in MODE.levels.items() if mode.served]
TRANSPILED = [name for name, mode in MODE.levels.items() if mode.fields is not None]
LOCAL = [name for name, mode in MODE.levels.items() if mode.local]

UNSERVED = [name for name in MODE.levels if name not in SERVED]

IMPOSSIBLE = [
    Impossible(
        {"mode": ["servers for tables"], "table": ["none", "dense", "sparse"]},
        "its servers have distributed tables and nothing else",
    ),
    Impossible({"mode": UNSERVED, "servers": ["1", "3"]}, "there are none"),
    Impossible(
        {"mode": TRANSPILED, "trainers": ["1", "3"]},
        "one trainer, always: several that do not wait for each other have no one result",
    ),
    Impossible(
        {"mode": TRANSPILED, "programs": ["in turns", "sharing in turns"]},
        "a script that transpiles names the one Program that it transpiles",
    ),
    Impossible(
        {"mode": TRANSPILED, "dropout": ["drawn"]},
        "trainers of a script that transpiles draw numbers of their own",
    ),
    Impossible(
        {"mode": [mode for mode in TRANSPILED if mode != "GEO"], "optimizer": ["LarsMomentum"]},
        "norms are over each server's part of a parameter, as in Fluid: a warning says so",
    ),
    Impossible(
        {"optimizer": ["Dpsgd"], "clip": ["by value", "by norm", "by global norm"]},
        "Dpsgd has a clip of its own, and takes no other",
    ),
    Impossible({"optimizer": ["Dpsgd"], "regularizer": ["L2", "L1"]}, "Dpsgd takes no regularizer"),
    Impossible(
        {"strategy": ["Lookahead"], "minimize": ["parts"]},
        "Lookahead's minimize takes no list of parameters",
    ),
    Impossible(
        {
            "strategy": ["merged gradients", "Lookahead"],
            "processed gradients": ["scaled", "cut", "by the norm of all"],
        },
        "these wrappers have `minimize` only",
    ),
]


def shape_of(choice: Choice) -> Shape:
    """Return how many ranks train: one trainer where a script transpiles itself."""
    mode = MODE.of(choice)
    trainers = 1 if mode.fields is not None else TRAINERS.of(choice)
    return Shape(trainers, SERVERS.of(choice) if mode.served else 0)


def possible(choice: Choice) -> bool:
    """Return whether a Program can have these levels together, however few are given."""
    return not any(
        all(choice.get(name) in levels for name, levels in one.levels.items()) for one in IMPOSSIBLE
    )


def has_meaning(name: str, level: str, mode: str) -> bool:
    """Return whether a level can be had in a mode, and changes what is run there."""
    if not possible({name: level, "mode": mode}):
        return False
    shape = shape_of({name: level, "mode": mode})
    ranks = {TRAINERS: shape.trainers, SERVERS: shape.servers}
    return all(count == of.levels[level] for of, count in ranks.items() if of.name == name)
