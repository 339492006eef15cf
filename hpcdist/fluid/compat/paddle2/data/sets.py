"""Data sets: samples by place, or one after the other."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hpcdist.base.errors import DataError, GraphTypeError
from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.fluid.compat.paddle2.kinds import Counted, DataSets, Iterated, Samples


class Dataset:
    """Samples by place: subclasses have ``__getitem__`` and ``__len__``."""

    def __getitem__(self, idx: int) -> Any:
        """Return a sample."""
        raise NotImplementedError(f"{type(self).__name__} has no __getitem__")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} has no __len__")


class IterableDataset(Dataset):
    """Samples one after the other: subclasses have ``__iter__``."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")

    def __getitem__(self, idx: int) -> Any:
        """Refuse."""
        raise DataError(f"{type(self).__name__} is an IterableDataset: loop over it")

    def __len__(self) -> int:
        raise GraphTypeError(f"{type(self).__name__} is an IterableDataset: it has no length")


class TensorDataset(Dataset):
    """Rows of arrays of one length."""

    def __init__(self, tensors: Iterated) -> None:
        self.tensors = [np.asarray(tensor) for tensor in tensors]
        if len({len(tensor) for tensor in self.tensors}) != 1:
            raise DataError(
                f"TensorDataset: expected arrays of one length, got "
                f"{[len(tensor) for tensor in self.tensors]}"
            )

    def __getitem__(self, idx: int) -> tuple[Any, ...]:
        """Return row ``idx`` of each array."""
        return tuple(tensor[idx] for tensor in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors[0])


def _as_list(sample: Any) -> list[Any]:
    return list(sample) if isinstance(sample, (list, tuple)) else [sample]


class ComposeDataset(Dataset):
    """The fields of several data sets, side by side."""

    def __init__(self, datasets: DataSets) -> None:
        self.datasets = list(datasets)

    def __getitem__(self, idx: int) -> tuple[Any, ...]:
        """Return the fields of sample ``idx`` of each."""
        return tuple(itertools.chain.from_iterable(_as_list(d[idx]) for d in self.datasets))

    def __len__(self) -> int:
        return min(len(dataset) for dataset in self.datasets)


class ChainDataset(IterableDataset):
    """The samples of several iterable data sets, one set after the other."""

    def __init__(self, datasets: DataSets) -> None:
        self.datasets = list(datasets)

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self.datasets)


class ConcatDataset(Dataset):
    """The samples of several data sets, one set after the other."""

    def __init__(self, datasets: DataSets) -> None:
        self.datasets = list(datasets)
        self.cumulative_sizes = list(itertools.accumulate(len(d) for d in self.datasets))

    def __getitem__(self, idx: int) -> Any:
        """Return a sample."""
        place = idx + len(self) if idx < 0 else idx
        if not 0 <= place < len(self):
            raise IndexError(f"ConcatDataset: place {idx} of {len(self)} samples")
        part = bisect.bisect_right(self.cumulative_sizes, place)
        return self.datasets[part][place - (self.cumulative_sizes[part - 1] if part else 0)]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


class Subset(Dataset):
    """The samples of a data set at some places."""

    def __init__(self, dataset: Samples, indices: Counted) -> None:
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, idx: int) -> Any:
        """Return a sample."""
        return self.dataset[self.indices[idx]]

    def __len__(self) -> int:
        return len(self.indices)


declare.check_constructors("paddle.io", globals())


def random_split(dataset: Dataset, lengths: Sequence[int], generator: Any = None) -> list[Subset]:
    """Divide a data set into parts of these lengths, of samples in an order drawn by numpy."""
    if not isinstance(lengths, (list, tuple)):
        where = "paddle.io.random_split: lengths"
        raise declare.refusal(where, "a list of integers", lengths)
    if sum(lengths) != len(dataset):
        raise DataError(f"random_split: lengths {list(lengths)} are not {len(dataset)} samples")
    order = np.random.permutation(sum(lengths)).tolist()
    ends = itertools.accumulate(lengths)
    return [Subset(dataset, order[end - size : end]) for end, size in zip(ends, lengths)]
