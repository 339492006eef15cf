"""A step of a Program as one flat value: what is checked, copied in, called and copied out."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any, Protocol

import numpy as np

from hpcdist.base.fetched import FetchedArray, as_fetched
from hpcdist.base.trace.position import here
from hpcdist.base.trace.recorder import recorder
from hpcdist.executor import control
from hpcdist.executor.fed import as_flattened
from hpcdist.executor.forms import Form
from hpcdist.executor.observer import StepObserver
from hpcdist.executor.scope import Scope
from hpcdist.graph.lod_tensor import LoDTensor
from hpcdist.graph.program import Program
from hpcdist.graph.variable import Variable
from hpcdist.ops.by_torch import Kernels

JOINED_AFTER = 8  # steps: then it pays to join their calls, which takes half a second
PATIENCE = 64  # times as many steps, if they are long: joined calls save microseconds of each
LONG_STEP_NS = 2_000_000
_NAME = operator.attrgetter("name")
Copy = Callable[[], Any]
Run = Callable[[Mapping[str, Any], bool], "list[Any] | None"]


@dataclass(frozen=True)
class BegunStep:
    """A step that has begun: what the script asks for, and what this rank runs in its place.

    ``begin`` is when, in nanoseconds of the monotonic clock.
    """

    job: control.Control | None
    origin: Program  # the script runs it, fed with ``fed``, to have ``requested``
    fed: Sequence[str]
    requested: tuple[str, ...]
    scope: Scope
    return_numpy: bool
    begin: int
    program: Program  # runs in its place, fed with ``feed``
    feed: Mapping[str, Any]
    kernels: Kernels | None = None  # those that are being measured


class StepRunner(Protocol):
    """An Executor, as its bound steps see it."""

    observer: StepObserver

    def rest_of_step(self, step: BegunStep) -> list[Any]:
        """Take a step that has begun, with what this rank is fed in it."""


class BoundStep:
    """What the steps of a Program in a scope have in common, while all that they depend on stays.

    ``run(feed, return_numpy)`` takes one and returns what is fetched. It first compares what the
    steps depend on with what it was: whatever differs, it returns None and has done nothing, and
    the Executor takes the step from its beginning, as it took the first. So it also takes those
    whose details are recorded.
    """

    __slots__ = (
        "__weakref__",
        "_asked",
        "_asked_ids",
        "_names",
        "_scope",
        "_variables",
        "fed",
        "form",
        "is_current",
        "job",
        "origin",
        "requested",
        "run",
    )

    def __init__(
        self,
        executor: StepRunner,
        job: control.Control,
        settled: control.Settled,
        form: Form,
        origin: Program,
        fed: Sequence[str],
        requested: tuple[str, ...],
        number: Iterator[int],
    ) -> None:
        """``fed`` is what the script feeds to ``origin``; ``number`` counts the Executor's runs."""
        self.job, self.form, self.origin = job, form, origin
        self.fed, self.requested = frozenset(fed), requested
        self._scope: Scope | None = None
        self._asked: list[Any] = []  # so that no other object has their ids
        self._variables: list[Variable] = []
        self.is_current = _comparison(job, form, origin)
        self.run: Run = self._bound(executor, settled, number)

    def holds(self, form: Form, fed: Sequence[str]) -> bool:
        """Return whether these are steps of this form with these feeds, and nothing has changed."""
        return self.form is form and self.fed == set(fed) and self.is_current()

    def asked_by(self, fetch_list: list[Any], scope: Scope) -> None:
        """Keep the ``fetch_list`` of a step, so that `is_asked` knows it without reading it.

        One with lists in it is read each time: these may change and be the same objects.
        """
        if not all(isinstance(one, (str, Variable)) for one in fetch_list):
            return
        self._asked, self._asked_ids = [*fetch_list], [*map(id, fetch_list)]
        self._variables = [v for v in fetch_list if isinstance(v, Variable)]
        self._names = [*map(_NAME, self._variables)]
        self._scope = scope

    def is_asked(self, program: object, fetch_list: list[Any], scope: Scope) -> bool:
        """Return whether this is the step of a Program, of the same objects to be fetched."""
        return (
            self.origin is program
            and self._scope is scope
            and self._asked_ids == [*map(id, fetch_list)]
            and self._names == [*map(_NAME, self._variables)]
        )

    def _bound(self, executor: StepRunner, settled: control.Settled, number: Iterator[int]) -> Run:
        job, form, requested, is_current = self.job, self.form, self.requested, self.is_current
        admit, prepare, divide = settled.admit, settled.begin, settled.feed
        join = settled.join
        program = settled.program
        fed = [] if divide is None else [program.global_block().vars[name] for name in self.fed]
        declared = [(var.name, len(var.shape)) for var in fed]
        turn, count, fetches = job.turn, len(self.fed), settled.fetches
        backend, compiled, trains = form.backend, form.compiled, form.trains
        calls, accepted = compiled.calls(), form.accepted
        owners: Sequence[int] = range(len(calls))
        on_host = backend.device_id is None
        plain: list[Copy] = [copier(array, backend.copy_out) for _, array in form.fetches]
        ready = join is None and on_host  # what is copied is what is handed out
        copies = [_handed_out(array) for _, array in form.fetches] if ready else plain
        one_float = join is None and _is_one_float([array for _, array in form.fetches])
        ended = executor.observer.bound(trains, requested, plain=one_float)
        number_of = number.__next__
        known, runs = weakref.ref(executor), 0
        acts, version = control.acts, self.origin.version
        join_at, since = JOINED_AFTER, monotonic_ns()

        def rest(feed: Mapping[str, Any], begin: int, return_numpy: bool) -> list[Any]:
            executor = known()
            assert executor is not None, "its method has called this"
            asked = job, self.origin, tuple(self.fed), requested, compiled.scope, return_numpy
            return executor.rest_of_step(BegunStep(*asked, begin, settled.program, feed))

        def run(feed: Mapping[str, Any], return_numpy: bool) -> list[Any] | None:
            nonlocal runs, join_at, calls, owners
            if admit is not None:
                if acts[0] is not job or self.origin.version != version:
                    return None
                admit()
            with turn:  # another thread's step may have been under way
                if not is_current() or len(feed) != count:
                    return None
                runs += 1
                if runs == join_at:
                    short = monotonic_ns() - since < runs * LONG_STEP_NS
                    if runs == 1 or short or join_at != JOINED_AFTER:
                        calls, owners = compiled.joined
                    else:
                        join_at *= PATIENCE
                step = here.step + 1 if trains else here.step
                if not (step if trains else runs) & recorder.mask:  # its details are recorded
                    return None
                begin = monotonic_ns()
                if prepare is not None:
                    prepare()
                if divide is not None:
                    for name, dimensions in declared:
                        value = feed.get(name)
                        if type(value) is not np.ndarray:
                            return None
                        if value.ndim != dimensions:
                            feed = {**feed, name: as_flattened(program, name, value)}
                    feed = divide(feed)
                for name, _, dtype, shape in accepted:
                    value = feed.get(name)
                    if (
                        type(value) is not np.ndarray
                        or value.shape != shape
                        or value.dtype != dtype
                    ):
                        return None if divide is None else rest(feed, begin, return_numpy)
                if divide is not None and len(feed) != len(accepted):
                    return rest(feed, begin, return_numpy)
                if not on_host:
                    backend.enter()
                form.last_used = number_of()
                here.step = step
                for name, buffer, _, _ in accepted:
                    if buffer is None:
                        continue
                    if on_host:
                        buffer[...] = feed[name]
                    else:
                        backend.feed(name, buffer, feed[name])
                try:
                    for call in calls:
                        call()
                except Exception as error:
                    compiled.fail(error, owners[calls.index(call)])
                if here.after_first_step and step:
                    here.first_step_done()
                results = [copy() for copy in (copies if return_numpy else plain)]
                if join is not None:
                    results = join(list(zip(fetches, results)))
                ended(results, begin, step)
            return results if ready and return_numpy else handed_out(results, return_numpy)

        return run


