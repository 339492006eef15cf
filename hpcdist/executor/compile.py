"""Compiling: a block and its feed shapes become arrays and a flat list of bound calls."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpcdist.base import settings
from hpcdist.base.errors import GraphError, HpcdistError
from hpcdist.executor import control
from hpcdist.executor.analysis import (
    View,
    is_control,
    reads,
    writes,
)
from hpcdist.executor.backend import Backend
from hpcdist.executor.bind_kernel import bind_kernel
from hpcdist.executor.block_arrays import BlockArrays
from hpcdist.executor.chains import join_chains
from hpcdist.executor.compiled_form import Compiled
from hpcdist.executor.cuda_graphs import join_replays
from hpcdist.executor.dynamic import GRADIENTS
from hpcdist.executor.fitting import Fitting, PoolPlace
from hpcdist.executor.flat_updates import NO_FLAT_UPDATES, FlatUpdates, lay_flat
from hpcdist.executor.interpret import Interpreter
from hpcdist.executor.live_graph import LiveGraph, fuse_runs, infer_shapes, place_views
from hpcdist.executor.memory import (
    aligned,
    carve,
    lay_contiguous,
    meta_of,
    nbytes_of,
    new_value,
)
from hpcdist.executor.pool import Pool
from hpcdist.executor.predicated import may_be_undone, run_and_select
from hpcdist.executor.saving import Layout, Needed, lay_out
from hpcdist.executor.scope import Scope
from hpcdist.executor.states import OperatorStates
from hpcdist.executor.traced import TracedSegment
from hpcdist.graph.block import Block
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import program_of
from hpcdist.graph.registry import Call, Meta
from hpcdist.ops.by_torch import Kernels, kernels_of


@dataclass(frozen=True)
class PlacedMemory:
    """Where temporaries lie in the pool's ``memory``."""

    layout: Layout
    memory: Any
    places: dict[str, PoolPlace]


@dataclass(frozen=True)
class BoundCalls:
    """The calls of a step, each with its operator."""

    steps: list[Call]
    ops: list[Operator]
    fits: control.Fits
    interpreter: Interpreter | None


