"""Compiling: a block and its feed shapes become arrays and a flat list of bound calls."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from hpcdist.base import settings
from hpcdist.base.errors import GraphError, HpcdistError
from hpcdist.executor import control
from hpcdist.executor.analysis import (
    View,
    concrete_metas,
    find_views,
    is_control,
    reads,
    root_of,
    select_live,
    writes,
)
from hpcdist.executor.backend import Backend
from hpcdist.executor.bind_kernel import bind_kernel
from hpcdist.executor.chains import join_chains
from hpcdist.executor.compiled_form import Compiled
from hpcdist.executor.cuda_graphs import join_replays
from hpcdist.executor.dynamic import GRADIENTS, Dynamic
from hpcdist.executor.fitting import Fitting, PoolPlace
from hpcdist.executor.flat_updates import NO_FLAT_UPDATES, FlatUpdates, lay_flat
from hpcdist.executor.initial_values import known_metas
from hpcdist.executor.interpret import Interpreter
from hpcdist.executor.memory import (
    adopted,
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
from hpcdist.executor.segments import fuse
from hpcdist.executor.states import OperatorStates
from hpcdist.executor.traced import TracedSegment
from hpcdist.graph.block import Block
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import program_of
from hpcdist.graph.registry import Call, Meta
from hpcdist.ops.by_torch import Kernels, kernels_of
from hpcdist.ops.embedding.selected_rows import SelectedRows

SENDING = ("send", "c_allreduce_sum")  # what they send keeps its place in memory


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
        self.arrays: dict[str, Any] = {}
        self._places: dict[object, Any] = {}
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
        self.arrays = dict(arrays or {})
        self.given = frozenset(self.arrays)
        self._places = {}
        for array in self.arrays.values():
            self._one(array)
        fed = {n: meta_of(array) for n, array in self.arrays.items()}
        fed = {**fed, **(given_metas or {}), **feeds}
        ops = select_live(self.block.ops, fetches, self._keeps)
        controls = [op for op in ops if is_control(op) and "sub_block" not in op.attrs]
        network = control.required(controls[0]) if controls else None
        dynamic = Dynamic.of(self.block, ops, self._keeps)
        fed = known_metas(self.block, self.scope, ops, fed, fetches, self._keeps)
        metas = concrete_metas(self.block, ops, fed, dynamic)
        if dynamic.ops and self.backend.xp is not np:
            raise GraphError(
                "loops, branches of open shapes, tensor arrays and extents that are fed or computed"
                " run on CPUPlace() only, not on a GPU: make the Executor with CPUPlace()"
            )
        steady = self._steady(feeds) and not dynamic.ops
        if steady and program_of(self.block).memory_saving is None and self._kernels.in_runs:
            is_compiled = self._kernels is Kernels.COMPILED
            ops = fuse(ops, metas, fetches, self._keeps, is_compiled)
        views = find_views(ops, metas, dynamic.ops, self._keeps)
        sent = {root_of(views, n) for op in ops if op.type in SENDING for n in op.input("X")}
        sent = {n for n in sent if n in metas and metas[n].type != "SELECTED_ROWS"}
        if network is not None:
            groups = network.contiguous(controls, metas, self.backend)
            lay_contiguous(groups, metas, self.scope, self.backend, network.memory)
        fixed = {n for n in metas if self._keeps(n) or n in sent or n in self.arrays}
        joins = steady and self.backend.xp is not np
        flat = self._flat_updates(ops, metas, views, fixed) if joins else NO_FLAT_UPDATES
        for name in [n for n in metas if n in fixed and n not in views]:
            self._fix(name, metas[name])
        for op in ops:
            if op.type == "fake_init":
                name = op.output("Out")[0]
                self.scope.var_or_new(name).refuse_reading(
                    f"the values of {name!r} are on the servers: look up the rows of some ids "
                    "in a program, or let fluid.io.save_persistables write them"
                )
        pooled = metas.keys() - fixed - flat.offsets.keys()
        sizes = {n: nbytes_of(meta) for n, meta in metas.items() if n in pooled}
        for name in sizes.keys() & (reserve or {}).keys():
            sizes[name] = max(sizes[name], (reserve or {})[name])
        layout = self._lay_out(ops, views, sizes, feeds, fetches, bool(dynamic.ops))
        begin = aligned(layout.nbytes, self.backend.alignment)  # of gradients updated together
        memory = self.pool.take(begin + flat.nbytes)
        places = self._allocate(memory, layout, metas)
        for name, offset in flat.offsets.items():
            self.arrays[name] = self._one(carve(memory, begin + offset, metas[name]))
        for name in views:
            self._view(name, views, metas)
        fits = control.Fits()
        interpreter = None
        if dynamic.ops:
            recorded = {op.attrs["sub_block"] for op in ops if op.type in GRADIENTS}
            lasting = sorted(filter(self._keeps, dynamic.names))
            interpreter = Interpreter(
                self.block, self.arrays, metas, self.states, recorded, lasting
            )
        flat_calls = flat.bind(self.arrays, self.backend)
        steps, bound_ops = self._bind(
            layout.ops, metas, views, controls, fits, fetches, flat_calls, dynamic.ops, interpreter
        )
        for segment in [s for s in steps if self._tries and isinstance(s, TracedSegment)]:
            segment.try_out()
        if joins:
            steps, bound_ops = join_chains(self.backend.xp, steps, bound_ops)
        if joins and self._kernels.in_runs:
            steps, bound_ops = join_replays(self.backend.xp, steps, bound_ops, metas)
        fitting = None
        if any(meta.sequences is not None for meta in feeds.values()):
            fixed_ops = {*map(id, controls), *dynamic.ops}
            again = [None if id(op) in fixed_ops else op for op in bound_ops]
            fitting = Fitting(
                ops=ops,
                metas=metas,
                views=views,
                places=places,
                reserve=dict(reserve or {}),
                arrays=self.arrays,
                steps=steps,
                bound=again,
                carve=functools.partial(carve, memory),
                rebind=functools.partial(self._bind_one, metas=metas),
                fits=fits,
                interpreted=dynamic if dynamic.ops else None,
            )
        return Compiled(
            program=program_of(self.block),
            scope=self.scope,
            layout=self.scope.layout,
            arrays=self.arrays,
            steps=steps,
            ops=bound_ops,
            pool_bytes=layout.nbytes,
            checks=settings.CHECK_NAN_INF.read(),
            fitting=fitting,
            interpreter=interpreter,
        )

    # -- names -------------------------------------------------------------------------------
    def _keeps(self, name: str) -> bool:
        return name in self.given or self.block.is_persistable(name)

    # -- arrays ------------------------------------------------------------------------------
    def _steady(self, feeds: Mapping[str, Meta]) -> bool:
        """Return whether calls may become one: shapes stay, and nobody asks for them one by one."""
        ragged = any(meta.sequences is not None for meta in feeds.values())
        return not ragged and not settings.CHECK_NAN_INF.read()

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
            self._fix(name, metas[name])
            return self.arrays[name]

        return lay_flat(ops, metas, views, self.scope, self.backend, placed)

    def _fix(self, name: str, meta: Meta) -> None:
        """Use the scope's array of a kept value: made if it is new, moved if it is elsewhere."""
        if name in self.arrays:
            return
        variable = self.scope.var_or_new(name)
        if variable.value is None or meta_of(variable.value) != meta:
            variable.hold(new_value(meta, self.backend))
        array = adopted(variable.value, self.backend)
        if array is not variable.value:
            variable.hold(array)
        self.arrays[name] = self._one(array)

    def _lay_out(
        self,
        ops: Sequence[Operator],
        views: Mapping[str, View],
        sizes: Mapping[str, int],
        feeds: Mapping[str, Meta],
        fetches: Sequence[str],
        in_order: bool,
    ) -> Layout:
        """Decide where temporaries lie and, if that is wished, in which order operators run."""
        needed = Needed(views, sizes, list(feeds), fetches)
        free = self.block.idx == 0 and not in_order
        return lay_out(ops, needed, program_of(self.block).memory_saving if free else None)

    def _allocate(
        self, memory: object, layout: Layout, metas: Mapping[str, Meta]
    ) -> dict[str, PoolPlace]:
        """Make the arrays of temporaries, and return where each lies in the memory."""
        places = {}
        for storage, offset in zip(layout.storages, layout.offsets):
            place = PoolPlace(offset, storage.nbytes)
            for name in storage.names:
                places[name] = place
                self.arrays[name] = self._one(carve(memory, offset, metas[name]))
        return places

    def _view(self, name: str, views: Mapping[str, View], metas: Mapping[str, Meta]) -> Any:
        if name in self.arrays:
            return self.arrays[name]
        view = views[name]
        root = self._view(view.root, views, metas) if view.root in views else self.arrays[view.root]
        reshaped = view.begin is None
        seen = root.reshape(metas[name].shape) if reshaped else root[view.begin : view.end]
        self.arrays[name] = self._one(seen)
        return self.arrays[name]

    def _one(self, value: Any) -> Any:
        """Return the one object for a place, shape and type: by that cupy knows an operand again.

        An operand that overlaps a result, and is another object, it copies at every step.
        """
        if isinstance(value, SelectedRows):
            return value
        key = (self.backend.address(value), value.shape, value.strides, value.dtype)
        return self._places.setdefault(key, value)

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
