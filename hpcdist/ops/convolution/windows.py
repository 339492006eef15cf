"""Windows over the two axes of images: where they lie, and which layout the images have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpcdist.base.errors import GraphError
from hpcdist.ops.types import DeviceArray

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
        """Return whether every element is one window by itself."""
        return (self.taps, self.stride, self.before) == (1, 1, 0) and self.windows == self.extent

    def flipped(self) -> Axis:
        """Return the windows of the gradient: of stride 1, sliding over the windows of this."""
        before = self.dilation * (self.taps - 1) - self.before
        return replace(self, extent=self.windows, before=before, windows=self.extent)


@dataclass(frozen=True)
class Correlation:
    """Windows along rows and columns, and how many groups channels and filters form."""

    rows: Axis
    columns: Axis
    groups: int

    @property
    def geometry(self) -> tuple[int, ...]:
        """Return the arguments of the loops in conv_kernels."""
        h, w = self.rows, self.columns
        return (h.stride, h.dilation, h.before, w.stride, w.dilation, w.before)

    @property
    def pointwise(self) -> bool:
        """Return whether every pixel is one window by itself."""
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

    def matrices(self, w) -> DeviceArray:
        """View filters [filters, channels of a group, taps, taps] as one matrix for each group."""
        return w.reshape(self.groups, len(w) // self.groups, -1)

    def is_depthwise(self, w) -> bool:
        """Return whether every filter sees one channel only: too little for matrix products."""
        return self.groups > 1 and bool(w.shape[1] == 1)


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


def image_shape(shape: Sequence[int], layout: str, name: str) -> tuple[int, int, int, int]:
    """Return (images, channels, rows, columns) of a shape in a layout."""
    if layout == "AnyLayout":
        layout = "NCHW"
    if layout not in LAYOUTS:
        raise GraphError(f"data_format must be one of {', '.join(LAYOUTS)}, got {layout!r}")
    if len(shape) != 4:
        raise GraphError(f"{name} must have 4 dimensions ({layout}), got shape {tuple(shape)}")
    n, a, b, c = shape
    return (n, a, b, c) if layout == "NCHW" else (n, c, a, b)


def in_layout(n: int, channels: int, rows: int, columns: int, layout: str) -> tuple[int, ...]:
    """Return the shape of images in a layout."""
    return (n, rows, columns, channels) if layout == "NHWC" else (n, channels, rows, columns)


def channels_first(array, layout: str) -> DeviceArray:
    """View images as [n, channels, rows, columns]."""
    return array.transpose(0, 3, 1, 2) if layout == "NHWC" and array is not None else array
