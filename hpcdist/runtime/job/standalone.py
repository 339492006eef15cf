"""A process that trains alone: its distributed tables are local, used as on a server."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence

from hpcdist.comm.process_manager import launched_rank, launched_size
from hpcdist.executor import control
from hpcdist.executor.control import Binding, Feed, Settled
from hpcdist.executor.scope import Scope
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program, ProgramCache
from hpcdist.graph.registry import Call
from hpcdist.runtime.batches.global_moments import bind_moments, is_synchronized
from hpcdist.runtime.job.exchanges import bind_exchange, exchanges
from hpcdist.runtime.tables.pull_push import LocalTables, bind_local
from hpcdist.transpiler.grad_allreduce import RING_OPS
from hpcdist.transpiler.group import group_of
from hpcdist.transpiler.substitute import with_tables


class Standalone(control.Control):
    """The Control of a process without a job: it runs operators of tables, and sync_batch_norm."""

    def __init__(self) -> None:
        super().__init__()
        self._substitutes: ProgramCache[Program] = ProgramCache()

    def substitute(
        self, program: Program, feed: Feed, scope: Scope, fetches: Sequence[str]
    ) -> tuple[Program, Feed]:
        """Return the Program to run: itself, if it has no distributed tables."""
        _warn_of_copies()
        return self._substitutes.of(program, lambda: with_tables(_without_rings(program))), feed

    def settled(
        self, program: Program, fed: Sequence[str], scope: Scope, fetches: tuple[str, ...]
    ) -> Settled:
        """Return the same for every step: a process alone decides nothing anew."""
        return Settled(self.substitute(program, {}, scope, fetches)[0], fetches)

    def bind(self, ops: Sequence[Operator], binding: Binding) -> list[Call | None]:
        """Return the calls of operators of tables; HpcdistError for one that needs other ranks."""
        for op in ops:
            control.required(op)
        calls = {id(op): bind_moments(op, binding, None) for op in ops if is_synchronized(op)}
        calls |= {
            id(op): bind_exchange(op, binding, lambda data, _: [data], 0, 1)
            for op in ops
            if exchanges(op)
        }
        steps = [op for op in ops if id(op) not in calls]
        calls |= bind_local(steps, binding, 0, 1, LocalTables)
        return [calls[id(op)] for op in ops]


@functools.cache
def _warn_of_copies() -> None:
    """Say, once and on one rank, that several processes were started and each trains alone.

    Tests are run on several ranks for other reasons.
    """
    size = launched_size() or 1
    if size > 1 and not launched_rank() and "pytest" not in sys.modules:
        print(
            f"hpcdist: {size} processes were started, and each trains the whole model by itself; "
            f"to train it on all of them together: mpirun -n {size} python -m hpcdist "
            f"{sys.argv[0]}",
            file=sys.stderr,
            flush=True,
        )


def _without_rings(program: Program) -> Program:
    """Return a program that was transpiled for one trainer without its communicators."""
    group = group_of(program)
    if group is None or len(group.endpoints) > 1:
        return program
    new = program.clone()
    new.initialize_as(program)
    block = new.global_block()
    block.ops = [op for op in block.ops if op.type not in RING_OPS]
    return new
