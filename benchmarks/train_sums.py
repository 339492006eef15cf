"""The training of train.py without servers, in Fluid's words. Started by allreduce.py.

    mpirun -n 2 python -m hpcdist benchmarks/train_sums.py --case mlp

Every rank has a batch of its own. Rank 0 prints one JSON line, as train.py does.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from typing import Any

from cases import CASES, batches
from train import network, place, train

import hpcdist as fluid


class Runner:
    """A ParallelExecutor that is called as an Executor is."""

    def __init__(self, executor: fluid.ParallelExecutor) -> None:
        self._executor = executor

    def run(self, _program: object, feed: Any, fetch_list: Any) -> Any:
        """Run one step."""
        return self._executor.run(fetch_list=[var.name for var in fetch_list], feed=feed)


def main() -> None:
    """Be one trainer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=sorted(CASES), default="mlp")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--place", choices=("cpu", "gpu"), default="cpu")
    options = parser.parse_args()
    case = CASES[options.case]
    loss = network(case)
    trainer = int(os.environ["PADDLE_TRAINER_ID"])
    endpoints = os.environ["PADDLE_TRAINER_ENDPOINTS"]
    config = fluid.DistributeTranspilerConfig()
    config.mode = "nccl2"
    transpiler = fluid.DistributeTranspiler(config)
    own = os.environ["PADDLE_CURRENT_ENDPOINT"]
    transpiler.transpile(trainer, trainers=endpoints, current_endpoint=own)
    fluid.Executor(place(options.place)).run(fluid.default_startup_program())
    trainers = len(endpoints.split(","))
    executor = fluid.ParallelExecutor(
        options.place == "gpu", loss.name, num_trainers=trainers, trainer_id=trainer
    )
    feeds = itertools.cycle([{"x": x, "y": y} for x, y in batches(case, trainer)])
    runner = Runner(executor)
    steps_per_s, losses = train(runner, None, loss, feeds, options.warmup, options.steps)
    if trainer == 0:
        print(json.dumps({"steps_per_s": steps_per_s, "losses": losses[:50]}), flush=True)


if __name__ == "__main__":
    main()
