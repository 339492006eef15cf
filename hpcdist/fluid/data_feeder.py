"""DataFeeder: from a batch of samples to the arrays that a Program is fed with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from hpcdist.base import settings
from hpcdist.base.errors import FeedError
from hpcdist.graph.dtypes import canonical
from hpcdist.graph.lod import Lod
from hpcdist.graph.lod_tensor import LoDTensor, flattened

__all__ = ["DataFeeder", "DataToLoDTensorConverter"]


@dataclass(frozen=True)
class _Column:
    """One field of every sample: the variable it feeds, and how."""

    name: str
    dtype: np.dtype[Any]
    batch: int
    sample: tuple[int, ...]
    lod_level: int = 0

    def __str__(self) -> str:
        return f"variable {self.name!r} ({self.dtype}, shape {(self.batch, *self.sample)})"


class DataFeeder:
    """Stacks samples into one LoDTensor per variable.

    ``feed_list`` holds Variables, or names of variables of ``program`` (the default main program
    if None), one for each field of a sample. ``place`` is where the Program will run; the tensors
    are in the host's memory, the executor moves them.

    Examples:
        >>> x = fluid.data("x", [None, 2])
        >>> feeder = fluid.DataFeeder(feed_list=[x], place=fluid.CPUPlace())
        >>> feeder.feed([([1, 2],), ([3, 4],)])["x"]
        LoDTensor(float32[2, 2], lengths=[])
    """

    def __init__(self, feed_list: Sequence[Any], place: Any = None, program: Any = None) -> None:
        self.place = place
        self.columns = tuple(_column(i, _variable(v, program)) for i, v in enumerate(feed_list))
        self.feed_names = [column.name for column in self.columns]
        if not self.columns:
            raise FeedError("DataFeeder: feed_list is empty, expected at least one variable")
        if len(set(self.feed_names)) < len(self.feed_names):
            raise FeedError(f"DataFeeder: feed_list names a variable twice: {self.feed_names}")

    def feed(self, iterable: Iterable[Sequence[Any]]) -> dict[str, LoDTensor]:
        """Return name -> LoDTensor of shape (number of samples, *variable's shape[1:]).

        A variable with ``lod_level`` 1 takes sequences of any lengths, even 0, and gets
        rows with the variable's shape[1:]; with 2, sequences of sequences.

        Each sample is a sequence with one field per variable. A field whose number of dimensions
        differs from the variable's is reshaped (784 numbers feed [-1, 1, 28, 28]); values that
        the variable's dtype cannot hold, such as 0.5 for int64, are refused with FeedError.
        A sample may be a batch, whose fields without ``lod_level`` all hold as many rows.
        """
        samples = list(iterable)
        fields = _transposed(samples, self.feed_names)
        fed, rows = {}, {}
        for column, values in zip(self.columns, fields, strict=True):
            if column.lod_level:
                fed[column.name] = _sequences(column, values)
            else:
                array = _stacked(column, values, may_be_batches=True)
                fed[column.name], rows[column.name] = LoDTensor(array), len(array)
        if len(set(rows.values())) > 1:
            raise FeedError(f"DataFeeder: expected as many rows of all in a batch, got {rows}")
        return fed

    def feed_parallel(
        self, iterable: Iterable[Iterable[Sequence[Any]]], num_places: int | None = None
    ) -> Iterator[dict[str, LoDTensor]]:
        """Yield what each of ``num_places`` devices is fed, from as many batches."""
        batches = list(iterable)
        places = len(batches) if num_places is None else int(num_places)
        if len(batches) != places:
            raise FeedError(
                f"DataFeeder: expected a batch for each of {places} devices, got {len(batches)}"
            )
        return map(self.feed, batches)

    def decorate_reader(
        self,
        reader: Callable[[], Iterable[Any]],
        multi_devices: bool,
        num_places: int | None = None,
        drop_last: bool = True,
    ) -> Callable[[], Iterator[Any]]:
        """Return a reader of what is fed, made of a reader of batches.

        With ``multi_devices`` a list with a batch for each of ``num_places`` devices, by default
        as many as CPU_NUM says. Those left at the end, too few for all, are left out with
        ``drop_last``, else FeedError.
        """
        places = settings.CPU_NUM.read() if num_places is None else int(num_places)

        def fed() -> Iterator[Any]:
            batches = iter(reader())
            while multi_devices and (group := list(islice(batches, places))):
                if len(group) == places:
                    yield list(self.feed_parallel(group, places))
                elif not drop_last:
                    raise FeedError(
                        f"DataFeeder: {len(group)} batches are left for {places} devices: "
                        "drop_last=True leaves them out"
                    )
            yield from map(self.feed, batches)

        return fed


class DataToLoDTensorConverter:
    """Collects one field of several samples, as a `DataFeeder` of one variable would.

    ``shape`` is the variable's, with the batch's extent. ``place`` is where it will be used; the
    tensor is in the host's memory.
    """

    def __init__(self, place: Any, lod_level: int, shape: Sequence[int], dtype: Any) -> None:
        batch, *sample = shape
        kind = np.dtype(canonical(dtype))
        self._column = _Column("data", kind, batch, tuple(sample), lod_level)
        self._values: list[Any] = []

    def feed(self, data: Any) -> None:
        """Add the field of one more sample."""
        self._values.append(data)

    def done(self) -> LoDTensor:
        """Return the collected batch, and start a new one."""
        column, values, self._values = self._column, tuple(self._values), []
        return (
            _sequences(column, values) if column.lod_level else LoDTensor(_stacked(column, values))
        )


def _variable(entry: Any, program: Any) -> Any:
    if not isinstance(entry, str):
        return entry
    if program is None:
        from hpcdist.graph import default_main_program

        program = default_main_program()
    return program.global_block().var(entry)


def _column(position: int, variable: Any) -> _Column:
    for fact in ("name", "shape", "dtype"):
        if not hasattr(variable, fact):
            raise FeedError(
                f"DataFeeder: feed_list[{position}] must be a Variable or a name, "
                f"got {type(variable).__name__}"
            )
    if not variable.shape:
        raise FeedError(
            f"DataFeeder: variable {variable.name!r} has shape (), expected a batch dimension"
        )
    batch, *sample = (int(size) for size in variable.shape)
    levels = getattr(variable, "lod_level", 0)
    return _Column(variable.name, np.dtype(variable.dtype), batch, tuple(sample), levels)


def _transposed(samples: list[Sequence[Any]], names: list[str]) -> list[tuple[Any, ...]]:
    """Return the samples' fields by column."""
    if not samples:
        raise FeedError(
            f"DataFeeder: the batch for {names} is empty (where even_batches(how='join') gives "
            "none, feed {})"
        )
    for number, sample in enumerate(samples):
        if not hasattr(sample, "__len__") or isinstance(sample, (str, bytes)):
            got = type(sample).__name__
        elif len(sample) != len(names):
            got = f"{len(sample)} fields"
        else:
            continue
        raise FeedError(
            f"DataFeeder: sample {number} must be a tuple of {len(names)} fields "
            f"({', '.join(names)}), got {got}"
        )
    return list(zip(*samples, strict=True))


def _sequences(column: _Column, values: tuple[Any, ...]) -> LoDTensor:
    """Return the rows of all sequences in one array, and where each sequence begins."""
    try:
        rows, lengths = flattened(values, column.lod_level)
    except TypeError:
        raise FeedError(
            f"DataFeeder: variable {column.name!r} has lod_level {column.lod_level}: expected a "
            f"sequence of rows in every sample, got {values[0]!r}"
        ) from None
    if rows:
        array = _stacked(replace(column, batch=-1), tuple(rows))
    else:
        array = np.empty((0, *(abs(extent) for extent in column.sample)), column.dtype)
    return LoDTensor(array, Lod.of_lengths(lengths))


def _stacked(
    column: _Column, values: tuple[Any, ...], *, may_be_batches: bool = False
) -> np.ndarray:
    """Return the values of one column as one array of the variable's shape and dtype."""
    if column.batch not in (-1, len(values)):
        raise FeedError(
            f"DataFeeder: {column} takes {column.batch} samples at once, got {len(values)}"
        )
    try:
        array = np.array(values)
    except ValueError:  # fields of several shapes
        raise _misfit(column, values) from None
    got = array.shape[1:]
    are_batches = may_be_batches and _is_batch(column.sample, got)
    if not are_batches and not _accepts(column.sample, got):
        raise _misfit(column, values)
    if array.dtype != column.dtype:
        array = _cast(column, array, values)
    if are_batches:
        return array.reshape(-1, *got[len(got) - len(column.sample) :])
    if array.ndim == 1 + len(column.sample):
        return array
    return array.reshape(len(values), *column.sample)


def _is_batch(expected: tuple[int, ...], got: tuple[int, ...]) -> bool:
    """Return whether a sample of shape ``got`` is several rows of the expected shape."""
    more = len(got) - len(expected)
    if more < 1 or _accepts(expected, got):
        return False
    return all(e in (-1, g) for g, e in zip(got[more:], expected, strict=True))


def _accepts(expected: tuple[int, ...], got: tuple[int, ...]) -> bool:
    """Return whether one sample of shape ``got`` has, or can be reshaped to, the expected shape."""
    if len(got) == len(expected):
        return all(e in (-1, g) for g, e in zip(got, expected, strict=True))
    size, product = math.prod(got), math.prod(e for e in expected if e != -1)
    if -1 not in expected:
        return size == product
    return expected.count(-1) == 1 and size > 0 and size % product == 0


def _cast(column: _Column, array: np.ndarray, values: tuple[Any, ...]) -> np.ndarray:
    """Return the array in the variable's dtype; a value may lose digits, never its meaning."""
    if array.dtype.kind in "US":  # numbers as text, as a line of a file splits into
        return _parsed(column, array, values)
    if array.dtype.kind not in "biuf":
        kinds = [np.asarray(value).dtype.kind for value in values]
        number = next((n for n, kind in enumerate(kinds) if kind not in "biuf"), 0)
        raise _unfit_value(column, number, f"{values[number]!r:.80}")
    # nan and inf to an integer: the comparison below refuses them
    with np.errstate(invalid="ignore", over="ignore"):
        cast = array.astype(column.dtype)
    if np.can_cast(array.dtype, column.dtype):
        return cast
    bad = np.isinf(cast) & np.isfinite(array) if column.dtype.kind == "f" else cast != array
    if bad.any():
        index = tuple(np.argwhere(bad)[0])
        raise _unfit_value(column, int(index[0]), f"the {array.dtype} value {array[index]}")
    return cast


def _parsed(column: _Column, array: np.ndarray, values: tuple[Any, ...]) -> np.ndarray:
    """Return numbers that were given as text."""
    try:
        return array.astype(column.dtype)
    except (ValueError, OverflowError):
        for number, value in enumerate(values):
            try:
                np.array(value).astype(column.dtype)
            except (ValueError, OverflowError):
                raise _unfit_value(column, number, f"{value!r:.80}") from None
        raise


def _unfit_value(column: _Column, number: int, got: str) -> FeedError:
    return FeedError(
        f"DataFeeder: {column}: sample {number} has {got}, expected {column.dtype} numbers"
    )


def _misfit(column: _Column, values: tuple[Any, ...]) -> FeedError:
    """Return the error that names the first sample of the wrong shape."""
    expected = column.sample
    for number, value in enumerate(values):
        try:
            got = np.shape(value)
        except ValueError:
            return _unfit_shape(column, number, expected, "lists of unequal length")
        if number == 0 and _accepts(expected, got):
            # Samples that each would do must still agree, to be stacked.
            expected = got
        elif got != expected:
            return _unfit_shape(column, number, expected, f"shape {got}")
    raise AssertionError(f"every sample of {column} has shape {expected}, yet they do not stack")


def _unfit_shape(column: _Column, number: int, expected: tuple[int, ...], got: str) -> FeedError:
    return FeedError(f"DataFeeder: {column}: sample {number} has {got}, expected shape {expected}")
