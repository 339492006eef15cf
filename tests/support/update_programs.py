"""Programs of every optimizer with every clip, regularizer, schedule, average and kind of table.

Each is a choice of one value of every feature; `choices` covers all pairs of values, or all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import hpcdist as fluid
from hpcdist import layers
from hpcdist.clip import (
    GradientClipByGlobalNorm,
    GradientClipByNorm,
    GradientClipByValue,
    set_gradient_clip,
)
from hpcdist.contrib import extend_with_decoupled_weight_decay
from hpcdist.fluid.optimizer.kinds import UnbiasedLamb
from hpcdist.graph import Program, Variable
from hpcdist.regularizer import L1Decay, L2Decay

make = fluid.optimizer
Choice = Mapping[str, str]  # feature -> value
STEPS = 4
ROWS = [6, 7, 4, 5]
WORDS = 12


def _decoupled(kind: Any) -> Callable[..., Any]:
    decaying = extend_with_decoupled_weight_decay(kind)
    return lambda rate, **more: decaying(0.02, learning_rate=rate, **more)


def _own_rate() -> Variable:
    steps = layers.create_global_var([1], 0.0, "float32", persistable=True, name="steps")
    layers.increment(steps)
    return 0.1 / (steps + 1.0)


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": make.SGD,
    "momentum": lambda rate, **more: make.Momentum(rate, 0.9, **more),
    "nesterov": lambda rate, **more: make.Momentum(rate, 0.9, use_nesterov=True, **more),
    "lars": lambda rate, **more: make.LarsMomentum(rate, 0.9, lars_coeff=0.02, **more),
    "adagrad": make.Adagrad,
    "decayed adagrad": make.DecayedAdagrad,
    "adam": lambda rate, **more: make.Adam(rate, epsilon=1e-3, **more),
    "lazy adam": lambda rate, **more: make.Adam(rate, epsilon=1e-3, lazy_mode=True, **more),
    "adamax": lambda rate, **more: make.Adamax(rate, epsilon=1e-3, **more),
    "rmsprop": lambda rate, **more: make.RMSProp(rate, momentum=0.5, epsilon=1e-2, **more),
    "centered": lambda rate, **more: make.RMSProp(rate, centered=True, epsilon=1e-2, **more),
    "ftrl": lambda rate, **more: make.Ftrl(rate, l1=0.01, l2=0.01, **more),
    "adadelta": lambda rate, **more: make.Adadelta(rate, epsilon=1e-2, **more),
    "lamb": make.Lamb,
    "unbiased lamb": UnbiasedLamb,
    "adamw": _decoupled(make.Adam),
    "momentum, decoupled": lambda rate, **more: _decoupled(make.Momentum)(
        rate, momentum=0.9, **more
    ),
}
CLIPS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "value": lambda: GradientClipByValue(0.02),
    "norm": lambda: GradientClipByNorm(0.05),
    "global": lambda: GradientClipByGlobalNorm(0.1),
    "global of some": lambda: GradientClipByGlobalNorm(0.1, need_clip=lambda p: p.name != "upper"),
    "norm, set": lambda: set_gradient_clip(GradientClipByNorm(0.05)),
    "global, set": lambda: set_gradient_clip(GradientClipByGlobalNorm(0.1)),
    "value of one, set": lambda: set_gradient_clip(GradientClipByValue(0.02), ["lower"]),
}
REGULARIZERS: dict[str, Callable[[], tuple[Any, Any]]] = {  # of the optimizer, and of a parameter
    "none": lambda: (None, None),
    "l1": lambda: (L1Decay(0.05), None),
    "l2": lambda: (L2Decay(0.05), None),
    "of one": lambda: (None, L2Decay(0.1)),
}
SCHEDULES: dict[str, Callable[[], Any]] = {
    "number": lambda: 0.1,
    "exponential": lambda: layers.exponential_decay(0.1, 1, 0.5),
    "piecewise": lambda: layers.piecewise_decay([1, 3], [0.1, 0.05, 0.2]),
    "noam": lambda: layers.noam_decay(16, 2),
    "cosine": lambda: layers.cosine_decay(0.1, 1, 4),
    "warmup": lambda: layers.linear_lr_warmup(layers.polynomial_decay(0.1, 6), 2, 0.01, 0.1),
    "multiplied": lambda: 0.1,
    "own": _own_rate,
}
AVERAGES = ("none", "ema", "model average", "lookahead", "merged")
TABLES: dict[str, dict[str, bool] | None] = {
    "none": None,
    "dense": {},
    "sparse": {"is_sparse": True},
    "distributed": {"is_sparse": True, "is_distributed": True},
}
FEATURES: dict[str, tuple[str, ...]] = {
    "optimizer": tuple(OPTIMIZERS),
    "clip": tuple(CLIPS),
    "schedule": tuple(SCHEDULES),
    "average": AVERAGES,
    "regularizer": tuple(REGULARIZERS),
    "table": tuple(TABLES),
}


@dataclass
class UpdateProgram:
    """A Program that trains, and one that tests it with averaged parameters, if it has some."""

    main: Program
    startup: Program
    test: Program
    loss: Variable
    parameters: list[str]
    averages: Any


def build(choice: Choice) -> UpdateProgram:
    """Return the Program of a choice; HpcdistError if there is none."""
    main, startup = Program(), Program()
    main.random_seed = startup.random_seed = 5
    decay, of_one = REGULARIZERS[choice["regularizer"]]()
    factor = 0.3 if choice["schedule"] == "multiplied" else 1.0
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x, y = layers.data("x", [5]), layers.data("y", [1])
        hidden, table = x, TABLES[choice["table"]]
        if table is not None:
            word = layers.data("word", [1], dtype="int64")
            rows = layers.embedding(word, [WORDS, 3], param_attr="table", **table)
            hidden = layers.concat([x, rows], axis=1)
        lower = fluid.ParamAttr("lower", learning_rate=factor, regularizer=of_one)
        hidden = layers.fc(hidden, 4, act="tanh", param_attr=lower)
        out = layers.fc(hidden, 1, param_attr="upper")
        loss = layers.mean(layers.square_error_cost(out, y))
        test = main.clone(for_test=True)
        clip = CLIPS[choice["clip"]]()
        optimizer = OPTIMIZERS[choice["optimizer"]](
            SCHEDULES[choice["schedule"]](), grad_clip=clip, regularization=decay
        )
        if choice["average"] == "merged":
            optimizer = make.GradientMergeOptimizer(optimizer, 2)
        if choice["average"] == "lookahead":
            optimizer = make.LookaheadOptimizer(optimizer, 0.5, 2)
        optimizer.minimize(loss)
        averages = None
        if choice["average"] == "ema":
            averages = make.ExponentialMovingAverage(0.5)
            averages.update()
        if choice["average"] == "model average":
            averages = make.ModelAverage(0.5, min_average_window=2, max_average_window=3)
    whole = [p.name for p in main.all_parameters() if p.name != "table" or table == {}]
    return UpdateProgram(main, startup, test, loss, whole, averages)


def _batch(program: Program, step: int) -> dict[str, Any]:
    rng = np.random.RandomState(step)
    rows = ROWS[step]
    made = {
        "x": rng.uniform(-1, 1, (rows, 5)).astype(np.float32),
        "y": rng.uniform(-1, 1, (rows, 1)).astype(np.float32),
        "word": rng.randint(0, WORDS, (rows, 1)),
    }
    return {name: value for name, value in made.items() if program.global_block().has_var(name)}


def train(program: UpdateProgram) -> dict[str, np.ndarray]:
    """Return the losses, what a test Program gives then, and parameters; a step has a number."""
    exe = fluid.Executor()
    exe.run(program.startup)
    found = {}
    for step in range(STEPS):
        (loss,) = exe.run(program.main, _batch(program.main, step), [program.loss])
        found[f"loss {step}"] = np.asarray(loss)
    feed, fetch = _batch(program.main, 0), [program.loss.name, *program.parameters]
    found |= zip(fetch, map(np.asarray, exe.run(program.test, feed, fetch)), strict=True)
    if program.averages is not None:
        with program.averages.apply(exe):
            values = map(np.asarray, exe.run(program.test, feed, fetch))
            found |= zip((f"average of {name}" for name in fetch), values, strict=True)
    return found


# -- which of them ---------------------------------------------------------------------------------
def choices(pairs: bool = True) -> Iterator[dict[str, str]]:
    """Yield choices in which every two values of different features meet, or else all choices.

    One after the other that meets the most new pairs, of candidates that an open pair begins.
    """
    names = list(FEATURES)
    if not pairs:
        for values in itertools.product(*FEATURES.values()):
            yield dict(zip(names, values))
        return
    rng = np.random.RandomState(0)
    everything = [(name, value) for name, values in FEATURES.items() for value in values]
    missing = {(a, b): None for a, b in itertools.combinations(everything, 2) if a[0] != b[0]}
    while missing:
        candidates = []
        for _ in range(10):
            choice = dict(next(iter(missing)))
            for name in rng.permutation([n for n in names if n not in choice]):
                met = {v: len(_met({**choice, name: v}, missing)) for v in FEATURES[name]}
                best = [v for v in met if met[v] == max(met.values())]
                choice[name] = best[rng.randint(len(best))]
            candidates.append((len(_met(choice, missing)), len(candidates), choice))
        chosen = max(candidates, key=lambda c: c[:2])[2]
        for pair in _met(chosen, missing):
            del missing[pair]
        yield {name: chosen[name] for name in names}


def _met(choice: Choice, missing: Mapping[Any, None]) -> list[Any]:
    in_order = [(name, choice[name]) for name in FEATURES if name in choice]
    return [pair for pair in itertools.combinations(in_order, 2) if pair in missing]
