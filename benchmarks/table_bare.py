"""Bare loops that sparse_table.py measures the table against: the same work, no table around it."""

from __future__ import annotations

import numba
import numpy as np

from hpcdist.ps.raw_memory import float32_at
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
            write_initial(begin, dim, h, numba.uint64(1), UNIFORM, a, b)
            state = float32_at(begin + 4 * dim)
            for j in range(dim):
                state[j] = 0.0
            count += 1
    return count
