"""Packs texts of different lengths into rows of one length. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple

import numpy as np

from hpcdist.base.errors import DataError
from hpcdist.graph.lod_tensor import LoDTensor


class Packed(NamedTuple):
    """Arrays int64[rows, length]."""

    ids: np.ndarray
    segments: np.ndarray  # 1, 2, ...: which text of its row an id belongs to; 0: to none
    positions: np.ndarray  # of an id in its text


def packed(texts: LoDTensor, length: int, pad: int = 0) -> Packed:
    """Put the sequences of a batch, int64 ids, whole, into as few rows of ``length`` as fit.

    The longest come first, each into the fullest row that has room. Empty ones take no place;
    ``pad`` fills what is left. DataError if one is longer than a row.

    >>> texts = fluid.create_lod_tensor(np.arange(6)[:, None], [[3, 1, 2]], fluid.CPUPlace())
    >>> packed(texts, 4).segments.tolist()
    [[1, 1, 1, 2], [1, 1, 0, 0]]
    """
    if type(length) is not int or length < 1:
        raise DataError(f"packed: length must be an integer >= 1, got {length!r:.80}")
    if (
        not isinstance(texts, LoDTensor)
        or texts.value is None
        or texts.sequences is None
        or len(texts.sequences.offsets) != 1
    ):
        raise DataError(
            "packed: expected a batch's ragged column, a LoDTensor of one level, got "
            f"{type(texts).__name__}"
        )
    values = texts.value.reshape(-1)
    if values.dtype.kind not in "iu" or len(values) != len(texts.value):
        raise DataError(f"packed: expected ids, got {texts.value.dtype}{texts.value.shape}")
    offsets = texts.sequences.offsets[0]
    lengths = np.diff(offsets)
    if lengths.size and lengths.max() > length:
        row = int(lengths.argmax())
        raise DataError(
            f"packed: row {row} of the batch has {lengths[row]} ids, more than length={length}: "
            f"cut texts where they are decoded, decode={{...: lambda text: words(text)[:{length}]}}"
        )
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # free places of rows, ascending, and which row
    for text in np.argsort(-lengths, kind="stable").tolist():
        size = int(lengths[text])
        if not size:
            break
        at = bisect_left(room, (size, -1))
        free, row = room.pop(at) if at < len(room) else (length, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(text)
        insort(room, (free - size, row))
    arrays = Packed(*(np.full((len(rows), length), fill, np.int64) for fill in (pad, 0, 0)))
    for row, members in enumerate(rows):
        begin = 0
        for segment, text in enumerate(members, 1):
            end = begin + int(lengths[text])
            arrays.ids[row, begin:end] = values[offsets[text] : offsets[text + 1]]
            arrays.segments[row, begin:end] = segment
            arrays.positions[row, begin:end] = np.arange(end - begin)
            begin = end
    return arrays
