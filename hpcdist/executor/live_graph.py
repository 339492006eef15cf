"""The passes before binding: which operators run, the shapes of their results, which are views."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hpcdist.base import settings
from hpcdist.executor import control
from hpcdist.executor.analysis import (
    View,
    concrete_metas,
    find_views,
    is_control,
    root_of,
    select_live,
)
from hpcdist.executor.dynamic import Dynamic
from hpcdist.executor.initial_values import known_metas
from hpcdist.executor.scope import Scope
from hpcdist.executor.segments import fuse
from hpcdist.graph.block import Block
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import program_of
from hpcdist.graph.registry import Meta
from hpcdist.ops.by_torch import Kernels

SENDING = ("send", "c_allreduce_sum")  # what they send keeps its place in memory

Keeps = Callable[[str], bool]  # whether a value is kept between runs, or given to the compiler


@dataclass(frozen=True)
class LiveGraph:
    """The operators to compile, in order, and what the passes before binding find of them.

    ``controls``: operators that the runtime binds. ``steady``: shapes stay, and nobody asks for
    results one by one. ``fixed``: values that have a place outside the pool.
    """

    block: Block
    feeds: Mapping[str, Meta]
    fetches: Sequence[str]
    ops: Sequence[Operator]
    controls: Sequence[Operator]
    dynamic: Dynamic
    metas: dict[str, Meta]
    steady: bool
    views: Mapping[str, View] = field(default_factory=dict)
    fixed: Collection[str] = ()


def infer_shapes(
    block: Block,
    scope: Scope,
    keeps: Keeps,
    feeds: Mapping[str, Meta],
    fetches: Sequence[str],
    known: Mapping[str, Meta],
) -> LiveGraph:
    """Drop what nobody needs, and run the shape rules with the sizes of the feeds.

    ``known``: the types of feeds and of arrays that are given.
    """
    ops = select_live(block.ops, fetches, keeps)
    controls = [op for op in ops if is_control(op) and "sub_block" not in op.attrs]
    if controls:  # without a job nothing else matters
        control.required(controls[0])
    dynamic = Dynamic.of(block, ops, keeps)
    known = known_metas(block, scope, ops, known, fetches, keeps)
    metas = concrete_metas(block, ops, known, dynamic)
    ragged = any(meta.sequences is not None for meta in feeds.values())
    steady = not ragged and not settings.CHECK_NAN_INF.read() and not dynamic.ops
    return LiveGraph(block, feeds, fetches, ops, controls, dynamic, metas, steady)


def fuse_runs(graph: LiveGraph, keeps: Keeps, kernels: Kernels, on_host: bool) -> LiveGraph:
    """Join runs of operators into segments, if ``kernels`` compute them so."""
    saves = program_of(graph.block).memory_saving is not None
    if not graph.steady or saves or not kernels.in_runs:
        return graph
    is_compiled = kernels is Kernels.COMPILED
    ops = fuse(graph.ops, graph.metas, graph.fetches, keeps, is_compiled, rates=not on_host)
    return replace(graph, ops=ops)


def place_views(graph: LiveGraph, keeps: Keeps, given: Collection[str]) -> LiveGraph:
    """Find results that are views, and values that have a place outside the pool."""
    ops, metas = graph.ops, graph.metas
    views = find_views(ops, metas, graph.dynamic.ops, keeps)
    sent = {root_of(views, n) for op in ops if op.type in SENDING for n in op.input("X")}
    sent = {n for n in sent if n in metas and metas[n].type != "SELECTED_ROWS"}
    fixed = {n for n in metas if keeps(n) or n in sent or n in given}
    return replace(graph, views=views, fixed=fixed)
