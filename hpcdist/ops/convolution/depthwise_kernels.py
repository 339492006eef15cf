"""Loops of depthwise convolutions on a CPU, where a filter sees one channel only.

A padded plane is laid out as sub-planes, one for each remainder of rows and columns divided by the
strides: whatever the strides, a tap of all windows is then one run in one sub-plane. ``place`` and
``geometry`` are those of `hpcdist.ops.convolution.conv_kernels`; ``shape`` is (images, channels,
filters of a channel, taps of rows, taps of columns).
"""

from __future__ import annotations

import numpy as np

from hpcdist.base.jit import jit
from hpcdist.ops.convolution.conv_kernels import copy

LANES = 16  # partial sums side by side, so that a sum fills vector registers


@jit
def _add_product(target, to, weight, source, begin, count):
    t, s = np.uint64(to), np.uint64(begin)
    for j in range(np.uint64(count)):
        target[t + j] += weight * source[s + j]


@jit
def _dot(x, y, begin, count, lanes):
    """Return the sum of x * y[begin:]."""
    lanes[:] = 0
    s, vector_end = np.uint64(begin), count // LANES * LANES
    for i in range(np.uint64(0), np.uint64(vector_end), np.uint64(LANES)):
        for k in range(np.uint64(LANES)):
            lanes[k] += x[i + k] * y[s + i + k]
    for i in range(np.uint64(vector_end), np.uint64(count)):
        lanes[i - np.uint64(vector_end)] += x[i] * y[s + i]
    return lanes.sum()


@jit
def _sub_planes(geometry, taps_h, taps_w, rows, windows):
    """Return the numbers of rows and columns of a sub-plane."""
    sh, dh, _, sw, dw, _ = geometry
    return rows + (taps_h - 1) * dh // sh, windows + (taps_w - 1) * dw // sw


@jit
def _new(geometry, tall, wide, like):
    """Return zeros for all sub-planes, and for the last run to reach over the end."""
    return np.zeros(geometry[0] * geometry[3] * tall * wide + wide, like.dtype)


@jit
def _run(geometry, tall, wide, a, b):
    """Return where the run of tap (a, b) begins."""
    sh, dh, _, sw, dw, _ = geometry
    sub = a * dh % sh * sw + b * dw % sw
    return (sub * tall + a * dh // sh) * wide + b * dw // sw


@jit
def _exchange(x, plane, place, planes, geometry, tall, wide, lay):
    """Copy a plane of an image into its sub-planes, or back if not ``lay``."""
    sh, _, ph, sw, _, pw = geometry
    to_row, to_pixel, height, width = place[2:]
    for h in range(height):
        row, line = (h + ph) // sh, plane + h * to_row
        if not 0 <= h + ph < tall * sh:
            continue
        for k in range(sw):
            first = (k - pw) % sw  # the first pixel that belongs to sub-plane k
            column = (first + pw) // sw
            count = max(0, min((width - first + sw - 1) // sw, wide - column))
            at = (((h + ph) % sh * sw + k) * tall + row) * wide + column
            if lay:
                copy(planes, at, x, line + first * to_pixel, sw * to_pixel, count)
            else:
                for j in range(count):
                    x[line + (first + j * sw) * to_pixel] = planes[at + j]


@jit
def _lay_rows(y, line, place, out, rows, windows, wide):
    """Copy rows of windows into rows of ``wide`` columns, whose rest stays as it is."""
    for r in range(rows):
        copy(out, r * wide, y, line + r * place[2], place[3], windows)


@jit
def depthwise(x, x_place, w, y, y_place, shape, geometry):
    """Write y[:, c * m + k] = x[:, c] correlated with w[c * m + k]; m filters to a channel."""
    images, channels, many, taps_h, taps_w = shape
    rows, windows = y_place[4], y_place[5]
    tall, wide = _sub_planes(geometry, taps_h, taps_w, rows, windows)
    planes = _new(geometry, tall, wide, x)
    out = np.empty(rows * wide, x.dtype)
    for n in range(images):
        for c in range(channels):
            plane = n * x_place[0] + c * x_place[1]
            _exchange(x, plane, x_place, planes, geometry, tall, wide, True)
            for f in range(c * many, c * many + many):
                out[:] = 0
                for a in range(taps_h):
                    for b in range(taps_w):
                        run = _run(geometry, tall, wide, a, b)
                        weight = w[(f * taps_h + a) * taps_w + b]
                        _add_product(out, 0, weight, planes, run, rows * wide)
                line = n * y_place[0] + f * y_place[1]
                for r in range(rows):
                    for j in range(windows):
                        y[line + r * y_place[2] + j * y_place[3]] = out[r * wide + j]


@jit
def depthwise_back(w, dy, y_place, dx, x_place, shape, geometry):
    """Write the gradient of ``depthwise`` by x."""
    images, channels, many, taps_h, taps_w = shape
    rows, windows = y_place[4], y_place[5]
    tall, wide = _sub_planes(geometry, taps_h, taps_w, rows, windows)
    planes = _new(geometry, tall, wide, dx)
    slopes = np.zeros(rows * wide, dx.dtype)
    dx[:] = 0
    for n in range(images):
        for c in range(channels):
            planes[:] = 0
            for f in range(c * many, c * many + many):
                line = n * y_place[0] + f * y_place[1]
                _lay_rows(dy, line, y_place, slopes, rows, windows, wide)
                for a in range(taps_h):
                    for b in range(taps_w):
                        run = _run(geometry, tall, wide, a, b)
                        weight = w[(f * taps_h + a) * taps_w + b]
                        _add_product(planes, run, weight, slopes, 0, rows * wide)
            plane = n * x_place[0] + c * x_place[1]
            _exchange(dx, plane, x_place, planes, geometry, tall, wide, False)


@jit
def depthwise_weights(x, x_place, dy, y_place, dw, shape, geometry):
    """Write the gradient of ``depthwise`` by w."""
    images, channels, many, taps_h, taps_w = shape
    rows, windows = y_place[4], y_place[5]
    tall, wide = _sub_planes(geometry, taps_h, taps_w, rows, windows)
    planes = _new(geometry, tall, wide, x)
    slopes, lanes = np.zeros(rows * wide, x.dtype), np.empty(LANES, x.dtype)
    dw[:] = 0
    for n in range(images):
        for c in range(channels):
            plane = n * x_place[0] + c * x_place[1]
            _exchange(x, plane, x_place, planes, geometry, tall, wide, True)
            for f in range(c * many, c * many + many):
                line = n * y_place[0] + f * y_place[1]
                _lay_rows(dy, line, y_place, slopes, rows, windows, wide)
                for a in range(taps_h):
                    for b in range(taps_w):
                        run = _run(geometry, tall, wide, a, b)
                        term = _dot(slopes, planes, run, rows * wide, lanes)
                        dw[(f * taps_h + a) * taps_w + b] += term
