"""Programs for pipe commands: they turn lines of a file into multi-slot text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from numbers import Real
from typing import Any

from hpcdist.base.errors import DataError

Sample = Sequence[tuple[str, Sequence[Any]]]


class DataGenerator:
    """Reads lines from stdin and writes samples to stdout; subclasses say what a line holds.

    A subclass defines ``generate_sample(line)``, which returns a function that yields samples
    ``[("words", [1926, 8]), ("label", [1])]``; it may define ``generate_batch(samples)``, which
    returns a function that yields samples made of ``batch_size`` others.
    """

    def __init__(self) -> None:
        self.batch_size_ = 32

    def set_batch(self, batch_size: int) -> None:
        """Set how many samples `generate_batch` is given at once."""
        if int(batch_size) < 1:
            raise DataError(f"set_batch: expected at least 1 sample, got {batch_size}")
        self.batch_size_ = int(batch_size)

    def generate_sample(self, line: str | None) -> Callable[[], Iterable[Sample | None]]:
        """Return a function that yields the samples of a line (None: `run_from_memory`)."""
        raise NotImplementedError("a data generator must define generate_sample(self, line)")

    def generate_batch(self, samples: list[Sample]) -> Callable[[], Iterable[Sample]]:
        """Return a function that yields samples made of these; by default the same."""
        return lambda: iter(samples)

    def run_from_stdin(self) -> None:
        """Write the samples of all lines of stdin to stdout."""
        self._write(sample for line in sys.stdin for sample in self.generate_sample(line)())

    def run_from_memory(self) -> None:
        """Write the samples of ``generate_sample(None)`` to stdout."""
        self._write(self.generate_sample(None)())

    def _write(self, samples: Iterable[Sample | None]) -> None:
        present: Iterator[Sample] = (sample for sample in samples if sample is not None)
        while group := list(islice(present, self.batch_size_)):
            lines = [self._gen_str(sample) for sample in self.generate_batch(group)()]
            sys.stdout.write("".join(lines))
        sys.stdout.flush()

    def _gen_str(self, line: Sample) -> str:
        """Return the text of a sample; DataError if it has none."""
        raise NotImplementedError("use MultiSlotDataGenerator or MultiSlotStringDataGenerator")


class MultiSlotDataGenerator(DataGenerator):
    """Slots of numbers; every sample has the same slots, and some numbers in each."""

    _kinds: tuple[type, ...] = (Real,)  # Python's, and numpy's
    _format = "numbers"

    def __init__(self) -> None:
        super().__init__()
        self._names: list[str] | None = None

    def _gen_str(self, line: Sample) -> str:
        if isinstance(line, Iterator):  # zip(names, values) was a list in Python 2
            line = list(line)
        if not isinstance(line, (list, tuple)):
            raise DataError(
                "generate_sample must yield lists of slots, "
                f"[('words', [1926, 8]), ('label', [1])], got {line!r:.80}"
            )
        names, parts = [], []
        for name, values in line:
            if isinstance(values, str) and len(values) == 1 and str in self._kinds:
                values = [values]  # Fluid joins the characters of a string
            if not isinstance(values, (list, tuple)) or not values:
                raise DataError(
                    f"slot {name!r}: expected a list of at least one value, got {values!r:.80}; "
                    "pad it, with 0 for instance"
                )
            for value in values:
                if isinstance(value, bool) or not isinstance(value, self._kinds):
                    raise DataError(f"slot {name!r}: expected {self._format}, got {value!r:.80}")
            names.append(name)
            parts.append(f"{len(values)} {' '.join(map(str, values))}")
        if self._names is None:
            self._names = names
        elif names != self._names:
            raise DataError(f"every sample must have the slots {self._names}, got {names}")
        return " ".join(parts) + "\n"


class MultiSlotStringDataGenerator(MultiSlotDataGenerator):
    """The same for values that are text already, which is faster."""

    _kinds = (str,)
    _format = "strings"
