"""DataLoader and PyReader: batches of a generator, read ahead by a thread while others train.

An iterable loader gives what `Executor.run` is fed with. One that is not is started, and from then
on every run of a Program takes the next batch by itself, until there is none: EOFException.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from hpcdist.base.errors import DataError, EOFException, FeedError, GraphTypeError
from hpcdist.base.trace.events import Cause, Count, EventKind
from hpcdist.base.trace.recorder import recorder
from hpcdist.data.reader import Reader, batch, buffered, expect_reader
from hpcdist.fluid.data_feeder import DataFeeder
from hpcdist.graph import names as unique_name
from hpcdist.graph.lod_tensor import LoDTensor
from hpcdist.graph.variable import Variable

__all__ = ["DataLoader", "GeneratorLoader", "PyReader"]

T = TypeVar("T")
Batch = dict[str, LoDTensor]


class _Waiting:
    """Counts the batches of a pass that are read ahead; Fluid's scripts print how many."""

    def __init__(self, capacity: int) -> None:
        self.taken = 0
        self._read = 0
        self._capacity = capacity

    def counted(self, batches: Callable[[], Iterable[Batch]]) -> Iterator[Batch]:
        """Give these batches; the thread that reads ahead runs this."""
        for fed in batches():
            self._read += 1
            yield fed

    def size(self) -> int:
        """Return how many batches wait."""
        return min(max(self._read - self.taken, 0), self._capacity)


