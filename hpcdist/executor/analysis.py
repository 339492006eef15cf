"""Analysis of a block before arrays are allocated: live operators, shapes, shared storage. Pure."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from hpcdist.base.errors import FeedError, GraphError, HpcdistError
from hpcdist.executor.memory import Lifetime
from hpcdist.graph.block import Block
from hpcdist.graph.names import EMPTY
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Meta, lookup
from hpcdist.graph.shape_rules import infer_outputs

FOREVER = sys.maxsize


def is_control(op: Operator) -> bool:
    """Return whether an operator acts on the world (send, conditional_block): it has no kernel."""
    definition = lookup(op.type)
    return definition.kernel is None and definition.bind is None and definition.values is None


def nested_ops(op: Operator) -> list[Operator]:
    """Return an operator with those of its sub-blocks after it."""
    nested = [op]
    index = op.attrs.get("sub_block")
    if index is not None:
        for inner in op.block.program.block(index).ops:
            nested += nested_ops(inner)
    return nested


def reads(op: Operator) -> list[str]:
    """Names an operator reads, its sub-blocks included."""
    return [n for inner in nested_ops(op) for n in inner.input_arg_names if n != EMPTY]


def values_read(op: Operator) -> list[str]:
    """Names of which an operator reads more than the shape, its sub-blocks included."""
    return [
        name
        for inner in nested_ops(op)
        for slot, names in inner.inputs.items()
        if slot not in lookup(inner.type).shape_only
        for name in names
        if name != EMPTY
    ]


def writes(op: Operator) -> list[str]:
    """Names an operator writes, its sub-blocks included."""
    return [n for inner in nested_ops(op) for n in inner.output_arg_names if n != EMPTY]


def lengths_read(block: Block, fed: Collection[str]) -> list[str]:
    """Return those of the names fed that an operator reads as lengths of sequences."""
    return [
        name
        for op in block.ops
        for slot in lookup(op.type).measures
        for name in op.input(slot)
        if name in fed
    ]


def select_live(
    ops: Sequence[Operator], fetches: Iterable[str], keeps: Callable[[str], bool]
) -> list[Operator]:
    """Drop operators whose results nobody fetches, keeps or sends."""
    needed = set(fetches)
    live = []
    for op in reversed(ops):
        written = writes(op)
        acts = is_control(op) or lookup(op.type).acts
        if acts or any(name in needed or keeps(name) for name in written):
            live.append(op)
            needed.update(reads(op))
    return live[::-1]


@dataclass(frozen=True)
class View:
    """A name that is part of another's buffer: rows ``begin:end``, or all of it reshaped."""

    root: str
    begin: int | None = None
    end: int | None = None


def root_of(views: Mapping[str, View], name: str) -> str:
    """Return the name whose buffer a name lies in: its own unless it is a view."""
    while name in views:
        name = views[name].root
    return name


def find_views(
    ops: Sequence[Operator],
    metas: Mapping[str, Meta],
    interpreted: Collection[int] = (),
    keeps: Callable[[str], bool] = lambda name: False,
) -> dict[str, View]:
    """Find the names that need no buffer: reshapes, pieces to be sent, pieces received.

    The pieces of ``split_byref`` are rows of what it splits; when ``concat`` joins only pieces
    that ``recv`` brings, those are rows of the joined value, so nothing is copied. What is
    overwritten later has no view: that shows the value of its own time; nor has what operators
    give that are ``interpreted`` (their ids), nor what a scope ``keeps``, in a separate array.
    """
    written: dict[str, list[int]] = {}
    received: set[str] = set()
    for index, op in enumerate(ops):
        for name in writes(op):
            written.setdefault(name, []).append(index)
        if op.type == "recv":
            received.update(op.output("Out"))
    views: dict[str, View] = {}
    for index, op in enumerate(ops):
        if op.type == "split_byref":
            views.update(_rows(op.input("X")[0], op.output("Out"), metas))
        elif op.type == "concat" and received.issuperset(op.input("X")):
            views.update(_rows(op.output("Out")[0], op.input("X"), metas))
        alias = {} if id(op) in interpreted else lookup(op.type).alias
        for out_slot, in_slot in alias.items():
            for out, source in zip(op.output(out_slot), op.input(in_slot)):
                if keeps(out):
                    continue
                if written[out] == [index] and all(i < index for i in written.get(source, ())):
                    views[out] = View(source)
    return views


