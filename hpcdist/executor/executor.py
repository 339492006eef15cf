"""Executor: runs Programs on one place. Each (Program, feed shapes, fetches) is compiled once."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from time import monotonic_ns
from typing import Any

import numpy as np

from hpcdist import settings
from hpcdist.errors import GraphError, GraphTypeError, HpcdistError
from hpcdist.executor import control
from hpcdist.executor.backend import Backend, CPUPlace, Place, backend_of
from hpcdist.executor.compile import Compiler
from hpcdist.executor.compiled_form import Compiled
from hpcdist.executor.compiled_program import CompiledProgram, only_feed
from hpcdist.executor.dataset_run import for_test, run_dataset
from hpcdist.executor.described import described
from hpcdist.executor.fed import (
    as_host,
    declared,
    fed_metas,
    of_other_extents,
    plain,
    ragged_key,
)
from hpcdist.executor.measured import MeasuredKernels
from hpcdist.executor.merging import MergedSteps
from hpcdist.executor.nan_watch import NanWatch
from hpcdist.executor.pool import Pool
from hpcdist.executor.position import here
from hpcdist.executor.pruned import PrunedPrograms, fetch_names_and_updates
from hpcdist.executor.reading import feed_ahead, with_read
from hpcdist.executor.scope import Scope, global_scope
from hpcdist.executor.states import OperatorStates
from hpcdist.fetched import as_fetched
from hpcdist.graph.lod import Lod
from hpcdist.graph.op_role import OpRole
from hpcdist.graph.program import Program, ProgramCache, default_main_program
from hpcdist.lod_tensor import LoDTensor
from hpcdist.ops.by_torch import MEASURED, Kernels
from hpcdist.trace.events import EventKind
from hpcdist.trace.metric_log import metric_log
from hpcdist.trace.recorder import recorder

_STEP, _RUN, _FEED, _FETCH = map(recorder.name, ("step", "run", "feed", "fetch"))
_CLOSED = "this Executor was closed with close(); make a new one"
CACHE_SIZE = 64  # compiled forms kept: one per Program, feed shapes and fetches


class _Entry:
    """A compiled Program with what `run` needs around it."""

    def __init__(
        self, compiled: Compiled, feeds: list[str], fetches: tuple[str, ...], origin: Program
    ) -> None:
        """``origin``: what the script runs, of which this may be the part of a rank."""
        self.compiled, self.origin = compiled, origin
        self.feed_names, self.fetch_names = feeds, fetches
        self.last_used: float = math.inf  # number of the run; not yet run
        roles = [op.role for op in compiled.ops]
        self.trains = any(r & (OpRole.OPTIMIZE | OpRole.BACKWARD) for r in roles)
        self.look_up()

    def look_up(self) -> None:
        """Find the arrays that are fed and fetched."""
        arrays = self.compiled.arrays
        self.feeds = [(name, arrays.get(name)) for name in self.feed_names]
        self.fetches = [(name, arrays.get(name)) for name in self.fetch_names]


# Of a compiled form: scope, fetches, (name, shape, dtype) fed, and the kernels being measured.
Key = tuple[int, tuple[str, ...], tuple[tuple[object, ...], ...], Kernels | None]


class Executor:
    """Runs Programs with numpy (CPUPlace) or cupy (CUDAPlace).

    ``exe.run(startup)`` initializes; ``exe.run(main, feed={...}, fetch_list=[...])`` is a step.
    """

    def __init__(self, place: Place | None = None) -> None:
        self.place = place if place is not None else CPUPlace()
        self._backend: Backend = backend_of(self.place)
        self._pool = Pool(self._backend)
        self._forms: ProgramCache[dict[Key, _Entry]] = ProgramCache()
        self._runs = count()
        self.states = OperatorStates()
        self._nan_watch = NanWatch()
        self._merging = MergedSteps()
        measures = settings.KERNELS.read() == MEASURED
        self._measured = MeasuredKernels(self._backend, self._forget) if measures else None
        self._pruned = PrunedPrograms()
        self._closed = False
        recorder.start()

    def run(
        self,
        program: Program | CompiledProgram | None = None,
        feed: object = None,
        fetch_list: Sequence[Any] | None = None,
        feed_var_name: str = "feed",
        fetch_var_name: str = "fetch",
        scope: Scope | None = None,
        return_numpy: bool = True,
        use_program_cache: bool = True,
        return_merged: bool = True,
        use_prune: bool = False,
    ) -> list[Any]:
        """Run a Program once and return the fetched values as host arrays.

        ``feed`` maps names of data variables to arrays, those with ``lod_level`` to LoDTensors;
        ``fetch_list`` holds names or Variables. return_numpy=False: values are LoDTensors, with
        the sequences of ragged ones.
        Of a CompiledProgram, return_merged=False gives a list with the value of every device.
        Persistable variables stay in the scope; everything else is gone after the call.
        What ``minimize`` has returned may stand in ``fetch_list``: of all updates these alone are
        made. With it, and with use_prune, only what is asked for is computed, from what is fed.
        The other arguments are accepted as Fluid has them; they change nothing.
        Raises FeedError for a feed that does not fit, GraphError for a Program that cannot run.
        """
        if self._closed:
            raise GraphError(_CLOSED)
        fetches, updates = fetch_names_and_updates(fetch_list)
        if program is None:
            program = default_main_program()
        elif isinstance(program, CompiledProgram):
            if updates or use_prune:
                self._pruned.refuse_another(program.program, fetches, updates)
            scope = scope if scope is not None else global_scope()
            run = program.divided(self.place, feed, fetches, scope)
            fetches = tuple(run.fetch_names)
            fetched = self._run(run.program, run.feed, fetches, scope, return_numpy)
            return run.values(fetched, return_merged)
        elif not isinstance(program, Program):
            raise GraphTypeError(f"Executor.run: expected a Program, got {type(program).__name__}")
        feed = with_read(program, only_feed(feed))
        if updates or use_prune:
            if not feed.keys() <= program.global_block().vars.keys():
                feed = declared(program, feed, stacklevel=3)
            program, feed = self._pruned.of_this_run(program, feed, fetches, updates)
        scope = scope if scope is not None else global_scope()
        return self._run(program, feed, fetches, scope, return_numpy)

    def _run(
        self,
        program: Program,
        feed: Mapping[str, Any],
        fetches: tuple[str, ...],
        scope: Scope,
        return_numpy: bool,
    ) -> list[Any]:
        job = control.acting()
        if job is None:
            return self._step(None, program, feed, fetches, scope, return_numpy)
        job.admit(program)
        with job.turn:  # another thread's step may be under way
            if self._closed:
                raise GraphError(_CLOSED)
            return self._step(job, program, feed, fetches, scope, return_numpy)

    def _step(
        self,
        job: control.Control | None,
        program: Program,
        feed: Mapping[str, Any],
        fetches: tuple[str, ...],
        scope: Scope,
        return_numpy: bool,
    ) -> list[Any]:
        self._backend.enter()
        begin = monotonic_ns()
        if not feed.keys() <= program.global_block().vars.keys():
            feed = declared(program, feed)
        feed = {n: v if type(v) is np.ndarray else plain(v) for n, v in feed.items()}
        origin = program
        kernels = None if self._measured is None else self._measured.of_this_step(origin, job)
        if job is not None:
            program, feed = job.substitute(program, feed, scope, fetches)
        program = self._merging.of_this_step(program, scope)
        requested = fetches
        turn: Callable[[control.Fetched], list[Any]] | None = None
        if job is not None:
            fetches, turn = job.shared_fetch(origin, requested)
        values: dict[str, np.ndarray] = {}
        lods: dict[str, Lod] = {}
        shapes: list[tuple[object, ...]] = []
        for name, value in feed.items():
            if type(value) is np.ndarray:
                values[name] = value
                shapes.append((name, value.shape, value.dtype))
                continue
            array = values[name] = as_host(name, value, program)
            if type(value) is LoDTensor and value.sequences:
                lods[name] = value.sequences
                shapes.append(ragged_key(name, array, value.sequences))
            else:
                shapes.append((name, array.shape, array.dtype))
        key = (id(scope), fetches, tuple(shapes), kernels)
        forms = self._forms.get(program)
        entry = None if forms is None else forms.get(key)
        if entry is None or entry.compiled.layout != scope.layout:
            entry = self._compile(key, program, scope, values, fetches, lods, origin)
        elif entry.compiled.fitting is not None:
            entry = self._fitted(key, entry, program, values, lods)
        entry.last_used = next(self._runs)
        if entry.trains:
            here.step += 1
        detailed = not here.step & recorder.mask
        fed = monotonic_ns() if detailed else 0
        feed_in = self._backend.feed
        for name, buffer in entry.feeds:
            if buffer is not None:
                feed_in(name, buffer, values[name])
        if detailed:
            rows = _rows(values, lods)
            recorder.record(EventKind.FEED, _FEED, fed, monotonic_ns(), rows, step=here.step)
        if self._measured is None or kernels is None:
            entry.compiled.run(detailed)
        else:
            run = functools.partial(entry.compiled.run, detailed)
            self._measured.run(origin, (id(program), key), kernels, run)
        if here.after_first_step and here.step:
            here.first_step_done()
        if fetches and self._backend.device_id is not None:  # before the host waits for values
            feed_ahead(origin, entry.feeds, self._backend)
        fetched = monotonic_ns() if detailed else 0
        copy_out = self._backend.copy_out
        results: list[Any] = [
            copy_out(array) if array is not None else entry.compiled.interpreted(name)
            for name, array in entry.fetches
        ]
        if entry.compiled.fitting is not None:
            grouped = [entry.compiled.lod(name) for name in fetches]
            results = [v if lod is None else LoDTensor(v, lod) for v, lod in zip(results, grouped)]
        if turn is not None:
            results = turn(list(zip(fetches, results)))
        if entry.trains and self._nan_watch.watching:
            self._nan_watch.look(requested, results)
        if detailed:
            _note_fetched(requested, results, fetched, len(entry.compiled.steps))
        if entry.trains and metric_log.fetches and not here.step & metric_log.mask:
            metric_log.fetched(here.step, requested, results)
        kind, called = (EventKind.STEP, _STEP) if entry.trains else (EventKind.RUN, _RUN)
        recorder.record(kind, called, begin, monotonic_ns(), 0.0, -1, here.step)
        if return_numpy:
            return [as_fetched(v.value if isinstance(v, LoDTensor) else v) for v in results]
        return [LoDTensor(v) if isinstance(v, np.ndarray) else v for v in results]

    def train_from_dataset(
        self,
        program: Program | CompiledProgram | None = None,
        dataset: Any = None,
        scope: Scope | None = None,
        thread: int = 0,
        debug: bool = False,
        fetch_list: Sequence[Any] | None = None,
        fetch_info: Sequence[str] | None = None,
        print_period: int = 100,
        fetch_handler: Any = None,
    ) -> None:
        """Run a Program once for each batch of a Dataset, in their order; print some values.

        Every ``print_period`` batches the values of ``fetch_list`` are printed, under the texts of
        ``fetch_info``. ``thread`` changes nothing: a process takes one step at a time.
        """

        def run(program: Any, feed: Any, fetches: list[str]) -> list[Any]:
            return self.run(program, feed=feed, fetch_list=fetches, scope=scope)

        program = program if program is not None else default_main_program()
        args = fetch_list, fetch_info, print_period, debug, fetch_handler
        run_dataset(run, program, dataset, *args)

    def infer_from_dataset(
        self, program: Program | CompiledProgram | None = None, *args: Any, **kwargs: Any
    ) -> None:
        """Do the same with what is left of a Program without its training; nothing is updated."""
        program = for_test(program if program is not None else default_main_program())
        self.train_from_dataset(program, *args, **kwargs)

    def close(self) -> None:
        """Finish: the last one that trains tells the other ranks so. Harmless when alone."""
        with control.turn():
            self._backend.finish()
            job = control.installed()
            if job is not None and not self._closed:
                job.note_closed(self)
            self._forms.clear()
            self._closed = True

    def _compile(
        self,
        key: Key,
        program: Program,
        scope: Scope,
        values: Mapping[str, np.ndarray],
        fetches: tuple[str, ...],
        lods: Mapping[str, Lod],
        origin: Program,
        reserve: Mapping[str, int] | None = None,
    ) -> _Entry:
        metas = fed_metas(program, values, lods)
        context = program.global_block(), scope, self._backend, self._pool, self.states

        def compiled_by(kernels: Kernels | None) -> Compiled:
            tries = kernels is Kernels.COMPILED
            return Compiler(*context, kernels, tries).compile(metas, fetches, reserve=reserve)

        here.doing = ""
        try:
            if self._measured is None or (kernels := key[-1]) is None:
                compiled = compiled_by(None)
            else:
                compiled = self._measured.compiled(origin, kernels, compiled_by)
        except ValueError as error:  # GraphError, or NumPy's
            raise of_other_extents(program, values, error) or _refused(error) from None
        except (LookupError, TypeError, AttributeError, ArithmeticError, MemoryError) as error:
            raise _refused(error) from error
        forms = self._forms.get(program)
        if forms is None:
            forms = self._forms.put(program, {})
            recorder.ran(lambda: described(program, compiled))
        entry = forms[key] = _Entry(compiled, list(values), fetches, origin)
        self._drop_least_used()
        if entry.trains and (job := control.installed()) is not None:
            job.note_trains(self)
        return entry

    def forms(self, program: Program | None = None) -> list[_Entry]:
        """Return the compiled forms of a Program, or of all that live, by their last use."""
        caches = self._forms if program is None else [self._forms.get(program) or {}]
        entries = (entry for forms in caches for entry in forms.values())
        return sorted(entries, key=lambda entry: entry.last_used)

    def _forget(self, origin: Program, kernels: Kernels) -> None:
        """Drop the forms of a Program that some kernels compute, and their memory."""
        for forms in self._forms:
            for key in [k for k, e in forms.items() if e.origin is origin and k[-1] is kernels]:
                del forms[key]

    def _drop_least_used(self) -> None:
        """Keep `CACHE_SIZE` forms; the new one is not yet used, so it is kept."""
        oldest = self.forms()[:-CACHE_SIZE]
        for forms in self._forms if oldest else ():
            for key in [key for key, entry in forms.items() if entry in oldest]:
                del forms[key]

    def _fitted(
        self,
        key: Key,
        entry: _Entry,
        program: Program,
        values: Mapping[str, np.ndarray],
        lods: Mapping[str, Lod],
    ) -> _Entry:
        """Make a compiled Program ready for sequences of other lengths."""
        fitting = entry.compiled.fitting
        assert fitting is not None, "ragged input was fed when it was compiled"
        if fitting.fit(fed_metas(program, values, lods)):
            entry.look_up()
            return entry
        scope, fetches = entry.compiled.scope, entry.fetch_names
        return self._compile(
            key, program, scope, values, fetches, lods, entry.origin, fitting.reserve
        )


def _refused(error: Exception) -> Exception:
    """Return the error about a Program that cannot be compiled: itself, if it says so."""
    if isinstance(error, HpcdistError):
        return error
    return GraphError(f"the program cannot be compiled: {type(error).__name__}: {error}")


def _rows(values: Mapping[str, np.ndarray], lods: Mapping[str, Lod]) -> int:
    """Return how many rows a batch has, its sequences where it is ragged, by its longest variable.

    Others may be one for the whole batch, such as a learning rate.
    """
    of_each = (lods[n].sequences if n in lods else len(v) for n, v in values.items() if v.ndim)
    return max(of_each, default=0)


def _note_fetched(names: Sequence[str], values: Sequence[Any], begin: int, operators: int) -> None:
    """Note how long fetching has taken, and what has been fetched if that is one number."""
    now = monotonic_ns()
    recorder.record(EventKind.FETCH, _FETCH, begin, now, step=here.step)
    for name, value in zip(names, values):
        if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "fiu":
            recorder.record(
                EventKind.VALUE, recorder.name(name), now, now, float(value.item()), step=here.step
            )
    recorder.detailed(operators + 2 + len(names), now)
