"""Windows over the two axes of images: where they lie, and which layout the images have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpcdist.errors import GraphError

LAYOUTS = ("NCHW", "NHWC")


@dataclass(frozen=True)
class Axis:
    """Windows along one axis: tap ``t`` of window ``i`` is i * stride - before + t * dilation."""

    extent: int  # of the image, -1 if not known
    taps: int
    stride: int
    dilation: int
    before: int  # padding at the beginning
    windows: int  # -1 if not known

    def covered(self, tap: int) -> tuple[int, int, slice]:
        """Return windows [first, last) whose tap lies within the image, and where it lies."""
        offset = tap * self.dilation - self.before
        first = max(0, -(offset // self.stride))
        last = min(self.windows, (self.extent - 1 - offset) // self.stride + 1)
        last = max(first, last)
        begin = first * self.stride + offset
        return first, last, slice(begin, begin + (last - first) * self.stride, self.stride)

    @property
    def plain(self) -> bool:
        """Tell whether every element is one window by itself."""
        return (self.taps, self.stride, self.before) == (1, 1, 0) and self.windows == self.extent

    def flipped(self) -> Axis:
        """Return the windows of the gradient: of stride 1, sliding over the windows of this."""
        before = self.dilation * (self.taps - 1) - self.before
        return replace(self, extent=self.windows, before=before, windows=self.extent)


def lay_windows(
    extents: Sequence[int],
    taps: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    paddings: Sequence[int],
    padding_algorithm: str,
    ceil_mode: bool = False,
) -> tuple[Axis, Axis]:
    """Return the windows along rows and columns; GraphError if not one fits.

    paddings: one number for each axis, or before and after of each. SAME: as many windows as
    strides begin, and, as in Fluid, no dilation. VALID: no padding.
    """
    pairs = _pairs(paddings)
    axes = []
    for i, extent in enumerate(extents):
        before, after, dilation = *pairs[i], dilations[i]
        if min(strides[i], dilation, taps[i]) < 1:
            raise GraphError(
                f"windows need a size, stride and dilation of 1 or more, got {taps[i]}, "
                f"{strides[i]} and {dilation}"
            )
        if padding_algorithm == "VALID":
            before = after = 0
        elif padding_algorithm == "SAME":
            lacking = max((-(-extent // strides[i]) - 1) * strides[i] + taps[i] - extent, 0)
            before, after = (lacking // 2, lacking - lacking // 2) if extent >= 0 else (0, 0)
            dilation = 1
        elif padding_algorithm != "EXPLICIT":
            raise GraphError(f"padding must be numbers, SAME or VALID, got {padding_algorithm!r}")
        reach = dilation * (taps[i] - 1) + 1
        beyond = extent + before + after - reach + ceil_mode * (strides[i] - 1)
        # Towards zero, as in C++: less than a stride short, a window still begins in the image.
        windows = int(beyond / strides[i]) + 1
        if extent >= 0 and windows < 1:
            raise GraphError(
                f"a window of {reach} (size {taps[i]}, dilation {dilation}) does not fit into the "
                f"{extent} {('rows', 'columns')[i]} with padding {before} and {after}"
            )
        axes.append(
            Axis(extent, taps[i], strides[i], dilation, before, windows if extent >= 0 else -1)
        )
    return axes[0], axes[1]


def _pairs(paddings: Sequence[int]) -> list[tuple[int, int]]:
    if len(paddings) == 2:
        return [(paddings[0], paddings[0]), (paddings[1], paddings[1])]
    if len(paddings) == 4:
        return [(paddings[0], paddings[1]), (paddings[2], paddings[3])]
    raise GraphError(f"paddings must be 2 or 4 numbers, got {list(paddings)}")


def image_shape(shape: Sequence[int], layout: str, what: str) -> tuple[int, int, int, int]:
    """Return (images, channels, rows, columns) of a shape in a layout."""
    if layout == "AnyLayout":
        layout = "NCHW"
    if layout not in LAYOUTS:
        raise GraphError(f"data_format must be one of {', '.join(LAYOUTS)}, got {layout!r}")
    if len(shape) != 4:
        raise GraphError(f"{what} must have 4 dimensions ({layout}), got shape {tuple(shape)}")
    n, a, b, c = shape
    return (n, a, b, c) if layout == "NCHW" else (n, c, a, b)


def in_layout(n: int, channels: int, rows: int, columns: int, layout: str) -> tuple[int, ...]:
    """Return the shape of images in a layout."""
    return (n, rows, columns, channels) if layout == "NHWC" else (n, channels, rows, columns)


def channels_first(array: Any, layout: str) -> Any:
    """View images as [n, channels, rows, columns]."""
    return array.transpose(0, 3, 1, 2) if layout == "NHWC" and array is not None else array
