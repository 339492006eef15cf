"""Days and passes on disk: which directories hold a pass, and whether its data is complete."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdist.base.checks import integer
from hpcdist.base.errors import DataError

MINUTES = 24 * 60
DATA = (DataError, DataError)  # of a wrong type, of a wrong value
WHOLE_DAY = ("",)  # one pass, whose files are in the directory of its day

Passes = Sequence[str | Sequence[str]]


@dataclass(frozen=True, order=True)
class PassOfDay:
    """A pass by its day, and its number in it: 1, 2, ..."""

    day: datetime.date
    number: int

    def __str__(self) -> str:
        return f"{self.day:%Y%m%d} pass {self.number}"


@dataclass(frozen=True)
class Found:
    """What a pass has on disk: its files, or what is waited for."""

    files: tuple[str, ...] = ()
    awaited: str = ""


def splits(minutes: int, per_pass: int = 1, *, hourly: bool = False) -> list[list[str]]:
    """Return the passes of a day whose data comes in directories of so many minutes.

    Directories have the names of their beginnings, "0000", "0030", ... (``hourly``: "00", "01",
    ...); ``per_pass`` of them are a pass. DataError for numbers that cannot be.

    >>> splits(360, 2)
    [['0000', '0600'], ['1200', '1800']]
    """
    of_pass = integer("minutes", minutes, 1, errors=DATA) * integer(
        "per_pass", per_pass, 1, errors=DATA
    )
    if MINUTES % of_pass or (hourly and minutes % 60):
        raise DataError(
            f"splits: passes of {per_pass} times {minutes} minutes do not fill a day"
            + (" of hours" if hourly else "")
        )
    starts = [divmod(begin, 60) for begin in range(0, MINUTES, minutes)]
    names = [f"{hour:02d}" if hourly else f"{hour:02d}{minute:02d}" for hour, minute in starts]
    return [names[k : k + per_pass] for k in range(0, len(names), per_pass)]


def day_of(name: str, value: object) -> datetime.date:
    """Return a day; DataError unless it is written YYYYMMDD."""
    if re.fullmatch(r"\d{8}", str(value)):
        try:
            return datetime.datetime.strptime(str(value), "%Y%m%d").date()
        except ValueError:  # the 31st of a shorter month
            pass
    raise DataError(f"{name}: expected a day as YYYYMMDD, got {value!r}")


def _lists(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str)


def _is_inside(name: str) -> bool:
    """Return whether a name stays within the directory of a day."""
    return not name.startswith("/") and ".." not in Path(name).parts


class Days:
    """The directories ``data``/DAY/SPLIT: ``passes`` of a day are one or more splits each."""

    def __init__(self, data: str | Path, passes: Passes, done: str) -> None:
        """``done``: the file that says that a split is complete; "": nothing is waited for."""
        self._data, self._done = Path(data), done
        listed = list(passes) if _lists(passes) else []
        self._passes: list[tuple[Any, ...]]
        self._passes = [tuple(one) if _lists(one) else (one,) for one in listed]
        names = [name for one in self._passes for name in one]
        if not (names and all(isinstance(name, str) and _is_inside(name) for name in names)):
            raise DataError(f"passes: expected names of directories, got {passes!r:.80}")
        if not isinstance(done, str):
            raise DataError(f"done: expected the name of a file, got {done!r}")
        if "/" in done or len(set(names)) < len(names):
            raise DataError(
                f"expected each directory in one pass and a name as done, got {done!r}, {names}"
            )
        if not self._data.is_dir():
            raise DataError(f"{data}: there is no such directory of days")

    @property
    def passes(self) -> int:
        """The number of passes of a day."""
        return len(self._passes)

    def after(self, place: PassOfDay) -> PassOfDay:
        """Return the next pass."""
        if place.number < self.passes:
            return PassOfDay(place.day, place.number + 1)
        return PassOfDay(place.day + datetime.timedelta(1), 1)

    def index(self, place: PassOfDay) -> int:
        """Return the number of a pass among those of all days: shuffles follow from it."""
        return place.day.toordinal() * self.passes + place.number

    def find(self, place: PassOfDay) -> Found:
        """Return the files of a pass in the order of their names, or what is waited for.

        DataError if a directory is complete and has no file, or has directories: rows of these
        would be left out. Names that begin with a dot or an underscore are left out.
        """
        day = self._data / f"{place.day:%Y%m%d}"
        directories = [day / split for split in self._passes[place.number - 1]]
        for directory in directories:
            if self._done and not (directory / self._done).is_file():
                return Found(awaited=self._awaited(day, directory))
        return Found(tuple(file for directory in directories for file in self._files(directory)))

    def _awaited(self, day: Path, directory: Path) -> str:
        awaited = str(directory / self._done)
        if directory != day and day.is_dir() and not directory.is_dir():
            others = sorted(path.name for path in day.iterdir())
            awaited += f" ({day} has {', '.join(others[:5]) or 'nothing'}" + (
                f" and {len(others) - 5} more)" if len(others) > 5 else ")"
            )
        return awaited

    def _files(self, directory: Path) -> list[str]:
        try:
            entries = sorted(directory.iterdir())
        except OSError as error:
            raise DataError(f"{directory}: {error.strerror}") from None
        paths = [p for p in entries if p.name[0] not in "._" and p.name != self._done]
        for path in paths:
            if not path.is_file():
                raise DataError(
                    f"{path}: expected a file of rows: passes= says which directories are a pass"
                )
        if not paths:
            complete = f"{self._done} is there, and no data" if self._done else "it has no data"
            raise DataError(f"{directory}: {complete}")
        return [str(path) for path in paths]