def _rows(root: str, pieces: Sequence[str], metas: Mapping[str, Meta]) -> dict[str, View]:
    begin, out = 0, {}
    for piece in pieces:
        end = begin + metas[piece].shape[0]
        out[piece] = View(root, begin, end)
        begin = end
    return out


class Interpreted(Protocol):
    """Tells which operators are interpreted, and what they give; see `executor.dynamic`."""

    def takes(self, op: Operator, metas: Mapping[str, Meta]) -> bool:
        """Return whether an operator is interpreted; those before it have been told of."""

    def take(self, op: Operator) -> None:
        """Interpret an operator whose results have shapes known only during the step."""

    def enter(self, op: Operator, metas: dict[str, Meta]) -> None:
        """Add to ``metas`` what an interpreted operator gives to compiled ones."""

    def follow(self, op: Operator, new: dict[str, Meta]) -> None:
        """Add to ``new`` what an interpreted operator gives, if it changes with that."""


def concrete_metas(
    block: Block,
    ops: Sequence[Operator],
    given_metas: Mapping[str, Meta],
    interpreted: Interpreted | None = None,
) -> dict[str, Meta]:
    """Work out the shape of every value from ``given_metas`` (those fed, or kept in the scope).

    Values that only ``interpreted`` operators give and read are left out.
    """
    metas = dict(given_metas)
    for op in ops:
        if interpreted is not None and interpreted.takes(op, metas):
            for name in reads(op):
                var = block.find_var(name)
                if var is not None and var.is_data and name not in metas:
                    _refuse_unwritten(block, op, name)
            interpreted.enter(op, metas)
            continue
        for name in reads(op):
            if name not in metas and not _written_inside(op, name):
                _refuse_unwritten(block, op, name)
        if lookup(op.type).infer is None:
            _declare_outputs(op, metas)
            continue
        inputs = {s: [metas[n] for n in names] for s, names in op.inputs.items() if names}
        inferred = _inferred(op, inputs)
        if interpreted is not None and any(-1 in m.shape for ms in inferred.values() for m in ms):
            interpreted.take(op)
            interpreted.enter(op, metas)
            continue
        for slot, metas_of_slot in inferred.items():
            for name, meta in zip(op.output(slot), metas_of_slot):
                if name != EMPTY:
                    _enter(metas, name, meta, op)
    return metas


def _inferred(op: Operator, inputs: Mapping[str, Sequence[Meta]]) -> dict[str, list[Meta]]:
    try:
        return infer_outputs(op.type, inputs, op.attrs, in_step=True)
    except GraphError as error:
        raise GraphError(f"{op.place} {op}: {error}") from None
    except HpcdistError:
        raise
    except Exception as error:  # attributes or operands that no layer gives it
        raise GraphError(f"{op.place} {op}: {type(error).__name__}: {error}") from error


def changed_metas(
    ops: Sequence[Operator],
    metas: Mapping[str, Meta],
    feeds: Mapping[str, Meta],
    interpreted: Interpreted | None = None,
) -> dict[str, Meta]:
    """Work out what is new when other ``feeds`` come in: only operators after them are asked.

    ``metas`` are those of the feeds before, from `concrete_metas`.
    """
    new = {name: meta for name, meta in feeds.items() if _differs(meta, metas[name])}
    if not new:
        return new
    for op in ops:
        if interpreted is not None and interpreted.takes(op, metas):
            interpreted.follow(op, new)
            continue
        if new.keys().isdisjoint(op.input_arg_names) or lookup(op.type).infer is None:
            continue
        inputs = {
            slot: [new[n] if n in new else metas[n] for n in names]
            for slot, names in op.inputs.items()
            if names
        }
        for slot, metas_of_slot in _inferred(op, inputs).items():
            for name, meta in zip(op.output(slot), metas_of_slot):
                if name == EMPTY:
                    continue
                before = new.get(name) or metas[name]
                if meta.rows < 0 <= before.rows:  # written into SelectedRows that are there
                    meta = replace(meta, type=before.type, rows=before.rows)
                if name in new or _differs(meta, before):
                    new[name] = meta
    return new


def _differs(a: Meta, b: Meta) -> bool:
    sequences = a.lod is not b.lod or a.lengths is not b.lengths
    return a != b or sequences or a.numbers != b.numbers


