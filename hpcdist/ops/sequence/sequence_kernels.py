"""Loops over sequences on the CPU, compiled by numba; `sequence_device` has the same for a GPU.

Values are matrices [rows, width]; sequence i has the rows offsets[i]:offsets[i + 1].
"""

from __future__ import annotations

import numpy as np

from hpcdist.base.jit import jit


@jit
def sum_rows(x, offsets, divisors, out) -> None:
    """Add up the rows of each sequence and divide the sum."""
    for i in range(len(out)):
        row = out[i]
        row[:] = 0
        for r in range(offsets[i], offsets[i + 1]):
            for k in range(x.shape[1]):
                row[k] += x[r, k]
        if divisors[i] != 1:
            for k in range(x.shape[1]):
                row[k] /= divisors[i]


@jit
def spread_rows(values, offsets, divisors, out) -> None:
    """Give each row of a sequence the sequence's value, divided."""
    for i in range(len(values)):
        for r in range(offsets[i], offsets[i + 1]):
            for k in range(values.shape[1]):
                out[r, k] = values[i, k] / divisors[i]


@jit
def max_rows(x, offsets, out, index) -> None:
    """Take the largest of each sequence's values, column by column, and the row it stands in.

    A sequence without rows leaves its output alone and has index -1.
    """
    for i in range(len(out)):
        begin, end = offsets[i], offsets[i + 1]
        if begin == end:
            index[i, :] = -1
            continue
        for k in range(x.shape[1]):
            out[i, k] = x[begin, k]
            index[i, k] = begin
        for r in range(begin + 1, end):
            for k in range(x.shape[1]):
                if x[r, k] > out[i, k]:
                    out[i, k] = x[r, k]
                    index[i, k] = r


@jit
def put_columns(values, index, out) -> None:
    """Write values[i, k] to out[index[i, k], k], zero elsewhere; -1 is nowhere."""
    out[:] = 0
    for i in range(len(values)):
        for k in range(values.shape[1]):
            if index[i, k] >= 0:
                out[index[i, k], k] = values[i, k]


@jit
def softmax(x, offsets, out) -> None:
    """Softmax within each sequence of single values."""
    for i in range(len(offsets) - 1):
        begin, end = offsets[i], offsets[i + 1]
        if begin == end:
            continue
        largest = x[begin, 0]
        for r in range(begin, end):
            largest = max(largest, x[r, 0])
        total = largest - largest
        for r in range(begin, end):
            out[r, 0] = np.exp(x[r, 0] - largest)
            total += out[r, 0]
        for r in range(begin, end):
            out[r, 0] /= total


@jit
def softmax_grad(out, dout, offsets, dx) -> None:
    """Gradient of the softmax within each sequence."""
    for i in range(len(offsets) - 1):
        begin, end = offsets[i], offsets[i + 1]
        dot = dout.dtype.type(0)
        for r in range(begin, end):
            dot += out[r, 0] * dout[r, 0]
        for r in range(begin, end):
            dx[r, 0] = out[r, 0] * (dout[r, 0] - dot)


@jit
def add_rows(values, index, out) -> None:
    """Add values[i] to out[index[i]], zero before; -1 is nowhere."""
    out[:] = 0
    for i in range(len(values)):
        if index[i] >= 0:
            for k in range(values.shape[1]):
                out[index[i], k] += values[i, k]


@jit
def windows(x, offsets, start: int, length: int, out) -> None:
    """Lay the rows around each row side by side [rows, length * width]; zeros beyond its sequence.

    The first of them stands ``start`` rows from it.
    """
    width = x.shape[1]
    for i in range(len(offsets) - 1):
        begin, end = offsets[i], offsets[i + 1]
        for r in range(begin, end):
            for c in range(length):
                source = r + start + c
                if begin <= source < end:
                    for k in range(width):
                        out[r, c * width + k] = x[source, k]
                else:
                    for k in range(width):
                        out[r, c * width + k] = 0


@jit
def windows_grad(dout, offsets, start: int, length: int, dx) -> None:
    """Add up the gradients of what `windows` laid side by side."""
    width = dx.shape[1]
    dx[:] = 0
    for i in range(len(offsets) - 1):
        begin, end = offsets[i], offsets[i + 1]
        for r in range(begin, end):
            for c in range(length):
                source = r + start + c
                if begin <= source < end:
                    for k in range(width):
                        dx[source, k] += dout[r, c * width + k]
