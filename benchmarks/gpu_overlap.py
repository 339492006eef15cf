"""How much of copying feeds, and of summing gradients, the kernels of a step hide.

    python benchmarks/gpu_overlap.py feeds --model resnet50
    mpirun -n 2 python -m hpcdist benchmarks/gpu_overlap.py sums --model resnet50
    python benchmarks/gpu_overlap.py feeds --batch 8 --place cpu    # to see that it runs

Times, by events on a GPU, a step, the same step without the copy or the sums, and these alone, in
turns. Prints one line: medians in milliseconds, and the share of the copy or the sums that takes no
time of the step; 0: nothing is hidden, 1: all; far outside: the times differ more than that from
group to group. Every rank of `sums` has a batch of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable

import numpy as np
from gpu import CLASSES, add_step_arguments, loss_of, shape_of

import hpcdist as fluid
from hpcdist.comm.bucket import Fusing, Gradient, buckets
from hpcdist.comm.groups import AllreduceOptions, make_groups
from hpcdist.comm.reducer import BucketReducer
from hpcdist.comm.world import mpi_world
from hpcdist.executor.backend import Backend, backend_of, place
from hpcdist.fleet import DistributedStrategy, Fleet

Step = Callable[[], object]
Minimize = Callable[[fluid.Variable], object]
NEVER = 10**9  # steps between two averages of local SGD, which sums nothing in between


def batch(options: argparse.Namespace) -> dict[str, np.ndarray]:
    """Return what is fed."""
    rng = np.random.default_rng(0)
    image = rng.standard_normal(shape_of(options), np.float32)
    return {"image": image, "label": rng.integers(0, CLASSES, (options.batch, 1))}


def training(
    options: argparse.Namespace,
    minimize: Minimize,
    of_job: Callable[[], fluid.Program] | None = None,
    kept: bool = False,
) -> Step:
    """Return a step, which fetches nothing; if ``kept``, its batch stays where it computes.

    ``of_job`` returns what this rank runs in place of the Program.
    """
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    feed = batch(options)
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        given = []
        for name, value in feed.items():
            dtype = value.dtype.name
            if kept:
                shape = list(value.shape)
                var = fluid.layers.create_global_var(shape, 0, dtype, True, name=name)
                var.stop_gradient = True
            else:
                var = fluid.data(name, [None, *value.shape[1:]], dtype)
            given.append(var)
        minimize(loss_of(options.model, *given))
    exe = fluid.Executor(place(options.place))
    exe.run(startup, scope=scope)
    program = main if of_job is None else of_job()
    for name, value in feed.items() if kept else ():
        scope.find_var(name).get_tensor().set(value, exe.place)
    return lambda: exe.run(program, {} if kept else feed, [], scope=scope)


def of_feeds(options: argparse.Namespace, backend: Backend) -> dict[str, Step]:
    """Return a step with its feed, one without, and the copy of the feed."""
    pairs = [(backend.adopt(value.copy()), value) for value in batch(options).values()]

    def copy() -> None:
        for buffer, value in pairs:
            backend.copy_in(buffer, value)

    def minimize(loss: fluid.Variable) -> None:
        fluid.optimizer.Momentum(0.01, 0.9).minimize(loss)

    kernels = training(options, minimize, kept=True)
    return {"both": training(options, minimize), "kernels": kernels, "alone": copy}


def of_sums(options: argparse.Namespace, backend: Backend) -> dict[str, Step]:
    """Return a step that sums its gradients, one that does not, and the sums. Collective."""
    fleet, sizes = Fleet(), []
    fleet.init(is_collective=True)

    def minimize(strategy: DistributedStrategy) -> Minimize:
        def by(loss: fluid.Variable) -> None:
            optimizer = fluid.optimizer.Momentum(0.01, 0.9)
            _, made = fleet.distributed_optimizer(optimizer, strategy).minimize(loss)
            sizes[:] = [int(np.prod(parameter.shape)) for parameter, _ in made]

        return by

    summing, local = DistributedStrategy(), DistributedStrategy()
    local.localsgd = True
    local.localsgd_configs = {"k_steps": NEVER, "begin_step": 1}
    both = training(options, minimize(summing), lambda: fleet.main_program)
    kernels = training(options, minimize(local), lambda: fleet.main_program)
    facts = [Gradient(f"w{i}", "float32", 4 * n) for i, n in enumerate(reversed(sizes))]
    fusing = Fusing(summing.fuse_grad_size_in_MB, summing.fuse_grad_size_in_TFLOPS)
    groups = make_groups(mpi_world(), AllreduceOptions(), backend.device_id)
    arrays = []
    for bucket in buckets(facts, fusing):
        array = groups[0].empty(sum(facts[i].nbytes for i in bucket)).view("float32")
        array.fill(0)
        arrays.append(array)
    reducer = BucketReducer(groups, arrays)

    def sums() -> None:
        for k in range(len(arrays)):
            reducer.start(k)
        reducer.wait_all()

    return {"both": both, "kernels": kernels, "alone": sums}


def main() -> None:
    """Time the three in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["feeds", "sums"])
    add_step_arguments(parser)
    options = parser.parse_args()
    backend = backend_of(place(options.place))
    steps = (of_feeds if options.what == "feeds" else of_sums)(options, backend)
    for step in steps.values():
        for _ in range(options.warmup):
            step()
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.groups):
        for name, step in steps.items():
            begin = backend.mark()
            for _ in range(options.steps):
                step()
            taken[name].append(backend.seconds(begin, backend.mark()) / options.steps * 1e3)
    ms = {name: statistics.median(times) for name, times in taken.items()}
    hidden = (ms["kernels"] + ms["alone"] - ms["both"]) / ms["alone"]
    if mpi_world().rank == 0:
        line = {"what": options.what} | {f"{name}_ms": round(ms[name], 3) for name in ms}
        print(json.dumps({**line, "hidden": round(hidden, 2)}), flush=True)


if __name__ == "__main__":
    main()
