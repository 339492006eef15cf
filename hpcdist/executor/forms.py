"""The compiled forms of an Executor's Programs: one for each of shapes fed, fetches and scope."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from itertools import count

import numpy as np

from hpcdist.base import settings
from hpcdist.base.errors import GraphError, HpcdistError
from hpcdist.base.trace.position import here
from hpcdist.base.trace.recorder import recorder
from hpcdist.base.warned import tells_for_all
from hpcdist.executor.backend import Backend
from hpcdist.executor.compile import Compiler
from hpcdist.executor.compiled_form import Compiled
from hpcdist.executor.described import described
from hpcdist.executor.fed import fed_metas, of_other_extents
from hpcdist.executor.measured import MeasuredKernels
from hpcdist.executor.pool import Pool
from hpcdist.executor.scope import Scope
from hpcdist.executor.states import OperatorStates
from hpcdist.executor.untrained import NOTICED_AT, untrained
from hpcdist.graph.lod import Lod
from hpcdist.graph.op_role import OpRole
from hpcdist.graph.program import Program, ProgramCache
from hpcdist.ops.by_torch import MEASURED, Kernels

logger = logging.getLogger("hpcdist")

CACHE_SIZE = 64  # compiled forms kept: one per Program, feed shapes and fetches

# Of a compiled form: scope, fetches, (name, shape, dtype) fed, and the kernels being measured.
Key = tuple[int, tuple[str, ...], tuple[tuple[object, ...], ...], Kernels | None]


class Form:
    """A compiled Program with what a step needs around it."""

    def __init__(
        self,
        compiled: Compiled,
        backend: Backend,
        values: Mapping[str, np.ndarray],
        fetches: tuple[str, ...],
        origin: Program,
    ) -> None:
        """``origin``: what the script runs, of which this may be the part of a rank."""
        self.compiled, self.backend, self.origin = compiled, backend, origin
        self.fetch_names = fetches
        self.last_used: float = math.inf  # number of the run; not yet run
        self.kept = True  # until the Executor drops it
        roles = [op.role for op in compiled.ops]
        self.trains = any(r & (OpRole.OPTIMIZE | OpRole.BACKWARD) for r in roles)
        # Whether some of what is fetched are sequences.
        self.groups = compiled.fitting is not None or any(map(compiled.lods.get, fetches))
        self._fed = {name: (value.dtype, value.shape) for name, value in values.items()}
        self.look_up()

    def look_up(self) -> None:
        """Find the arrays that are fed and fetched."""
        arrays = self.compiled.arrays
        # Of each feed its name, where it goes (None: nobody reads it), its dtype and shape.
        self.accepted = [(name, arrays.get(name), *facts) for name, facts in self._fed.items()]
        self.feeds = [(name, buffer) for name, buffer, *_ in self.accepted]
        self.fetches = [(name, arrays.get(name)) for name in self.fetch_names]

    @property
    def is_fixed(self) -> bool:
        """Whether every step is of the same calls on the same arrays, and fetches arrays."""
        return not self.groups and self.compiled.interpreter is None


class Forms:
    """Compiles, keeps the forms used last, and fits those of ragged batches to other lengths."""

    def __init__(self, backend: Backend, trains: Callable[[], None]) -> None:
        """``trains`` is called when a form is made that does."""
        self.states = OperatorStates()
        self._backend = backend
        self._pool = Pool(backend)
        self._forms: ProgramCache[dict[Key, Form]] = ProgramCache()
        self._runs = count()
        self._trains, self._any_trains = trains, False
        measures = settings.KERNELS.read() == MEASURED
        self.measured = MeasuredKernels(backend, self._forget) if measures else None

    @property
    def number(self) -> Iterator[int]:
        """Counts the runs, for the forms to note when they were last used."""
        return self._runs

    def of(
        self,
        key: Key,
        program: Program,
        scope: Scope,
        values: Mapping[str, np.ndarray],
        lods: Mapping[str, Lod],
        origin: Program,
    ) -> Form:
        """Return the form of a step, ready to be fed: the one that there is, or a new one."""
        forms = self._forms.get(program)
        form = None if forms is None else forms.get(key)
        if form is None or form.compiled.layout != scope.layout:
            form = self._compile(key, program, scope, values, lods, origin)
        elif form.compiled.fitting is not None:
            form = self._fitted(key, form, program, values, lods)
        form.last_used = number = next(self._runs)
        if number == NOTICED_AT and tells_for_all():
            self._tell_untrained(origin, key[1])
        return form

    def _tell_untrained(self, origin: Program, fetches: tuple[str, ...]) -> None:
        if notice := untrained(origin, fetches, self._any_trains):
            logger.warning(notice)

    def may_be_told(self, form: Form) -> bool:
        """Return whether `of` must count the runs of a form to say that nothing trains."""
        if form.trains or self._any_trains or form.last_used > NOTICED_AT:
            return False
        return bool(untrained(form.origin, form.fetch_names, False))

    def listed(self, program: Program | None = None) -> list[Form]:
        """Return the forms of a Program, or of all that live, by their last use."""
        caches = self._forms if program is None else [self._forms.get(program) or {}]
        forms = (form for forms in caches for form in forms.values())
        return sorted(forms, key=lambda form: form.last_used)

    def clear(self) -> None:
        """Drop all."""
        for form in self.listed():
            form.kept = False
        self._forms.clear()

    def _compile(
        self,
        key: Key,
        program: Program,
        scope: Scope,
        values: Mapping[str, np.ndarray],
        lods: Mapping[str, Lod],
        origin: Program,
        reserve: Mapping[str, int] | None = None,
    ) -> Form:
        metas, fetches = fed_metas(program, values, lods), key[1]
        context = program.global_block(), scope, self._backend, self._pool, self.states

        def compiled_by(kernels: Kernels | None) -> Compiled:
            tries = kernels is Kernels.COMPILED
            return Compiler(*context, kernels, tries).compile(metas, fetches, reserve=reserve)

        here.doing = ""
        try:
            if self.measured is None or (kernels := key[-1]) is None:
                compiled = compiled_by(None)
            else:
                compiled = self.measured.compiled(origin, kernels, compiled_by)
        except ValueError as error:  # GraphError, or NumPy's
            raise of_other_extents(program, values, error) or _refused(error) from None
        except (LookupError, TypeError, AttributeError, ArithmeticError, MemoryError) as error:
            raise _refused(error) from error
        forms = self._forms.get(program)
        if forms is None:
            forms = self._forms.put(program, {})
            recorder.ran(lambda: described(program, compiled))
        if key in forms:
            forms[key].kept = False
        form = forms[key] = Form(compiled, self._backend, values, fetches, origin)
        self._drop_least_used()
        if form.trains:
            self._any_trains = True
            self._trains()
        return form

    def _forget(self, origin: Program, kernels: Kernels) -> None:
        """Drop the forms of a Program that some kernels compute, and their memory."""
        self._drop(lambda key, form: form.origin is origin and key[-1] is kernels)

    def _drop_least_used(self) -> None:
        """Keep `CACHE_SIZE` forms; the new one is not yet used, so it is kept."""
        if oldest := self.listed()[:-CACHE_SIZE]:
            self._drop(lambda key, form: form in oldest)

    def _drop(self, which: Callable[[Key, Form], bool]) -> None:
        for forms in self._forms:
            for key in [key for key, form in forms.items() if which(key, form)]:
                forms.pop(key).kept = False

    def _fitted(
        self,
        key: Key,
        form: Form,
        program: Program,
        values: Mapping[str, np.ndarray],
        lods: Mapping[str, Lod],
    ) -> Form:
        """Make a compiled Program ready for sequences of other lengths."""
        fitting = form.compiled.fitting
        assert fitting is not None, "ragged input was fed when it was compiled"
        if fitting.fit(fed_metas(program, values, lods)):
            form.look_up()
            return form
        scope = form.compiled.scope
        return self._compile(key, program, scope, values, lods, form.origin, fitting.reserve)


def rows_of(values: Mapping[str, np.ndarray], lods: Mapping[str, Lod]) -> int:
    """Return how many rows a batch has, its sequences where it is ragged, by its longest variable.

    Others may be one for the whole batch, such as a learning rate.
    """
    of_each = (lods[n].sequences if n in lods else len(v) for n, v in values.items() if v.ndim)
    return max(of_each, default=0)


def _refused(error: Exception) -> Exception:
    """Return the error about a Program that cannot be compiled: itself, if it says so."""
    if isinstance(error, HpcdistError):
        return error
    return GraphError(f"the program cannot be compiled: {type(error).__name__}: {error}")
