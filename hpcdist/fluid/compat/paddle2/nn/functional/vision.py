"""Functions of images: pixels and channels in another order, responses normalized."""

from __future__ import annotations

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.graph.variable import Variable

_MODULE = "paddle.nn.functional"
_function = declare.composed(_MODULE)


def _channels_first(where: str, data_format: str) -> None:
    if data_format != "NCHW":
        raise GraphError(
            f"{_MODULE}.{where}: data_format: expected 'NCHW', got {data_format!r}: transpose x"
        )


@_function
def pixel_shuffle(
    x: Variable, upscale_factor: int, data_format: str = "NCHW", name: str | None = None
) -> Variable:
    """Make r x r pixels of every r^2 channels."""
    _channels_first("pixel_shuffle", data_format)
    return layers.pixel_shuffle(x, upscale_factor)


@_function
def channel_shuffle(
    x: Variable, groups: int, data_format: str = "NCHW", name: str | None = None
) -> Variable:
    """Take channels of all groups in turn."""
    _channels_first("channel_shuffle", data_format)
    return layers.shuffle_channel(x, groups, name)


@_function
def temporal_shift(
    x: Variable,
    seg_num: int,
    shift_ratio: float = 0.25,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """Shift channels between the frames of videos."""
    _channels_first("temporal_shift", data_format)
    return layers.temporal_shift(x, seg_num, shift_ratio, name)


__all__ = declare.public(globals())
