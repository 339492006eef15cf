"""Fluid's module ``fleet.base.mode``: what makes the programs of a fleet."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Mode"]


class Mode(IntEnum):
    """Who a fleet is: trainers and servers, Baidu's own servers (not here), or trainers alone."""

    TRANSPILER = 1
    PSLIB = 2
    COLLECTIVE = 3
