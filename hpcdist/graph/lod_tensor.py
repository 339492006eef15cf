"""LoDTensor: an array whose rows group into sequences of different lengths, as it is fed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from hpcdist.base.errors import FeedError
from hpcdist.base.fetched import holds_fetched
from hpcdist.graph.dtypes import canonical
from hpcdist.graph.lod import Lod

__all__ = [
    "LoDTensor",
    "LoDTensorArray",
    "concatenated",
    "create_lod_tensor",
    "create_random_int_lodtensor",
    "flattened",
]

Levels = Sequence[Sequence[int]]


class Grouped:
    """What groups the rows of a tensor into sequences; Fluid's tensors have it in every place."""

    sequences: Lod | None
    _dims: tuple[int, ...] = ()  # announced

    def set_lod(self, lod: Levels) -> None:
        """Group the rows by offsets, outermost level first: [[0, 2, 5]] is 2 rows and 3 rows."""
        self.sequences = Lod.of_offsets(lod) if len(lod) else None

    def lod(self) -> list[list[int]]:
        """Return the offsets, level by level; [] for an array without sequences."""
        return [] if self.sequences is None else [o.tolist() for o in self.sequences.offsets]

    def set_recursive_sequence_lengths(self, lengths: Levels) -> None:
        """Group the rows by the sequences' lengths, outermost level first: [[2, 3]].

        FeedError if there are rows, and not as many.
        """
        lod = Lod.of_lengths(lengths) if len(lengths) else None
        if lod is not None and self._is_initialized() and lod.rows != len(self):
            raise FeedError(
                f"set_recursive_sequence_lengths: the sequences have {lod.rows} rows together, "
                f"the tensor has {len(self)}"
            )
        self.sequences = lod

    def recursive_sequence_lengths(self) -> list[list[int]]:
        """Return the lengths of the sequences, level by level."""
        if self.sequences is None:
            return []
        return [np.diff(offsets).tolist() for offsets in self.sequences.offsets]

    def has_valid_recursive_sequence_lengths(self) -> bool:
        """Return whether the sequences have as many rows as there are."""
        return self.sequences is None or self.sequences.rows == len(self)

    def _get_element(self, index: int) -> float:
        """Return one element by its number, in row-major order."""
        return float(np.array(self).reshape(-1)[index])

    _get_float_element = _get_double_element = _get_element

    def _set_element(self, index: int, number: float) -> None:
        """Set one element by its number, in row-major order."""
        array = np.array(self)
        array.reshape(-1)[index] = number
        self.set(array)

    _set_float_element = _set_double_element = _set_element

    def _set_dims(self, dims: Sequence[int]) -> None:
        """Announce the shape of what is set, or allocated, next."""
        self._dims = tuple(dims)

    def _alloc(self, dtype: str) -> None:
        array = np.array(self) if self._is_initialized() else None
        shape = self._dims or (np.shape(array) if array is not None else (0,))
        if array is None or (array.shape, array.dtype) != (shape, np.dtype(dtype)):
            self.set(np.zeros(shape, dtype))

    def _alloc_int(self, place: Any = None) -> None:
        """Make room for int32 of the announced shape: zeros, unless it is there already."""
        self._alloc("int32")

    def _alloc_float(self, place: Any = None) -> None:
        """Make room for float32, as `_alloc_int`."""
        self._alloc("float32")

    def _alloc_double(self, place: Any = None) -> None:
        """Make room for float64, as `_alloc_int`."""
        self._alloc("float64")

    def _mutable_data(self, place: Any, dtype: str) -> int:
        """Make room for an element type, as `_alloc_int`; return where it lies, in host memory."""
        self._alloc(canonical(dtype))
        return int(self._array().ctypes.data)

    def set(self, array: Any, place: Any = None) -> None:
        raise NotImplementedError

    def _array(self) -> Any:
        raise NotImplementedError

    def _is_initialized(self) -> bool:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError


