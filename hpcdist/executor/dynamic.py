"""Which operators of a block are interpreted: those whose results have shapes known only in the
step.

Memory for results of loops, branches and tensor arrays, and for values computed from them, cannot
be planned. Such operators run one by one, in the order of the block, between compiled ones
(`executor.interpret`). Their results that compiled operators read have a known shape: the declared
one, or that of the value whose gradient it is. Operators on sequences whose lengths are computed,
instead of fed or taken from another value, run this way too, and those whose results have extents
that a value of the step gives (`OpDef.given`). Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hpcdist.base.errors import GraphError
from hpcdist.executor.analysis import is_control, nested_ops, writes
from hpcdist.graph.block import Block
from hpcdist.graph.names import EMPTY, GRAD_SUFFIX
from hpcdist.graph.operator import Operator, read_before_written
from hpcdist.graph.registry import Meta, lookup
from hpcdist.graph.values import ARRAY, RANK_TABLE
from hpcdist.graph.variable import Variable

LOOPS = ("while", "recurrent")
GRADIENTS = {
    "while_grad": "while",
    "recurrent_grad": "recurrent",
    "conditional_block_grad": "conditional_block",
}


@dataclass
class Dynamic:
    """The interpreted operators of a block, and the values that only they know.

    ``derived``: by operator, values of compiled operators that it gives, and what they are like.
    """

    block: Block
    keeps: Callable[[str], bool]
    names: set[str] = field(default_factory=set)
    ops: set[int] = field(default_factory=set)
    derived: dict[int, list[tuple[str, str]]] = field(default_factory=dict)

    @staticmethod
    def of(block: Block, ops: Sequence[Operator], keeps: Callable[[str], bool]) -> Dynamic:
        """Look for loops, and for branches that cannot be compiled."""
        dynamic = Dynamic(block, keeps)
        for op in ops:
            dynamic._refuse_messages(op)
        recorded = {op.attrs["sub_block"] for op in ops if op.type == "conditional_block_grad"}
        for op in ops:
            kind = op.type
            branch = kind == "conditional_block" and dynamic._must_interpret(op, recorded)
            if branch or kind in LOOPS or kind in GRADIENTS:
                dynamic.ops.add(id(op))
                dynamic.names.update(n for n in writes(op) if not dynamic._has_place(n))
        return dynamic

    def _refuse_messages(self, op: Operator) -> None:
        """Ranks may take other ways through loops and branches: none may wait for another there."""
        for inner in nested_ops(op)[1:]:
            if is_control(inner) and "sub_block" not in inner.attrs:
                raise GraphError(
                    f"{op.place} {op.type}: operator {inner.type!r} within it exchanges data with "
                    "other ranks, which may take another branch: move it out of loops and branches"
                )

    def _must_interpret(self, op: Operator, recorded: set[int]) -> bool:
        if op.attrs["sub_block"] in recorded or not op.attrs["is_scalar_condition"]:
            return True
        inner = nested_ops(op)[1:]
        if any(i.type in LOOPS or lookup(i.type).values is not None for i in inner):
            return True
        return any(not self._has_place(name) for name in op.output("Out"))

    def _has_place(self, name: str) -> bool:
        """Return whether a value of this block has the same shape in every step."""
        var = self.block.find_var(name)
        if var is None:  # of a nested block
            return False
        return self.keeps(name) or _is_sized(var)

    # -- operator by operator ----------------------------------------------------------------
    def takes(self, op: Operator, metas: Mapping[str, Meta]) -> bool:
        """Return whether an operator is interpreted; those before it have been told of."""
        definition = lookup(op.type)
        inputs = [n for n in op.input_arg_names if n in self.names]
        mixed = bool(inputs) or not self.names.isdisjoint(op.output_arg_names)
        if mixed and is_control(op) and "sub_block" not in op.attrs:
            raise GraphError(
                f"{op.place} {op}: {(inputs or op.output_arg_names)[0]!r} comes from a loop or "
                "branch, so its shape is known only in the step; it cannot be sent to other ranks"
            )
        if id(op) in self.ops:
            return True
        measured = [name for slot in definition.measures for name in op.input(slot)]
        computed = any(name in metas and metas[name].lengths is None for name in measured)
        if mixed or computed or definition.values is not None:
            _refuse_sparse(op)
            self.ops.add(id(op))
            return True
        return False

    def take(self, op: Operator) -> None:
        """Interpret an operator whose results have shapes known only during the step."""
        if is_control(op):
            raise GraphError(
                f"{op.place} {op}: what it gives has a shape that only the step knows, so it "
                "cannot be exchanged with other ranks"
            )
        _refuse_sparse(op)
        self.ops.add(id(op))

    def enter(self, op: Operator, metas: dict[str, Meta]) -> None:
        """Note what an interpreted operator gives: into ``metas`` what compiled ones can read."""
        inner = {name for nested in nested_ops(op)[1:] for name in nested.output_arg_names}
        for name in (*op.output_arg_names, *sorted(inner)):
            var = self.block.find_var(name)
            if name == EMPTY or name in metas or name in self.names or var is None:
                continue
            base = name.partition(GRAD_SUFFIX)[0]
            if _is_sized(var):
                metas[name] = var.meta
            elif base != name and base in metas and metas[base].rows < 0:
                metas[name] = replace(metas[base], lengths=None)
                self.derived.setdefault(id(op), []).append((name, base))
            elif name in op.output_arg_names:
                self.names.add(name)

    def follow(self, op: Operator, new: dict[str, Meta]) -> None:
        """Give what is derived from a value that changes the new shape, too."""
        for name, base in self.derived.get(id(op), ()):
            if base in new:
                new[name] = replace(new[base], lengths=None)


def _refuse_sparse(op: Operator) -> None:
    """A gradient of some rows has as many as there are ids, and optimizers are compiled for it."""
    if op.type.endswith("_grad") and op.attrs.get("is_sparse"):
        raise GraphError(
            f"{op.place} {op}: the number of rows of this gradient, like that of its ids, is known "
            "only in the step: use is_sparse=False, or apply sequence_unpad to the embedding, "
            "not to the ids"
        )


def _is_sized(var: Variable) -> bool:
    plain = var.type not in (ARRAY, RANK_TABLE, "STEP_SCOPES", "RAW", "SELECTED_ROWS")
    return plain and bool(var.shape) and -1 not in var.shape and not var.lod_level


def outer_reads(op: Operator) -> list[str]:
    """Names that an operator, with its blocks, reads before it has written them itself."""
    return read_before_written(nested_ops(op)[1:])
