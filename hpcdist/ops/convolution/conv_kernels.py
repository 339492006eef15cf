"""Loops of convolutions on a CPU: patches of images as columns, and back.

Images are given as their memory, one row of numbers, with ``place``: the distances of images,
channels, rows and pixels in it, then the numbers of rows and pixels. ``geometry`` is (stride,
dilation, padding before) of rows, then of columns. Indices are unsigned where it matters: a signed
one may be counted from the end, which keeps loops out of vector registers.
"""

from __future__ import annotations

import numpy as np

from hpcdist.base.jit import jit


@jit
def _span(windows, extent, stride, offset):
    """Return the windows [first, last) whose tap at ``offset`` lies within the image."""
    first = max(0, -(offset // stride))
    return first, max(first, min(windows, (extent - 1 - offset) // stride + 1))


@jit
def _zero(x, begin, count):
    i = np.uint64(begin)
    for j in range(np.uint64(max(0, count))):
        x[i + j] = 0


@jit
def copy(target, to, source, begin, step, count):
    """Write source[begin::step] into target[to:]."""
    t, s, n = np.uint64(to), np.uint64(begin), np.uint64(max(0, count))
    if step == 1:
        for j in range(n):
            target[t + j] = source[s + j]
    elif step == 2:
        for j in range(n):
            target[t + j] = source[s + np.uint64(2) * j]
    else:
        d = np.uint64(step)
        for j in range(n):
            target[t + j] = source[s + d * j]


@jit
def _add(target, to, step, source, begin, count):
    """Add source[begin:] to target[to::step]."""
    t, s, n = np.uint64(to), np.uint64(begin), np.uint64(max(0, count))
    if step == 1:
        for j in range(n):
            target[t + j] += source[s + j]
    else:
        d = np.uint64(step)
        for j in range(n):
            target[t + d * j] += source[s + j]


@jit
def gather(x, place, columns, shape, geometry, image, row):
    """Write patches into columns [channels, taps, taps, images, rows, windows of a row].

    From ``image`` and window row ``row`` on; zeros where a patch leaves the image.
    """
    sh, dh, ph, sw, dw, pw = geometry
    to_image, to_channel, to_row, to_pixel, height, width = place
    channels, taps_h, taps_w, images, rows, windows = shape
    # Windows that lie as the pixels do: a whole plane is one run, but for its edges.
    in_runs = sh == sw == to_pixel == 1 and width == windows == to_row
    at = 0
    for c in range(channels):
        for a in range(taps_h):
            upper, lower = _span(row + rows, height, sh, a * dh - ph)
            upper, lower = max(0, upper - row), max(0, lower - row)
            for b in range(taps_w):
                offset = b * dw - pw
                first, last = _span(windows, width, sw, offset)
                top, bottom = (upper, lower) if first < last else (rows, rows)
                for n in range(images):
                    _zero(columns, at, top * windows)
                    _zero(columns, at + bottom * windows, (rows - bottom) * windows)
                    source = (image + n) * to_image + c * to_channel
                    source += ((row + top) * sh - ph + a * dh) * to_row
                    source += (first * sw + offset) * to_pixel
                    if in_runs and bottom > top:
                        run = (bottom - top - 1) * windows + last - first
                        copy(columns, at + top * windows + first, x, source, 1, run)
                    for r in range(top, bottom):
                        line = at + r * windows
                        _zero(columns, line, first)
                        if not in_runs:
                            step = sw * to_pixel
                            copy(columns, line + first, x, source, step, last - first)
                            source += sh * to_row
                        _zero(columns, line + last, windows - last)
                    at += rows * windows


@jit
def scatter(columns, shape, x, place, geometry, image, row):
    """Add columns to the places that ``gather`` takes them from; columns are spoilt."""
    sh, dh, ph, sw, dw, pw = geometry
    to_image, to_channel, to_row, to_pixel, height, width = place
    channels, taps_h, taps_w, images, rows, windows = shape
    in_runs = sh == sw == to_pixel == 1 and width == windows == to_row
    at = 0
    for c in range(channels):
        for a in range(taps_h):
            upper, lower = _span(row + rows, height, sh, a * dh - ph)
            upper, lower = max(0, upper - row), max(0, lower - row)
            for b in range(taps_w):
                offset = b * dw - pw
                first, last = _span(windows, width, sw, offset)
                top, bottom = (upper, lower) if first < last else (rows, rows)
                for n in range(images):
                    target = (image + n) * to_image + c * to_channel
                    target += ((row + top) * sh - ph + a * dh) * to_row
                    target += (first * sw + offset) * to_pixel
                    for r in range(top, bottom):
                        line = at + r * windows
                        if in_runs:
                            _zero(columns, line, first)
                            _zero(columns, line + last, windows - last)
                        else:
                            count, step = last - first, sw * to_pixel
                            _add(x, target, step, columns, line + first, count)
                            target += sh * to_row
                    if in_runs and bottom > top:
                        run = (bottom - top - 1) * windows + last - first
                        _add(x, target, 1, columns, at + top * windows + first, run)
                    at += rows * windows
