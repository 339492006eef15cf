"""Training and inference from a Dataset: one step for each of its batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Protocol

from hpcdist.errors import DataError, DataNotImplementedError, FeedError
from hpcdist.executor.compiled_program import CompiledProgram
from hpcdist.executor.position import here
from hpcdist.graph.operator import as_names
from hpcdist.graph.program import Program, ProgramCache
from hpcdist.trace.events import Cause, Kind
from hpcdist.trace.recorder import recorder

_for_test: ProgramCache[Program] = ProgramCache()


class Batched(Protocol):
    """What gives batches: a Dataset."""

    def batches(self) -> Any:
        """Begin a pass: a generator of feeds."""


def run_dataset(
    run: Callable[[Any, Any, list[str]], list[Any]],
    program: Program | CompiledProgram,
    dataset: Batched | None,
    fetch_list: Sequence[Any] | None,
    fetch_info: Sequence[str] | None,
    print_period: int,
    debug: bool,
    fetch_handler: Any,
) -> None:
    """Call ``run(program, feed, fetches)`` for each batch; print values every ``print_period``.

    Values are fetched in the steps that print them, and in no others. With ``debug`` the number
    of batches and the time are printed at the end.
    """
    if dataset is None or not hasattr(dataset, "batches"):
        raise DataError(f"dataset: expected one of DatasetFactory's, got {dataset!r:.80}")
    if fetch_handler is not None:
        raise DataNotImplementedError("fetch_handler: use fetch_list, fetch_info and print_period")
    names = as_names(list(fetch_list or ()))
    labels = list(fetch_info or names)
    if len(labels) != len(names):
        raise FeedError(
            f"fetch_info: expected {len(names)} texts, one for each value, got {labels}"
        )
    if int(print_period) < 1:
        raise FeedError(f"print_period: expected at least 1, got {print_period}")
    began, count = time.perf_counter(), 0
    with closing(dataset.batches()) as batches:
        while True:
            here.doing = "waiting for a batch of the dataset"
            with recorder.span(Kind.WAIT, Cause.READER.value):
                feed = next(batches, None)
            here.doing = ""
            if feed is None:
                break
            count += 1
            prints = bool(names) and count % int(print_period) == 0
            values = run(program, feed, names if prints else [])
            if prints:
                told = ", ".join(f"{label}: {value}" for label, value in zip(labels, values))
                print(f"batch {count}: {told}", flush=True)
    if debug:
        print(f"{count} batches in {time.perf_counter() - began:.3f} s", flush=True)


def for_test(program: Program | CompiledProgram) -> Program | CompiledProgram:
    """Return what computes a Program without training it."""
    inner = program.program if isinstance(program, CompiledProgram) else program
    if not inner.trains:
        return program
    if (found := _for_test.get(inner)) is None:
        found = _for_test.put(inner, inner.clone(for_test=True))
    return found
