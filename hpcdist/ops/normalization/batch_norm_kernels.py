"""Loops of batch_norm on a CPU. Sums are in double precision, in one order on every machine.

``numbers``: momentum, 1 - momentum and epsilon, in the values' own type. ``moments``: mean and
variance as they were and as they become, then the mean and 1 / deviation that are saved.
"""

from __future__ import annotations

import numpy as np

from hpcdist.base.jit import jit

LANES = 16  # partial sums side by side, so that a sum fills vector registers


@jit
def _sums(x, lanes):
    """Return the sum of a row."""
    lanes[:] = 0
    vector_end = len(x) // LANES * LANES
    for i in range(0, vector_end, LANES):
        for k in range(LANES):
            lanes[k] += x[i + k]
    for i in range(vector_end, len(x)):
        lanes[i - vector_end] += x[i]
    return lanes.sum()


@jit
def _square_sums(x, mean, lanes):
    """Return the sum of squares of a row's distances from ``mean``."""
    lanes[:] = 0
    vector_end = len(x) // LANES * LANES
    for i in range(0, vector_end, LANES):
        for k in range(LANES):
            d = np.float64(x[i + k]) - mean
            lanes[k] += d * d
    for i in range(vector_end, len(x)):
        d = np.float64(x[i]) - mean
        lanes[i - vector_end] += d * d
    return lanes.sum()


@jit
def _slope_sums(x, mean, slope, lanes, products):
    """Return the sum of a row of slopes, and of these times the distances of x from ``mean``."""
    lanes[:], products[:] = 0, 0
    vector_end = len(x) // LANES * LANES
    for i in range(0, vector_end, LANES):
        for k in range(LANES):
            dy = np.float64(slope[i + k])
            lanes[k] += dy
            products[k] += (np.float64(x[i + k]) - mean) * dy
    for i in range(vector_end, len(x)):
        lanes[i - vector_end] += slope[i]
        products[i - vector_end] += (np.float64(x[i]) - mean) * np.float64(slope[i])
    return lanes.sum(), products.sum()


@jit
def _move(
    c, mean, variance, mean_out, variance_out, saved_mean, saved_deviation, numbers, batch_moments
):
    """Keep channel c's moments of the batch and move the running ones towards them."""
    momentum, rest, epsilon = numbers
    batch_mean, batch_variance = batch_moments
    saved_mean[c] = batch_mean
    saved_deviation[c] = 1 / np.sqrt(batch_variance + np.float64(epsilon))
    mean_out[c] = mean[c] * momentum + saved_mean[c] * rest
    variance_out[c] = variance[c] * momentum + variance.dtype.type(batch_variance) * rest


@jit
def _keep(c, mean, variance, mean_out, variance_out, saved_mean, saved_deviation, numbers):
    """Take channel c's running moments for those of the batch."""
    saved_mean[c], mean_out[c], variance_out[c] = mean[c], mean[c], variance[c]
    saved_deviation[c] = 1 / np.sqrt(np.float64(variance[c]) + np.float64(numbers[2]))


@jit
def _moments_of(x, c, lanes):
    """Return channel c's mean and its sum of squares of distances from that."""
    images, _, size = x.shape
    total = 0.0
    for n in range(images):
        total += _sums(x[n, c], lanes)
    centre, total = total / (images * size), 0.0
    for n in range(images):
        total += _square_sums(x[n, c], centre, lanes)
    return centre, total


@jit
def moments(x, means, squares):
    """Write what ``_moments_of`` tells of every channel of [n, channels, elements]."""
    lanes = np.empty(LANES)
    for c in range(x.shape[1]):
        means[c], squares[c] = _moments_of(x, c, lanes)


@jit
def normalize(x, scale, bias, y, moments, numbers, of_batch):
    """Normalize [n, channels, elements], by the moments of the batch or the running ones."""
    images, channels, size = x.shape
    count, lanes = images * size, np.empty(LANES)
    saved_mean, saved_deviation = moments[4], moments[5]
    for c in range(channels):
        if of_batch:
            centre, total = _moments_of(x, c, lanes)
            _move(c, *moments, numbers, (centre, total / count))
        else:
            _keep(c, *moments, numbers)
        factor = scale[c] * saved_deviation[c]
        shift = bias[c] - saved_mean[c] * factor
        for n in range(images):
            source, target = x[n, c], y[n, c]
            for i in range(size):
                target[i] = source[i] * factor + shift


@jit
def _slopes_of(x, c, mean, dy, lanes):
    """Return channel c's sum of dy, and of dy times the distance from the mean."""
    slopes, products = 0.0, 0.0
    for n in range(x.shape[0]):
        of_row = _slope_sums(x[n, c], mean, dy[n, c], lanes[0], lanes[1])
        slopes, products = slopes + of_row[0], products + of_row[1]
    return slopes, products


@jit
def slopes(x, saved_mean, dy, sums, products):
    """Write what ``_slopes_of`` tells of every channel."""
    lanes = np.empty((2, LANES))
    for c in range(x.shape[1]):
        sums[c], products[c] = _slopes_of(x, c, np.float64(saved_mean[c]), dy, lanes)


