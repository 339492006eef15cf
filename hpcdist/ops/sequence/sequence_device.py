"""What `sequence_kernels` does, in operations on whole arrays, for a GPU.

Sequences are laid out as a padded array [sequences, longest, width]: sums and maxima then run
along one axis, in the same order every time. Offsets and indices are numpy's, on the host.
"""

from __future__ import annotations

import numpy as np

from hpcdist.ops.embedding.run_kernels import add_runs
from hpcdist.ops.types import ArrayModule, DeviceArray


def _padded(xp: ArrayModule, x: DeviceArray, offsets: np.ndarray, fill: float) -> DeviceArray:
    lengths = np.diff(offsets)
    places = np.arange(int(lengths.max(initial=0)))
    inside = places < lengths[:, None]
    rows = np.where(inside, offsets[:-1, None] + places, 0)
    if not rows.size:
        return xp.full((len(lengths), 1, x.shape[1]), fill, x.dtype)
    gathered = xp.take(x, xp.asarray(rows), axis=0)
    return xp.where(xp.asarray(inside[..., None]), gathered, x.dtype.type(fill))


def _owners(xp: ArrayModule, offsets: np.ndarray) -> DeviceArray:
    return xp.asarray(np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)))


def sum_rows(
    xp: ArrayModule, x: DeviceArray, offsets: np.ndarray, divisors: np.ndarray, out: DeviceArray
) -> None:
    """See `sequence_kernels.sum_rows`."""
    xp.sum(_padded(xp, x, offsets, 0), axis=1, out=out)
    xp.divide(out, xp.asarray(divisors.reshape(-1, 1)), out=out)


def spread_rows(
    xp: ArrayModule,
    values: DeviceArray,
    offsets: np.ndarray,
    divisors: np.ndarray,
    out: DeviceArray,
) -> None:
    """See `sequence_kernels.spread_rows`."""
    divided = values / xp.asarray(divisors.reshape(-1, 1))
    if len(out):
        xp.take(divided, _owners(xp, offsets), axis=0, out=out)


def max_rows(
    xp: ArrayModule, x: DeviceArray, offsets: np.ndarray, out: DeviceArray, index: DeviceArray
) -> None:
    """See `sequence_kernels.max_rows`."""
    padded = _padded(xp, x, offsets, -np.inf)
    starts = xp.asarray(offsets[:-1].reshape(-1, 1))
    full = xp.asarray((np.diff(offsets) > 0).reshape(-1, 1))
    out[...] = xp.where(full, padded.max(axis=1), out)
    index[...] = xp.where(full, padded.argmax(axis=1) + starts, -1)


def put_columns(xp: ArrayModule, values: DeviceArray, index: DeviceArray, out: DeviceArray) -> None:
    """See `sequence_kernels.put_columns`."""
    out.fill(0)
    flat = (index * values.shape[1] + xp.arange(values.shape[1])).reshape(-1)
    present = xp.flatnonzero(index.reshape(-1) >= 0)
    out.reshape(-1)[flat[present]] = values.reshape(-1)[present]


def softmax(xp: ArrayModule, x: DeviceArray, offsets: np.ndarray, out: DeviceArray) -> None:
    """See `sequence_kernels.softmax`."""
    if not len(x):
        return
    owners = _owners(xp, offsets)
    largest = _padded(xp, x, offsets, -np.inf).max(axis=1)
    xp.exp(x - xp.take(largest, owners, axis=0), out=out)
    total = _padded(xp, out, offsets, 0).sum(axis=1)
    xp.divide(out, xp.take(total, owners, axis=0), out=out)


def softmax_grad(
    xp: ArrayModule, out: DeviceArray, dout: DeviceArray, offsets: np.ndarray, dx: DeviceArray
) -> None:
    """See `sequence_kernels.softmax_grad`."""
    if not len(out):
        return
    dot = _padded(xp, out * dout, offsets, 0).sum(axis=1)
    xp.subtract(dout, xp.take(dot, _owners(xp, offsets), axis=0), out=dx)
    xp.multiply(dx, out, out=dx)


def add_rows(xp: ArrayModule, values: DeviceArray, index: np.ndarray, out: DeviceArray) -> None:
    """See `sequence_kernels.add_rows`: the rows of one sum in their order."""
    out.fill(0)
    order = np.argsort(index, kind="stable")
    order = order[index[order] >= 0]
    if not len(order):
        return
    rows = xp.asarray(index[order])
    total = xp.empty((len(order), values.shape[1]), values.dtype)
    add_runs(xp, rows, xp.asarray(order), values, total, spread=True)
    out[rows] = total


def _shifted(offsets: np.ndarray, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that have a neighbour ``shift`` rows on in their sequence, and those."""
    rows = np.arange(offsets[-1])
    lengths = np.diff(offsets)
    begin, end = np.repeat(offsets[:-1], lengths), np.repeat(offsets[1:], lengths)
    inside = (rows + shift >= begin) & (rows + shift < end)
    return rows[inside], rows[inside] + shift


def windows(
    xp: ArrayModule, x: DeviceArray, offsets: np.ndarray, start: int, length: int, out: DeviceArray
) -> None:
    """See `sequence_kernels.windows`."""
    out.fill(0)
    for c in range(length):
        rows, sources = (xp.asarray(i) for i in _shifted(offsets, start + c))
        column = out[:, c * x.shape[1] : (c + 1) * x.shape[1]]
        column[rows] = x[sources]


def windows_grad(
    xp: ArrayModule,
    dout: DeviceArray,
    offsets: np.ndarray,
    start: int,
    length: int,
    dx: DeviceArray,
) -> None:
    """See `sequence_kernels.windows_grad`."""
    dx.fill(0)
    for c in range(length):
        rows, sources = (xp.asarray(i) for i in _shifted(offsets, start + c))
        dx[sources] = dx[sources] + dout[:, c * dx.shape[1] : (c + 1) * dx.shape[1]][rows]
