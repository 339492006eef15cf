"""A compiled Program: its arrays, and a flat list of bound calls."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any, NoReturn

from hpcdist.base.errors import GraphError, HpcdistError
from hpcdist.base.trace.events import EventKind
from hpcdist.base.trace.position import here
from hpcdist.base.trace.recorder import recorder
from hpcdist.executor.fitting import Fitting
from hpcdist.executor.interpret import Interpreter
from hpcdist.executor.loop_runs import join_loops
from hpcdist.executor.nan_watch import with_checks
from hpcdist.executor.scope import Scope
from hpcdist.graph.lod import Lod
from hpcdist.graph.lod_tensor import LoDTensor
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.registry import Call
from hpcdist.graph.values import TensorArray


@dataclass
class Compiled:
    """A Program ready to run: fill ``feeds``, call ``run``, read ``arrays``."""

    program: Program
    scope: Scope
    layout: int  # the scope's layout that the arrays below belong to
    arrays: dict[str, Any]
    steps: list[Call]
    ops: list[Operator]  # ops[i] is what steps[i] executes
    pool_bytes: int
    checks: bool = False  # whether all that is computed must be finite
    lods: Mapping[str, Lod] = field(default_factory=dict)  # of sequences whose lengths stay
    fitting: Fitting | None = None  # where something is fed whose length may change
    interpreter: Interpreter | None = None  # where there are loops, or branches of open shapes
    joins: bool = False  # whether calls may become one

    def lod(self, name: str) -> Lod | None:
        """Return how the rows of a value group into sequences, None if they do not."""
        if self.fitting is None:
            return self.lods.get(name)
        meta = self.fitting.metas.get(name)
        return None if meta is None else meta.lod

    def interpreted(self, name: str) -> Any:
        """Return a value that has no planned place: an array, a LoDTensor, or a list of them."""
        value = None if self.interpreter is None else self.interpreter.get(name)
        if value is None:
            raise GraphError(f"cannot fetch {name!r}: no operator has written it in this step")
        if isinstance(value, TensorArray):
            return [None if v is None else LoDTensor(v.array.copy(), v.lod) for v in value]
        return value.array.copy() if value.lod is None else LoDTensor(value.array.copy(), value.lod)

    def run(self, detailed: bool = False) -> None:
        """Execute every step, and note each if ``detailed``; an error names its operator."""
        i = 0
        steps = self.calls()
        if self.interpreter is not None:
            self.interpreter.begin()
        try:
            if detailed:
                names, now, record = self.names, monotonic_ns, recorder.record
                kind, step = int(EventKind.OPERATOR), here.step
                begin = now()
                for i, call in enumerate(steps):
                    call()
                    end = now()
                    record(kind, names[i], begin, end, 0.0, -1, step)
                    begin = end
            else:
                for i, call in enumerate(steps):  # noqa: B007  (told by errors)
                    call()
            if self.interpreter is not None:
                self.interpreter.keep(self.scope)
        except Exception as error:
            self.fail(error, i)

    def calls(self) -> list[Call]:
        """Return the calls of a step; if results are checked, each with its check."""
        return with_checks(self.steps, self.ops, self.arrays) if self.checks else self.steps

    @functools.cached_property
    def joined(self) -> tuple[list[Call], list[int]]:
        """What is called in a step that is one of many, and each call's (last) operator's index."""
        if not self.joins:
            return self.calls(), list(range(len(self.steps)))
        return join_loops(self.steps)

    def fail(self, error: Exception, index: int) -> NoReturn:
        """Raise what a call has raised, or an error that names its operator."""
        operator = self.described(self.ops[index])
        if isinstance(error, HpcdistError):
            here.doing = here.doing or operator
            raise error
        here.doing = operator
        raise HpcdistError(f"{here}: {type(error).__name__}: {error}") from error

    @functools.cached_property
    def names(self) -> list[int]:
        """What the recorder calls each step."""
        return [recorder.name(op.type) for op in self.ops]

    @staticmethod
    def described(op: Operator) -> str:
        """Return an operator's label in errors: its place and itself, or those of its segment."""
        segment = op.attrs.get("segment")  # of operators that are computed as one
        return f"{op.place} {op}" if segment is None else str(segment)
