"""Sums of rows with equal ids on a GPU: one kernel that adds in order, without a wait of the host.

Atomic additions would give other bits in every run; a launch for every repeat takes thousands.
"""

from __future__ import annotations

import functools
import importlib
import math
from typing import Any

import numpy as np

from hpcdist.base.errors import HpcdistError
from hpcdist.ops.types import Array, ArrayModule

BLOCK = 128  # threads
MOST = 2**32 - BLOCK  # elements: a kernel counts its threads in 32 bits


def add_at(xp: ArrayModule, target, places, values) -> None:
    """Add ``values`` to ``target[places]``, in their order where places repeat, as `numpy.add.at`.

    ``places`` are arrays of integers, one for each of the first dimensions of ``target``.
    """
    if xp is np or not places:
        xp.add.at(target, places or (...,), values)
        return
    if not values.size:
        return
    rows: Array = 0
    for extent, ids in zip(target.shape, places):
        ids = ids.astype("int64")
        rows = rows * extent + xp.where(ids < 0, ids + extent, ids)
    rows = rows.reshape(-1)
    order = xp.argsort(rows)  # cupy's is stable
    rows = xp.take(rows, order)
    width = math.prod(target.shape[len(places) :])
    total = xp.empty((len(rows), width), target.dtype)
    add_runs(xp, rows, order, values.reshape(len(rows), width), total, spread=True)
    flat = target.reshape(-1, width)
    flat[rows] += total  # equal rows get equal values
    if not target.flags.c_contiguous:  # then that was a copy
        target[...] = flat.reshape(target.shape)


def add_runs(xp: ArrayModule, rows, order, value, total, spread: bool) -> None:
    """Write into ``total`` [n, width] the sums of ``value[order]`` over runs of equal ``rows`` [n].

    ``rows`` is sorted. Every place of a run gets its sum or, without ``spread``, only the first,
    and the others zeros. HpcdistError for 2^32 elements or more, which a GPU's numbers of threads
    cannot tell apart.
    """
    count, width = len(rows), total.shape[1]
    threads = count * width
    if threads > MOST:
        raise HpcdistError(
            f"{count} rows of {width} to be added by their ids have {threads} elements, expected "
            f"at most {MOST}: take fewer rows in a step"
        )
    if threads:
        args = (rows, order, value, total, *map(np.int64, (count, width, spread)))
        sum_runs_kernel(xp)((-(-threads // BLOCK),), (BLOCK,), args)


@functools.cache
def sum_runs_kernel(xp: ArrayModule) -> Any:
    """Return the kernel: a thread for each place and column; those where a run begins add."""
    jit = importlib.import_module("cupyx.jit")

    @jit.rawkernel()
    def add(rows, order, value, total, count, width, spread):
        thread = jit.grid(1)
        place = thread // width
        column = thread % width
        if place < count:
            begins = 1
            if place > 0 and rows[place - 1] == rows[place]:
                begins = 0
            if begins == 1:
                end = place + 1
                sum_ = value[order[place], column]
                while end < count and rows[end] == rows[place]:
                    sum_ += value[order[end], column]
                    end += 1
                total[place, column] = sum_
                for other in range(place + 1, end):
                    if spread == 1:
                        total[other, column] = sum_
                    else:
                        total[other, column] = 0

    return add
