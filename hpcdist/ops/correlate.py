"""Correlation of images with filters and its two gradients: what convolutions are made of.

y[n, f, i, j] = sum over c, a, b of w[f, c, a, b] x[n, c, tap a of window i, tap b of window j], the
channels c in the filter's group. Images are views [n, channels, rows, columns] in any layout.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpcdist import settings
from hpcdist.ops.scratch import Call
from hpcdist.ops.windows import Axis


@dataclass(frozen=True)
class Correlation:
    """Windows along rows and columns, and how many groups channels and filters form."""

    rows: Axis
    columns: Axis
    groups: int

    @property
    def geometry(self) -> tuple[int, ...]:
        """Return what the loops in conv_kernels take."""
        h, w = self.rows, self.columns
        return (h.stride, h.dilation, h.before, w.stride, w.dilation, w.before)

    @property
    def pointwise(self) -> bool:
        """Tell whether every pixel is one window by itself."""
        return self.rows.plain and self.columns.plain

    @property
    def windows(self) -> int:
        """Number of windows in an image."""
        return self.rows.windows * self.columns.windows

    @property
    def taps(self) -> int:
        """Number of elements of a window."""
        return self.rows.taps * self.columns.taps

    def flat(self) -> Correlation:
        """Return a pointwise correlation of images whose pixels lie in one row."""
        size = self.windows
        return replace(self, rows=Axis(1, 1, 1, 1, 0, 1), columns=Axis(size, 1, 1, 1, 0, size))

    def flipped(self) -> Correlation:
        """Return the correlation that is the gradient of this one, whose strides are 1."""
        return replace(self, rows=self.rows.flipped(), columns=self.columns.flipped())

    def matrices(self, w: Any) -> Any:
        """View filters [filters, channels of a group, taps, taps] as one matrix for each group."""
        return w.reshape(self.groups, len(w) // self.groups, -1)

    def is_depthwise(self, w: Any) -> bool:
        """Tell whether every filter sees one channel only: too little for matrix products."""
        return self.groups > 1 and bool(w.shape[1] == 1)


def correlate(xp: Any, c: Correlation, x: Any, w: Any, y: Any) -> Call:
    """Return what writes y."""
    call: Call = _made_for(xp, c, w.shape[1]).correlate(xp, c, x, w, y)
    return call


def correlate_back(xp: Any, c: Correlation, w: Any, dy: Any, dx: Any) -> Call:
    """Return what writes the gradient by x."""
    call: Call = _made_for(xp, c, w.shape[1]).correlate_back(xp, c, w, dy, dx)
    return call


def correlate_weights(xp: Any, c: Correlation, x: Any, dy: Any, dw: Any) -> Call:
    """Return what writes the gradient by w."""
    call: Call = _made_for(xp, c, dw.shape[1]).correlate_weights(xp, c, x, dy, dw)
    return call


def _made_for(xp: Any, c: Correlation, channels: int) -> Any:
    """Return the module that has the three: for numpy (it imports numba), for cupy, by torch.

    ``channels``: how many of them each filter sees.
    """
    if settings.KERNELS.read() == "torch" and (xp is not np or _is_for_torch(c, channels)):
        return importlib.import_module("hpcdist.ops.correlate_torch")
    kind = "cpu" if xp is np else "device"
    return importlib.import_module(f"hpcdist.ops.correlate_{kind}")


def _is_for_torch(c: Correlation, channels: int) -> bool:
    """Tell whether torch is the faster one on a CPU, as measured layer by layer (docs/images.md).

    Not with windows of one pixel, few channels, or groups of several channels.
    """
    if c.groups > 1:
        return c.taps > 1 and channels == 1
    return c.taps > 1 and channels >= 6
