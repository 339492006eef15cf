"""Tensors with channels in dimension 1, whatever layout an operator's attribute names."""

from __future__ import annotations

CHANNELS_LAST = ("NHWC", "NDHWC")


def first(x, layout):
    """View a tensor with its channels in dimension 1."""
    return x.movedim(-1, 1) if layout in CHANNELS_LAST else x


def back(x, layout):
    """View a tensor, or None, whose channels are in dimension 1 in the operator's layout."""
    return x.movedim(1, -1) if x is not None and layout in CHANNELS_LAST else x
