"""Fluid's module ``op``: single operators, run on the values of a scope without a Program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.executor.backend import Place
from hpcdist.executor.executor import Executor
from hpcdist.executor.memory import meta_of
from hpcdist.executor.scope import Scope, ScopeVariable
from hpcdist.fluid.compat.op_protos import OpProtoHolder, VarProto
from hpcdist.graph.block import Block
from hpcdist.graph.lod_tensor import LoDTensor
from hpcdist.graph.names import EMPTY
from hpcdist.graph.op_role import ROLE_ATTR
from hpcdist.graph.operator import Slots, as_names
from hpcdist.graph.program import Program
from hpcdist.ops.embedding.selected_rows import SelectedRows

__all__ = [
    "CondOp",
    "DynamicRecurrentOp",
    "Operator",
    "OperatorFactory",
    "RecurrentOp",
    "SingleOperator",
]

# What gives each row once: in a Program the rows that became free are zeros, here they are gone.
MERGING = ("merge_selected_rows", "clip_by_norm", "sum")
TABLES = (
    "Param",
    "W",
    "Weight",
)  # slots whose SelectedRows are a table, of which all rows are there
_WRITTEN = "@WRITTEN"  # what becomes of SelectedRows that are read and written


class SingleOperator:
    """An operator of its own, whose slots name variables of the scope that it is run on."""

    def __init__(self, type: str, inputs: Slots, outputs: Slots, attrs: Mapping[str, Any]) -> None:
        self._type = type
        self._inputs, self._outputs, self._attrs = inputs, outputs, dict(attrs)
        self._program: Program | None = None
        self._facts: object = None  # of the inputs, for which the Program was made
        self._executor: tuple[str, Executor] | None = None
        self._own = Scope()  # of the Program, which is compiled for a scope: it stays empty

    def type(self) -> str:
        """Return the operator's type."""
        return self._type

    def inputs(self) -> Slots:
        """Return the names of what is read, by slot."""
        return self._inputs

    def outputs(self) -> Slots:
        """Return the names of what is written, by slot."""
        return self._outputs

    def input_vars(self) -> list[str]:
        """Return the names of all that is read."""
        return [name for names in self._inputs.values() for name in names]

    def output_vars(self, has_intermediate: bool = True) -> list[str]:
        """Return the names of all that is written."""
        return [name for names in self._outputs.values() for name in names]

    def run(self, scope: Scope, place: Place | None = None) -> None:
        """Compute the outputs from the inputs, all in ``scope``; FeedError for one without value.

        Every rank that calls it computes by itself; nothing is exchanged.
        """
        given = {
            name: _value(scope, name, slot)
            for slot, names in self._inputs.items()
            for name in names
            if name != EMPTY
        }
        feed = {name: value for name, value in given.items() if isinstance(value, LoDTensor)}
        sparse = {name: value for name, value in given.items() if isinstance(value, SelectedRows)}
        facts = (
            tuple((name, t._dtype(), tuple(t.shape()), len(t.lod())) for name, t in feed.items()),
            tuple((name, meta_of(value)) for name, value in sparse.items()),
        )
        if self._program is None or facts != self._facts:
            self._program, self._facts = self._made(feed, sparse), facts
        for name, value in sparse.items():
            self._own.var(name).hold(value)
        names = [n for n in self._program.global_block().ops[0].output_arg_names if n != EMPTY]
        written = list(dict.fromkeys(names))
        executor = self._on(place)
        values = executor.run(self._program, feed, written, scope=self._own, return_numpy=False)
        for name, value in zip(written, values):
            self._write(scope.var_or_new(name.removesuffix(_WRITTEN)), value)

    def _write(self, variable: ScopeVariable, value: Any) -> None:
        present = variable.value
        if isinstance(value, SelectedRows):
            variable.hold(value.merged() if self._type in MERGING else value)
        elif not isinstance(value, LoDTensor):
            variable.hold(value)
        elif isinstance(present, SelectedRows):
            array = np.array(value)
            whole = len(present.rows) and array.shape == present.shape
            variable.get_selected_rows().take_values(array[present.rows] if whole else array)
        else:
            variable.take_tensor(value)

    def _on(self, place: Place | None) -> Executor:
        if self._executor is None or self._executor[0] != repr(place):
            self._executor = (repr(place), Executor(place))
        return self._executor[1]

    def _made(self, feed: Mapping[str, LoDTensor], sparse: Mapping[str, SelectedRows]) -> Program:
        program = Program()
        block = program.global_block()
        for name, tensor in feed.items():
            facts = {"shape": tensor.shape(), "dtype": tensor._dtype()}
            block.create_var(name, lod_level=len(tensor.lod()), is_data=True, **facts)
        for name, value in sparse.items():
            meta = meta_of(value)
            facts = {"shape": meta.shape, "dtype": meta.dtype, "type": meta.type}
            block.create_var(name, persistable=True, **facts)
        outputs = {
            slot: [name + _WRITTEN if name in sparse else name for name in names]
            for slot, names in self._outputs.items()
        }
        append_single(block, self._type, self._inputs, outputs, self._attrs)
        return program


