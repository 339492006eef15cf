"""Batches as PyTorch tensors, for its DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from hpcdist.base.errors import DataError
from hpcdist.graph.lod_tensor import LoDTensor


def as_dataset(rows: Any) -> Any:
    """Return a torch dataset of the batches of ``rows``: dicts of tensors; ragged ones nested."""
    return _Batches(rows)


class _Batches(IterableDataset):
    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain data: a `hpcdist.torch.Saver` may be given this object."""
        state: dict[str, Any] = self._rows.state()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a position, with any number of ranks."""
        self._rows.check([state])
        self._rows.resume(state, None)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if get_worker_info() is not None:
            raise DataError(
                "data.read reads ahead by itself, and the training process must know its position: "
                "use DataLoader(rows.torch(), batch_size=None, num_workers=0), and "
                "data.read(..., workers=) for processes that decode"
            )
        for batch in self._rows():
            yield {name: _tensor(column) for name, column in batch.items()}


def _tensor(column: Any) -> Any:
    if isinstance(column, LoDTensor):
        assert column.value is not None and column.sequences is not None
        offsets = torch.from_numpy(column.sequences.last)
        return torch.nested.nested_tensor_from_jagged(_owned(column.value), offsets=offsets)
    return _owned(column)


def _owned(array: np.ndarray) -> Any:
    """Return a tensor; arrays that lie in a file's memory are copied, torch would write to them."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())
