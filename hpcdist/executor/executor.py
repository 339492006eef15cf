"""Executor: runs Programs on one place. Each (Program, feed shapes, fetches) is compiled once."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns
from typing import Any

import numpy as np

from hpcdist.base.errors import FeedError, GraphError, GraphTypeError
from hpcdist.base.keywords import names_arguments_of
from hpcdist.base.trace.position import here
from hpcdist.base.trace.recorder import recorder
from hpcdist.executor import control
from hpcdist.executor.backend import Backend, ChosenPlace, CPUPlace, Place, backend_of
from hpcdist.executor.bound_step import BegunStep, BoundStep, copier, handed_out
from hpcdist.executor.compiled_program import CompiledProgram
from hpcdist.executor.dataset_run import for_test, run_dataset
from hpcdist.executor.divided_feed import only_feed
from hpcdist.executor.fed import as_flattened, as_host, declared, fed_metas, plain, ragged_key
from hpcdist.executor.forms import Form, Forms, Key, rows_of
from hpcdist.executor.merging import MergedSteps
from hpcdist.executor.observer import StepObserver
from hpcdist.executor.prepared import PreparedStep
from hpcdist.executor.pruned import PrunedPrograms, fetch_names_and_updates
from hpcdist.executor.reading import feed_ahead, sources, with_read
from hpcdist.executor.scope import Scope, global_scope
from hpcdist.executor.states import OperatorStates
from hpcdist.graph.lod import Lod
from hpcdist.graph.lod_tensor import LoDTensor
from hpcdist.graph.program import Program, ProgramCache, default_main_program

_CLOSED = "this Executor was closed with close(); make a new one"


class Executor:
    """Runs Programs with numpy (CPUPlace) or cupy (CUDAPlace).

    ``exe.run(startup)`` initializes; ``exe.run(main, feed={...}, fetch_list=[...])`` is a step.

    Examples:
        >>> x = fluid.data("x", [None, 2])
        >>> exe = fluid.Executor(fluid.CPUPlace())
        >>> doubled = fluid.layers.scale(x, 2.0)
        >>> exe.run(feed={"x": np.array([[1, 2]], "float32")}, fetch_list=[doubled])
        [array([[2., 4.]], dtype=float32)]
    """

    def __init__(self, place: Place | ChosenPlace | None = None) -> None:
        chosen = place.place if isinstance(place, ChosenPlace) else place
        self.place = chosen if chosen is not None else CPUPlace()
        self._backend: Backend = backend_of(self.place)
        self._forms = Forms(self._backend, self._note_trains)
        # By fetches and scope, how the steps of a Program are taken.
        self._steps: ProgramCache[dict[tuple[object, ...], BoundStep]] = ProgramCache()
        self._last: Callable[[], BoundStep | None] = lambda: None  # taken; its Program keeps it
        self.observer = StepObserver()
        self._merging = MergedSteps()
        self._pruned = PrunedPrograms()
        self._closed = False

    @names_arguments_of("Executor.run")
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

        Examples:
            >>> y = fluid.layers.fill_constant([2], "float32", 3.0)
            >>> exe = fluid.Executor()
            >>> exe.run(fetch_list=[y])
            [array([3., 3.], dtype=float32)]
            >>> exe.run(fetch_list=[y.name])
            [array([3., 3.], dtype=float32)]
        """
        if self._closed:
            raise GraphError(_CLOSED)
        plain = feed if type(feed) is dict and return_merged and not use_prune else None
        last = self._last()
        if (
            (plain is not None and last is not None and type(fetch_list) is list)
            and last.is_asked(program, fetch_list, scope if scope is not None else global_scope())
            and (found := last.run(plain, return_numpy)) is not None
        ):
            return found
        fetches, updates = fetch_names_and_updates(fetch_list)
        if plain is not None and not updates:
            origin = program
            if isinstance(program, CompiledProgram):
                origin = program.undivided(self.place)
            if type(origin) is Program:
                scope = scope if scope is not None else global_scope()
                step = self._bound(origin, fetches, scope)
                if step is not None and (found := step.run(plain, return_numpy)) is not None:
                    if type(fetch_list) is list:
                        step.asked_by(fetch_list, scope)
                        self._last = weakref.ref(step)
                    return found
        if program is None:
            program = default_main_program()
        elif isinstance(program, CompiledProgram):
            if updates or use_prune:
                self._pruned.refuse_another(program.program, fetches, updates)
            scope = scope if scope is not None else global_scope()
            run = program.divided(self.place, feed, fetches, scope, return_merged)
            fetches = tuple(run.fetch_names)
            fetched = self._run(run.program, run.feed, fetches, scope, return_numpy)
            return run.values(fetched, return_merged)
        elif not isinstance(program, Program):
            raise GraphTypeError(f"Executor.run: expected a Program, got {type(program).__name__}")
        feed = with_read(program, only_feed(feed))
        scope = scope if scope is not None else global_scope()
        if updates or use_prune:
            with declared(program, feed) as known:
                pruned = self._pruned.of_this_run(program, known, fetches, updates)
                return self._run(*pruned, fetches, scope, return_numpy)
        return self._run(program, feed, fetches, scope, return_numpy)

    def prepare(
        self,
        program: Program | CompiledProgram | None = None,
        feed: object = None,
        fetch_list: Sequence[Any] | None = None,
        scope: Scope | None = None,
    ) -> PreparedStep:
        """Return a step that is taken by ``step.run(feed)``, without a look-up in each:

            step = exe.prepare(main, feed={"x": x, "y": y}, fetch_list=[loss])
            for x, y in batches:
                (value,) = step.run({"x": x, "y": y})

        A step is what `run` does with the same arguments: the same values, effects and errors,
        also when the Program, the scope or what is fed has changed since. ``scope`` is the global
        one as it is now. Nothing is computed here. ``feed``, if given, is only looked at: raises
        FeedError if the Program could not be fed so, GraphError once the Executor is closed.
        """
        if self._closed:
            raise GraphError(_CLOSED)
        program = program if program is not None else default_main_program()
        scope = scope if scope is not None else global_scope()
        fetches, updates = fetch_names_and_updates(fetch_list)
        if isinstance(program, Program) and feed:
            with declared(program, only_feed(feed)) as known:
                values, lods, _ = _on_host(program, {n: plain(v) for n, v in known.items()})
                fed_metas(program, values, lods)

        def run(feed: Any, return_numpy: bool) -> list[Any]:
            return self.run(program, feed, fetch_list, scope=scope, return_numpy=return_numpy)

        def bound() -> BoundStep | None:
            if updates or not isinstance(program, Program):
                return None
            return self._bound(program, fetches, scope)

        return PreparedStep(run, bound)

    def _bound(self, program: Program, fetches: tuple[str, ...], scope: Scope) -> BoundStep | None:
        steps = self._steps.get(program)
        return None if steps is None else steps.get((fetches, scope))

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
        origin = program
        if not feed.keys() <= program.global_block().vars.keys():
            with declared(program, feed) as known:
                return self._step(job, program, known, fetches, scope, return_numpy)
        feed = {n: as_flattened(program, n, plain(v)) for n, v in feed.items()}
        asked = job, origin, tuple(feed), fetches, scope, return_numpy
        measured = self._forms.measured
        kernels = None if measured is None else measured.of_this_step(origin, job)
        if job is None:
            return self.rest_of_step(BegunStep(*asked, begin, program, feed, kernels))
        program, fed = job.substitute(program, feed, scope, fetches)
        try:
            return self.rest_of_step(BegunStep(*asked, begin, program, fed, kernels))
        except FeedError:
            values, lods, _ = _on_host(origin, feed)
            fed_metas(origin, values, lods)  # tells it of the batch, not of this rank's rows
            raise

    def rest_of_step(self, step: BegunStep) -> list[Any]:
        """Run what a step that has begun runs on this rank; return what the script asked for."""
        program = self._merging.of_this_step(step.program, step.scope)
        fetches, join = step.requested, None
        if step.job is not None:
            fetches, join = step.job.shared_fetch(step.origin, step.requested)
        values, lods, shapes = _on_host(program, step.feed)
        key: Key = (id(step.scope), fetches, shapes, step.kernels)
        form = self._forms.of(key, program, step.scope, values, lods, step.origin)
        if form.trains:
            here.step += 1
        detailed = not here.step & recorder.mask
        self._feed(form, values, lods, detailed)
        self._call(form, step, (id(program), key), detailed)
        if fetches and self._backend.device_id is not None:  # before the host waits for values
            feed_ahead(step.origin, form.feeds, self._backend)
        begin = monotonic_ns() if detailed else 0
        results = self._fetch(form)
        if join is not None:
            results = join(list(zip(fetches, results)))
        if detailed:
            self.observer.fetched(step.requested, results, begin, len(form.compiled.steps))
        self.observer.ended(form.trains, step.requested, results, step.begin)
        if program is step.program and step.kernels is None and form.is_fixed:
            self._bind(step, form)
        return handed_out(results, step.return_numpy)

    def _feed(
        self,
        form: Form,
        values: Mapping[str, np.ndarray],
        lods: Mapping[str, Lod],
        detailed: bool,
    ) -> None:
        """Copy what is fed to where the operators read it."""
        begin = monotonic_ns() if detailed else 0
        feed_in = self._backend.feed
        for name, buffer in form.feeds:
            if buffer is not None:
                feed_in(name, buffer, values[name])
        if detailed:
            self.observer.fed(begin, rows_of(values, lods))

    def _call(self, form: Form, step: BegunStep, key: tuple[int, Key], detailed: bool) -> None:
        """Call the operators, and measure their kernels if that is asked for."""
        measured, kernels = self._forms.measured, step.kernels
        if measured is None or kernels is None:
            form.compiled.run(detailed)
        else:
            run = functools.partial(form.compiled.run, detailed)
            measured.run(step.origin, key, kernels, run)
        if here.after_first_step and here.step:
            here.first_step_done()

    def _fetch(self, form: Form) -> list[Any]:
        """Return the fetched values as host arrays; those with sequences as LoDTensors."""
        compiled, copy_out = form.compiled, self._backend.copy_out
        results: list[Any] = [
            copier(array, copy_out)() if array is not None else compiled.interpreted(name)
            for name, array in form.fetches
        ]
        if not form.groups:
            return results
        grouped = [compiled.lod(name) for name in form.fetch_names]
        return [v if lod is None else LoDTensor(v, lod) for v, lod in zip(results, grouped)]

    def _bind(self, step: BegunStep, form: Form) -> None:
        """Keep how a step was taken for those that are like it, if it says all of them."""
        job, origin = step.job, step.origin
        if job is None:
            return
        steps = self._steps.of(origin, dict)
        known = steps.get((step.requested, step.scope))
        if known is not None and known.holds(form, step.fed):
            return
        if sources(origin) or self._merging.merges(form.compiled.program):
            return
        if self._forms.may_be_told(form):
            return
        settled = job.settled(origin, step.fed, step.scope, step.requested)
        if settled is None or settled.program is not form.compiled.program:
            return
        steps[step.requested, step.scope] = BoundStep(
            self, job, settled, form, origin, step.fed, step.requested, self._forms.number
        )

    @names_arguments_of("Executor.train_from_dataset")
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
        """Finish: the last one that trains tells the other ranks so. Harmless when alone.

        Examples:
            >>> exe = fluid.Executor()
            >>> exe.close()
        """
        with control.turn():
            self._backend.finish()
            job = control.installed()
            if job is not None and not self._closed:
                job.note_closed(self)
            self._forms.clear()
            self._steps.clear()
            self._last = lambda: None
            self._closed = True

    def _note_trains(self) -> None:
        if (job := control.installed()) is not None:
            job.note_trains(self)

    def forms(self, program: Program | None = None) -> list[Form]:
        """Return the compiled forms of a Program, or of all that live, by their last use."""
        return self._forms.listed(program)

    @property
    def states(self) -> OperatorStates:
        """What operators keep between runs."""
        return self._forms.states


def _on_host(
    program: Program, feed: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, Lod], tuple[tuple[object, ...], ...]]:
    """Return the feed as arrays, the sequences of those that have some, and all shapes."""
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
    return values, lods, tuple(shapes)
