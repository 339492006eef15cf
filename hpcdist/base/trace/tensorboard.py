"""Metrics as TensorBoard event files, written by tensorboardX."""

from __future__ import annotations

import importlib.util
import os
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcdist.base.trace.metric_files import BufferedFile
from hpcdist.base.trace.metric_log import Noted

VERSION = "brain.Event:2"


def is_installed() -> bool:
    """Return whether tensorboardX is; it is not imported, for it imports torch if that is there."""
    return importlib.util.find_spec("tensorboardX") is not None


class EventFile:
    """One event for what is logged together, in a new file of this start in the rank's directory.

    Not by its SummaryWriter, whose queue of another process delays every write, nor by its
    EventsWriter, which leaves half an event where the disk is full.
    """

    def __init__(self, directory: str | Path, rank: int, start: int) -> None:
        from tensorboardX.proto import event_pb2, summary_pb2
        from tensorboardX.record_writer import masked_crc32c

        self._event, self._session = event_pb2.Event, event_pb2.SessionLog
        self._summary, self._checksum = summary_pb2.Summary, masked_crc32c
        self._goes_on = start > 0
        folder = Path(directory, "tensorboard", f"rank{rank}")
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        # The name holds the second of the start, which two starts may share.
        name = f"events.out.tfevents.{int(now)}.{socket.gethostname()}.{os.getpid()}"
        self._file = BufferedFile(
            os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        )
        self._file.append([self._record(self._event(wall_time=now, file_version=VERSION))])

    def write(self, noted: Sequence[Noted]) -> None:
        """Append an event for each step that was logged; OSError as of `BufferedFile.append`."""
        events = []
        if noted and self._goes_on:
            # TensorBoard then leaves out what the last start has written from this step on.
            begins = self._session(status=self._session.START)
            first = noted[0]
            events.append(self._event(step=first.step, wall_time=first.unix_s, session_log=begins))
            self._goes_on = False
        for n in noted:
            values = [
                self._summary.Value(tag=name, simple_value=value)
                for name, value in n.values.items()
            ]
            summary = self._summary(value=values)
            events.append(self._event(step=n.step, wall_time=n.unix_s, summary=summary))
        self._file.append(map(self._record, events))

    def _record(self, event: Any) -> bytes:
        """Return an event as it lies in the file: a TFRecord, its length and two checksums."""
        data: bytes = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        sums = (struct.pack("<I", self._checksum(part)) for part in (length, data))
        return length + next(sums) + data + next(sums)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
