"""Metrics as event files of TensorBoard's, by tensorboardX."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcdist.trace.metric_log import Noted

ADVICE = "python -m pip install 'hpcdist[tensorboard]'"


def is_installed() -> bool:
    """Tell whether tensorboardX is; it is not imported, for it imports torch if that is there."""
    return importlib.util.find_spec("tensorboardX") is not None


class EventFile:
    """One event for what is logged together, in a new file of this start in the rank's directory.

    Not by its SummaryWriter, whose queue of another process delays every write.
    """

    def __init__(self, directory: str | Path, rank: int, start: int) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2

        folder = Path(directory, "tensorboard", f"rank{rank}")
        folder.mkdir(parents=True, exist_ok=True)
        # The name holds the second of the start, which two starts may share.
        self._file: Any = EventsWriter(str(folder / "events"), f".{os.getpid()}")
        self._event, self._session = event_pb2.Event, event_pb2.SessionLog
        self._summary = summary_pb2.Summary
        self._goes_on = start > 0

    def write(self, noted: Sequence[Noted]) -> None:
        if noted and self._goes_on:
            # TensorBoard then leaves out what the last start has written from this step on.
            begins = self._session(status=self._session.START)
            first = noted[0]
            event = self._event(step=first.step, wall_time=first.unix_s, session_log=begins)
            self._file.write_event(event)
            self._goes_on = False
        for n in noted:
            values = [
                self._summary.Value(tag=name, simple_value=value)
                for name, value in n.values.items()
            ]
            summary = self._summary(value=values)
            self._file.write_event(self._event(step=n.step, wall_time=n.unix_s, summary=summary))
        if noted:
            self._file.flush()

    def close(self) -> None:
        self._file.close()
