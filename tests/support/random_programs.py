"""Random Programs of random operators, with batches to train them on. All from one seed.

A *plain* Program combines rows with rows of the same sample, and reduces over the batch only for
its loss and for what is fetched. A *wild* one does as it likes: it turns rows round, multiplies
means, and so on.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import hpcdist as fluid
from hpcdist import layers
from hpcdist.clip import ClipByGlobalNorm, ClipByNorm, ClipByValue
from hpcdist.errors import GraphError, HpcdistError
from hpcdist.executor.executor import Executor
from hpcdist.graph import Program, Variable
from hpcdist.lod_tensor import create_lod_tensor
from tests.support.random_steps import CLASSES, STEPS, WORDS, Builder, Value, fc, total

NEAR = 1e-5


@dataclass
class RandomProgram:
    """A Program that trains, with what to feed and what to fetch, the loss first."""

    main: Program
    startup: Program
    test: Program
    fetch: list[Variable]
    parameters: list[Variable]
    feeds: list[dict[str, Any]]
    plain: bool
    ops: list[str] = field(default_factory=list)


def _data(b: Builder, ragged: bool) -> None:
    for name, shape, dtype, levels in (
        ("x", [6], "float32", 0),
        ("z", [2, 3], "float32", 0),
        ("image", [2, 4, 4], "float32", 0),
        ("label", [1], "int64", 0),
        ("word", [1], "int64", 0),
        ("words", [1], "int64", 1),
        ("line", [3], "float32", 1),
    ):
        if levels and not ragged:
            continue
        var = layers.data(name, shape, dtype=dtype, lod_level=levels)
        b.pool.append(Value(var, False, "sequences" if levels else "rows"))


def _batch(b: Builder, rows: int, lengths: list[int]) -> dict[str, Any]:
    uniform, rng = b.rng.uniform, b.rng
    count = sum(lengths)
    return {
        "x": uniform(-1, 1, (rows, 6)).astype("float32"),
        "z": uniform(-1, 1, (rows, 2, 3)).astype("float32"),
        "image": uniform(-1, 1, (rows, 2, 4, 4)).astype("float32"),
        "label": rng.integers(0, CLASSES, (rows, 1)),
        "word": rng.integers(0, WORDS, (rows, 1)),
        "words": create_lod_tensor(rng.integers(0, WORDS, (count, 1)), [lengths]),
        "line": create_lod_tensor(uniform(-1, 1, (count, 3)).astype("float32"), [lengths]),
    }


def _loss(b: Builder) -> Variable:
    if b.wild and not any(v.learned for v in b.pool):
        fc(b)
    x = b.pick(lambda v: v.learned and v.var.dtype == "float32" and -1 not in v.shape[1:])
    bounded = layers.square(layers.tanh(x.var))
    if b.int(0, 2) == 0 or (x.kind == "regrouped" and not b.wild):
        return layers.scale(layers.reduce_sum(bounded), 0.05)
    loss = b.of([layers.mean, layers.reduce_mean])(bounded)
    if b.int(0, 2) == 0:
        w = layers.create_parameter([2, 2], "float32")
        loss = layers.elementwise_add(loss, layers.scale(layers.reduce_sum(layers.square(w)), 0.1))
    return loss


def _minimize(b: Builder, loss: Variable) -> None:
    rate: Any = b.of([0.1, 0.05])
    if b.int(0, 3) == 0:
        rate = layers.exponential_decay(rate, 1, 0.5)
    clips = [None, ClipByGlobalNorm(0.1), ClipByNorm(0.05), ClipByValue(0.01)]
    if any(op.attrs.get("is_sparse") for op in loss.block.ops):  # refused without servers
        clips = [None]
    optimizer = b.of(
        [
            lambda clip: fluid.optimizer.SGD(rate, grad_clip=clip),
            lambda clip: fluid.optimizer.Momentum(rate, 0.9, grad_clip=clip),
            lambda clip: fluid.optimizer.Adam(rate, epsilon=0.1, grad_clip=clip),
        ]
    )(b.of(clips))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nothing is trained
        if not optimizer.minimize(loss)[0]:
            raise GraphError("no gradient reaches a parameter")


def _is_sparse(parameter: Variable) -> bool:
    """Tell whether servers keep it, and trainers only the rows of their batches."""
    ops = parameter.block.ops
    return any(op.attrs.get("is_sparse") and parameter.name in op.input("W") for op in ops)


def build(seed: int, ragged: bool = True) -> RandomProgram:
    """Return the Program of a seed; it has sequences only if ``ragged``."""
    rng = np.random.default_rng(seed)
    wild = bool(rng.integers(0, 4) == 0)
    main, startup = Program(), Program()
    startup.random_seed = seed + 1
    main.random_seed = startup.random_seed if rng.integers(0, 4) == 0 else 0  # of dropout
    b = Builder(rng, wild)
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        _data(b, ragged)
        fc(b)
        wanted, tries = b.int(2, 9), 0
        while wanted and tries < 60:
            tries += 1
            try:
                b.of(STEPS)(b)
                wanted -= 1
            except (HpcdistError, IndexError, ValueError):
                pass  # does not fit what there is; what it appended nobody reads
        loss = _loss(b)
        fetched = [b.of(b.pool).var for _ in range(b.int(0, 2))]
        for _ in range(b.int(0, 2)):
            total(b)
            fetched.append(b.pool[-1].var)
        test = main.clone(for_test=True)
        kept = test.global_block().vars
        dense = [p for p in main.all_parameters() if p.name in kept and not _is_sparse(p)]
        try:
            _minimize(b, loss)
        except GraphError:  # no gradient reaches a parameter
            loss = layers.mean(layers.fc(b.pool[0].var, 1))
            _minimize(b, loss)
    feeds = []
    for _ in range(2):
        rows = b.of([1, 2, 3, 4, 5, 7])
        feed = _batch(b, rows, [b.int(1, 3) for _ in range(rows)])
        feeds.append(
            {name: value for name, value in feed.items() if main.global_block().has_var(name)}
        )
    ops = [op.type for op in main.global_block().ops]
    return RandomProgram(main, startup, test, [loss, *fetched], dense, feeds, not wild, ops)


def train(program: RandomProgram) -> list[list[np.ndarray]]:
    """The plain script: return what was fetched in every step, and from the test program after."""
    exe = Executor()
    exe.run(program.startup)
    runs = [(program.main, feed, program.fetch) for feed in program.feeds]
    runs.append((program.test, program.feeds[0], [*program.fetch, *program.parameters]))
    return [
        [np.asarray(v) for v in exe.run(main, feed=feed, fetch_list=fetch)]
        for main, feed, fetch in runs
    ]


def assert_near(got: Any, wanted: Any, where: str) -> None:
    """Compare two arrays to the rounding of sums; ``where`` is told if they differ."""
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype), where
    scale = max(1.0, float(np.abs(wanted).max(initial=0)))
    np.testing.assert_allclose(got, wanted, rtol=NEAR, atol=NEAR * scale, err_msg=where)
