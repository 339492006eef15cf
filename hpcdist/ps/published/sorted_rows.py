"""Rows sorted by the mix of their ids, found without a table of hashes. numpy alone.

The mix is that of `hpcdist.ps.batch_kernels`, by which servers divide rows: those of the first
server come first, and all files of a base together are sorted as one. Mixes are evenly spread, so
the upper bits of one tell where it stands, up to a few places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
Ids = NDArray[np.int64]
Rows = NDArray[np.float32]
Kept = NDArray[Any]  # rows as they are published: float32, or bytes
Places = NDArray[np.int64]

SALT, M1, M2 = (np.uint64(n) for n in (0x9D6F29C351E8B04B, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
UNDO_M1, UNDO_M2 = np.uint64(0x96DE1B173F119089), np.uint64(0x319642B2D24D8EC3)
R27, R30, R31, R54, R60, R62 = (np.uint64(n) for n in (27, 30, 31, 54, 60, 62))
IN_BUCKET = 2  # keys at most, on average
PIECE = 1 << 14  # ids that are looked for at once, whose places are in the cache


def mixes_of(ids: Ids) -> Keys:
    """Return the keys of ids."""
    x = ids.view(np.uint64) ^ SALT
    x = (x ^ (x >> R30)) * M1
    x = (x ^ (x >> R27)) * M2
    mixed: Keys = x ^ (x >> R31)
    return mixed


def ids_of(keys: Keys) -> Ids:
    """Return the ids whose keys these are."""
    x = (keys ^ (keys >> R31) ^ (keys >> R62)) * UNDO_M2
    x = (x ^ (x >> R27) ^ (x >> R54)) * UNDO_M1
    ids: Ids = (x ^ (x >> R30) ^ (x >> R60) ^ SALT).view(np.int64)
    return ids


class SortedKeys:
    """Keys in ascending order, none twice, and where those with the same upper bits begin."""

    def __init__(self, keys: Keys) -> None:
        """ValueError if keys are out of order."""
        if len(keys) > 1 and not (keys[1:] > keys[:-1]).all():
            raise ValueError("its keys are out of order")
        self.keys = keys
        bits = max(1, (len(keys) // IN_BUCKET).bit_length())
        self._shift = np.uint64(64 - bits)
        counts = np.bincount((keys >> self._shift).astype(np.int64), minlength=1 << bits)
        self._begins = np.zeros((1 << bits) + 1, np.uint32 if len(keys) < 1 << 32 else np.int64)
        np.cumsum(counts, out=self._begins[1:])

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, wanted: Keys) -> Places:
        """Return where each key stands, -1 where it does not."""
        places = np.full(len(wanted), -1, np.int64)
        if not len(self.keys):
            return places
        for begin in range(0, len(wanted), PIECE):
            self._find(wanted[begin : begin + PIECE], places[begin : begin + PIECE])
        return places

    def _find(self, wanted: Keys, places: Places) -> None:
        buckets = (wanted >> self._shift).view(np.int64)
        at = self._begins.take(buckets).astype(np.int64)
        which, sought = np.arange(len(wanted)), wanted
        last = len(self.keys) - 1
        while True:
            # Beyond the bucket keys are greater: the search ends there by itself.
            there = self.keys.take(at, mode="clip")
            found = np.flatnonzero(there == sought)
            places[which.take(found)] = at.take(found)
            on = np.flatnonzero((there < sought) & (at < last))
            if not len(on):
                return
            which, at, sought = which.take(on), at.take(on) + 1, sought.take(on)


class Layer:
    """Keys with rows: mapped from files, or merged in memory. ``gone``: rows that were deleted."""

    def __init__(self, keys: Keys, rows: Kept, gone: NDArray[np.bool_] | None = None) -> None:
        """Index the keys. ValueError if they are out of order."""
        self.index, self.rows, self.gone = SortedKeys(keys), rows, gone

    def __len__(self) -> int:
        return len(self.index)


def merged(layers: Sequence[Layer], none: Kept) -> Layer:
    """Return one layer, in memory, of several, of which later ones count; ``none``: no rows."""
    keys = np.concatenate([np.empty(0, np.uint64), *(layer.index.keys for layer in layers)])
    rows = np.concatenate([none, *(layer.rows for layer in layers)])
    gone = np.concatenate([np.empty(0, bool), *(_gone(layer) for layer in layers)])
    # Of equal keys the last stands first in the reversed order, which a stable sort keeps.
    order = np.argsort(keys[::-1], kind="stable")
    order = len(keys) - 1 - order
    ordered = keys[order]
    first = np.ones(len(keys), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    kept = order[first]
    return Layer(keys[kept], rows[kept], gone[kept])


def _gone(layer: Layer) -> NDArray[np.bool_]:
    return np.zeros(len(layer), bool) if layer.gone is None else layer.gone