def _comparison(job: control.Control, form: Form, origin: Program) -> Callable[[], bool]:
    """Return a predicate: all that steps depend on is unchanged."""
    scope, program = form.compiled.scope, form.compiled.program
    version, version_here, decisions = origin.version, program.version, job.decisions
    layout, sources = form.compiled.layout, Variable.sources_set
    alone, acts = scope.parent is None, control.acts

    def is_current() -> bool:
        return (
            origin.version == version
            and acts[0] is job
            and (scope.changes if alone else scope.layout) == layout
            and job.decisions == decisions
            and form.kept
            and program.version == version_here
            and Variable.sources_set == sources
        )

    return is_current


def _is_one_float(arrays: Sequence[Any]) -> bool:
    """Return whether what is fetched is a single number on the host, that may be NaN."""
    if len(arrays) != 1 or type(arrays[0]) is not np.ndarray:
        return False
    return bool(arrays[0].size == 1 and arrays[0].dtype.kind == "f")


def copier(array: Any, copy_out: Callable[[Any], Any]) -> Copy:
    """Return the function that copies a fetched value to the host."""
    return array.copy if type(array) is np.ndarray else lambda: copy_out(array)


def _handed_out(array: Any) -> Copy:
    """Return the function that copies a host value as `Executor.run` returns it."""
    one = type(array) is np.ndarray and array.size == 1 and array.ndim
    copy: Copy = array.view(FetchedArray).copy if one else array.copy
    return copy


def handed_out(results: Sequence[Any], return_numpy: bool) -> list[Any]:
    """Return fetched values as `Executor.run` hands them out."""
    if return_numpy:
        return [
            handed_out(v, True)  # what an array of a loop holds
            if type(v) is list
            else as_fetched(v.value if isinstance(v, LoDTensor) else v)
            for v in results
        ]
    return [LoDTensor(v) if isinstance(v, np.ndarray) else v for v in results]