class Compiler:
    """Compiles one block against one scope."""

    def __init__(
        self,
        block: Block,
        scope: Scope,
        backend: Backend,
        pool: Pool,
        states: OperatorStates | None = None,
        kernels: Kernels | None = None,
        tries: bool = False,
    ) -> None:
        """``states``: what operators keep, also when they are compiled for other shapes.

        ``kernels``: whose compute, unless HPCDIST_KERNELS says so. If it only ``tries``, what
        inductor cannot compile raises CannotCompileError, and no step has begun.
        """
        self.block = block
        self.scope = scope
        self.backend = backend
        self.pool = pool
        self.states = OperatorStates() if states is None else states
        self._made = BlockArrays(scope, backend, {})
        self.arrays = self._made.arrays
        self.given: frozenset[str] = frozenset()
        self._kernels = kernels or kernels_of(backend.xp)
        self._tries = tries

    def compile(
        self,
        feeds: Mapping[str, Meta],
        fetches: Sequence[str],
        arrays: Mapping[str, Any] | None = None,
        given_metas: Mapping[str, Meta] | None = None,
        reserve: Mapping[str, int] | None = None,
    ) -> Compiled:
        """Compile for these feeds.

        ``arrays``: by name, used as they are; ``given_metas``: their types, where these say more.
        ``reserve``: at least so many bytes are set aside for a value, which may become longer.
        """
        self._made = BlockArrays(self.scope, self.backend, arrays or {})
        self.arrays = self._made.arrays
        self.given = frozenset(self.arrays)
        known = {n: meta_of(array) for n, array in self.arrays.items()}
        known = {**known, **(given_metas or {}), **feeds}
        graph = infer_shapes(self.block, self.scope, self._keeps, feeds, fetches, known)
        self._refuse_dynamic(graph)
        graph = fuse_runs(graph, self._keeps, self._kernels, self.backend.xp is np)
        graph = place_views(graph, self._keeps, self.given)
        self._lay_messages(graph)
        flat = self._place_kept(graph)
        memory = self._place_temporaries(graph, flat, reserve or {})
        bound = self._bind_calls(graph, flat, memory)
        bound = self._join_calls(graph, bound)
        return self._compiled(graph, memory, bound, reserve or {})

    # -- passes ------------------------------------------------------------------------------
    def _refuse_dynamic(self, graph: LiveGraph) -> None:
        if graph.dynamic.ops and self.backend.xp is not np:
            raise GraphError(
                "loops, branches of open shapes, tensor arrays and extents that are fed or computed"
                " run on CPUPlace() only, not on a GPU: make the Executor with CPUPlace()"
            )

    def _lay_messages(self, graph: LiveGraph) -> None:
        """Lay variables that travel in one message side by side."""
        if graph.controls:
            network = control.required(graph.controls[0])
            groups = network.contiguous(graph.controls, graph.metas, self.backend)
            lay_contiguous(groups, graph.metas, self.scope, self.backend, network.memory)

    def _place_kept(self, graph: LiveGraph) -> FlatUpdates:
        """Use the scope's arrays of kept values; return where updates of one rule lie together."""
        ops, metas, views, fixed = graph.ops, graph.metas, graph.views, graph.fixed
        flat = self._flat_updates(ops, metas, views, fixed) if self._joins(graph) else None
        for name in [n for n in metas if n in fixed and n not in views]:
            self._made.fix(name, metas[name])
        for op in ops:
            if op.type == "fake_init":
                name = op.output("Out")[0]
                self.scope.var_or_new(name).refuse_reading(
                    f"the values of {name!r} are on the servers: look up the rows of some ids "
                    "in a program, or let fluid.io.save_persistables write them"
                )
        return NO_FLAT_UPDATES if flat is None else flat

    def _place_temporaries(
        self, graph: LiveGraph, flat: FlatUpdates, reserve: Mapping[str, int]
    ) -> PlacedMemory:
        """Lay temporaries into the pool by their lifetimes, and make all arrays and views."""
        metas = graph.metas
        pooled = metas.keys() - graph.fixed - flat.offsets.keys()
        sizes = {n: nbytes_of(meta) for n, meta in metas.items() if n in pooled}
        for name in sizes.keys() & reserve.keys():
            sizes[name] = max(sizes[name], reserve[name])
        layout = self._lay_out(graph, sizes)
        begin = aligned(layout.nbytes, self.backend.alignment)  # of gradients updated together
        memory = self.pool.take(begin + flat.nbytes)
        places = self._made.allocate(memory, layout, metas)
        for name, offset in flat.offsets.items():
            self.arrays[name] = self._made.one(carve(memory, begin + offset, metas[name]))
        for name in graph.views:
            self._made.view(name, graph.views, metas)
        return PlacedMemory(layout, memory, places)

    def _bind_calls(self, graph: LiveGraph, flat: FlatUpdates, memory: PlacedMemory) -> BoundCalls:
        """Bind each operator's kernel to its arrays; try kernels that may not compile."""
        dynamic, interpreter, fits = graph.dynamic, None, control.Fits()
        if dynamic.ops:
            recorded = {op.attrs["sub_block"]: op for op in graph.ops if op.type in GRADIENTS}
            lasting = sorted(filter(self._keeps, dynamic.names))
            interpreter = Interpreter(
                self.block, self.arrays, graph.metas, self.states, recorded, lasting
            )
        steps, ops = self._bind(
            memory.layout.ops,
            graph.metas,
            graph.views,
            graph.controls,
            fits,
            graph.fetches,
            flat.bind(self.arrays, self.backend),
            dynamic.ops,
            interpreter,
        )
        for segment in [s for s in steps if self._tries and isinstance(s, TracedSegment)]:
            segment.try_out()
        return BoundCalls(steps, ops, fits, interpreter)

    def _join_calls(self, graph: LiveGraph, bound: BoundCalls) -> BoundCalls:
        """Make one launch of calls on a GPU that can be."""
        if not self._joins(graph):
            return bound
        steps, ops = join_chains(self.backend.xp, bound.steps, bound.ops)
        if self._kernels.in_runs:
            steps, ops = join_replays(self.backend.xp, steps, ops, graph.metas)
        return replace(bound, steps=steps, ops=ops)

    def _compiled(
        self,
        graph: LiveGraph,
        memory: PlacedMemory,
        bound: BoundCalls,
        reserve: Mapping[str, int],
    ) -> Compiled:
        """Return the compiled form; of ragged feeds with what adapts it to other lengths."""
        dynamic, fitting = graph.dynamic, None
        if any(meta.sequences is not None for meta in graph.feeds.values()):
            fixed_ops = {*map(id, graph.controls), *dynamic.ops}
            fitting = Fitting(
                ops=graph.ops,
                metas=graph.metas,
                views=graph.views,
                places=memory.places,
                reserve=dict(reserve),
                arrays=self.arrays,
                steps=bound.steps,
                bound=[None if id(op) in fixed_ops else op for op in bound.ops],
                carve=functools.partial(carve, memory.memory),
                rebind=functools.partial(self._bind_one, metas=graph.metas),
                fits=bound.fits,
                interpreted=dynamic if dynamic.ops else None,
            )
        return Compiled(
            program=program_of(self.block),
            scope=self.scope,
            layout=self.scope.layout,
            arrays=self.arrays,
            steps=bound.steps,
            ops=bound.ops,
            pool_bytes=memory.layout.nbytes,
            checks=settings.CHECK_NAN_INF.read(),
            lods={} if fitting else {name: m.lod for name, m in graph.metas.items() if m.lod},
            fitting=fitting,
            interpreter=bound.interpreter,
            joins=graph.steady and self.backend.xp is np,
        )

    def _joins(self, graph: LiveGraph) -> bool:
        """Return whether calls may be joined: on a GPU, of shapes that stay."""
        return graph.steady and self.backend.xp is not np

    # -- names -------------------------------------------------------------------------------
    def _keeps(self, name: str) -> bool:
        return name in self.given or self.block.is_persistable(name)

    # -- arrays ------------------------------------------------------------------------------
    def _flat_updates(
        self,
        ops: Sequence[Operator],
        metas: Mapping[str, Meta],
        views: Mapping[str, View],
        fixed: Collection[str],
    ) -> FlatUpdates:
        """Lay what updates of one rule move side by side; gradients in ``fixed`` have a place."""
        saves = program_of(self.block).memory_saving is not None  # moves updates, to free gradients
        if saves or self.given:
            return NO_FLAT_UPDATES

        def placed(name: str) -> Any:
            if name not in fixed:
                return None
            self._made.fix(name, metas[name])
            return self.arrays[name]

        return lay_flat(ops, metas, views, self.scope, self.backend, placed)

    def _lay_out(self, graph: LiveGraph, sizes: Mapping[str, int]) -> Layout:
        """Decide where temporaries lie and, if that is wished, in which order operators run."""
        sparse = frozenset(n for n in sizes if graph.metas[n].type == "SELECTED_ROWS")
        needed = Needed(graph.views, sizes, list(graph.feeds), graph.fetches, sparse)
        free = self.block.idx == 0 and not graph.dynamic.ops
        return lay_out(graph.ops, needed, program_of(self.block).memory_saving if free else None)

    # -- calls -------------------------------------------------------------------------------
    def _bind(
        self,
        ops: Sequence[Operator],
        metas: Mapping[str, Meta],
        views: Mapping[str, View],
        controls: Sequence[Operator],
        fits: control.Fits,
        fetches: Sequence[str],
        acting: dict[int, Call | None],
        interpreted: Collection[int],
        interpreter: Interpreter | None,
    ) -> tuple[list[Call], list[Operator]]:
        if controls:
            owner = (program_of(self.block), self.scope, self.backend)
            binding = control.Binding(*owner, self.arrays, fits, fetches)
            calls = control.required(controls[0]).bind(controls, binding)
            acting.update((id(op), call) for op, call in zip(controls, calls))
        steps: list[Call] = []
        bound: list[Operator] = []
        for op in ops:
            if interpreter is not None and id(op) in interpreted:
                steps.append(interpreter.bind(op))
                bound.append(op)
                continue
            if _is_view(op, views, metas):
                continue
            call = acting[id(op)] if id(op) in acting else self._bind_one(op, metas)
            if call is not None:
                steps.append(call)
                bound.append(op)
        return steps, bound

    def _bind_one(self, op: Operator, metas: Mapping[str, Meta]) -> Call:
        if "sub_block" in op.attrs:
            return self._bind_conditional(op, metas)
        try:
            return bind_kernel(op, metas, self.arrays, self.states, self.backend)
        except HpcdistError:
            raise
        except Exception as error:  # attributes or operands that no layer gives it
            raise GraphError(f"{op.place} {op}: {type(error).__name__}: {error}") from error

    def _bind_conditional(self, op: Operator, metas: Mapping[str, Meta]) -> Call:
        """Bind a conditional_block: its condition is the first element of ``Cond``."""
        block = self.block.program.block(op.attrs["sub_block"])
        context = (
            self.scope,
            self.backend,
            Pool(self.backend),
            self.states,
            self._kernels,
            self._tries,
        )
        inner = Compiler(block, *context)
        outer = [n for n in (*reads(op), *writes(op)) if n in self.arrays]
        outer_arrays = {n: self.arrays[n] for n in outer}
        condition = self.arrays[op.input("Cond")[0]]
        outer_metas = {n: metas[n] for n in outer}
        written = [n for n in dict.fromkeys(writes(op)) if n in outer_arrays]
        if self.backend.xp is np or not may_be_undone(block, [outer_metas[n] for n in written]):
            return functools.partial(
                _run_if, condition, inner.compile({}, [], outer_arrays, outer_metas).steps
            )
        scratch = {n: new_value(outer_metas[n], self.backend) for n in written}
        steps = inner.compile({}, [], {**outer_arrays, **scratch}, outer_metas).steps
        pairs = [(outer_arrays[n], scratch[n]) for n in written]
        return run_and_select(self.backend.xp, condition.reshape(-1)[:1], pairs, steps)


def steps_of(
    block: Block,
    ops: Sequence[Operator],
    binding: control.Binding,
    arrays: Mapping[str, Any] | None = None,
) -> list[Call]:
    """Return the calls of some operators of a block, by themselves; ``arrays``: see `compile`."""
    part = Block(program_of(block), block.idx, block.parent_idx)
    part.vars, part.ops = block.vars, list(ops)
    compiler = Compiler(part, binding.scope, binding.backend, Pool(binding.backend))
    return compiler.compile({}, [], arrays).steps


def _run_if(condition: Any, steps: Sequence[Call]) -> None:
    if condition.reshape(-1)[0]:
        for call in steps:
            call()


def _is_view(op: Operator, views: Mapping[str, View], metas: Mapping[str, Meta]) -> bool:
    """Return whether an operator has nothing left to do: its results are views, or of views."""
    if is_control(op):
        return False
    results = [n for n in op.output_arg_names if n in metas and metas[n].size]
    if results and all(n in views and views[n].root in op.input_arg_names for n in results):
        return True
    pieces = op.input("X") if op.type == "concat" else []
    return bool(pieces) and all(n in views and views[n].root == results[0] for n in pieces)
