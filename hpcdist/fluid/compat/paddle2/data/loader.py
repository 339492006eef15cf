"""``paddle.io.DataLoader``: batches of a data set's samples, as lists of arrays by field.

With ``num_workers`` threads read ahead, worker i the batches i, i + n, ... of a map-style data set;
of an iterable one each has a copy, and `get_worker_info` tells it which it is.
"""

from __future__ import annotations

import copy
import itertools
import queue
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any

import numpy as np

from hpcdist.base.errors import DataError, GraphTypeError
from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.fluid.compat.paddle2.data.samplers import BatchSampler
from hpcdist.fluid.compat.paddle2.data.sets import IterableDataset
from hpcdist.fluid.compat.paddle2.kinds import (
    Count,
    Function,
    Iterated,
    Natural,
    Samples,
    Unsigned,
)
from hpcdist.fluid.data_loader import DataLoader as FluidLoader

_AHEAD = 2  # batches that a worker has ready


@dataclass(frozen=True)
class WorkerInfo:
    """Which worker a thread is: of how many, and of which data set."""

    id: int
    num_workers: int
    dataset: Any
    seed: int


_worker = threading.local()


def get_worker_info() -> WorkerInfo | None:
    """Return which worker this thread is; None outside of workers."""
    return getattr(_worker, "info", None)


def default_collate(batch: Sequence[Any]) -> Any:
    """Return the samples of a batch as arrays, field by field."""
    sample = batch[0]
    if isinstance(sample, np.ndarray):
        return np.stack(batch, axis=0)
    if isinstance(sample, Number):
        array = np.array(batch)
        return array.astype(np.float32) if isinstance(sample, float) else array
    if isinstance(sample, (str, bytes)):
        return list(batch)
    if isinstance(sample, Mapping):
        return {key: default_collate([one[key] for one in batch]) for key in sample}
    if isinstance(sample, Sequence):
        sizes = {len(one) for one in batch}
        if len(sizes) != 1:
            raise DataError(f"DataLoader: samples of a batch have {sorted(sizes)} fields")
        return [default_collate(field) for field in zip(*batch)]
    raise DataError(
        f"DataLoader: a field is a {type(sample).__name__}: expected arrays, numbers, strings, "
        "mappings or lists of them; or give a collate_fn"
    )


class DataLoader:
    """Batches of a data set, as lists of arrays by field; looped over once for each epoch.

    ``places``, ``use_shared_memory``, ``use_buffer_reader`` and ``timeout`` change nothing: batches
    are arrays of the host, and workers are threads.
    """

    from_generator = FluidLoader.from_generator
    from_dataset = FluidLoader.from_dataset

    def __init__(
        self,
        dataset: Samples,
        feed_list: Iterated | None = None,
        places: Any = None,
        return_list: bool = True,
        batch_sampler: Iterated | None = None,
        batch_size: Count | None = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        collate_fn: Function | None = None,
        num_workers: Natural = 0,
        use_buffer_reader: bool = True,
        prefetch_factor: Count = 2,
        use_shared_memory: bool = True,
        timeout: Unsigned = 0,
        worker_init_fn: Function | None = None,
        persistent_workers: bool = False,
    ) -> None:
        self.dataset, self.feed_list, self.return_list = dataset, feed_list, return_list
        self.num_workers = num_workers
        self.collate_fn = default_collate if collate_fn is None else collate_fn
        self.worker_init_fn, self.drop_last = worker_init_fn, drop_last
        self._iterable = isinstance(dataset, IterableDataset)
        for one in feed_list or ():
            declare.operand("paddle.io.DataLoader: feed_list", one)
        if not return_list and not feed_list:
            raise DataError("DataLoader: return_list=False needs a feed_list, whose names it gives")
        if batch_sampler is not None and (batch_size != 1 or shuffle or drop_last):
            raise DataError(
                "DataLoader: batch_size, shuffle and drop_last are those of the batch_sampler"
            )
        if self._iterable and (shuffle or batch_sampler is not None):
            raise DataError("DataLoader: an IterableDataset has its order: no shuffle, no sampler")
        self.batch_size = batch_size
        self.batch_sampler = batch_sampler
        if batch_sampler is None and batch_size is not None and not self._iterable:
            self.batch_sampler = BatchSampler(
                dataset, shuffle=shuffle, batch_size=batch_size, drop_last=drop_last
            )

    def __len__(self) -> int:
        if self._iterable:
            raise GraphTypeError("DataLoader: an IterableDataset has no length")
        return len(self.batch_sampler if self.batch_sampler is not None else self.dataset)

    def __call__(self) -> Iterator[Any]:
        return iter(self)

    def __iter__(self) -> Iterator[Any]:
        return map(self._fed, self._ahead() if self.num_workers else self._batches(self.dataset))

    def _fed(self, batch: Any) -> Any:
        if self.return_list or self.feed_list is None:
            return batch
        return [{variable.name: value for variable, value in zip(self.feed_list, batch)}]

    # -- batches -------------------------------------------------------------------------------
    def _batches(self, dataset: Any, worker: int = 0, workers: int = 1) -> Iterator[Any]:
        """Yield the batches that a worker reads, in their order."""
        if self._iterable:
            yield from self._of_iterable(dataset)
            return
        samplers: Iterable[Any] = self.batch_sampler or range(len(dataset))
        for places in itertools.islice(samplers, worker, None, workers):
            if self.batch_sampler is None:
                yield (
                    self.collate_fn(dataset[places])
                    if self.collate_fn is not (default_collate)
                    else dataset[places]
                )
            else:
                yield self.collate_fn([dataset[place] for place in places])

    def _of_iterable(self, dataset: Iterable[Any]) -> Iterator[Any]:
        samples = iter(dataset)
        if self.batch_size is None:
            yield from samples
            return
        while batch := list(itertools.islice(samples, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield self.collate_fn(batch)

    # -- workers -------------------------------------------------------------------------------
    def _ahead(self) -> Iterator[Any]:
        """Yield batches that workers read ahead: of worker 0, 1, ... in turns."""
        stop = threading.Event()
        queues: list[queue.Queue[Any]] = [queue.Queue(_AHEAD) for _ in range(self.num_workers)]
        seed = int(np.random.randint(2**31))
        for number, ready in enumerate(queues):
            args = (number, seed, ready, stop)
            threading.Thread(target=self._work, args=args, daemon=True).start()
        try:
            living = list(queues)
            while living:
                for ready in list(living):
                    batch, error, ended = ready.get()
                    if error is not None:
                        raise error
                    if ended:
                        living.remove(ready)
                    else:
                        yield batch
        finally:
            stop.set()

    def _work(self, number: int, seed: int, ready: queue.Queue[Any], stop: threading.Event) -> None:
        dataset = copy.copy(self.dataset) if self._iterable else self.dataset
        _worker.info = WorkerInfo(number, self.num_workers, dataset, seed + number)
        try:
            if self.worker_init_fn is not None:
                self.worker_init_fn(number)
            for batch in self._batches(dataset, number, self.num_workers):
                if not _put(ready, (batch, None, False), stop):
                    return
            _put(ready, (None, None, True), stop)
        except BaseException as error:
            _put(ready, (None, error, False), stop)


declare.check_constructors("paddle.io", globals())


def _put(ready: queue.Queue[Any], item: Any, stop: threading.Event) -> bool:
    """Wait for room; False if nobody reads any more."""
    while not stop.is_set():
        try:
            ready.put(item, timeout=0.1)
        except queue.Full:
            continue
        return True
    return False
