"""Linear regression with fleet, as scripts of Fluid 1.8 are written.

    mpirun -n 4 python -m hpcdist --pservers 2 --as-paddle examples/fleet_fit_a_line.py
    python -m hpcdist --as-paddle examples/fleet_fit_a_line.py        # one process

Every worker trains on its rows of each batch and prints their loss; the mean over workers is what
one process prints. Servers end when all workers have stopped.
"""

import argparse
import os

import numpy as np
import paddle.fluid as fluid
import paddle.fluid.incubate.fleet.base.role_maker as role_maker
from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import (
    StrategyFactory,
    fleet,
)

FEATURES, ROWS, STEPS = 13, 24, 20


def network():
    """Return the mean squared error of a linear model."""
    x = fluid.layers.data(name="x", shape=[FEATURES], dtype="float32")
    y = fluid.layers.data(name="y", shape=[1], dtype="float32")
    prediction = fluid.layers.fc(
        input=x, size=1, param_attr=fluid.initializer.Constant(0.0), bias_attr=False
    )
    return fluid.layers.mean(fluid.layers.square_error_cost(input=prediction, label=y))


def rows_of(step, worker, workers):
    """Return one worker's rows of a batch: what a file of its own would hold."""
    random = np.random.RandomState(step)
    x = random.uniform(-1, 1, [ROWS, FEATURES]).astype("float32")
    y = x.sum(1, keepdims=True)
    return {"x": x[worker::workers], "y": y[worker::workers]}


def place():
    """Return where this worker computes: on the CPU, or the GPU that the launcher chose for it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--place", choices=("cpu", "gpu"), default="cpu")
    selected = int(os.environ.get("FLAGS_selected_gpus") or 0)
    return fluid.CPUPlace() if parser.parse_args().place == "cpu" else fluid.CUDAPlace(selected)


def main():
    """Serve, or train and print this worker's losses."""
    fleet.init(role_maker.PaddleCloudRoleMaker())
    loss = network()
    strategy = StrategyFactory.create_sync_strategy()
    optimizer = fleet.distributed_optimizer(fluid.optimizer.SGD(learning_rate=0.1), strategy)
    optimizer.minimize(loss)

    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    exe = fluid.Executor(place())
    fleet.init_worker()
    exe.run(fleet.startup_program)
    for step in range(STEPS):
        feed = rows_of(step, fleet.worker_index(), fleet.worker_num())
        (value,) = exe.run(fleet.main_program, feed=feed, fetch_list=[loss])
        print(f"worker {fleet.worker_index()} step {step:2d} loss {value[0]:.6f}", flush=True)
    fleet.stop_worker()


if __name__ == "__main__":
    main()
