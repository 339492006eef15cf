"""Values of variables that a trainer gives the servers: in pieces that messages can hold."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping

import numpy as np

from hpcdist.base.errors import CheckpointError

GIVE = "give"  # what a request of CHECKPOINT does
PIECE = 1 << 26  # bytes; a third more as text


def give(
    ask: Callable[[object], object], values: Mapping[str, np.ndarray], server: int | None = None
) -> None:
    """Give the servers, or one of them, values by name; who has no such variable does nothing.

    ``ask`` sends a request to every server and returns when they have answered. One trainer calls
    this; a server takes the values between two of this trainer's steps.
    """
    for name, value in values.items():
        flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        for at in range(0, len(flat), PIECE):
            data = base64.b64encode(flat[at : at + PIECE].data).decode()
            ask({"do": GIVE, "name": name, "at": at, "data": data, "server": server})


def take(array: np.ndarray, name: str, at: int, data: str) -> None:
    """Write bytes that `give` has sent into an array, from byte ``at`` on.

    Raises CheckpointError if they do not fit.
    """
    whole = np.ascontiguousarray(array)  # a copy only of an array that is not
    flat = whole.reshape(-1).view(np.uint8)
    try:
        given = np.frombuffer(base64.b64decode(data, validate=True), np.uint8)
        fits = isinstance(at, int) and 0 <= at <= len(flat) - len(given)
    except (binascii.Error, TypeError, ValueError):
        given, fits = flat[:0], False
    if not fits:
        raise CheckpointError(f"{name!r} has {len(flat)} bytes, the values given do not fit")
    flat[at : at + len(given)] = given
    if not array.flags.c_contiguous:
        np.copyto(array, whole)