@holds_fetched
class LoDTensor(Grouped):
    """Rows [n, ...] of all sequences, one sequence after the other, and where each begins."""

    def __init__(self, value: Any = None, sequences: Lod | None = None) -> None:
        self.value: np.ndarray | None = None if value is None else np.asarray(value)
        self.sequences: Lod | None = sequences

    def set(self, array: Any, place: Any = None) -> None:
        """Set the rows; the place is that of the Program that will read them."""
        self.value = np.array(array)

    def _is_initialized(self) -> bool:
        """Return whether there are rows; Fluid's scripts ask it under this name."""
        return self.value is not None

    def shape(self) -> list[int]:
        """Return the shape of the rows."""
        return list(np.shape(self._array()))

    def _get_dims(self) -> list[int]:
        """Return the shape, [0] before there are rows, as Fluid's scripts ask it."""
        return self.shape() if self._is_initialized() else [0]

    def _dtype(self) -> str:
        """Return the element type of the rows; Fluid's scripts ask it under this name."""
        return canonical(self._array().dtype)

    def _copy(self, place: Any = None) -> LoDTensor:
        """Return a copy; the place is that of the Program that will read it."""
        return LoDTensor(self._array().copy(), self.sequences)

    @property
    def samples(self) -> int:
        """Number of outermost sequences; of rows, if there are no sequences."""
        return len(self) if self.sequences is None else len(self.sequences.offsets[0]) - 1

    def part(self, begin: int, end: int) -> LoDTensor:
        """Return the outermost sequences ``begin:end`` with their rows."""
        if self.sequences is None:
            return LoDTensor(self._array()[begin:end])
        lod, begin, end = self.sequences.cut(begin, end)
        return LoDTensor(self._array()[begin:end], lod)

    def _array(self) -> np.ndarray:
        if self.value is None:
            raise FeedError("LoDTensor holds no rows: call set(array, place) first")
        return self.value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._array(), dtype=dtype)

    def __len__(self) -> int:
        return len(self._array())

    def __getitem__(self, item: Any) -> LoDTensor:
        """Return a copy of a part, without sequences; a number keeps its dimension, as in Fluid."""
        array, items = self._array(), item if isinstance(item, tuple) else (item,)
        array[item]  # IndexError beyond the end, where a slice would be empty
        index = (slice(i, i + 1 or None) if isinstance(i, Integral) else i for i in items)
        return LoDTensor(np.array(array[tuple(index)]))

    def __repr__(self) -> str:
        rows = None if self.value is None else f"{self.value.dtype}{list(self.value.shape)}"
        return f"LoDTensor({rows}, lengths={self.recursive_sequence_lengths()})"


class LoDTensorArray(list[LoDTensor]):
    """A list of LoDTensors, under the name that Fluid's scripts ask for."""


def create_lod_tensor(data: Any, recursive_seq_lens: Levels, place: Any = None) -> LoDTensor:
    """Make a LoDTensor of rows (array or LoDTensor), or of a list of sequences of numbers.

    ``recursive_seq_lens`` holds the sequences' lengths, level by level, the outermost first. A
    list becomes rows [n, 1]. FeedError if lengths and data do not fit.

    Examples:
        >>> rows = np.array([[1], [2], [3]])
        >>> ragged = fluid.create_lod_tensor(rows, [[2, 1]], fluid.CPUPlace())
        >>> ragged.recursive_sequence_lengths()
        [[2, 1]]
    """
    lod = Lod.of_lengths(recursive_seq_lens) if len(recursive_seq_lens) else None
    if isinstance(data, list):
        items, lengths = flattened(data, max(len(recursive_seq_lens), 1))
        if lengths != [list(level) for level in recursive_seq_lens]:
            raise FeedError(
                f"create_lod_tensor: the data has sequences of lengths {lengths}, "
                f"recursive_seq_lens says {[list(level) for level in recursive_seq_lens]}"
            )
        data = np.array(items)
        data = data.reshape((*data.shape, 1))
        data = data.astype("float32") if data.dtype == "float64" else data  # as data() defaults to
    elif not isinstance(data, (np.ndarray, LoDTensor)):
        raise FeedError(
            "create_lod_tensor: data must be a LoDTensor, an array or a list, "
            f"got {type(data).__name__}"
        )
    tensor = LoDTensor(np.array(data), lod)
    if lod is not None and lod.rows != len(tensor):
        raise FeedError(
            f"create_lod_tensor: the sequences have {lod.rows} rows together, "
            f"the data has {len(tensor)}"
        )
    return tensor


def create_random_int_lodtensor(
    recursive_seq_lens: Levels, base_shape: Sequence[int], place: Any, low: int, high: int
) -> LoDTensor:
    """Make a LoDTensor of int64 in [low, high]; each row has ``base_shape``."""
    rows = int(np.sum(recursive_seq_lens[-1]))
    data = np.random.randint(low, high + 1, (rows, *base_shape)).astype("int64")
    return create_lod_tensor(data, recursive_seq_lens, place)


def flattened(nested: Iterable[Any], levels: int) -> tuple[list[Any], list[list[int]]]:
    """Return the items of nested sequences, and the lengths of the sequences level by level."""
    items = list(nested)
    lengths = []
    for _ in range(levels):
        lengths.append([len(item) for item in items])
        items = [part for item in items for part in item]
    return items, lengths


def concatenated(tensors: Sequence[LoDTensor]) -> LoDTensor:
    """Return the sequences of all tensors, one after the other.

    A row in no sequence, which says that nothing was found, stays only if there is no other.
    """
    arrays = [np.asarray(tensor) for tensor in tensors]
    lods = [tensor.sequences for tensor in tensors if tensor.sequences is not None]
    if len(lods) < len(tensors):
        return LoDTensor(np.concatenate(arrays))
    inside = [array[: lod.rows] for array, lod in zip(arrays, lods)]
    rows = np.concatenate(inside) if any(map(len, inside)) else arrays[0]
    return LoDTensor(rows, Lod.joined(lods))
