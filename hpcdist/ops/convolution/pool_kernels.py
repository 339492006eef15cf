"""Loops of pools on a CPU. Window i of rows covers the rows starts[i] to ends[i]; so of columns.

Images are [n, channels, rows, columns] in any layout. Nothing is reordered.
"""

from __future__ import annotations

import numpy as np

from hpcdist.base.jit import jit


@jit
def max_pool(x, y, rows, columns):
    """Write the greatest element of each window."""
    for n in range(y.shape[0]):
        for c in range(y.shape[1]):
            for i in range(y.shape[2]):
                for j in range(y.shape[3]):
                    best = x[n, c, rows[0, i], columns[0, j]]
                    for h in range(rows[0, i], rows[1, i]):
                        for w in range(columns[0, j], columns[1, j]):
                            best = max(best, x[n, c, h, w])
                    y[n, c, i, j] = best


@jit
def max_pool_back(x, y, dy, dx, rows, columns):
    """Add each window's slope to the first of its elements that is the greatest."""
    dx[:] = 0
    for n in range(y.shape[0]):
        for c in range(y.shape[1]):
            for i in range(y.shape[2]):
                for j in range(y.shape[3]):
                    h, w, last = rows[0, i], columns[0, j], columns[1, j]
                    best = y[n, c, i, j]
                    while x[n, c, h, w] != best:
                        w += 1
                        if w == last:
                            h, w = h + 1, columns[0, j]
                            if h == rows[1, i]:
                                break  # not a number: no element equals it
                    if h < rows[1, i]:
                        dx[n, c, h, w] += dy[n, c, i, j]


@jit
def max_pool_index(x, y, index, rows, columns):
    """Write the greatest element of each window, and its place in the image."""
    for n in range(y.shape[0]):
        for c in range(y.shape[1]):
            for i in range(y.shape[2]):
                for j in range(y.shape[3]):
                    best, at = x[n, c, rows[0, i], columns[0, j]], -1
                    for h in range(rows[0, i], rows[1, i]):
                        for w in range(columns[0, j], columns[1, j]):
                            if at < 0 or x[n, c, h, w] > best:
                                best, at = x[n, c, h, w], h * x.shape[3] + w
                    y[n, c, i, j], index[n, c, i, j] = best, at


@jit
def max_pool_index_back(index, dy, dx):
    """Add each window's slope to the element of its index."""
    dx[:] = 0
    for n in range(dy.shape[0]):
        for c in range(dy.shape[1]):
            for i in range(dy.shape[2]):
                for j in range(dy.shape[3]):
                    at = np.int64(index[n, c, i, j])
                    dx[n, c, at // dx.shape[3], at % dx.shape[3]] += dy[n, c, i, j]


@jit
def avg_pool(x, y, rows, columns, weights):
    """Write the sum of each window times its weight."""
    for n in range(y.shape[0]):
        for c in range(y.shape[1]):
            for i in range(y.shape[2]):
                for j in range(y.shape[3]):
                    total = weights[i, j] - weights[i, j]  # zero in the images' own type
                    for h in range(rows[0, i], rows[1, i]):
                        for w in range(columns[0, j], columns[1, j]):
                            total += x[n, c, h, w]
                    y[n, c, i, j] = total * weights[i, j]


@jit
def avg_pool_back(dy, dx, rows, columns, weights):
    """Add each window's slope times its weight to all of its elements."""
    dx[:] = 0
    for n in range(dy.shape[0]):
        for c in range(dy.shape[1]):
            for i in range(dy.shape[2]):
                for j in range(dy.shape[3]):
                    slope = dy[n, c, i, j] * weights[i, j]
                    for h in range(rows[0, i], rows[1, i]):
                        for w in range(columns[0, j], columns[1, j]):
                            dx[n, c, h, w] += slope
