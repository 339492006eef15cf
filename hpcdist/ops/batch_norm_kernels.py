"""Loops of batch_norm on a CPU. Sums are in double precision, in one order on every machine.

``numbers``: momentum, 1 - momentum and epsilon, in the values' own type.
"""

from __future__ import annotations

import numpy as np

from hpcdist.jit import jit

LANES = 16  # partial sums side by side, so that a sum fills vector registers


@jit
def _sums(x, lanes):
    """Return the sum of a row."""
    lanes[:] = 0
    whole = len(x) // LANES * LANES
    for i in range(0, whole, LANES):
        for k in range(LANES):
            lanes[k] += x[i + k]
    for i in range(whole, len(x)):
        lanes[i - whole] += x[i]
    return lanes.sum()


@jit
def _square_sums(x, mean, lanes):
    """Return the sum of squares of a row's distances from ``mean``."""
    lanes[:] = 0
    whole = len(x) // LANES * LANES
    for i in range(0, whole, LANES):
        for k in range(LANES):
            d = np.float64(x[i + k]) - mean
            lanes[k] += d * d
    for i in range(whole, len(x)):
        d = np.float64(x[i]) - mean
        lanes[i - whole] += d * d
    return lanes.sum()


@jit
def _product_sums(x, mean, slope, lanes):
    """Return the sum of a row's distances from ``mean`` times ``slope``."""
    lanes[:] = 0
    whole = len(x) // LANES * LANES
    for i in range(0, whole, LANES):
        for k in range(LANES):
            lanes[k] += (np.float64(x[i + k]) - mean) * np.float64(slope[i + k])
    for i in range(whole, len(x)):
        lanes[i - whole] += (np.float64(x[i]) - mean) * np.float64(slope[i])
    return lanes.sum()


@jit
def _move(c, mean, variance, mean_out, variance_out, saved_mean, saved_deviation, numbers, found):
    """Keep channel c's moments of the batch and move the running ones towards them."""
    momentum, rest, epsilon = numbers
    batch_mean, batch_variance = found
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
def normalize(
    x,
    scale,
    bias,
    y,
    mean,
    variance,
    mean_out,
    variance_out,
    saved_mean,
    saved_deviation,
    numbers,
    of_batch,
):
    """Normalize [n, channels, elements], by the moments of the batch or the running ones."""
    images, channels, size = x.shape
    count, lanes = images * size, np.empty(LANES)
    for c in range(channels):
        if of_batch:
            total = 0.0
            for n in range(images):
                total += _sums(x[n, c], lanes)
            centre, total = total / count, 0.0
            for n in range(images):
                total += _square_sums(x[n, c], centre, lanes)
            moments = (mean, variance, mean_out, variance_out, saved_mean, saved_deviation)
            _move(c, *moments, numbers, (centre, total / count))
        else:
            moments = (mean, variance, mean_out, variance_out, saved_mean, saved_deviation)
            _keep(c, *moments, numbers)
        factor = scale[c] * saved_deviation[c]
        shift = bias[c] - saved_mean[c] * factor
        for n in range(images):
            source, target = x[n, c], y[n, c]
            for i in range(size):
                target[i] = source[i] * factor + shift


@jit
def normalize_back(x, scale, saved_mean, saved_deviation, dy, dx, dscale, dbias, of_batch):
    """Write the gradients of ``normalize``; an empty dx is not wanted."""
    images, channels, size = x.shape
    count, lanes = images * size, np.empty(LANES)
    for c in range(channels):
        slopes, products, centre = 0.0, 0.0, np.float64(saved_mean[c])
        for n in range(images):
            slopes += _sums(dy[n, c], lanes)
            products += _product_sums(x[n, c], centre, dy[n, c], lanes)
        deviation = np.float64(saved_deviation[c])
        dbias[c], dscale[c] = slopes, products * deviation
        if dx.size == 0:
            continue
        # dx = factor (dy - mean(dy) - normed mean(dy normed))
        #    = factor dy + slant (x - mean) + level
        factor = scale[c] * saved_deviation[c]
        slant, level = scale[c] - scale[c], scale[c] - scale[c]
        if of_batch:
            slant = scale.dtype.type(-factor * deviation * deviation * products / count)
            level = scale.dtype.type(-factor * slopes / count)
        for n in range(images):
            source, slope, target = x[n, c], dy[n, c], dx[n, c]
            for i in range(size):
                target[i] = slope[i] * factor + ((source[i] - saved_mean[c]) * slant + level)


@jit
def normalize_channels_last(
    x,
    scale,
    bias,
    y,
    mean,
    variance,
    mean_out,
    variance_out,
    saved_mean,
    saved_deviation,
    numbers,
    of_batch,
):
    """Normalize [n, elements, channels], as ``normalize``."""
    images, size, channels = x.shape
    centre, spread = np.zeros(channels), np.zeros(channels)
    if of_batch:
        for n in range(images):
            for i in range(size):
                for c in range(channels):
                    centre[c] += x[n, i, c]
        centre /= images * size
        for n in range(images):
            for i in range(size):
                for c in range(channels):
                    spread[c] += (x[n, i, c] - centre[c]) ** 2
        spread /= images * size
    factor, shift = np.empty_like(scale), np.empty_like(scale)
    moments = (mean, variance, mean_out, variance_out, saved_mean, saved_deviation)
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
def normalize_channels_last_back(
    x, scale, saved_mean, saved_deviation, dy, dx, dscale, dbias, of_batch
):
    """Write the gradients of ``normalize_channels_last``; an empty dx is not wanted."""
    images, size, channels = x.shape
    slopes, products = np.zeros(channels), np.zeros(channels)
    for n in range(images):
        for i in range(size):
            for c in range(channels):
                slopes[c] += dy[n, i, c]
                products[c] += (x[n, i, c] - np.float64(saved_mean[c])) * dy[n, i, c]
    slant, level = np.zeros_like(scale), np.zeros_like(scale)
    for c in range(channels):
        deviation = np.float64(saved_deviation[c])
        dbias[c], dscale[c] = slopes[c], products[c] * deviation
        if of_batch:
            factor, count = np.float64(scale[c]) * deviation, images * size
            slant[c] = -factor * deviation * deviation * products[c] / count
            level[c] = -factor * slopes[c] / count
    if dx.size == 0:
        return
    for n in range(images):
        for i in range(size):
            for c in range(channels):
                factor = scale[c] * saved_deviation[c]
                away = x[n, i, c] - saved_mean[c]
                dx[n, i, c] = dy[n, i, c] * factor + (away * slant[c] + level[c])