@jit
def _back(x, c, scale, saved_mean, saved_deviation, dy, dx, sums):
    """Write channel c of dx; ``sums``: of dy, of its products, and of how many elements."""
    # dx = factor (dy - mean(dy) - normed mean(dy normed))
    #    = factor dy + slant (x - mean) + level
    slopes, products, count = sums
    deviation = np.float64(saved_deviation[c])
    factor = scale[c] * saved_deviation[c]
    slant, level = scale[c] - scale[c], scale[c] - scale[c]
    if count > 0:
        slant = scale.dtype.type(-factor * deviation * deviation * products / count)
        level = scale.dtype.type(-factor * slopes / count)
    for n in range(x.shape[0]):
        source, slope, target = x[n, c], dy[n, c], dx[n, c]
        for i in range(x.shape[2]):
            target[i] = slope[i] * factor + ((source[i] - saved_mean[c]) * slant + level)


@jit
def back(x, scale, saved_mean, saved_deviation, dy, dx, sums, products, count):
    """Write dx of [n, channels, elements] from sums over ``count`` elements of each channel."""
    for c in range(x.shape[1]):
        _back(x, c, scale, saved_mean, saved_deviation, dy, dx, (sums[c], products[c], count))


@jit
def normalize_back(x, scale, saved_mean, saved_deviation, dy, dx, dscale, dbias, of_batch):
    """Write the gradients of ``normalize``; an empty dx is not wanted."""
    images, channels, size = x.shape
    count, lanes = images * size, np.empty((2, LANES))
    for c in range(channels):
        slopes, products = _slopes_of(x, c, np.float64(saved_mean[c]), dy, lanes)
        dbias[c], dscale[c] = slopes, products * np.float64(saved_deviation[c])
        if dx.size:
            sums = (slopes, products, count if of_batch else 0)
            _back(x, c, scale, saved_mean, saved_deviation, dy, dx, sums)


@jit
def moments_channels_last(x, means, squares):
    """Write the moments of [n, elements, channels], as ``moments``."""
    images, size, channels = x.shape
    means[:], squares[:] = 0, 0
    for n in range(images):
        for i in range(size):
            for c in range(channels):
                means[c] += x[n, i, c]
    means /= images * size
    for n in range(images):
        for i in range(size):
            for c in range(channels):
                squares[c] += (x[n, i, c] - means[c]) ** 2


@jit
def normalize_channels_last(x, scale, bias, y, moments, numbers, of_batch):
    """Normalize [n, elements, channels], as ``normalize``."""
    images, size, channels = x.shape
    centre, spread = np.zeros(channels), np.zeros(channels)
    if of_batch:
        moments_channels_last(x, centre, spread)
        spread /= images * size
    factor, shift = np.empty_like(scale), np.empty_like(scale)
    saved_mean, saved_deviation = moments[4], moments[5]
    for c in range(channels):
        if of_batch:
            _move(c, *moments, numbers, (centre[c], spread[c]))
        else:
            _keep(c, *moments, numbers)
        factor[c] = scale[c] * saved_deviation[c]
        shift[c] = bias[c] - saved_mean[c] * factor[c]
    for n in range(images):
        for i in range(size):
            for c in range(channels):
                y[n, i, c] = x[n, i, c] * factor[c] + shift[c]


@jit
def slopes_channels_last(x, saved_mean, dy, sums, products):
    """Write the sums of [n, elements, channels], as ``slopes``."""
    images, size, channels = x.shape
    sums[:], products[:] = 0, 0
    for n in range(images):
        for i in range(size):
            for c in range(channels):
                sums[c] += dy[n, i, c]
                products[c] += (x[n, i, c] - np.float64(saved_mean[c])) * dy[n, i, c]


@jit
def back_channels_last(x, scale, saved_mean, saved_deviation, dy, dx, sums, products, count):
    """Write dx of [n, elements, channels], as ``back``."""
    images, size, channels = x.shape
    slant, level = np.zeros_like(scale), np.zeros_like(scale)
    for c in range(channels):
        deviation = np.float64(saved_deviation[c])
        if count > 0:
            factor = np.float64(scale[c]) * deviation
            slant[c] = -factor * deviation * deviation * products[c] / count
            level[c] = -factor * sums[c] / count
    for n in range(images):
        for i in range(size):
            for c in range(channels):
                factor = scale[c] * saved_deviation[c]
                away = x[n, i, c] - saved_mean[c]
                dx[n, i, c] = dy[n, i, c] * factor + (away * slant[c] + level[c])


@jit
def normalize_channels_last_back(
    x, scale, saved_mean, saved_deviation, dy, dx, dscale, dbias, of_batch
):
    """Write the gradients of ``normalize_channels_last``; an empty dx is not wanted."""
    images, size, channels = x.shape
    sums, products = np.empty(channels), np.empty(channels)
    slopes_channels_last(x, saved_mean, dy, sums, products)
    for c in range(channels):
        dbias[c], dscale[c] = sums[c], products[c] * np.float64(saved_deviation[c])
    if dx.size:
        count = images * size if of_batch else 0
        back_channels_last(x, scale, saved_mean, saved_deviation, dy, dx, sums, products, count)
