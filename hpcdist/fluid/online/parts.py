"""What a script does with the data of a pass: loads it, scores it, trains it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdist.base import settings
from hpcdist.base.errors import DataError
from hpcdist.executor.compiled_program import CompiledProgram
from hpcdist.executor.dataset_run import for_test
from hpcdist.executor.executor import Executor
from hpcdist.graph.program import Program, default_main_program
from hpcdist.graph.variable import Variable
from hpcdist.runtime.kept.peers import program_peers


def batches_are_shared() -> bool:
    """Return whether every trainer is given the rows of all, and takes its part of each batch."""
    return program_peers().shares_batches and settings.FEED.read() != "local"


@dataclass(frozen=True)
class Parts:
    """Three functions of a script, which every trainer calls for each pass.

    ``load(files, number)`` returns the samples of this trainer: of all files where trainers share
    batches, else its part, shuffled by ``number`` over all trainers. ``score(samples)`` yields
    batches of chances, within 0..1, and of labels, 0 or not: arrays of as many rows. It changes
    nothing. ``train(samples)`` trains each row once; it may return how many there were.

    >>> parts = Parts(load=lambda files, number: files, score=lambda samples: [], train=len)
    >>> parts.train(parts.load(["clicks/20261130/part-0"], 0))
    1
    """

    load: Callable[[list[str], int], Any]
    score: Callable[[Any], Iterable[tuple[Any, Any]]]
    train: Callable[[Any], int | None]

    def __post_init__(self) -> None:
        for name, part in vars(self).items():
            if not callable(part):
                raise DataError(f"Parts: {name}: expected a function, got {part!r}")


def of_dataset(
    executor: Executor,
    dataset: Any,
    chance: Variable,
    label: Variable,
    *,
    program: Program | CompiledProgram | None = None,
) -> Parts:
    """Return the parts of a script that trains a Program from an InMemoryDataset.

    The dataset has its variables, batch size and pipe command; its files are those of each pass,
    and where trainers do not share batches each reads some of them. ``chance``: [rows, 1], or of
    both classes [rows, 2]; ``label``: [rows, 1]. ``program`` trains, default: the main program;
    without its training operators it scores.

    Examples:
        >>> x, click = fluid.data("x", [None, 1]), fluid.data("click", [None, 1], "int64")
        >>> chance = fluid.layers.fc(x, 2, act="softmax")
        >>> loss = fluid.layers.mean(fluid.layers.cross_entropy(chance, click))
        >>> updates = fluid.optimizer.SGD(0.1).minimize(loss)
        >>> dataset = fluid.DatasetFactory().create_dataset("InMemoryDataset")
        >>> dataset.set_use_var([x, click])
        >>> parts = hpcdist.online.of_dataset(fluid.Executor(), dataset, chance, click)
        >>> [name for name in vars(parts)]
        ['load', 'score', 'train']
    """

    def load(files: list[str], number: int) -> Any:
        peers, shared = program_peers(), batches_are_shared()
        dataset.set_filelist(files if shared else files[peers.trainer :: peers.trainers])
        dataset.load_into_memory()
        dataset.shuffles = number - 1
        dataset.global_shuffle(None if shared else peers)
        rows = dataset.get_memory_data_size(None if shared else peers)
        if not shared and 0 < rows < peers.trainers:
            raise DataError(
                f"{files[0]}, ...: {rows} rows are too few for {peers.trainers} trainers"
            )
        return dataset

    def score(samples: Any) -> Iterator[tuple[Any, Any]]:
        tested = for_test(training())
        with closing(samples.batches()) as batches:
            for feed in batches:
                chances, labels = executor.run(tested, feed=feed, fetch_list=[chance, label])
                yield chances, labels

    def train(samples: Any) -> int:
        counted = _Counted(samples)
        executor.train_from_dataset(training(), counted)
        return counted.rows

    def training() -> Program | CompiledProgram:
        return default_main_program() if program is None else program

    return Parts(load, score, train)


class _Counted:
    """The batches of a Dataset; ``rows`` counts those that it has given."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.rows = 0

    def batches(self) -> Iterator[dict[str, Any]]:
        """Yield the batches of a pass."""
        with closing(self._dataset.batches()) as batches:
            for feed in batches:
                value = next(iter(feed.values()))
                lod = [] if isinstance(value, np.ndarray) else value.lod()
                self.rows += len(lod[0]) - 1 if lod else len(np.asarray(value))
                yield feed
