"""A training script in Fluid's words, for the real Fluid and for hpcdist: only the import differs.

Started by vs_fluid.py as every role of a job (the roles come from the PADDLE_* variables), and by
local_step.py alone. Trainer 0 prints one JSON line: steps per second after the warm-up, and losses.
"""

import argparse
import itertools
import json
import os
import time

import numpy as np
from cases import CASES, batches

if os.environ.get("BENCHMARK_API") == "fluid":
    import paddle.fluid as fluid
else:
    import hpcdist as fluid


def place(name):
    """Return the place of a process: "cpu", or "gpu", the one that a launcher chose for it."""
    selected = int(os.environ.get("FLAGS_selected_gpus") or 0)
    return fluid.CPUPlace() if name == "cpu" else fluid.CUDAPlace(selected)


def network(case, distributed=lambda optimizer: optimizer):
    """Return the loss, mean squared error, of a perceptron; minimize it with SGD."""
    weight = fluid.ParamAttr(initializer=fluid.initializer.Constant(case.weight))
    x = fluid.layers.data(name="x", shape=[case.features], dtype="float32")
    y = fluid.layers.data(name="y", shape=[1], dtype="float32")
    hidden = x
    for _ in range(case.hidden):
        hidden = fluid.layers.fc(input=hidden, size=case.width, act="relu", param_attr=weight)
    prediction = fluid.layers.fc(input=hidden, size=1, param_attr=weight)
    loss = fluid.layers.mean(fluid.layers.square_error_cost(input=prediction, label=y))
    distributed(fluid.optimizer.SGD(learning_rate=case.learning_rate)).minimize(loss)
    return loss


def train(exe, program, loss, feeds, warmup, steps):
    """Run the steps on the batches of an iterator.

    Return the steps per second of those after the warm-up, and all losses.
    """
    losses = []
    begin = 0.0
    for step in range(warmup + steps):
        if step == warmup:
            begin = time.perf_counter()
        (value,) = exe.run(program, feed=next(feeds), fetch_list=[loss])
        losses.append(value)
    elapsed = time.perf_counter() - begin
    return steps / elapsed, [float(np.ravel(value)[0]) for value in losses]


def of_role(exe):
    """Be the server that the environment names, or return a trainer's program and its number.

    The program is None when a server has served; without a role it is the one of one process.
    """
    role = os.environ.get("PADDLE_TRAINING_ROLE")
    trainer = int(os.environ.get("PADDLE_TRAINER_ID", "0"))
    if not role:
        return fluid.default_main_program(), trainer
    if not os.environ.get("PADDLE_PSERVER_IPS"):
        return without_servers(trainer), trainer
    port = os.environ["PADDLE_PSERVER_PORT"]
    hosts = os.environ["PADDLE_PSERVER_IPS"].split(",")
    transpiler = fluid.DistributeTranspiler()
    transpiler.transpile(
        trainer_id=trainer,
        pservers=",".join(host + ":" + port for host in hosts),
        trainers=int(os.environ["PADDLE_TRAINERS"]),
    )
    if role == "TRAINER":
        return transpiler.get_trainer_program(), trainer
    own = os.environ["PADDLE_CURRENT_IP"] + ":" + port
    serving = transpiler.get_pserver_program(own)
    exe.run(transpiler.get_startup_program(own, serving))
    exe.run(serving)
    return None, trainer


def without_servers(trainer):
    """Return the program of a trainer in a job that sums gradients."""
    config = fluid.DistributeTranspilerConfig()
    config.mode = "collective"
    config.collective_mode = "grad_allreduce"
    own = os.environ["PADDLE_CURRENT_ENDPOINT"]
    endpoints = os.environ["PADDLE_TRAINER_ENDPOINTS"]
    transpiler = fluid.DistributeTranspiler(config)
    transpiler.transpile(trainer, trainers=endpoints, current_endpoint=own)
    return fluid.default_main_program()


def main():
    """Be the role that the environment names; without one, train alone."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=sorted(CASES), default="linreg")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--place", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--plain", action="store_true", help="leave the rest to the launcher")
    options = parser.parse_args()
    case = CASES[options.case]
    loss = network(case)
    exe = fluid.Executor(place(options.place))
    if options.plain:
        program, trainer = fluid.default_main_program(), int(os.environ["PADDLE_TRAINER_ID"])
        own = [batches(case, k) for k in range(int(os.environ["PADDLE_TRAINERS"]))]
        pairs = [tuple(map(np.concatenate, zip(*parts))) for parts in zip(*own)]
    else:
        program, trainer = of_role(exe)
        if program is None:
            return
        pairs = batches(case, trainer)
    exe.run(fluid.default_startup_program())
    feeds = itertools.cycle([{"x": x, "y": y} for x, y in pairs])
    steps_per_s, losses = train(exe, program, loss, feeds, options.warmup, options.steps)
    exe.close()
    if trainer == 0:
        print(json.dumps({"steps_per_s": steps_per_s, "losses": losses[:50]}), flush=True)


if __name__ == "__main__":
    main()
