"""Bare loops that sparse_table.py measures the table against: the same work, no table around it."""

from __future__ import annotations

import numba
import numpy as np

from hpcdist.base.raw_memory import float32_at
from hpcdist.ps.row_values import UNIFORM, mixed, write_initial


@numba.njit(error_model="numpy")
def adagrad(param, moment, index, grads, rate, epsilon):
    """Update rows of known index, formula fused, no repeats."""
    for k in range(len(index)):
        row = index[k]
        for j in range(param.shape[1]):
            g = grads[k, j]
            m = moment[row, j] + g * g
            moment[row, j] = m
            param[row, j] -= rate * g / (np.sqrt(m) + epsilon)


@numba.njit(error_model="numpy")
def insert(keys, rows, ids, count):
    """Insert ids into arrays large enough for all: open addressing, -1 marks a free place."""
    mask = len(keys) - 1
    for i in range(len(ids)):
        row_id = ids[i]
        place = numba.int64(mixed(row_id)) & mask
        while rows[place] >= 0 and keys[place] != row_id:
            place = (place + 1) & mask
        if rows[place] < 0:
            keys[place] = row_id
            rows[place] = count
            count += 1
    return count


@numba.njit(error_model="numpy")
def insert_growing(ids):
    """Insert ids into arrays that begin small and are doubled whenever they are half full."""
    keys, rows, count = np.ones(1024, np.int64), np.full(1024, -1, np.int32), 0
    for begin in range(0, len(ids), 512):
        if 2 * (count + 512) > len(keys):
            old_keys, old_rows = keys, rows
            keys = np.ones(2 * len(old_keys), np.int64)
            rows = np.full(2 * len(old_keys), -1, np.int32)
            mask = len(keys) - 1
            for i in range(len(old_keys)):
                if old_rows[i] >= 0:
                    place = numba.int64(mixed(old_keys[i])) & mask
                    while rows[place] >= 0:
                        place = (place + 1) & mask
                    keys[place], rows[place] = old_keys[i], old_rows[i]
        count = insert(keys, rows, ids[begin : begin + 512], count)
    return count


@numba.njit(error_model="numpy")
def insert_with_rows(keys, rows, ids, count, table, dim, a, b):
    """The same, and write each new row's initial values and state; ``table`` is an address."""
    mask = len(keys) - 1
    stride = 2 * dim
    for i in range(len(ids)):
        row_id = ids[i]
        h = mixed(row_id)
        place = numba.int64(h) & mask
        while rows[place] >= 0 and keys[place] != row_id:
            place = (place + 1) & mask
        if rows[place] < 0:
            keys[place] = row_id
            rows[place] = count
            begin = table + 4 * stride * count
            write_initial(begin, dim, h, numba.uint64(1), UNIFORM, (a, b, 0.0, 0.0))
            state = float32_at(begin + 4 * dim)
            for j in range(dim):
                state[j] = 0.0
            count += 1
    return count
