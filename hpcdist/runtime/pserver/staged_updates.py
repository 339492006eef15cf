"""Updates that need sums over servers: of a whole step at once, in stages.

When all gradients of a step have arrived, they are averaged; then operators run stage by stage on
all blocks of this server, and between two stages the servers add up their partial sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcdist.base.trace.position import here
from hpcdist.comm.base import Transport
from hpcdist.executor.compile import steps_of
from hpcdist.executor.control import Binding
from hpcdist.graph.block import Block
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Call
from hpcdist.ops.common import in_sequence
from hpcdist.transpiler.mean_gradient import STAGE, ServerSums

OpsOn = Callable[[Any], tuple[Sequence[Operator], Mapping[str, Any]]]  # a merged sparse gradient
Merge = Callable[[tuple[int, ...]], Any]  # contributors -> mean gradient; None: it has no rows
Update = Callable[[tuple[int, ...]], None]
Stages = Sequence[Call]


class StagedUpdates:
    """The updates of one server: each gets an `Update`, and the last one of a step runs them all.

    ``servers`` are those that hold blocks, None if there is one; all come together in every step.
    Sums run in the order of the blocks, then of the servers: the same bits in every run.
    """

    def __init__(
        self, sums: ServerSums, binding: Binding, servers: Transport | None, deadline_s: float
    ) -> None:
        self._sums = sums
        self._binding = binding
        self._servers = servers
        self._deadline_s = deadline_s
        home, scalars = binding.program.global_block(), binding.program.block(sums.scalars)
        names = [n for op in scalars.ops for n in op.output_arg_names]
        names += [n for s in sums.sums for n in (s.total, *s.parts)]
        self._arrays = {n: np.zeros(home.var(n).shape, home.var(n).dtype) for n in names}
        self._scalars = self._compiled(scalars, scalars.ops, {})
        self._merges: dict[str, Merge] = {}
        self._bound: dict[str, Callable[[Any], Stages]] = {}
        self._arrived: dict[str, tuple[int, ...]] = {}

    def add_dense(
        self, block: Block, gradient: str, ops: Sequence[Operator], merged: object, mean: Merge
    ) -> Update:
        """Take the operators of a block of rows; ``mean`` writes its gradient into ``merged``."""
        stages = self._compiled(block, ops, {gradient: merged})
        return self._added(gradient, mean, lambda rows: stages)

    def add_sparse(self, block: Block, gradient: str, ops_on: OpsOn, mean: Merge) -> Update:
        """Take the operators of a table, compiled for every gradient: it has any number of rows."""
        return self._added(gradient, mean, lambda rows: self._compiled(block, *ops_on(rows)))

    def _added(self, gradient: str, mean: Merge, bound: Callable[[Any], Stages]) -> Update:
        self._merges[gradient], self._bound[gradient] = mean, bound

        def update(contributors: tuple[int, ...]) -> None:
            self._arrived[gradient] = contributors
            if len(self._arrived) == len(self._merges):
                arrived, self._arrived = self._arrived, {}
                self._step(arrived)

        return update

    def _step(self, arrived: Mapping[str, tuple[int, ...]]) -> None:
        for part in (p for s in self._sums.sums for p in s.parts):
            self._arrays[part].fill(0)  # a table may have no rows
        means = {name: merge(arrived[name]) for name, merge in self._merges.items()}
        moved = [self._bound[n](mean) for n, mean in means.items() if mean is not None]
        for stage in range(self._sums.stages):
            if stage:
                self._add_up(stage - 1)
            for stages in (self._scalars, *moved):
                stages[stage]()

    def _add_up(self, stage: int) -> None:
        """Make totals of the parts of a stage. Collective among the servers."""
        sums = [s for s in self._sums.sums if s.stage == stage]
        if not sums:
            return
        totals = np.array([sum(float(self._arrays[p][0]) for p in s.parts) for s in sums])
        if self._servers is not None:
            awaited = f"the other servers' sums of the gradients of step {here.step}"
            came = self._servers.allgather_bytes(totals.tobytes(), self._deadline_s, awaited)
            totals = np.sum([np.frombuffer(data) for data in came], axis=0)
        for s, total in zip(sums, totals):
            self._arrays[s.total][0] = total

    def _compiled(self, block: Block, ops: Sequence[Operator], arrays: Mapping[str, Any]) -> Stages:
        """Compile the operators of each stage; what one hands to another is kept in the scope."""
        arrays = {**self._arrays, **arrays}
        return [
            in_sequence(
                *steps_of(block, [op for op in ops if op.attrs[STAGE] == s], self._binding, arrays)
            )
            for s in range(self._sums.stages)
        ]


def servers_with_blocks(servers: Transport, takes_part: bool) -> Transport | None:
    """Return the transport of those servers that take part; None if this is the only one.

    Collective among all servers.
    """
    among = servers.split(0 if takes_part else 1, servers.rank)
    return among if takes_part and among.size > 1 else None
