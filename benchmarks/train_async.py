"""Asynchronous training through fleet, for the real Fluid and for hpcdist under ``--as-paddle``.

Started by asynchronous.py as every role of a job (PADDLE_* variables as for PaddleCloudRoleMaker).
Each trainer writes one JSON object to a file of its own: its steps per second after the warm-up,
its first loss and its last. With ``--seconds`` it stops when they are over, and ``--slow-ms`` makes
trainer 1 sleep in each step.
"""

import argparse
import json
import os
import time

import numpy as np
import paddle.fluid as fluid
import paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler as distribute_transpiler
from cases import CASES, batches
from paddle.fluid.incubate.fleet.base import role_maker
from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import fleet
from train import network, place


def train(exe, program, loss, feeds, options, nap_s):
    """Run the steps; return the steps per second of those after the warm-up, and all losses."""
    losses = []
    begin = time.perf_counter()
    step = 0
    while True:
        if step == options.warmup:
            begin = time.perf_counter()
        (value,) = exe.run(program, feed=feeds[step % len(feeds)], fetch_list=[loss])
        losses.append(float(np.ravel(value)[0]))
        if nap_s:
            time.sleep(nap_s)
        step += 1
        elapsed = time.perf_counter() - begin
        if step >= options.warmup + options.steps or (
            options.seconds and step > options.warmup and elapsed > options.seconds
        ):
            return (step - options.warmup) / elapsed, losses


def main():
    """Be the role that the environment names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=sorted(CASES), default="linreg")
    parser.add_argument("--strategy", choices=("sync", "async", "half_async"), default="async")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--slow-ms", type=float, default=0.0)
    parser.add_argument("--place", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--results", required=True, help="the folder to write to")
    options = parser.parse_args()
    case = CASES[options.case]
    fleet.init(role_maker.PaddleCloudRoleMaker())
    strategies = distribute_transpiler.StrategyFactory
    strategy = getattr(strategies, "create_" + options.strategy + "_strategy")()
    loss = network(case, lambda optimizer: fleet.distributed_optimizer(optimizer, strategy))
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    exe = fluid.Executor(place(options.place))
    fleet.init_worker()
    exe.run(fleet.startup_program)
    trainer = fleet.worker_index()
    feeds = [{"x": x, "y": y} for x, y in batches(case, trainer)]
    nap_s = options.slow_ms / 1000 if trainer == 1 else 0.0
    steps_per_s, losses = train(exe, fleet.main_program, loss, feeds, options, nap_s)
    with open(os.path.join(options.results, f"trainer_{trainer}.json"), "w") as file:
        json.dump({"steps_per_s": steps_per_s, "losses": [losses[0], losses[-1]]}, file)
    fleet.stop_worker()


if __name__ == "__main__":
    main()