class GeneratorLoader:
    """Batches for the data variables ``feed_list``; up to ``capacity`` of them are read ahead.

    An iterable one gives for every step a list with one batch for each place: name -> LoDTensor,
    or with ``return_list`` a list of LoDTensors in the order of ``feed_list``. With ``drop_last``
    batches that are left at the end, too few for all places, are left out. ``use_double_buffer``
    is accepted as Fluid has it; batches are read ahead anyway.
    """

    def __init__(
        self,
        feed_list: Sequence[Variable] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
        drop_last: bool = True,
        name: str | None = None,
    ) -> None:
        self.name = name or unique_name.generate("data_loader")
        if (
            not isinstance(feed_list, (list, tuple))
            or not feed_list
            or not all(isinstance(variable, Variable) for variable in feed_list)
        ):
            raise DataError(
                f"{self.name}: feed_list must hold the variables to be fed, at least one, got "
                f"{feed_list!r:.80}"
            )
        if capacity is None or int(capacity) < 1:
            raise DataError(f"{self.name}: capacity must be at least 1 batch, got {capacity}")
        self._variables = list(feed_list)
        self._capacity = int(capacity)
        self._iterable = iterable
        self._return_list = return_list
        self.drop_last = drop_last
        self._places = 1
        self._reader: Callable[[], Iterable[Batch]] | None = None
        self._ahead: Generator[Batch, None, None] | None = None  # of a loader that was started
        self._seen: Batch | None = None  # the next batch, if `peek` has shown it
        self.queue = _Waiting(self._capacity)
        if not iterable:
            self._take_over()

    def _take_over(self) -> None:
        """Make runs of Programs with these variables read from this loader."""
        for variable in self._variables:
            if variable.source is not None:
                raise DataError(
                    f"{self.name}: variable {variable.name!r} is read from {variable.source.name} "
                    "already; give each loader different variables, or make loaders with "
                    "iterable=True"
                )
        for variable in self._variables:
            variable.source = self

    @property
    def iterable(self) -> bool:
        """Whether this is looped over; the other kind is started and reset."""
        return self._iterable

    # -- where batches come from ---------------------------------------------------------------
    def set_sample_generator(
        self, reader: Reader, batch_size: int, drop_last: bool = True, places: Any = None
    ) -> GeneratorLoader:
        """Read samples, tuples with one field per variable, and make batches of them."""
        expect_reader(self.name, reader)
        return self.set_sample_list_generator(batch(reader, batch_size, drop_last), places)

    def set_sample_list_generator(self, reader: Reader, places: Any = None) -> GeneratorLoader:
        """Read batches that are lists of samples, as `fluid.batch` makes them."""
        feeder = DataFeeder(self._variables)
        return self._set(reader, partial(_stacked, reader, feeder), places)

    def set_batch_generator(self, reader: Reader, places: Any = None) -> GeneratorLoader:
        """Read batches that are arrays, or LoDTensors, in the order of ``feed_list``.

        Arrays are copied, so a generator may fill the same ones again.
        """

        names = [variable.name for variable in self._variables]
        return self._set(reader, partial(_named, reader, names, self.name), places)

    def _set(
        self, reader: Reader, batches: Callable[[], Iterable[Batch]], places: Any
    ) -> GeneratorLoader:
        expect_reader(self.name, reader)
        if hasattr(reader, "resume"):
            raise DataError(
                f"{self.name} reads ahead of the steps, so a resumable reader inside it would not "
                "know where training is: put resumable() around an iterable loader"
            )
        if self._ahead is not None:
            raise DataError(f"{self.name} is started: call reset() before giving it another reader")
        self._places = len(places) if isinstance(places, (list, tuple)) else 1
        self._reader = batches
        return self

    def _batches_of_pass(self) -> Callable[[], Iterable[Batch]]:
        if self._reader is None:
            raise DataError(
                f"{self.name} has nothing to read: call set_sample_generator, "
                "set_sample_list_generator or set_batch_generator first"
            )
        return self._reader

    # -- loops ---------------------------------------------------------------------------------
    def __iter__(self) -> Iterator[list[Any]]:
        """Begin a pass."""
        return self._steps(
            buffered(self._batches_of_pass(), self._capacity, counted=Count.BATCHES_AHEAD)
        )

    def __call__(self) -> Iterator[list[Any]]:
        """Begin a pass."""
        return iter(self)

    def in_step(self) -> Iterator[list[Any]]:
        """Begin a pass that is not read ahead, for those who must know the reader's position."""
        return self._steps(self._batches_of_pass())

    def _steps(self, batches: Callable[[], Iterable[Batch]]) -> Iterator[list[Any]]:
        if not self._iterable:
            raise DataError(
                f"{self.name} was made with iterable=False: call start(), run the program without "
                "a feed until EOFException, then reset()"
            )
        return self._by_places(batches)

    def _by_places(self, batches: Callable[[], Iterable[Batch]]) -> Iterator[list[Any]]:
        ahead = iter(batches())
        while parts := _read(lambda: list(islice(ahead, self._places))):
            if len(parts) == self._places or not self.drop_last:
                yield [list(part.values()) if self._return_list else part for part in parts]

    # -- runs without a feed -------------------------------------------------------------------
    def start(self) -> None:
        """Begin a pass: from now on runs of the Program read from this loader."""
        if self._iterable:
            raise DataError(f"{self.name} is iterable: loop over it instead of calling start()")
        if self._ahead is not None:
            raise DataError(f"{self.name} was started already: call reset() first")
        self.queue = _Waiting(self._capacity)
        counted = partial(self.queue.counted, self._batches_of_pass())
        self._ahead = buffered(counted, self._capacity, counted=Count.BATCHES_AHEAD)()

    def reset(self) -> None:
        """End the pass, in its middle too; the next `start` begins from the front."""
        if self._iterable:
            raise DataError(f"{self.name} is iterable: leave the loop instead of calling reset()")
        if self._ahead is not None:
            self._ahead.close()  # ends the thread
        self._ahead = self._seen = None

    @property
    def _loader(self) -> GeneratorLoader:
        """What reads; Fluid's scripts ask a PyReader for it under this name."""
        return self

    @staticmethod
    def _check_input_array(item: Any) -> np.ndarray:
        """Return an array of one field; GraphTypeError if its parts have different shapes."""
        try:
            return np.asarray(item)
        except ValueError:
            shapes = sorted({np.shape(part) for part in item})
            raise GraphTypeError(
                f"a batch must be one array, got parts of shapes {shapes}: make LoDTensors of "
                "what is ragged"
            ) from None

    def _reset(self) -> None:
        """End the pass, also of an iterable loader whose loop was left: the next one is new."""
        if not self._iterable:
            self.reset()

    def peek(self) -> Batch | None:
        """Return the batch that `read` gives next, if it has come already."""
        if self._seen is None and self._ahead is not None and self.queue.size():
            self._seen = next(self._ahead)
        return self._seen

    def read(self) -> Batch:
        """Return the next batch; EOFException if there is none. The executor calls it."""
        if self._ahead is None:
            raise DataError(
                f"the program reads from {self.name}, which is not started: call start() before "
                "the first step of each pass"
            )
        try:
            batch, self._seen = self._seen or _read(partial(next, self._ahead)), None
            self.queue.taken += 1
            return batch
        except StopIteration:
            raise EOFException(
                f"{self.name} has no more batches: catch fluid.core.EOFException and call reset()"
            ) from None
        except BaseException:
            self._ahead = None  # or the next step would take the failure for an end
            raise


