"""A line of JSON for each pass that has been trained, in a file beside the checkpoints."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpcdist.base.replaced import make_folders, write_whole

NAME = "passes.jsonl"

logger = logging.getLogger("hpcdist.online")


class History:
    """The lines of the passes that the model holds, one each; trainer 0 writes them.

    A run drops the lines of passes that it trains again. What cannot be written, as on a full disk,
    is written with the next line.
    """

    def __init__(self, directory: Path, keeps: Callable[[Mapping[str, Any]], bool]) -> None:
        """Keep the lines of the file in ``directory`` up to the first that ``keeps`` refuses."""
        self._path = directory / NAME
        self._lines = _kept(self._path, keeps)

    def add(self, line: Mapping[str, Any]) -> None:
        """Append a line."""
        self._lines.append(json.dumps(line))
        try:
            make_folders(self._path.parent)
            write_whole(self._path, "".join(f"{line}\n" for line in self._lines))
        except OSError as error:
            logger.warning("%s: cannot be written: %s", self._path, error.strerror)


def _kept(path: Path, keeps: Callable[[Mapping[str, Any]], bool]) -> list[str]:
    kept: list[str] = []
    try:
        for line in path.read_text(errors="replace").splitlines():
            if not keeps(json.loads(line)):
                break
            kept.append(line)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s: its lines behind %d are left out: %s", path, len(kept), error)
    return kept
