"""Datasets in jobs: one stream in a plain script, a worker's own files in a fleet."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from tests.support.job import alone, begin, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

FLEET = object()  # anything: it says only that the shuffle is of all workers


@pytest.fixture
def files(mpi_tmp_path: Path) -> list[str]:
    """Two files for every rank's eyes: the same bytes, whoever writes them."""
    rng = np.random.default_rng(2)
    made = []
    for number, lines in enumerate((11, 6)):
        path = mpi_tmp_path / f"part-{number}"
        text = ""
        for k in range(lines):
            words = rng.integers(1, 30, rng.integers(1, 5))
            text += f"{len(words)} {' '.join(map(str, words))} 1 {100 * number + k}\n"
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(text)
        made.append(str(fresh.replace(path)))
    return made


def net() -> tuple[list[Any], Any]:
    words = fluid.data("words", [None, 1], "int64", lod_level=1)
    label = fluid.data("label", [None, 1], "int64")
    rows = layers.embedding(words, [30, 4], is_sparse=True)
    guess = layers.fc(layers.sequence_pool(rows, "sum"), 1)
    wanted = layers.scale(layers.cast(label, "float32"), 0.01)
    loss = layers.mean(layers.square_error_cost(guess, wanted))
    fluid.optimizer.SGD(0.1).minimize(loss)
    return [words, label], loss


def dataset(kind: str, variables: list[Any], files: list[str]) -> Any:
    made = fluid.DatasetFactory().create_dataset(kind)
    made.set_use_var(variables)
    made.set_batch_size(4)
    made.set_filelist(files)
    made.set_pipe_command("cat -")
    if kind == "InMemoryDataset":
        made.load_into_memory()
    return made


def train(kind: str, files: list[str], capsys: Any) -> list[str]:
    """The script: train from a Dataset; return what it printed."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        variables, loss = net()
    exe = fluid.Executor()
    exe.run(startup)
    made = dataset(kind, variables, files)
    for _ in range(2):
        if kind == "InMemoryDataset":
            made.global_shuffle()
        exe.train_from_dataset(main, made, fetch_list=[loss], print_period=1)
    return capsys.readouterr().out.splitlines()


def labels_of(made: Any) -> list[int]:
    return [k for batch in made.batches() for k in np.asarray(batch["label"]).ravel().tolist()]


def numbers(lines: list[str]) -> list[float]:
    return [float(line.split("[")[1].rstrip("]")) for line in lines]


@pytest.mark.parametrize(("trainers", "servers"), [(2, 0), (1, 1), (3, 0), (2, 2)])
@pytest.mark.parametrize("kind", ["QueueDataset", "InMemoryDataset"])
def test_a_plain_job_trains_what_one_process_trains(kind, trainers, servers, files, capsys):
    with alone():
        expected = numbers(train(kind, files, capsys))
    assert len(expected) == 2 * 5
    for lines in values(run_job(trainers, servers, lambda role: train(kind, files, capsys))):
        np.testing.assert_allclose(numbers(lines), expected, rtol=1e-4)


def test_workers_with_files_of_their_own_shuffle_all_samples(files):
    def script(role: Any) -> Any:
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 3
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            variables, _ = net()
        exe, trainer = begin(role, 2, 1, main, startup)
        made = dataset("InMemoryDataset", variables, files[role.index : role.index + 1])
        sizes = [made.get_memory_data_size(), made.get_memory_data_size(FLEET)]
        made.global_shuffle(FLEET)
        sizes.append(made.get_memory_data_size())
        labels = labels_of(made)
        exe.train_from_dataset(trainer, made)
        exe.close()
        return sizes, labels

    (one, first), (other, second) = values(run_job(2, 1, script))
    assert (one, other) == ([11, 17, 8], [6, 17, 9])
    assert sorted(first + second) == [*range(11), *range(100, 106)]
    assert max(first) >= 100 and min(second) < 100
    with alone():
        main = fluid.Program()
        with fluid.unique_name.guard(), fluid.program_guard(main, fluid.Program()):
            made = dataset("InMemoryDataset", net()[0], files)
        made.global_shuffle()
        assert labels_of(made) == first + second


def test_workers_merge_lines_of_one_id_wherever_they_are(files, mpi_tmp_path):
    lines = {
        "a": [f"1 {k} 1 {k + 1} 1 0\n" for k in range(17)],  # the words of each id
        "b": [f"1 {k} 1 0 1 {k + 1}\n" for k in reversed(range(18))],  # the labels, one too many
    }
    for name, text in lines.items():
        fresh = mpi_tmp_path / f"{name}.{os.getpid()}"
        fresh.write_text("".join(text))
        fresh.replace(mpi_tmp_path / name)
    names = [str(mpi_tmp_path / name) for name in "ab"]

    def merged(own: list[str]) -> list[tuple[int, int]]:
        with fluid.unique_name.guard(), fluid.program_guard(fluid.Program(), fluid.Program()):
            made = fluid.InMemoryDataset()
            made.set_use_var(net()[0])
            made.set_filelist(own)
            made.set_merge_by_lineid()
            made.load_into_memory()
            made.global_shuffle(FLEET)
            return [
                pair
                for batch in made.batches()
                for pair in zip(*(np.ravel(batch[name]).tolist() for name in ("words", "label")))
            ]

    def script(role: Any) -> Any:
        main, startup = fluid.Program(), fluid.Program()
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            net()
        exe, _ = begin(role, 2, 1, main, startup)
        found = merged(names[role.index : role.index + 1])
        exe.close()
        return found

    first, second = values(run_job(2, 1, script))
    assert [len(first), len(second)] == [8, 9]
    assert sorted(first + second) == [(k, k) for k in range(1, 18)]
    with alone():
        assert merged(names) == first + second
