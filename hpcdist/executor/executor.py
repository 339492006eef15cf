"""Executor: runs Programs on one place. Each (Program, feed shapes, fetches) is compiled once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcdist.errors import FeedError, GraphError
from hpcdist.executor import control
from hpcdist.executor.backend import Backend, CPUPlace, Place, backend_of
from hpcdist.executor.compile import Compiled, Compiler, Pool
from hpcdist.executor.position import here
from hpcdist.executor.scope import Scope, global_scope
from hpcdist.graph.program import Program, default_main_program
from hpcdist.graph.registry import Meta
from hpcdist.graph.roles import Role

CACHE_SIZE = 64  # compiled forms kept: one per Program, feed shapes and fetches


class _Entry:
    """A compiled Program with what `run` needs around it."""

    def __init__(self, compiled: Compiled, feeds: Sequence[str], fetches: Sequence[str]) -> None:
        self.compiled = compiled
        self.feeds = [(name, compiled.arrays.get(name)) for name in feeds]
        self.fetches = [(name, compiled.arrays[name]) for name in fetches]
        roles = [op.role for op in compiled.ops]
        self.trains = any(r & (Role.OPTIMIZE | Role.BACKWARD) for r in roles)


class Executor:
    """Runs Programs with numpy (CPUPlace) or cupy (CUDAPlace).

    ``exe.run(startup)`` initializes; ``exe.run(main, feed={...}, fetch_list=[...])`` is a step.
    """

    def __init__(self, place: Place | None = None) -> None:
        self.place = place if place is not None else CPUPlace()
        self._backend: Backend = backend_of(self.place)
        self._pool = Pool(self._backend)
        self._entries: OrderedDict[Any, _Entry] = OrderedDict()
        self._closed = False

    def run(
        self,
        program: Program | None = None,
        feed: Mapping[str, Any] | None = None,
        fetch_list: Sequence[Any] | None = None,
        feed_var_name: str = "feed",
        fetch_var_name: str = "fetch",
        scope: Scope | None = None,
        return_numpy: bool = True,
        use_program_cache: bool = True,
        use_prune: bool = False,
    ) -> list[Any]:
        """Run a Program once and return the fetched values as host arrays.

        ``feed`` maps names of data variables to arrays; ``fetch_list`` holds names or Variables.
        Persistable variables stay in the scope; everything else is gone after the call.
        The other arguments are accepted as Fluid has them; they change nothing.
        Raises FeedError for a feed that does not fit, GraphError for a Program that cannot run.
        """
        if self._closed:
            raise GraphError("this Executor was closed with close(); make a new one")
        if program is None:
            program = default_main_program()
        elif not isinstance(program, Program):
            program = getattr(program, "program", program)
            if not isinstance(program, Program):
                raise GraphError(f"Executor.run: expected a Program, got {type(program).__name__}")
        feed = feed if feed is not None else {}
        job = control.installed()
        if job is not None:
            origin, program = program, job.resolve(program)
            cut = job.shared_feed(origin)
            if cut is not None:
                feed = cut(feed)
        scope = scope if scope is not None else global_scope()
        fetches = _names(fetch_list)
        values = {n: v if type(v) is np.ndarray else _host(n, v, program) for n, v in feed.items()}
        key = (
            id(program),
            program.version,
            id(scope),
            fetches,
            tuple([(n, v.shape, v.dtype) for n, v in values.items()]),
        )
        entry = self._entries.get(key)
        if entry is None or entry.compiled.layout != scope.layout:
            entry = self._entries[key] = self._compile(program, scope, values, fetches)
            if len(self._entries) > CACHE_SIZE:
                self._entries.popitem(last=False)
        copy_in = self._backend.copy_in
        for name, buffer in entry.feeds:
            if buffer is not None:
                copy_in(buffer, values[name])
        if entry.trains:
            here.step += 1
        entry.compiled.run()
        copy_out = self._backend.copy_out
        results = [copy_out(array) for _, array in entry.fetches]
        turn = job.shared_fetch(origin) if job is not None else None
        if turn is not None:
            results = turn(list(zip(fetches, results)))
        return results

    def close(self) -> None:
        """Finish: tell the parameter servers that this trainer leaves. Harmless when alone."""
        job = control.installed()
        if job is not None and not self._closed:
            job.close()
        self._entries.clear()
        self._closed = True

    def _compile(
        self,
        program: Program,
        scope: Scope,
        values: Mapping[str, np.ndarray],
        fetches: tuple[str, ...],
    ) -> _Entry:
        metas = {name: _fed_meta(program, name, value) for name, value in values.items()}
        compiler = Compiler(program.global_block(), scope, self._backend, self._pool)
        here.doing = ""
        return _Entry(compiler.compile(metas, fetches), list(values), fetches)


def _names(fetch_list: Any) -> tuple[str, ...]:
    if fetch_list is None:
        return ()
    if isinstance(fetch_list, str) or not isinstance(fetch_list, (list, tuple)):
        fetch_list = [fetch_list]
    try:
        return tuple([f if type(f) is str else f.name for f in fetch_list])
    except AttributeError:
        raise FeedError(f"fetch_list: expected Variables or names, got {fetch_list!r}") from None


def _host(name: str, value: Any, program: Program) -> np.ndarray:
    """Turn a list, a number or a tensor into an array of the variable's dtype."""
    var = program.global_block().vars.get(name)
    if isinstance(value, (list, tuple, int, float, bool)) and var is not None:
        try:
            return np.asarray(value, dtype=var.dtype)
        except ValueError as error:
            raise FeedError(f"feed {name!r}: not an array of {var.dtype}: {error}") from None
    return np.asarray(value)


def _fed_meta(program: Program, name: str, value: np.ndarray) -> Meta:
    """Check one fed array against its variable; FeedError says what fits."""
    var = program.global_block().vars.get(name)
    if var is None:
        data = [v.name for v in program.global_block().vars.values() if v.is_data]
        known = [name for name in data if not name.startswith("@")]  # others are not the user's
        raise FeedError(
            f"feed {name!r}: the program has no such variable; its data variables are {known}"
        )
    if var.lod_level:
        raise FeedError(f"feed {name!r}: ragged input (lod_level={var.lod_level}) is not built yet")
    shape = f"{var.dtype}{list(var.shape)}"
    if value.dtype.name != var.dtype:
        raise FeedError(
            f"feed {name!r}: expected {shape}, got {value.dtype.name}{list(value.shape)}; "
            f"convert it with .astype({var.dtype!r})"
        )
    fits = len(value.shape) == len(var.shape) and all(
        want in (-1, got) for want, got in zip(var.shape, value.shape)
    )
    if not fits:
        raise FeedError(f"feed {name!r}: expected {shape}, got shape {list(value.shape)}")
    return Meta(value.shape, var.dtype)
