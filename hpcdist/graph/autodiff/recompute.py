"""Forward values that the backward pass computes again instead of keeping them (Chen et al., 2016).

Only values at checkpoints are kept until the backward pass. Values between two checkpoints are
computed again, by the same operators, when gradients come there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.graph.block import Block
from hpcdist.graph.memory_saving import MemorySaving
from hpcdist.graph.names import EMPTY
from hpcdist.graph.op_role import ROLE_ATTR, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import program_of
from hpcdist.graph.registry import lookup
from hpcdist.graph.variable import Variable

AGAIN = "@RECOMPUTED"  # after the name of a value: the same, computed again


@dataclass(frozen=True)
class _Segment:
    """The operators between two checkpoints, and those of their results that can be had again."""

    ops: tuple[Operator, ...]
    names: frozenset[str]


def recompute(block: Block, begin: int, checkpoints: Sequence[Variable | str]) -> None:
    """Rewire the backward operators from position ``begin`` on to recomputed values.

    What cannot be had again with the same bits stays as it is: random numbers, moving averages
    (batch_norm), loops, rows looked up in tables, PyTorch's modules, and what the graphs of these
    read. The values after the last checkpoint are read at once, so they stay, too. Raises
    GraphError for a checkpoint that the forward pass does not compute.
    """
    forward, backward = block.ops[:begin], block.ops[begin:]
    segments = _segments(block, forward, backward, _names(block, forward, checkpoints))
    for segment in segments:
        readers = [op for op in backward if segment.names.intersection(_values_read(op))]
        if not readers:
            continue
        needed = {n for op in readers for n in _values_read(op) if n in segment.names}
        copies = _copies(block, segment, needed)
        again = {n: n + AGAIN for op in copies for n in _written(op)}
        for op in copies:
            op.rename(again)
        for op in readers:
            for slot, names in op.inputs.items():
                if slot not in lookup(op.type).shape_only:
                    op.inputs[slot] = [again.get(name, name) for name in names]
        for name, new in again.items():
            copy = block.var(name).copied_to(block)
            copy.name = new
            block.add_var(copy)
        index = block.ops.index(readers[0])
        block.ops[index:index] = copies
    # Values of which gradients only need the shape are to be gone, too.
    program_of(block).memory_saving = program_of(block).memory_saving or MemorySaving()
    block.program.touch()


def _names(
    block: Block, forward: Sequence[Operator], checkpoints: Sequence[Variable | str]
) -> set[str]:
    written = {name for op in forward for name in op.output_arg_names}
    names = set()
    for checkpoint in checkpoints:
        if not isinstance(checkpoint, (Variable, str)):
            raise GraphTypeError(f"checkpoints: expected Variables or names, got {checkpoint!r}")
        name = checkpoint if isinstance(checkpoint, str) else checkpoint.name
        var = block.find_var(name)
        if var is None or not (name in written or var.is_data):
            raise GraphError(f"checkpoint {name!r} is not computed by the forward pass of the loss")
        names.add(name)
    return names


def _segments(
    block: Block, forward: Sequence[Operator], backward: Sequence[Operator], checkpoints: set[str]
) -> list[_Segment]:
    """Return the segments that end with a checkpoint."""
    writers = Counter(n for op in (*forward, *backward) for n in op.output_arg_names)
    within = {  # torch's autograd reads the memory that its module has read
        n
        for op in (*forward, *backward)
        if "sub_block" in op.attrs or op.type.startswith("torch_module")
        for n in op.input_arg_names
    }
    segments = []
    ops: list[Operator] = []
    for op in forward:
        ops.append(op)
        if not checkpoints.intersection(op.output_arg_names):
            continue
        again = [other for other in ops if _can_run_again(block, other, writers)]
        names = {n for other in again for n in _written(other)} - checkpoints - within
        segments.append(_Segment(tuple(again), frozenset(names)))
        ops = []
    return segments


def _can_run_again(block: Block, op: Operator, writers: Counter[str]) -> bool:
    """Return whether an operator gives the same bits at any later time, and nothing else."""
    definition = lookup(op.type)
    computed = definition.kernel is not None or definition.bind is not None
    if not computed or definition.state or definition.acts:
        return False
    if op.type.startswith(("lookup_table", "torch_module")):  # a module may draw random numbers
        return False
    for name in op.output_arg_names:
        var = block.find_var(name)
        if name != EMPTY and (var is None or var.persistable or writers[name] > 1):
            return False
    for name in op.input_arg_names:
        var = block.find_var(name)
        if var is not None and writers[name] > (0 if var.persistable or var.is_data else 1):
            return False
    return not ({"seed", "sub_block"} & op.attrs.keys())


def _copies(block: Block, segment: _Segment, wanted: set[str]) -> list[Operator]:
    """Return the operators of a segment that compute ``wanted``, in order, as backward ones."""
    needed = set(wanted)
    copies = []
    for op in reversed(segment.ops):
        if not needed.intersection(op.output_arg_names):
            continue
        needed.update(name for name in op.input_arg_names if name in segment.names)
        copy = op.copied_to(block)
        copy.attrs[ROLE_ATTR] = int(OpRole.BACKWARD)
        copies.append(copy)
    return copies[::-1]


def _written(op: Operator) -> list[str]:
    return [name for name in op.output_arg_names if name != EMPTY]


def _values_read(op: Operator) -> list[str]:
    only_shape = lookup(op.type).shape_only
    return [n for slot, names in op.inputs.items() if slot not in only_shape for n in names]