def append_single(
    block: Block, type: str, inputs: Slots, outputs: Slots, attrs: Mapping[str, Any]
) -> None:
    """Append an operator to a block that has its inputs only."""
    for name in (n for names in outputs.values() for n in names if n != EMPTY):
        if block.find_var(name) is None:
            block.create_var(name)
    block.append_op(type, inputs, outputs, {ROLE_ATTR: 0, **attrs})


def _value(scope: Scope, name: str, slot: str) -> LoDTensor | SelectedRows:
    variable = scope.find_var(name)
    if variable is None:
        raise GraphError(f"the scope has no variable {name!r}: scope.var({name!r}) makes one")
    if not isinstance(variable.value, SelectedRows):
        return variable.as_tensor()
    rows = variable.get_selected_rows().checked(name)
    if slot not in TABLES:
        return rows
    if not np.array_equal(np.sort(rows.rows), np.arange(rows.height)):
        raise GraphError(
            f"slot {slot}: the table {name!r} has {len(rows.rows)} rows of {rows.height}: expected "
            "each once; give the rows that are missing, or let servers keep a distributed table"
        )
    return LoDTensor(rows.to_dense())


class OperatorFactory:
    """Makes single operators: ``Operator("scale", X="x", Out="y", scale=2.0)``."""

    def __call__(self, type: str, **slots_and_attrs: Any) -> SingleOperator:
        """Return an operator whose slots name variables, one or a list; the rest are attributes."""
        proto = OpProtoHolder.instance().get_op_proto(type)
        inputs = _filled(proto.inputs, slots_and_attrs)
        outputs = _filled(proto.outputs, slots_and_attrs)
        # Fluid leaves out what the operator does not know.
        known = {attr.name for attr in proto.attrs}
        attrs = {name: value for name, value in slots_and_attrs.items() if name in known}
        return SingleOperator(type, inputs, outputs, attrs)

    def types(self) -> list[str]:
        """Return the types of all operators."""
        return list(OpProtoHolder.instance().op_proto_map)

    def get_op_inputs(self, type: str) -> list[tuple[str, bool]]:
        """Return the input slots, each with whether it holds a list."""
        return [(s.name, s.duplicable) for s in OpProtoHolder.instance().get_op_proto(type).inputs]

    def get_op_outputs(self, type: str) -> list[tuple[str, bool]]:
        """Return the output slots, each with whether it holds a list."""
        return [(s.name, s.duplicable) for s in OpProtoHolder.instance().get_op_proto(type).outputs]

    def get_op_input_names(self, type: str) -> list[str]:
        """Return the input slots."""
        return [name for name, _ in self.get_op_inputs(type)]

    def get_op_output_names(self, type: str) -> list[str]:
        """Return the output slots."""
        return [name for name, _ in self.get_op_outputs(type)]

    def get_op_attr_names(self, type: str) -> list[str]:
        """Return the attributes."""
        return [attr.name for attr in OpProtoHolder.instance().get_op_proto(type).attrs]


def _filled(slots: Sequence[VarProto], arguments: dict[str, Any]) -> Slots:
    """Take the slots that are filled out of the arguments."""
    taken = {slot.name: _taken(slot, arguments) for slot in slots}
    return {slot: names for slot, names in taken.items() if names}


def _taken(slot: VarProto, arguments: dict[str, Any]) -> list[str]:
    names = as_names(arguments.pop(slot.name, None))
    if len(names) > 1 and not slot.duplicable:
        raise GraphError(f"slot {slot.name} takes one variable, got {names}")
    return names


class UnmadeOperator:
    """A kind of operator that Fluid has a name for, and none of: calling it is an error there, too.

    GraphError says what there is instead.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        raise GraphError(
            f"fluid.op.{self._name}: there is no such operator, in Fluid 1.8.5 neither: use "
            "StaticRNN, DynamicRNN, While, cond or case of fluid.layers"
        )


Operator = OperatorFactory()
RecurrentOp = UnmadeOperator("RecurrentOp")
DynamicRecurrentOp = UnmadeOperator("DynamicRecurrentOp")
CondOp = UnmadeOperator("CondOp")
