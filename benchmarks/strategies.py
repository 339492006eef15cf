"""Measure what strategies of training save and cost, each against the same training without it.

    python benchmarks/strategies.py [gradient_merge ...]

Both programs train in one job, several rounds in turn, so that other work on the machine slows
both; with servers, which serve one program, and in a pipeline, in three pairs of jobs in turn. Told
are the medians over rounds, or pairs, of the ratios of time, of memory for temporaries, and of the
bytes that rank 0 keeps (parameters and optimizer state). Ratios below 1 are gains. The network is
an MLP of 4 layers of 512, 16 rows on each rank; for recompute and the pipeline of 16 layers, 256
rows.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import hpcdist as fluid
from hpcdist import layers
from hpcdist.fleet import DistributedStrategy, Fleet

WIDTH, DEPTH, ROWS, STEPS, ROUNDS = 512, 4, 16, 8, 7
KEYS = ("time", "memory", "kept")
ALONE = [sys.executable]
RANKS = ["mpirun", "-n", "2", sys.executable, "-m", "hpcdist", "--quiet"]
SERVER = ["mpirun", "-n", "3", sys.executable, "-m", "hpcdist", "--quiet", "--pservers", "1"]


@dataclass(frozen=True)
class Strategy:
    """What is compared: optimizers that minimize a loss, given the outputs of the layers too."""

    title: str
    minimize: Callable[[Any, list[Any]], Any]
    launches: dict[str, list[str]]
    plain: Callable[[Any, list[Any]], Any] = lambda loss, _: momentum().minimize(loss)
    depth: int = DEPTH
    rows: int = ROWS
    apart: bool = False  # a job trains one program only


def momentum() -> Any:
    return fluid.optimizer.Momentum(0.001, 0.9)


def merged(loss: Any, _: list[Any]) -> None:
    fluid.optimizer.GradientMergeOptimizer(momentum(), k_steps=4).minimize(loss)


def recomputing(loss: Any, outputs: list[Any]) -> None:
    optimizer = fluid.optimizer.RecomputeOptimizer(momentum())
    optimizer._set_checkpoints(outputs[3::4][:-1])
    optimizer.minimize(loss)


def saving(loss: Any, _: list[Any]) -> None:
    momentum().minimize(loss)
    fluid.memory_optimize(loss.block.program)


def mixed(loss: Any, _: list[Any]) -> None:
    fluid.contrib.mixed_precision.decorate(momentum()).minimize(loss)


def by_adam(loss: Any, _: list[Any], **strategy: Any) -> None:
    by_fleet(loss, fluid.optimizer.Adam(0.001), **strategy)


def by_momentum(loss: Any, _: list[Any], **strategy: Any) -> None:
    by_fleet(loss, momentum(), **strategy)


def by_fleet(loss: Any, optimizer: Any, **strategy: Any) -> None:
    fleet, given = Fleet(), DistributedStrategy()
    fleet.init(is_collective=True)
    for name, value in strategy.items():
        setattr(given, name, value)
    fleet.distributed_optimizer(optimizer, given).minimize(loss)


def in_stages(loss: Any, outputs: list[Any]) -> None:
    cuts = [[outputs[len(outputs) // 2 - 1]], [loss]]
    optimizer = fluid.optimizer.PipelineOptimizer(momentum(), cuts, num_microbatches=8)
    optimizer.minimize(loss)


STRATEGIES = {
    "amp": Strategy("mixed precision", mixed, {"alone": ALONE, "2 trainers": RANKS}),
    "dgc": Strategy(
        "1 in 1000 elements sent",
        functools.partial(by_momentum, dgc=True),
        {"2 trainers": RANKS},
        by_momentum,
    ),
    "gradient_merge": Strategy(
        "gradients of 4 steps merged",
        merged,
        {"alone": ALONE, "2 trainers": RANKS, "2 trainers, 1 server": SERVER},
    ),
    "pipeline": Strategy(
        "2 stages, 8 micro-batches", in_stages, {"2 ranks": RANKS}, depth=16, rows=256, apart=True
    ),
    "recompute": Strategy(
        "16 layers, 3 checkpoints",
        recomputing,
        {"alone": ALONE, "2 trainers": RANKS},
        depth=16,
        rows=256,
    ),
    "sharding": Strategy(
        "Adam's state divided",
        functools.partial(by_adam, sharding=True),
        {"2 trainers": RANKS},
        by_adam,
    ),
    "recompute_saving": Strategy(
        "the same by memory_optimize", recomputing, {"alone": ALONE}, saving, depth=16, rows=256
    ),
}


def main() -> None:
    """Print a table; as a child, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=f"of {', '.join(STRATEGIES)}; default: all")
    parser.add_argument("--child", choices=sorted(STRATEGIES), help=argparse.SUPPRESS)
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        strategy = STRATEGIES[options.child]
        both = [strategy.plain, strategy.minimize]
        told = measure(strategy, both if options.only is None else [both[options.only]])
        if os.environ.get("PADDLE_TRAINER_ID", "0") == "0":
            print(json.dumps(told), flush=True)
        return
    print("| | | time of a step | temporaries | kept |")
    print("|---|---|---|---|---|")
    for name in options.names or STRATEGIES:
        for where, launch in STRATEGIES[name].launches.items():
            told = run_children(launch, name)
            ratios = " | ".join(f"{told[key]:.2f}" for key in KEYS)
            print(f"| {STRATEGIES[name].title} | {where} | {ratios} |", flush=True)


