"""Merges the samples of lines with the same id: each line has values for some slots."""

from __future__ import annotations

import logging
from itertools import pairwise

import numpy as np
from xxhash import xxh3_64_intdigest

from hpcdist.base.errors import DataError
from hpcdist.fluid.multi_slot.samples import Column, Samples, taken

logger = logging.getLogger("hpcdist.multi_slot")

WARNED = 20  # ids that are left out, each in a separate line


def id_keys(samples: Samples) -> np.ndarray:
    """Return a hash of each sample's id, uint64 [samples]."""
    ids = samples.columns[-1]
    data, ends = ids.values.tobytes(), ids.offsets.tolist()
    hashes = (xxh3_64_intdigest(data[a:b]) for a, b in pairwise(ends))
    return np.fromiter(hashes, np.uint64, len(samples))


def merged(samples: Samples, size: int) -> Samples:
    """Return one sample for the lines of each id, which stand side by side; without their ids.

    Of a ragged slot the values of the one line that has any but zeros; of others those of the last
    such line, as in Fluid. What has not ``size`` lines (0: any number), or a ragged slot in two of
    them, is left out, with a warning.
    """
    if not len(samples):
        return Samples(samples.slots[:-1], samples.columns[:-1])
    begins = _begins(samples)
    counts = np.diff(np.append(begins, len(samples)))
    good = counts == size if size else np.ones(len(begins), np.bool_)
    reasons = {int(k): f"they are not {size}" for k in np.flatnonzero(~good)}
    chosen = []
    for slot, column in zip(samples.slots[:-1], samples.columns):
        tells = _tells(column)
        if slot.shape is None:
            twice = np.add.reduceat(tells.astype(np.int64), begins) > 1
            for k in np.flatnonzero(twice):
                reasons.setdefault(int(k), f"more than one has values of slot {slot.name!r}")
            good &= ~twice
        last = np.maximum.reduceat(np.where(tells, np.arange(len(samples)), -1), begins)
        chosen.append(np.where(last < 0, begins, last))
    _tell(samples.columns[-1], begins, counts, reasons)
    columns = [taken(c, order[good]) for c, order in zip(samples.columns, chosen)]
    return Samples(samples.slots[:-1], columns)


def _begins(samples: Samples) -> np.ndarray:
    """Return the first sample of each id."""
    keys = id_keys(samples)
    alike = keys[1:] == keys[:-1]
    ids, before = samples.columns[-1], np.flatnonzero(alike)
    first, second = taken(ids, before), taken(ids, before + 1)
    if any(
        not np.array_equal(a, b)
        for a, b in ((first.offsets, second.offsets), (first.values, second.values))
    ):
        raise DataError("set_merge_by_lineid: two line ids have the same hash: change one of them")
    return np.flatnonzero(np.append(True, ~alike))


def _id(column: Column, number: int) -> bytes:
    return column.values[column.offsets[number] : column.offsets[number + 1]].tobytes()


def _tells(column: Column) -> np.ndarray:
    """Return which samples have a value that is not zero, bool [samples]."""
    from hpcdist.fluid.multi_slot.kernels import NEAR_ZERO  # numba takes 0.3 s to import

    values = column.values
    nonzero = np.abs(values) >= NEAR_ZERO if values.dtype.kind == "f" else values != 0
    return np.logical_or.reduceat(nonzero, column.offsets[:-1])


def _tell(ids: Column, begins: np.ndarray, counts: np.ndarray, reasons: dict[int, str]) -> None:
    for number in sorted(reasons)[:WARNED]:
        logger.warning(
            "merge by line id: %d samples of id %r are left out: %s",
            counts[number],
            _id(ids, begins[number]).decode(errors="replace"),
            reasons[number],
        )
    if reasons:
        lines = int(counts[sorted(reasons)].sum())
        logger.warning("merge by line id: %d ids, %d samples, are left out", len(reasons), lines)
