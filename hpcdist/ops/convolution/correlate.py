"""Correlation of images with filters and its two gradients, the basis of convolutions.

y[n, f, i, j] = sum over c, a, b of w[f, c, a, b] x[n, c, tap a of window i, tap b of window j], the
channels c in the filter's group. Images are views [n, channels, rows, columns] in any layout.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from hpcdist.ops.by_torch import Kernels, kernels_of
from hpcdist.ops.convolution.windows import Correlation
from hpcdist.ops.types import ArrayModule, Call


def correlate(xp: ArrayModule, c: Correlation, x, w, y) -> Call:
    """Return the call that writes y."""
    call: Call = _implementation(xp, c, w.shape[1]).correlate(xp, c, x, w, y)
    return call


def correlate_back(xp: ArrayModule, c: Correlation, w, dy, dx) -> Call:
    """Return the call that writes the gradient by x."""
    call: Call = _implementation(xp, c, w.shape[1]).correlate_back(xp, c, w, dy, dx)
    return call


def correlate_weights(xp: ArrayModule, c: Correlation, x, dy, dw) -> Call:
    """Return the call that writes the gradient by w."""
    call: Call = _implementation(xp, c, dw.shape[1]).correlate_weights(xp, c, x, dy, dw)
    return call


def _implementation(xp: ArrayModule, c: Correlation, channels: int) -> Any:
    """Return the module that has the three: for numpy (it imports numba), for cupy, by torch.

    ``channels``: how many of them each filter sees.
    """
    by_torch = kernels_of(xp) is not Kernels.OWN
    if by_torch and (xp is not np or _is_for_torch(c, channels)):
        return importlib.import_module("hpcdist.ops.convolution.correlate_torch")
    kind = "cpu" if xp is np else "device"
    return importlib.import_module(f"hpcdist.ops.convolution.correlate_{kind}")


def _is_for_torch(c: Correlation, channels: int) -> bool:
    """Return whether torch is the faster one on a CPU, as measured layer by layer (docs/images.md).

    Not with windows of one pixel, few channels, or groups of several channels.
    """
    if c.groups > 1:
        return c.taps > 1 and channels == 1
    return c.taps > 1 and channels >= 6