def run_children(launch: list[str], name: str) -> dict[str, float]:
    """Run both in one job, or in jobs in turn where these train one program; return ratios."""
    if "--pservers" not in launch and not STRATEGIES[name].apart:
        (told,) = run_child(launch, name)
        return told
    jobs = [[run_child(launch, name, "--only", str(k)) for k in (0, 1)] for _ in range(3)]
    return {
        key: statistics.median(after[key] / before[key] for (before,), (after,) in jobs)
        for key in KEYS
    }


def run_child(launch: list[str], name: str, *options: str) -> list[dict[str, float]]:
    """Run one job; return what it told."""
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [*launch, __file__, "--child", name, *options]
    done = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, text=True, timeout=300, check=True
    )
    return [json.loads(x) for x in done.stdout.splitlines() if x.startswith("{")]


def build(minimize: Callable[[Any, list[Any]], Any], depth: int) -> tuple[Any, Any, Any]:
    """Return main program, startup program and loss."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 1
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        value, y = layers.data("x", [WIDTH]), layers.data("y", [1])
        outputs = []
        for _ in range(depth):
            value = layers.fc(value, WIDTH, act="relu")
            outputs.append(value)
        loss = layers.mean(layers.square_error_cost(layers.fc(value, 1), y))
        minimize(loss, outputs)
    return main, startup, loss


def measure(strategy: Strategy, ways: list[Any]) -> dict[str, float]:
    """Train in these ways in turn; return the medians of the ratios, or what one way takes."""
    rng = np.random.default_rng(0)
    ranks = int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
    feed = {
        "x": rng.random((strategy.rows * ranks, WIDTH), dtype=np.float32),
        "y": rng.random((strategy.rows * ranks, 1), dtype=np.float32),
    }
    contenders = []
    for minimize in ways:
        exe, scope = fluid.Executor(), fluid.Scope()
        program, startup, loss = build(minimize, strategy.depth)
        exe.run(startup, scope=scope)
        contenders.append((exe, program, loss, scope))

    def seconds(exe: Any, program: Any, loss: Any, scope: Any) -> float:
        begin = time.perf_counter()
        for _ in range(STEPS):
            exe.run(program, feed=feed, fetch_list=[loss], scope=scope)
        return time.perf_counter() - begin

    for contender in contenders:
        seconds(*contender)
    rounds = [[seconds(*c) for c in contenders] for _ in range(ROUNDS)]
    pools = [max(e.compiled.pool_bytes for e in c[0].forms()) for c in contenders]
    kept = [kept_bytes(program, scope) for _, program, _, scope in contenders]
    if len(ways) == 1:
        took = statistics.median(took for (took,) in rounds)
        return {"time": took, "memory": pools[0], "kept": kept[0]}
    times = statistics.median(after / before for before, after in rounds)
    return {"time": times, "memory": pools[1] / max(pools[0], 1), "kept": kept[1] / kept[0]}


def kept_bytes(program: Any, scope: Any) -> int:
    """Return the bytes of all variables of a Program that outlive a step and are here."""
    found = [scope.find_var(v.name) for v in program.list_vars() if v.persistable]
    return sum(v.value.nbytes for v in found if v is not None and v.value is not None)


if __name__ == "__main__":
    main()
