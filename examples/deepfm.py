"""DeepFM in Paddle 2's words: a nn.Layer, files through a pipe command, fleet with servers.

    mpirun -n 4 python -m hpcdist --pservers 2 --as-paddle examples/deepfm.py --mode async
    fleetrun --server_num=2 --worker_num=2 examples/deepfm.py       # the same, synchronous
    python -m hpcdist --as-paddle examples/deepfm.py                # one process

Clicks in Criteo's shape (13 numbers, 26 ids of any size) are made up from a seed, in files of a
directory that all ranks see. Each worker trains on its files; rows of ids are on the servers.
Worker 0 prints how well clicks of other files are told apart, and saves the model if told where.
"""

import argparse
import itertools
import os
import shlex
import sys
import tempfile

import numpy as np
import paddle
import paddle.distributed.fleet as fleet
from paddle import nn

NUMBERS, SLOTS, WIDTH, BATCH = 13, 26, 8, 100
FILES, LINES, PER_SLOT = 2, 1000, 30


class Clicks(fleet.MultiSlotDataGenerator):
    """The pipe command: a line of a file to a sample."""

    def generate_sample(self, line):
        """Return a function that yields the slots of a line."""

        def samples():
            click, *fields = line.split()
            yield [
                ("click", [int(click)]),
                ("numbers", [float(number) for number in fields[:NUMBERS]]),
                ("ids", [int(one) for one in fields[NUMBERS:]]),
            ]

        return samples


class DeepFM(nn.Layer):
    """Scores clicks: by single ids and numbers, by pairs of ids, and by a deep network."""

    def __init__(self, hidden=(64, 32)):
        super().__init__()
        self.linear = nn.Linear(NUMBERS, 1)
        sizes = [SLOTS * WIDTH + NUMBERS, *hidden]
        layers = []
        for inside, outside in itertools.pairwise(sizes):
            layers += [nn.Linear(inside, outside), nn.ReLU()]
        self.deep = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))

    def forward(self, ids, numbers):
        """Return scores [batch, 1] of ids [batch, SLOTS] and numbers [batch, NUMBERS]."""
        rows = paddle.static.nn.sparse_embedding(
            paddle.reshape(ids, [-1, SLOTS, 1]),
            [SLOTS * PER_SLOT, WIDTH + 1],  # a hint: there may be any number of ids
            param_attr=paddle.ParamAttr(
                name="rows", initializer=paddle.nn.initializer.Uniform(-0.05, 0.05)
            ),
        )
        weights, factors = paddle.split(rows, [1, WIDTH], axis=2)
        first = self.linear(numbers) + paddle.sum(weights, axis=1)
        total = paddle.sum(factors, axis=1)
        pairs = paddle.square(total) - paddle.sum(paddle.square(factors), axis=1)
        second = 0.5 * paddle.sum(pairs, axis=1, keepdim=True)
        deep = self.deep(
            paddle.concat([paddle.reshape(factors, [-1, SLOTS * WIDTH]), numbers], axis=1)
        )
        return first + second + deep


def write_files(directory):
    """Write files of clicks, the same ones from every process; return their names."""
    random = np.random.RandomState(0)
    liked = random.normal(0, 0.6, [SLOTS, PER_SLOT])
    salt = random.randint(-(2**62), 2**62, [SLOTS, PER_SLOT])  # ids are hashes, of any size
    names = []
    for number in range(FILES + 1):  # the last one is kept back
        names.append(os.path.join(directory, f"part-{number}"))
        chosen = (PER_SLOT * random.rand(LINES, SLOTS) ** 2).astype(int)
        x = random.rand(LINES, NUMBERS)
        score = liked[np.arange(SLOTS), chosen].sum(1) + 2 * (x[:, 0] - x[:, 1])
        clicks = random.rand(LINES) < 1 / (1 + np.exp(-score))
        # Others may be reading this file.
        with tempfile.NamedTemporaryFile("w", dir=directory, delete=False) as file:
            for click, values, which in zip(clicks, x, chosen):
                words = [f"{value:.3f}" for value in values]
                words += map(str, salt[np.arange(SLOTS), which])
                file.write(f"{int(click)} {' '.join(words)}\n")
        os.replace(file.name, names[-1])
    return names


def dataset_of(variables, files):
    """Return a Dataset of these files; this script is its pipe command, too."""
    dataset = paddle.distributed.QueueDataset()
    dataset.init(
        use_var=variables,
        batch_size=BATCH,
        thread_num=1,
        pipe_command=shlex.join([sys.executable, os.path.abspath(__file__), "--read"]),
    )
    dataset.set_filelist(files)
    return dataset


def strategy_of(mode):
    """Return how to train: "sync" or "async"."""
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = mode == "async"
    return strategy


def main(options, directory):
    """Serve, or train, print and save."""
    fleet.init()
    click = paddle.static.data("click", [None, 1], "int64")
    numbers = paddle.static.data("numbers", [None, NUMBERS], "float32")
    ids = paddle.static.data("ids", [None, SLOTS], "int64")
    variables = [click, numbers, ids]
    score = DeepFM()(ids, numbers)
    chance = paddle.nn.functional.sigmoid(score)
    both = paddle.concat([1 - chance, chance], axis=1)
    main_program = paddle.static.default_main_program()
    test = main_program.clone(for_test=True)
    with paddle.static.program_guard(test, paddle.static.default_startup_program()):
        *_, (_, _, positive, negative) = paddle.static.auc(both, click)
    losses = paddle.nn.functional.binary_cross_entropy_with_logits(
        score, paddle.cast(click, "float32")
    )
    loss = paddle.mean(losses)
    optimizer = paddle.optimizer.Adam(learning_rate=0.005, lazy_mode=True)
    fleet.distributed_optimizer(optimizer, strategy_of(options.mode)).minimize(loss)
    if fleet.is_server():
        fleet.init_server(options.load)
        fleet.run_server()
        return
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    *files, kept = write_files(directory)
    dataset = dataset_of(variables, fleet.util.get_file_shard(files))
    for epoch in range(options.epochs):
        exe.train_from_dataset(
            main_program,
            dataset,
            fetch_list=[loss],
            fetch_info=[f"epoch {epoch}, worker {fleet.worker_index()}, loss"],
            print_period=20,
        )
    fleet.barrier_worker()
    exe.infer_from_dataset(test, dataset_of(variables, [kept]))
    area = fleet.metrics.auc(positive.name, negative.name)
    fleet.util.print_on_rank(f"area {area:.4f}", 0)
    if options.save:
        fleet.save_inference_model(exe, options.save, ["numbers", "ids"], chance)
    fleet.stop_worker()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=("sync", "async"), default="sync")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--directory", help="where the files of clicks are, for all ranks")
    parser.add_argument("--save", help="where to save the model")
    parser.add_argument("--load", help="a model to begin with")
    parser.add_argument("--read", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        Clicks().run_from_stdin()
    else:
        paddle.enable_static()
        with tempfile.TemporaryDirectory() as own:
            main(options, options.directory or own)