def _written_inside(op: Operator, name: str) -> bool:
    return any(name in inner.output_arg_names for inner in nested_ops(op)[1:])


def _refuse_unwritten(block: Block, op: Operator, name: str) -> None:
    """Raise FeedError or GraphError for a name that has no value, unless it needs none."""
    var = block.find_var(name)
    has_values = lookup(op.type).infer is not None
    if (is_control(op) and not has_values) or (var is not None and var.type == "RAW"):
        return  # control operators exchange tokens that have no value
    if var is not None and var.is_data:
        error = FeedError(
            f"{name!r} is not fed, and {op.place} {op} reads it: expected "
            f"{var.dtype}{list(var.shape)} in the feed"
        )
        error.lacks = name
        raise error
    raise GraphError(
        f"{op.place} {op} reads {name!r}, which is neither fed, nor computed before it, "
        "nor initialized by a startup program"
    )


def _declare_outputs(op: Operator, metas: dict[str, Meta]) -> None:
    for inner in nested_ops(op):
        for name in inner.output_arg_names:
            var = inner.block.find_var(name)
            if name not in metas and var is not None and -1 not in var.shape and var.shape:
                metas[name] = var.meta


def _enter(metas: dict[str, Meta], name: str, meta: Meta, op: Operator) -> None:
    if -1 in meta.shape:
        raise GraphError(
            f"{op.place} {op}: the shape {meta.shape} of {name!r} is known only in the step, and "
            "needed before it: let extents follow from shapes and constants"
        )
    old = metas.get(name)
    if old is not None and (old.shape, old.dtype) != (meta.shape, meta.dtype):
        raise GraphError(
            f"{op.place} {op} writes {name!r} as {meta.dtype}{list(meta.shape)}, "
            f"but it is {old.dtype}{list(old.shape)}"
        )
    metas[name] = replace(meta, type=old.type, rows=old.rows) if old and meta.rows < 0 else meta


@dataclass
class Storage:
    """A buffer shared by names that follow one another in it."""

    nbytes: int
    first: int
    last: int
    names: list[str] = field(default_factory=list)

    @property
    def lifetime(self) -> Lifetime:
        """What the memory planner needs."""
        return Lifetime(self.first, self.last, self.nbytes)


def plan_storage(
    ops: Sequence[Operator],
    temporary: Callable[[str], bool],
    views: Mapping[str, View],
    nbytes: Callable[[str], int],
    fed: Iterable[str],
    fetches: Iterable[str],
    unshared: Collection[str] = (),
    used: Callable[[Operator], Iterable[str]] = reads,
    sparse: Collection[str] = (),
) -> list[Storage]:
    """Give every temporary a storage; element-wise results go where a dying operand lies.

    Not dense ones where a ``sparse`` operand does, though they be as large: it has the numbers of
    its rows before its elements. Those in ``unshared`` share theirs with nothing but their views.
    A value stays as long as operators write it or it is among what they ``used``.
    """
    last = {name: i for i, op in enumerate(ops) for name in (*writes(op), *used(op))}
    last.update(dict.fromkeys(fetches, FOREVER))
    storages: list[Storage] = []
    of: dict[str, Storage] = {}

    alone = {root_of(views, name) for name in unshared}

    def enter(name: str, index: int) -> None:
        base = root_of(views, name)
        if name in of or not temporary(base):
            return
        if base not in of:
            span = (-1, FOREVER) if base in alone else (index, index)
            storages.append(Storage(nbytes(base), *span, [base]))
            of[base] = storages[-1]
        of[name] = of[base]
        of[name].last = max(of[name].last, last.get(name, index), last.get(base, index))

    for name in fed:
        enter(name, -1)
    for index, op in enumerate(ops):
        for out_slot, in_slot in lookup(op.type).inplace.items():
            for out, source in zip(op.output(out_slot), op.input(in_slot)):
                buffer = of.get(source)
                fresh = out not in of and out not in views and out not in alone and temporary(out)
                alike = (out in sparse) == (source in sparse)
                if not (buffer and fresh and alike):  # a gradient has its place if it is sent
                    continue
                if buffer.last == index and buffer.nbytes == nbytes(out):
                    buffer.names.append(out)
                    buffer.last = max(index, last.get(out, index))
                    of[out] = buffer
        for name in writes(op):
            enter(name, index)
    return storages