def _read(batches: Callable[[], T]) -> T:
    """Return a reader's next batch, and record the time spent waiting for it."""
    with recorder.span(EventKind.WAIT, Cause.READER.value):
        return batches()


# A thread that reads ahead runs these: they hold no loader, so one that is forgotten is freed.
def _stacked(reader: Reader, feeder: DataFeeder) -> Iterator[Batch]:
    return map(feeder.feed, reader())


def _named(reader: Reader, names: Sequence[str], loader: str) -> Iterator[Batch]:
    for number, fields in enumerate(reader()):
        if not isinstance(fields, (list, tuple)) or len(fields) != len(names):
            got = len(fields) if isinstance(fields, (list, tuple)) else type(fields)
            raise FeedError(
                f"{loader}: batch {number} must be a list of {len(names)} arrays "
                f"({', '.join(names)}), got {got}"
            )
        tensors = list(map(_tensor, fields))
        yield dict(zip(names, tensors))


def _tensor(field: Any) -> LoDTensor:
    """Return a value as scripts take it from a loader."""
    return field if isinstance(field, LoDTensor) else LoDTensor(np.array(field))


class PyReader(GeneratorLoader):
    """The loader of `DataLoader.from_generator`, under Fluid's older names of its methods."""

    decorate_sample_list_generator = GeneratorLoader.set_sample_list_generator
    decorate_batch_generator = GeneratorLoader.set_batch_generator
    decorate_paddle_reader = GeneratorLoader.set_sample_list_generator
    decorate_tensor_provider = GeneratorLoader.set_batch_generator

    def __init__(
        self,
        feed_list: Sequence[Variable] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
        name: str | None = None,
    ) -> None:
        name = name or unique_name.generate("py_reader")
        super().__init__(feed_list, capacity, use_double_buffer, iterable, return_list, name=name)

    def decorate_sample_generator(
        self,
        sample_generator: Reader,
        batch_size: int,
        drop_last: bool = True,
        places: Any = None,
    ) -> GeneratorLoader:
        """Do as `set_sample_generator`."""
        return self.set_sample_generator(sample_generator, batch_size, drop_last, places)

    @property
    def variables(self) -> list[Variable]:
        """The data variables, as `layers.read_file` returns them."""
        return list(self._variables)


class DatasetLoader:
    """The batches of a Dataset, for every step a list with one for each place."""

    def __init__(self, dataset: Any, places: Any, drop_last: bool = True) -> None:
        if not hasattr(dataset, "batches"):
            raise DataError(f"from_dataset: expected one of DatasetFactory's, got {dataset!r:.80}")
        self._dataset = dataset
        self._places = len(places) if isinstance(places, (list, tuple)) else 1
        self._drop_last = drop_last

    def __iter__(self) -> Iterator[list[Batch]]:
        """Begin a pass."""
        with closing(self._dataset.batches(self._drop_last)) as batches:
            while parts := _read(lambda: list(islice(batches, self._places))):
                if len(parts) == self._places or not self._drop_last:
                    yield [{name: _tensor(of) for name, of in part.items()} for part in parts]

    def __call__(self) -> Iterator[list[Batch]]:
        """Begin a pass."""
        return iter(self)


class DataLoader:
    """Makes loaders of batches, which are read ahead; Fluid's name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise DataError(
            "DataLoader(dataset) is for Fluid's imperative mode; use DataLoader.from_generator(...)"
        )

    @staticmethod
    def from_generator(
        feed_list: Sequence[Variable] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
        use_multiprocess: bool = False,
        drop_last: bool = True,
    ) -> GeneratorLoader:
        """Return a loader of what a generator gives; see `GeneratorLoader`.

        ``use_multiprocess`` changes nothing, as in Fluid's static graphs: for processes see
        `hpcdist.reader.multiprocess_reader`.
        """
        return GeneratorLoader(
            feed_list, capacity, use_double_buffer, iterable, return_list, drop_last
        )

    @staticmethod
    def from_dataset(dataset: Any, places: Any, drop_last: bool = True) -> DatasetLoader:
        """Return a loader of the batches of a Dataset.

        With ``drop_last`` neither a last, short batch, nor batches that are too few for all places.
        """
        return DatasetLoader(dataset, places, drop_last)
