"""Jobs without servers that transpile themselves, and one process that sees all their batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import hpcdist as fluid
from hpcdist import layers
from hpcdist.comm.cluster import Cluster
from hpcdist.fleet import DistributedStrategy, Fleet
from hpcdist.launch import environment
from tests.support.job import alone, run_job, values

FEATURES, ROWS, STEPS = 6, 4, 5  # rows of one trainer


def batch(step: int, trainer: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(100 * step + trainer)
    return {
        "x": rng.uniform(-1, 1, (ROWS, FEATURES)).astype(np.float32),
        "y": rng.uniform(-1, 1, (ROWS, 1)).astype(np.float32),
    }


def as_launched(role: Any, trainers: int, monkeypatch: Any) -> None:
    """Let a rank find the variables that the launcher sets for a trainer of fleet."""
    for name, value in environment.variables(Cluster(tuple(range(trainers))), role.index).items():
        monkeypatch.setenv(name, value)


def union(step: int, trainers: int) -> dict[str, np.ndarray]:
    """Return the batches of all trainers as one."""
    parts = [batch(step, trainer) for trainer in range(trainers)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def network(minimize: Callable[[Any], Any], seed: int = 3) -> tuple[Any, Any, Any]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed, startup.random_seed = 3, seed
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x, y = layers.data("x", [FEATURES]), layers.data("y", [1])
        hidden = layers.fc(x, 5, act="tanh")
        loss = layers.mean(layers.square_error_cost(layers.fc(hidden, 1), y))
        minimize(loss)
    return main, startup, loss


def momentum_clipped_with_decay(loss: Any) -> None:
    rate = layers.exponential_decay(0.1, 2, 0.5, staircase=True)
    fluid.optimizer.Momentum(
        rate,
        0.9,
        regularization=fluid.regularizer.L2Decay(0.1),
        grad_clip=fluid.clip.GradientClipByGlobalNorm(0.3),
    ).minimize(loss)


def parameters(main: Any) -> dict[str, np.ndarray]:
    scope = fluid.global_scope()
    return {p.name: np.array(scope.find_var(p.name).get_tensor()) for p in main.all_parameters()}


def names(trainers: int) -> list[str]:
    return [f"127.0.0.1:{6170 + k}" for k in range(trainers)]


def transpile(main: Any, startup: Any, role: Any, trainers: int, **config: Any) -> Any:
    transpiler = fluid.DistributeTranspiler(fluid.DistributeTranspilerConfig(**config))
    transpiler.transpile(
        role.index,
        program=main,
        startup_program=startup,
        trainers=",".join(names(trainers)),
        current_endpoint=names(trainers)[role.index],
    )
    return transpiler


def fleet_script(
    role: Any, trainers: int, monkeypatch: Any, choose: Any, optimizer: Any = None
) -> Any:
    """A script of fleet 2.0, with what ``choose`` sets of its strategy.

    It trains by ``optimizer()``, or Momentum.
    """
    for name, value in environment.variables(Cluster(tuple(range(trainers))), role.index).items():
        monkeypatch.setenv(name, value)
    fleet, strategy = Fleet(), DistributedStrategy()
    fleet.init(is_collective=True)
    choose(strategy)
    chosen = fluid.optimizer.Momentum(0.1, 0.9) if optimizer is None else optimizer()
    made = fleet.distributed_optimizer(chosen, strategy)
    _, startup, loss = network(made.minimize)
    exe = fluid.Executor()
    exe.run(startup)
    losses = [
        float(exe.run(fleet.main_program, feed=batch(n, role.index), fetch_list=[loss])[0][0])
        for n in range(STEPS)
    ]
    return losses, parameters(loss.block.program)


def locally(trainers: int, minimize: Callable[[Any], Any]) -> tuple[list[float], Any]:
    """Return losses and parameters of one process that is fed all trainers' batches."""
    with alone():
        main, startup, loss = network(minimize)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        losses = [
            float(exe.run(main, feed=union(step, trainers), fetch_list=[loss])[0][0])
            for step in range(STEPS)
        ]
        return losses, parameters(main)


def check(trainers: int, minimize: Callable[[Any], Any], script: Any) -> None:
    """Check a job's mean losses and its parameters; those are the same bits on all trainers."""
    losses, wanted = locally(trainers, minimize)
    found = values(run_job(trainers, 0, script))
    means = np.mean([got for got, _ in found], axis=0)
    np.testing.assert_allclose(means, losses, rtol=1e-5, atol=1e-5)
    for _, trained in found:
        assert sorted(trained) == sorted(wanted)
        for name, value in wanted.items():
            np.testing.assert_allclose(trained[name], value, rtol=1e-5, atol=1e-5)
            assert trained[name].tobytes() == found[0][1][name].tobytes()


def refused(script: Callable[[Any], Any], words: str, trainers: int = 2) -> None:
    outcomes = run_job(trainers, 0, script, deadline_s=20, aborts=False)
    assert any(words in outcome.error for outcome in outcomes), [o.trace for o in outcomes]
