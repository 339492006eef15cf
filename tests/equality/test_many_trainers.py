"""Several trainers that do not wait: where no gradient depends on a parameter, all orders are one.

Each trainer pushes the same gradients in every step, so that servers end as one process does that
makes the steps of all trainers, one after the other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.executor import executor
from hpcdist.executor.scope import Scope, scope_guard
from hpcdist.graph import Program
from hpcdist.transpiler import DistributeTranspiler, DistributeTranspilerConfig
from tests.equality.features import CLIP, MODE, OPTIMIZER, REGULARIZER
from tests.equality.network import Update
from tests.equality.programs import Values, saved_values
from tests.support.thread_jobs import ranks_as_threads

STEPS, TRAINERS, SERVERS = 3, 3, 2
TABLES: dict[str, dict[str, bool]] = {
    "dense": {},
    "sparse": {"is_sparse": True},
    "distributed": {"is_sparse": True, "is_distributed": True},
}


def build(optimizer: str, table: str, clip: str, regularizer: str) -> tuple[Program, Program]:
    main, startup = Program(), Program()
    startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        rows = layers.embedding(
            layers.data("word", [1], dtype="int64"), [7, 3], param_attr="table", **TABLES[table]
        )
        line = layers.fc(layers.data("x", [4]), 1, param_attr="line")
        loss = layers.mean(layers.elementwise_add(line, layers.reduce_sum(rows, 1, keep_dim=True)))
        how: dict[str, Any] = {"regularization": REGULARIZER.levels[regularizer][0]}
        if CLIP.levels[clip] is not None:
            how["grad_clip"] = CLIP.levels[clip]
        OPTIMIZER.levels[optimizer](Update(0.1, how)).minimize(loss)
    return main, startup


def train(exe: Any, program: Program, main: Program, steps: int, root: Path) -> Values:
    rng = np.random.default_rng(5)
    feed = {"x": rng.uniform(-1, 1, (6, 4)).astype("float32"), "word": rng.integers(0, 7, (6, 1))}
    for _ in range(steps):
        exe.run(program, feed=feed)
    fluid.checkpoint.save(exe, str(root), steps, main, scope=executor.global_scope())
    return saved_values(root)


@pytest.mark.parametrize(
    ("optimizer", "table", "clip", "regularizer"),
    [
        ("SGD", "sparse", "none", "L1"),
        ("Nesterov", "distributed", "none", "none"),
        ("lazy Adam", "sparse", "none", "none"),
        ("Ftrl", "dense", "by norm", "L2"),
        ("centered RMSProp", "dense", "by value", "none"),
    ],
)
@pytest.mark.parametrize("mode", ["asynchronous", "communicator", "half-asynchronous"])
def test_several_trainers_end_as_one_process(tmp_path, mode, optimizer, table, clip, regularizer):
    built = [build(optimizer, table, clip, regularizer) for _ in range(TRAINERS + SERVERS + 1)]
    endpoints = [f"ps{k}:6174" for k in range(SERVERS)]

    def rank(k: int) -> Values:
        main, startup = built[k]
        config = DistributeTranspilerConfig()
        for name, value in (MODE.levels[mode].fields or {}).items():
            setattr(config, name, value)
        transpiler = DistributeTranspiler(config)
        trainer, servers = k % TRAINERS, ",".join(endpoints)
        how = {"sync_mode": False, "startup_program": startup}
        transpiler.transpile(trainer, main, servers, TRAINERS, **how)
        exe = fluid.Executor()
        if k >= TRAINERS:
            main, startup = transpiler.get_pserver_programs(endpoints[k - TRAINERS])
            exe.run(startup)
            exe.run(main)
            raise SystemExit(0)
        program = transpiler.get_trainer_program()
        exe.run(startup)
        return train(exe, program, main, STEPS, tmp_path / "job")

    with ranks_as_threads() as run:
        got, *_ = run(TRAINERS, SERVERS, [lambda k=k: rank(k) for k in range(TRAINERS + SERVERS)])
    main, startup = built[-1]
    with scope_guard(Scope()):
        exe = fluid.Executor()
        exe.run(startup)
        wanted = train(exe, main, main, STEPS * TRAINERS, tmp_path / "alone")
    values = [name for name, value in wanted.items() if value.dtype.kind == "f"]
    assert {"saved: line", "saved: fc_0.b_0"} < {name.partition("/")[0] for name in values}
    for name in values:
        np.testing.assert_allclose(got[name], wanted[name], rtol=2e-5, atol=2e-5, err_msg=name)
