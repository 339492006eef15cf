"""Clicks from files, through a pipe command, with fleet: as scripts of Fluid 1.8 are written.

    mpirun -n 4 python -m hpcdist --pservers 2 --as-paddle examples/fleet_dataset.py
    python -m hpcdist --as-paddle examples/fleet_dataset.py        # one process

Every worker loads its files into memory, all samples are shuffled over all workers, and each trains
on its part. Worker 0 prints how well clicks of other files are told apart. The files are made up
from a seed, in a directory of this process's own.
"""

import argparse
import os
import shlex
import sys
import tempfile

import numpy as np
import paddle.fluid as fluid
import paddle.fluid.incubate.fleet.base.role_maker as role_maker
from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import (
    StrategyFactory,
    fleet,
)

WORDS, FILES, LINES, EPOCHS, BATCH = 50, 4, 300, 4, 20
READER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "dataset_reader.py")


def write_files(directory):
    """Write files of clicks, the same ones in every process; return their names."""
    random = np.random.RandomState(0)
    liked = random.uniform(-2, 2, WORDS)
    names = []
    for number in range(FILES + 1):  # the last one is kept back
        names.append(os.path.join(directory, f"part-{number}"))
        with open(names[-1], "w") as file:
            for _ in range(LINES):
                words = random.randint(1, WORDS, random.randint(1, 5))
                x = random.uniform(-1, 1, 2)
                chance = 1 / (1 + np.exp(-liked[words].sum() - x[0]))
                click = int(random.rand() < chance)
                file.write(f"{click} {x[0]:.3f} {x[1]:.3f} {' '.join(map(str, words))}\n")
    return names


def network():
    """Return the data variables, the loss and the chance of a click."""
    words = fluid.data("words", [None, 1], "int64", lod_level=1)
    numbers = fluid.data("numbers", [None, 2], "float32")
    click = fluid.data("click", [None, 1], "int64")
    rows = fluid.embedding(words, [WORDS, 8], is_sparse=True)
    pooled = fluid.layers.sequence_pool(fluid.layers.reshape(rows, [-1, 8]), "sum")
    hidden = fluid.layers.fc(fluid.layers.concat([pooled, numbers], 1), 16, act="relu")
    chance = fluid.layers.fc(hidden, 2, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(chance, click))
    return [words, numbers, click], loss, chance


def dataset_of(kind, variables, files):
    """Return a Dataset of these files."""
    dataset = fluid.DatasetFactory().create_dataset(kind)
    dataset.set_use_var(variables)
    dataset.set_batch_size(BATCH)
    dataset.set_thread(2)
    dataset.set_pipe_command(shlex.join([sys.executable, str(READER)]))
    dataset.set_filelist(files)
    return dataset


def place():
    """Return where this worker computes: on the CPU, or the GPU that the launcher chose for it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--place", choices=("cpu", "gpu"), default="cpu")
    selected = int(os.environ.get("FLAGS_selected_gpus") or 0)
    return fluid.CPUPlace() if parser.parse_args().place == "cpu" else fluid.CUDAPlace(selected)


def main(directory):
    """Serve, or train and print."""
    fleet.init(role_maker.PaddleCloudRoleMaker())
    variables, loss, chance = network()
    test = fluid.default_main_program().clone(for_test=True)
    strategy = StrategyFactory.create_sync_strategy()
    fleet.distributed_optimizer(fluid.optimizer.Adagrad(0.2), strategy).minimize(loss)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    exe = fluid.Executor(place())
    fleet.init_worker()
    exe.run(fleet.startup_program)
    *files, kept = write_files(directory)
    dataset = dataset_of("InMemoryDataset", variables, fleet.split_files(files))
    dataset.load_into_memory()
    for _ in range(EPOCHS):
        dataset.global_shuffle(fleet)
        exe.train_from_dataset(
            fleet.main_program,
            dataset,
            fetch_list=[loss],
            fetch_info=[f"worker {fleet.worker_index()} loss"],
            print_period=20,
        )
    area = fluid.metrics.Auc("auc")
    for batch in fluid.io.DataLoader.from_dataset(
        dataset_of("QueueDataset", variables, [kept]), fluid.cpu_places(1)
    ):
        (chances,) = exe.run(test, feed=batch, fetch_list=[chance])
        area.update(chances, np.array(batch[0]["click"]))
    if fleet.worker_index() == 0:
        print(f"{dataset.get_memory_data_size()} samples here, area {area.eval():.4f}")
    fleet.stop_worker()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(directory)
