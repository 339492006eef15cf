"""Training and inference from a Dataset: one step for each of its batches."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, Protocol

import numpy as np

from hpcdist.base.errors import DataError, FeedError
from hpcdist.base.trace.events import Cause, EventKind
from hpcdist.base.trace.position import here
from hpcdist.base.trace.recorder import recorder
from hpcdist.base.warned import tells_for_all, warn
from hpcdist.executor.compiled_program import CompiledProgram
from hpcdist.executor.untrained import moves_nothing
from hpcdist.graph.operator import as_names
from hpcdist.graph.program import Program, ProgramCache

logger = logging.getLogger("hpcdist.executor")

_for_test: ProgramCache[Program] = ProgramCache()


class FetchHandler:
    """Is told values of variables while a Dataset is trained from; subclasses say what to do.

    ``var_dict``: names for the handler, and their variables. They are fetched in every step;
    `handler` is called after the first step that ends ``period_secs`` seconds after the last call.
    """

    def __init__(self, var_dict: Mapping[str, Any] | None = None, period_secs: float = 60) -> None:
        if not isinstance(var_dict, Mapping) or not var_dict:
            raise FeedError(f"FetchHandler: var_dict must be a dict of variables, got {var_dict!r}")
        self.var_dict = var_dict
        self.period_secs = period_secs

    def handler(self, res_dict: Mapping[str, Any]) -> None:
        """Print the first element of each value; ``res_dict``: name -> array."""
        texts = (f"{name}[0]: {value[0]}" for name, value in res_dict.items() if np.ndim(value))
        print(" ".join(texts), flush=True)

    @staticmethod
    def help() -> None:
        """Print how to use it."""
        print(
            "class Told(FetchHandler):\n    def handler(self, res_dict):\n"
            "        print(res_dict['auc'])\n\n"
            "exe.train_from_dataset(..., fetch_handler=Told({'auc': auc}, period_secs=60))"
        )


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
    fetch_handler: object,
) -> None:
    """Call ``run(program, feed, fetches)`` for each batch; print values every ``print_period``.

    Values are fetched in the steps that print them, and in no others; those of a ``fetch_handler``
    in all. With ``debug`` the number of batches and the time are printed at the end.
    Warns of a Program that should train and updates no parameter.
    """
    if dataset is None or not hasattr(dataset, "batches"):
        raise DataError(f"dataset: expected one of DatasetFactory's, got {dataset!r:.80}")
    if fetch_handler is not None and not isinstance(fetch_handler, FetchHandler):
        raise FeedError(f"fetch_handler: expected a FetchHandler, got {fetch_handler!r:.80}")
    names = as_names(list(fetch_list or ()))
    watched = as_names(list(fetch_handler.var_dict.values())) if fetch_handler else []
    labels = list(fetch_info or names)
    if len(labels) != len(names):
        raise FeedError(
            f"fetch_info: expected {len(names)} strings, one for each value, got {labels}"
        )
    if int(print_period) < 1:
        raise FeedError(f"print_period: expected at least 1, got {print_period}")
    if isinstance(program, Program) and moves_nothing(program) and tells_for_all():
        warn(
            "no parameter is updated: no optimizer's minimize() has been called on this program; "
            "to train, call it first; to evaluate, call infer_from_dataset"
        )
    began, count = time.perf_counter(), 0
    handled = began
    with closing(dataset.batches()) as batches:
        while True:
            here.doing = "waiting for a batch of the dataset"
            with recorder.span(EventKind.WAIT, Cause.READER.value):
                feed = next(batches, None)
            here.doing = ""
            if feed is None:
                break
            count += 1
            prints = bool(names) and count % int(print_period) == 0
            # When it is time to call a handler is another step on every trainer; what is fetched
            # must not be.
            values = run(program, feed, (names if prints else []) + watched)
            if prints:
                text = ", ".join(f"{label}: {value}" for label, value in zip(labels, values))
                print(f"batch {count}: {text}", flush=True)
            if fetch_handler and time.perf_counter() - handled >= fetch_handler.period_secs:
                shown = values[len(values) - len(watched) :]
                fetch_handler.handler(dict(zip(fetch_handler.var_dict, shown)))
                handled = time.perf_counter()
    if not count:
        logger.warning("the dataset gave no batch: its files, or what pipes them, hold no sample")
    if debug:
        print(f"{count} batches in {time.perf_counter() - began:.3f} s", flush=True)


def for_test(program: Program | CompiledProgram) -> Program | CompiledProgram:
    """Return the clone of a Program that computes without training."""
    inner = program.program if isinstance(program, CompiledProgram) else program
    if inner.for_test:
        return program
    if (clone := _for_test.get(inner)) is None:
        clone = _for_test.put(inner, inner.clone(for_test=True))
    return clone
