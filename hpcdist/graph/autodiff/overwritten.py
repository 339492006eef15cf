"""Values that gradients need as they were before an operator of the forward pass overwrote them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from hpcdist.base.errors import GraphError
from hpcdist.graph.block import Block
from hpcdist.graph.dtypes import VarType, is_float
from hpcdist.graph.op_role import ROLE_ATTR, OpRole
from hpcdist.graph.operator import Operator, Slots
from hpcdist.graph.registry import lookup

# batch_norm with use_global_stats has running moments as input and output, and changes neither.
_UNCHANGED = ("Mean", "Variance")
BEFORE = "@BEFORE_"  # in the name of an earlier value


class Overwritten:
    """What of a block's values is overwritten, while the steps back through it are made.

    A variable has one name and, where `assign`, `sums(out=)` or a loop writes it again,
    several values. `before` gives a gradient's inputs other names where it needs an earlier value,
    and `keep` inserts the copies. Gradients have one name, too: `check` refuses what would add up
    those of several values.
    """

    def __init__(self, block: Block, targets: Iterable[str]) -> None:
        """Gradients go back through ``block``, from ``targets``."""
        self._block = block
        self._first_user = dict.fromkeys(targets, len(block.ops))
        self._place = {id(op): i for i, op in enumerate(block.ops)}
        self._writers: dict[str, list[int]] = {}
        for i, op in enumerate(block.ops):
            # What an optimizer or a schedule writes is meant to be read anew.
            for name in dict.fromkeys(op.output_arg_names):
                if op.role in (OpRole.FORWARD, OpRole.FORWARD | OpRole.LOSS) and self._is_one(name):
                    self._writers.setdefault(name, []).append(i)
        self._copies: dict[tuple[int, str], str] = {}  # by the operator that overwrites it

    def _is_one(self, name: str) -> bool:
        """Return whether a variable is one value: of arrays every place is written once."""
        var = self._block.find_var(name)
        return var is not None and var.type == VarType.LOD_TENSOR

    def before(self, op: Operator, gradient: str, inputs: Slots) -> Slots:
        """Return the operands that a gradient of type ``gradient`` reads, with the right values."""
        if id(op) not in self._place:
            return inputs  # a loop keeps the values of its turns
        if op.has_attr("sub_block"):
            self._check_read_by(op)
            return inputs
        if op.type == "torch_module" and self._is_read_before_it_changes(op):
            op.attrs["own_inputs"] = True  # its graph has the memory that it has read
        values = (op.inputs.keys() | op.outputs.keys()).difference(lookup(gradient).shape_only)
        return {
            slot: [self._before(op, slot, name) for name in names] if slot in values else names
            for slot, names in inputs.items()
        }

    def _is_read_before_it_changes(self, op: Operator) -> bool:
        at = self._place[id(op)]
        return any(i > at for name in op.input_arg_names for i in self._writers.get(name, ()))

    def _check_read_by(self, op: Operator) -> None:
        """Raise GraphError if what a loop or branch has read is overwritten in the same memory."""
        ops = self._block.ops
        for name in op.input_arg_names:
            for writer in self._writers.get(name, ()):
                var = self._block.var(name)
                again = writer > self._place[id(op)] and not ops[writer].has_attr("sub_block")
                if again and is_float(var.dtype):
                    raise GraphError(
                        f"the gradient of {op.type} needs {name!r}, which {ops[writer]} "
                        "overwrites: write into another variable"
                    )

    def _before(self, op: Operator, slot: str, name: str) -> str:
        at = self._place[id(op)]
        is_own_output = slot in op.inputs and slot not in _UNCHANGED
        later = [i for i in self._writers.get(name, ()) if i > at or (is_own_output and i == at)]
        if not later:
            return name
        copy = f"{name}{BEFORE}{later[0]}"
        while self._block.has_var(copy):  # of an earlier backward pass, when places were others
            copy += "_"
        return self._copies.setdefault((later[0], name), copy)

    def check(self, op: Operator, reached: Collection[str]) -> None:
        """Raise GraphError if an operator would be given a gradient of a value made after it."""
        at = self._place.get(id(op), len(self._block.ops))
        for name in dict.fromkeys((*op.output_arg_names, *op.input_arg_names)):
            since = self._first_user.get(name, -1)
            for writer in self._replacing(name):
                if at < writer < since and name in reached:
                    raise GraphError(
                        f"{self._block.ops[writer]} overwrites {name!r}, and before it stands "
                        f"{op}: gradients of both values would be added up; write into another "
                        "variable"
                    )

    def note(self, op: Operator, names: Iterable[str]) -> None:
        """Note that an operator's gradient gives gradients of ``names``; called backwards."""
        for name in names:
            self._first_user.setdefault(name, self._place.get(id(op), -1))

    def _replacing(self, name: str) -> list[int]:
        """Return where a variable gets a value that does not follow from the one before."""
        ops = self._block.ops
        return [i for i in self._writers.get(name, ()) if name not in ops[i].input_arg_names]

    def keep(self) -> None:
        """Insert the copies of what is overwritten and still needed, in front of who overwrites."""
        for (place, name), copy in sorted(self._copies.items(), reverse=True):
            var = self._block.var(name)
            self._block.create_var(name=copy, dtype=var.dtype, shape=var.shape)
            role = {ROLE_ATTR: int(OpRole.FORWARD)}
            self._block.insert_op(place, "assign", {"X": [name]}, {"Out": [copy]}, role)
