"""Samplers: the places of samples, in an order; of batches of them; of those of one trainer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hpcdist.base import settings
from hpcdist.base.checks import integer
from hpcdist.base.errors import DataError, GraphTypeError
from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.fluid.compat.paddle2.kinds import Count, Counted, Iterated

_ERRORS = (GraphTypeError, DataError)


class Sampler:
    """Base of samplers."""

    def __init__(self, data_source: Counted | None = None) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")


class SequenceSampler(Sampler):
    """Places in their order."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        assert self.data_source is not None
        return len(self.data_source)


class RandomSampler(Sampler):
    """Places in an order that numpy's global random numbers give; with replacement, drawn."""

    def __init__(
        self,
        data_source: Counted,
        replacement: bool = False,
        num_samples: Count | None = None,
        generator: Any = None,
    ) -> None:
        super().__init__(data_source)
        self.replacement, self.generator = replacement, generator
        size = len(data_source)
        self.num_samples = size if num_samples is None else num_samples
        if self.num_samples > size and not replacement:
            raise DataError(
                f"paddle.io.RandomSampler: num_samples: expected at most {size} without "
                f"replacement, got {num_samples}"
            )

    def __iter__(self) -> Iterator[int]:
        assert self.data_source is not None
        size = len(self.data_source)
        if self.replacement:
            return iter(np.random.choice(np.arange(size), self.num_samples).tolist())
        return iter(np.random.permutation(size)[: self.num_samples].tolist())

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler):
    """Some places in a random order."""

    def __init__(self, indices: Sequence[int]) -> None:
        super().__init__(indices)
        self.indices = list(indices)

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.permutation(self.indices).tolist())

    def __len__(self) -> int:
        return len(self.indices)


def _weights(weights: Any) -> np.ndarray:
    """Return weights as float64; GraphTypeError unless they are numbers from 0 on, one above."""
    try:
        found = np.asarray(weights, "float64")
    except (TypeError, ValueError):
        found = np.empty(0)
    if found.ndim != 1 or not np.all(found >= 0) or not found.sum() > 0:
        where = "paddle.io.WeightedRandomSampler: weights"
        raise declare.refusal(where, "a list of numbers from 0 on, one of them above 0", weights)
    return found


class WeightedRandomSampler(Sampler):
    """Places drawn with probabilities in proportion to ``weights``."""

    def __init__(self, weights: Any, num_samples: Count, replacement: bool = True) -> None:
        super().__init__()
        self.weights = _weights(weights)
        possible = int(np.count_nonzero(self.weights))
        if not replacement and num_samples > possible:
            raise DataError(
                f"paddle.io.WeightedRandomSampler: num_samples: expected at most {possible} "
                f"without replacement, got {num_samples}"
            )
        self.num_samples, self.replacement = num_samples, replacement

    def __iter__(self) -> Iterator[int]:
        chances = self.weights / self.weights.sum()
        drawn = np.random.choice(len(chances), self.num_samples, self.replacement, chances)
        return iter(drawn.tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler):
    """Lists of ``batch_size`` places, from a sampler or of a data set."""

    def __init__(
        self,
        dataset: Counted | None = None,
        sampler: Iterated | None = None,
        shuffle: bool = False,
        batch_size: Count = 1,
        drop_last: bool = False,
    ) -> None:
        if (dataset is None) == (sampler is None):
            raise DataError("BatchSampler: expected a dataset or a sampler, one of them")
        if sampler is None:
            assert dataset is not None
            sampler = (RandomSampler if shuffle else SequenceSampler)(dataset)
        super().__init__(dataset)
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for place in self.sampler:
            batch.append(place)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        places = len(self.sampler)
        return (places + (0 if self.drop_last else self.batch_size - 1)) // self.batch_size


class DistributedBatchSampler(BatchSampler):
    """Batches of the places of one trainer: every ``num_replicas``-th, from its rank on.

    Places are repeated from the beginning so that trainers have equally many. ``set_epoch`` gives
    the next order when they are shuffled, the same on all trainers.
    """

    def __init__(
        self,
        dataset: Counted,
        batch_size: Count,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = False,
        drop_last: bool = False,
    ) -> None:
        super().__init__(dataset, batch_size=batch_size, drop_last=drop_last)
        trainers = settings.TRAINERS_NUM.read() if num_replicas is None else num_replicas
        self.nranks = integer("num_replicas", trainers, 1, errors=_ERRORS)
        place = settings.TRAINER_ID.read() if rank is None else rank
        self.local_rank = integer("rank", place, 0, self.nranks, _ERRORS)
        self.shuffle, self.epoch = shuffle, 0
        self.num_samples = math.ceil(len(dataset) / self.nranks)
        self.total_size = self.num_samples * self.nranks
        self._places = len(dataset)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch begins."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        places = np.arange(self._places)
        if self.shuffle:
            np.random.RandomState(self.epoch).shuffle(places)
            self.epoch += 1
        whole = np.resize(places, self.total_size)
        self.sampler = self._own(whole).tolist()
        return super().__iter__()

    def _own(self, places: np.ndarray) -> np.ndarray:
        """Return a trainer's places: batch by batch in turns, the last ones evenly."""
        rounds = self.total_size // (self.batch_size * self.nranks)
        head = rounds * self.batch_size * self.nranks
        turns = places[:head].reshape(rounds, self.nranks, self.batch_size)
        rest = places[head:]
        each = len(rest) // self.nranks
        tail = rest[self.local_rank * each : (self.local_rank + 1) * each]
        return np.concatenate([turns[:, self.local_rank].reshape(-1), tail])

    def __len__(self) -> int:
        more = 0 if self.drop_last else self.batch_size - 1
        return (self.num_samples + more) // self.batch_size


declare.check_constructors("paddle.io", globals())
