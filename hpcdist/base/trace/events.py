"""The events that a rank records: their kinds and their layout in memory."""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import Enum, IntEnum
from typing import TypeVar

import numpy as np

F = TypeVar("F", bound=Callable[..., str])


class EventKind(IntEnum):
    """What an event is; each has a name, a begin and an end in nanoseconds."""

    STEP = 1  # a run of a Program that trains; ``step``: its number
    RUN = 2  # a run of another Program
    OPERATOR = 3  # ``step``: that of its run
    SENT = 4  # a packet to ``peer``; ``value``: bytes; ``step``: which message of this packet
    RECEIVED = 5  # a packet from ``peer``, likewise
    APPLIED = 6  # a server has applied a packet; ``value``: bytes
    WAIT = 7  # its name is the `Cause`
    SUM = 8  # a bucket of gradients, from its start until it is needed; ``value``: bytes
    FEED = 9  # arrays copied in; ``value``: rows of the batch
    FETCH = 10  # arrays copied out
    CHECKPOINT = 11
    GARBAGE = 12  # a collection by Python; ``value``: its generation
    VALUE = 13  # a number to plot: ``value``
    MEMORY = 14  # ``value``: bytes of memory that the process holds
    COUNT = 15  # ``value``: how many there are now of what its name says, a `Count`


class Cause(str, Enum):
    """What a rank waits for."""

    PARAMETERS = "parameters from servers"
    GRADIENTS = "gradients from trainers"
    SENDS = "own messages to leave"
    SUM = "sums over trainers"
    ROUND = "other trainers' notes"
    TABLE = "rows of tables"
    READER = "the reader"
    BARRIER = "all ranks"
    START = "the start of other ranks"
    CHECKPOINT = "checkpoints"
    OTHER = "other messages"


class Count(str, Enum):
    """What a rank counts now and then."""

    BATCHES_AHEAD = "batches read ahead"
    WINDOWS_AHEAD = "windows read ahead"
    UNANSWERED = "steps not yet answered"  # of a communicator
    UNAPPLIED = "packets not yet applied"  # of a server
    LOOKED_UP = "rows looked up"  # of tables, in a batch
    HELD = "rows in tables"


# One event, as `Recorder.record` packs it; EVENT is the same for numpy.
RECORD = struct.Struct("<qqdqiiii")
EVENT = np.dtype(
    [
        ("begin", "<i8"),  # nanoseconds of the rank's own monotonic clock
        ("end", "<i8"),
        ("value", "<f8"),
        ("thread", "<i8"),
        ("name", "<i4"),  # a place in the recorder's names
        ("peer", "<i4"),  # a rank, -1 for none
        ("step", "<i4"),
        ("kind", "<i4"),
    ]
)
assert EVENT.itemsize == RECORD.size


def waits_for_cause(cause: Cause) -> Callable[[F], F]:
    """Mark a function that describes a wait with what the wait is for."""

    def mark(describe: F) -> F:
        describe.cause = cause  # type: ignore[attr-defined]
        return describe

    return mark


def cause_of(describe: object) -> Cause:
    """Return the cause of a wait that a function or object describes."""
    return getattr(describe, "cause", Cause.OTHER)
