"""A trainer's side of the operators among trainers: sums of gradients, without servers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from hpcdist.base import settings
from hpcdist.base.device import assign, on_host
from hpcdist.base.errors import CommError
from hpcdist.base.trace.position import here
from hpcdist.comm.base import Transport, ranks_that_differ
from hpcdist.comm.collective import CollectiveOperations
from hpcdist.comm.groups import AllreduceOptions, make_groups
from hpcdist.comm.hierarchy import find_nodes
from hpcdist.comm.host_collective import HostCollective
from hpcdist.executor.backend import Backend
from hpcdist.executor.control import Binding
from hpcdist.executor.scope import Scope
from hpcdist.graph.operator import Operator
from hpcdist.graph.printing import exact_text
from hpcdist.graph.program import Program, ProgramCache, program_of
from hpcdist.graph.registry import Call, Meta
from hpcdist.ops.embedding.selected_rows import SelectedRows
from hpcdist.ps.table import SparseTable
from hpcdist.runtime.batches.scatter import weighted
from hpcdist.runtime.collective.broadcasts import bind_broadcasts
from hpcdist.runtime.collective.bucket_allreduce import RowsSum, Sums, bucket_names, fusing_of
from hpcdist.runtime.collective.sparse_sum import CompressedSteps, SparseSum
from hpcdist.runtime.collective.sum_checks import (
    check_counts,
    in_fixed_order,
    is_sparse,
    metas_of,
    persistent_names,
    refuse_servers_operators,
    way_of,
)
from hpcdist.runtime.collective.trainers_tables import TrainersTables
from hpcdist.runtime.job.farewells import Common, Farewells
from hpcdist.runtime.job.link import Link
from hpcdist.runtime.staging import in_order
from hpcdist.runtime.tables.pull_push import TABLE_OPS
from hpcdist.transpiler.adaptive_local_sgd import steps_of
from hpcdist.transpiler.collective import rewritten
from hpcdist.transpiler.data_parallel import RUNNING, check_counts_rows, without_data
from hpcdist.transpiler.gathered_rows import check_sparse
from hpcdist.transpiler.grad_allreduce import without_average
from hpcdist.transpiler.group import PLAIN, Group, group_of, required_group
from hpcdist.transpiler.sharded_updates import owners_of
from hpcdist.transpiler.substitute import in_group

logger = logging.getLogger("hpcdist")
LOCAL_STEPS = "local steps"  # as checkpoints call what local SGD counts
AVERAGED = "averaged in local step"
# Programs with one of these are run by all trainers together.
_TOGETHER = ("c_allreduce_sum", "c_sparse_sum")


@dataclass
class _Progress:
    """How far a Program that trains has come.

    For local SGD ``steps`` are counted, and which was the last that ``averaged``.
    """

    begun: bool = False
    steps: int = 0
    averaged: int = 0


class GroupTables(Protocol):
    """Where the rows of distributed tables are; ``together``: what all trainers run together."""

    together: tuple[str, ...]

    def bind(self, ops: Sequence[Operator], binding: Binding) -> dict[int, Call]:
        """Return the calls of operators of tables in a step, by their id."""


class CollectiveLink(Link):
    """The connection of one trainer to all others, shared by the Programs it runs."""

    def __init__(
        self,
        trainers: Transport,
        names: tuple[str, ...],
        deadline_s: float,
        tables: GroupTables | None = None,
        common: Common | None = None,
    ) -> None:
        """``names`` are the trainers' endpoints. Collective among the trainers without ``common``.

        ``tables`` says where rows of distributed tables are; by default the trainers share them.
        """
        self._names = names
        self._trainers = trainers
        self._deadline_s = deadline_s
        if common is None:
            common = Common(trainers.split(0, trainers.rank), Farewells(trainers, deadline_s))
        self._host, self._farewells = HostCollective(common.sums, deadline_s), common.farewells
        self._tables = tables or TrainersTables(trainers, deadline_s)
        self._groups: dict[tuple[AllreduceOptions, int | None], list[CollectiveOperations]] = {}
        self._way = AllreduceOptions()  # of the Program that is being compiled
        self._progress: ProgramCache[_Progress] = ProgramCache(lasting=True)
        self._sums: ProgramCache[dict[Scope, Sums]] = ProgramCache()
        # What local SGD runs in the steps in which it does not average.
        self._between: ProgramCache[Program] = ProgramCache()
        self._compressed = CompressedSteps()
        # By scope, variables whose values come from a checkpoint.
        self._restored: WeakKeyDictionary[Scope, set[str]] = WeakKeyDictionary()
        self._variants: ProgramCache[tuple[Program, Program]] = ProgramCache()

    def node_count(self) -> int:
        """Return on how many hosts the trainers are. Collective."""
        return len(find_nodes(self._host.group, 0)[0].members)

    def refuse_uneven(self) -> None:
        """Refuse nothing: sums count rows."""

    # -- before a step -----------------------------------------------------------------------
    def substitute(self, program: Program) -> Program:
        return in_group(program)

    def transpiled(
        self, mains: Sequence[Program], startup: Program
    ) -> tuple[list[Program], Program]:
        (main,) = mains
        check_counts(main, len(self._names))
        me = self._trainers.rank
        group = Group("grad_allreduce", self._names, me, self._names[me], fusing=PLAIN)
        first, trainer = rewritten(startup, main, group)
        return [trainer], first

    def begin(self, program: Program, scope: Scope) -> None:
        """Before a Program trains for the first time: agree on it, and on what it starts from."""
        progress = self._progress_of(program)
        if not program.trains or progress.begun:
            return
        progress.begun = True
        check_sparse(program)
        group = required_group(program)
        self._agree(program, group)
        self._compressed.tell(program, self._trainers.rank)
        if group.mode == RUNNING:
            self.begin_alike(program, scope)

    def variants(self, program: Program) -> tuple[Program, Program]:
        def make() -> tuple[Program, Program]:
            check_counts_rows(program, required_group(program))
            with_rows = self._as_variant(weighted(program), of=program)
            return with_rows, self._as_variant(without_data(program), of=program)

        return self._variants.of(program, make)

    def _as_variant(self, variant: Program, of: Program) -> Program:
        """Note that two Programs are run in the same steps, so that their sums are the same."""
        self._progress_of(variant).begun = True
        self._sums.put(variant, self._sums.of(of, dict))
        return variant

    def _progress_of(self, program: Program) -> _Progress:
        return self._progress.of(program, _Progress)

    def of_this_step(self, program: Program, scope: Scope) -> Program:
        """Return a Program's form of its next step: local SGD averages in some steps only."""
        if not program.trains:
            return program
        group = required_group(program)
        if group.k_steps == 1 and not group.adapts_to:
            return self._compressed.of_this_step(program, scope)
        progress = self._progress_of(program)
        progress.steps += 1
        if self._averages(group, progress, scope):
            progress.averaged = progress.steps
            return program
        return self._between.of(
            program, lambda: self._as_variant(without_average(program), of=program)
        )

    def is_steady(self, program: Program) -> bool:
        if not program.trains:
            return True
        group = required_group(program)
        steady = group.k_steps == 1 and not group.adapts_to
        return steady and self._compressed.of(program).program is None

    def _averages(self, group: Group, progress: _Progress, scope: Scope) -> bool:
        if not group.adapts_to:
            return group.averages(progress.steps)
        variable = scope.find_var(steps_of(group))
        if variable is None or variable.value is None or progress.steps <= group.begin_step:
            return True  # if it has no value, compiling says so
        return progress.steps - progress.averaged >= int(variable.value[0])

    def settle(self, program: Program) -> dict[str, int]:
        """Return how many steps of local SGD there were; between steps nothing is under way."""
        progress = self._progress_of(program)
        counted = {LOCAL_STEPS: progress.steps, AVERAGED: progress.averaged}
        return counted if progress.steps else {}

    def resume(self, program: Program, counted: Mapping[str, int], scope: Scope) -> None:
        """Go on counting steps of local SGD; what trainers have of their own stays as it is."""
        progress = self._progress_of(program)
        progress.steps = int(counted.get(LOCAL_STEPS, 0))
        progress.averaged = int(counted.get(AVERAGED, 0))
        self._restored.setdefault(scope, set()).update(persistent_names(program))

    def _agree(self, program: Program, group: Group) -> None:
        """Refuse to train together if trainers have built different Programs. Collective."""
        often = (group.k_steps, group.begin_step, group.adapts_to)
        kernels = settings.KERNELS.read()
        of_group = (fusing_of(group), group.fused, way_of(group), group.sharded)
        chosen = (*of_group, in_fixed_order(), often, kernels)
        text = f"{group.fingerprint or exact_text(program)}\n{chosen}"
        awaited = "the other trainers' programs"
        different = ranks_that_differ(self._trainers, text, self._deadline_s, awaited)
        if different:
            raise CommError(
                f"trainer {self._trainers.rank}: the program built here differs from that of "
                f"trainers {different}: all ranks must build the same network, with equal "
                "settings and FLAGS_"
            )

    def begin_alike(self, program: Program, scope: Scope) -> None:
        """Overwrite what is kept with the values of trainer 0, as ParallelExecutor did.

        What comes from a checkpoint stays: trainers may have values of their own there.
        """
        here.doing = "taking over the values of trainer 0"
        for name in sorted(persistent_names(program) - owners_of(program).keys()):
            variable = scope.find_var(name)
            value = None if variable is None else variable.value
            if variable is not None and name in self._restored.get(variable.scope, ()):
                continue
            if value is not None and not isinstance(value, (SelectedRows, SparseTable)):
                self._broadcast(value, 0)
        here.doing = ""

    def _broadcast(self, array: object, root: int) -> None:
        if isinstance(array, np.ndarray) and array.flags.c_contiguous:
            self._host.broadcast(array, root)
            return
        host = np.ascontiguousarray(on_host(array))
        self._host.broadcast(host, root)
        assign(array, host)

    # -- compiling ---------------------------------------------------------------------------
    def contiguous(
        self, ops: Sequence[Operator], metas: Mapping[str, Meta], backend: Backend
    ) -> list[list[str]]:
        """Return the names that must be adjacent because they are summed together."""
        self._way = way_of(group_of(program_of(ops[0])))
        return bucket_names(ops, metas)

    def memory(self, nbytes: int, backend: Backend) -> Any:
        """Return memory of a backend in which sums need the least copying. Collective."""
        return self._groups_of(self._way, backend)[0].empty(nbytes)

    def _groups_of(self, way: AllreduceOptions, backend: Backend) -> list[CollectiveOperations]:
        key = (way, backend.device_id)
        if key not in self._groups:
            here.doing = "making communicators"
            self._groups[key] = make_groups(
                self._trainers, way, backend.device_id, self._deadline_s
            )
            here.doing = ""
        return self._groups[key]

    def bind(self, ops: Sequence[Operator], binding: Binding) -> list[Call | None]:
        """Return each operator's call among trainers in a step; None if nothing."""
        refuse_servers_operators(ops)
        of_tables = [op for op in ops if op.type in TABLE_OPS]
        tables = self._tables.bind(of_tables, binding) if of_tables else {}
        others = [op for op in ops if id(op) not in tables]
        summing = iter(self._bind_sums(others, binding))
        calls = [tables[id(op)] if id(op) in tables else next(summing) for op in ops]
        if any(op.type in (*_TOGETHER, *self._tables.together) for op in ops):
            calls[0] = in_order(self._farewells.begin_step, calls[0])
            calls[-1] = in_order(calls[-1], self._farewells.end_step)
        return calls

    def _bind_sums(self, ops: Sequence[Operator], binding: Binding) -> list[Call | None]:
        if not any(op.type in ("c_allreduce_sum", "c_sparse_sum") for op in ops):
            alone = bind_broadcasts(ops, binding, self._trainers.rank, self._broadcast)
            return [alone.get(id(op)) for op in ops]
        sums = self._sums_of(ops, binding)
        rows = {
            op.input("X")[0]: RowsSum(self._host, binding.arrays[op.input("X")[0]], binding)
            for op in ops
            if op.type == "c_allreduce_sum" and is_sparse(binding.arrays[op.input("X")[0]])
        }
        alone = bind_broadcasts(ops, binding, self._trainers.rank, self._broadcast)
        calls: list[Call | None] = []
        gathers: list[Call] = []  # of the rows that wait for the next synchronization
        last = max((i for i, op in enumerate(ops) if op.type == "c_allreduce_sum"), default=-1)
        for i, op in enumerate(ops):
            call: Call | None = None
            if op.type == "c_allreduce_sum":
                name = op.input("X")[0]
                if name in rows:
                    gathers.append(rows[name].gather)
                else:
                    call = sums.add(name)
            elif op.type == "c_sparse_sum":
                call = SparseSum(self._host, op, binding)
            elif op.type == "c_sync_calc_stream":
                call = sums.progress
            elif op.type == "c_sync_comm_stream":
                call, gathers = in_order(sums.wait_for_added(), *gathers), []
            else:
                call = alone.get(id(op))
            if i == last and not any(o.type == "c_sync_comm_stream" for o in ops[i:]):
                call, gathers = in_order(call, sums.wait_for_added(), *gathers), []
            calls.append(call)
        return calls

    def _sums_of(self, ops: Sequence[Operator], binding: Binding) -> Sums:
        """Return the sums of a Program in a scope; made once, while its buffers stay."""
        by_scope = self._sums.of(binding.program, dict)
        names = bucket_names(ops, metas_of(ops, binding.arrays))
        sums = by_scope.get(binding.scope)
        if sums is None or not sums.holds(names, binding.arrays):
            here.doing = "making the sums of gradients"
            groups = self._groups_of(way_of(group_of(binding.program)), binding.backend)
            sums = Sums(groups, names, binding, in_fixed_order())
            here.doing = ""
            if binding.scope not in by_scope and self._trainers.rank == 0:
                _say_fused(sum(map(len, names)), len(names))
            by_scope[binding.scope] = sums
        sums.begin()
        return sums

    # -- the end -----------------------------------------------------------------------------
    def close(self) -> None:
        """Notify the others that no more sums come from here."""
        self._farewells.tell()

    def abandon(self) -> None:
        self._farewells.stop_watching()

    def end(self) -> None:
        """Take in what all others said when they ended. Collective, after `close` on all."""
        self._farewells.take_all()
        for (_, device_id), groups in self._groups.items():
            if device_id is not None:  # communicators of NCCL outlive the process's Python objects
                for group in groups:
                    group.close()
        self._groups.clear()


def _say_fused(gradients: int, sums: int) -> None:
    """Say in Fluid's words how far gradients are combined, if they are."""
    if sums < gradients:
        logger.info(
            f"Find all_reduce operators: {gradients}. To make the speed faster, some all_reduce "
            f"ops are fused during training, after fusion, the number of all_reduce ops is {sums}."
        )
