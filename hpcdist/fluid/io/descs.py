"""``.desc`` of Fluid's scripts: views of the graph with methods instead of attributes.

Fluid keeps each part of a Program twice, in Python and in C++; ``desc`` is the one in C++. Here
both are one object under two spellings: ``op.desc.type()`` is ``op.type``, and changes through one
are seen through the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any

from hpcdist.fluid.io.program_desc import attr_type, parsed_program, program_bytes
from hpcdist.graph.block import Block
from hpcdist.graph.dtypes import VarType, canonical
from hpcdist.graph.operator import Operator, as_names
from hpcdist.graph.program import Program
from hpcdist.graph.registry import default_attrs
from hpcdist.graph.variable import Variable


class AttrType(IntEnum):
    """Types of attributes, as Fluid numbers them."""

    INT, FLOAT, STRING, INTS, FLOATS, STRINGS = range(6)
    BOOL, BOOLS, BLOCK, LONG, BLOCKS, LONGS = range(6, 12)


def _getter(name: str) -> Callable[[Any], Any]:
    """Make a method that returns a fact of the part."""
    return lambda self: getattr(self._part, name)


def _setter(name: str, as_kept: Callable[[Any], Any]) -> Callable[[Any, Any], None]:
    """Make a method that sets a fact of the part."""

    def method(self: Any, value: Any) -> None:
        setattr(self._part, name, as_kept(value))
        self._touch()

    return method


def _same(name: str) -> Callable[..., Any]:
    """Make a method that is the part's own."""
    return lambda self, *args: getattr(self._part, name)(*args)


def _text(name: str | bytes) -> str:
    """Return a name; scripts that ran on Python 2 pass them as bytes."""
    return name.decode() if isinstance(name, bytes) else name


class _Desc:
    """A part of a Program, a Variable say, as Fluid's core has it."""

    def __init__(self, part: Any) -> None:
        self._part = part

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Desc) and self._part is other._part

    def __hash__(self) -> int:
        return hash(self._part)

    def _touch(self) -> None:
        self._part.block.program.touch()


class VarDesc(_Desc):
    """A variable: its facts, each as a call. ``VarDesc.VarType`` has the element types."""

    VarType = VarType

    name, dtype, type = _getter("name"), _getter("dtype"), _getter("type")
    persistable, lod_level = _getter("persistable"), _getter("lod_level")
    set_dtype, set_type = _setter("dtype", canonical), _setter("type", str)
    need_check_feed = _getter("checks_feed")
    set_need_check_feed = _setter("checks_feed", bool)
    set_persistable, set_lod_level = _setter("persistable", bool), _setter("lod_level", int)
    set_shape = _setter("shape", lambda extents: tuple(int(extent) for extent in extents))

    def shape(self) -> list[int]:
        """Return the shape, -1 where the batch size goes."""
        return list(self._part.shape)


class OpDesc(_Desc):
    """An operator: type, slots and attributes, each as a call."""

    type, inputs, outputs = _getter("type"), _getter("inputs"), _getter("outputs")
    input_names, output_names = _getter("input_names"), _getter("output_names")
    input_arg_names, output_arg_names = _getter("input_arg_names"), _getter("output_arg_names")
    attr_names, set_type = _getter("attr_names"), _setter("type", str)

    input, output, attr, has_attr = map(_same, ("input", "output", "attr", "has_attr"))
    _set_attr = _same("_set_attr")
    _rename_input, _rename_output = _same("_rename_input"), _same("_rename_output")

    @property
    def operator(self) -> Operator:
        """The operator that this shows."""
        assert isinstance(self._part, Operator)
        return self._part

    def infer_var_type(self, block: BlockDesc) -> None:
        """Do nothing: types are inferred with shapes."""

    def infer_shape(self, block: BlockDesc) -> None:
        """Set the shapes and types of the outputs by those of the inputs."""
        block._part.infer(self._part)

    def copy_from(self, other: OpDesc) -> None:
        """Become the same operator as another one, in the block of this one."""
        part, source = self._part, other._part
        part.type, part.attrs = source.type, dict(source.attrs)
        part.inputs = {slot: list(names) for slot, names in source.inputs.items()}
        part.outputs = {slot: list(names) for slot, names in source.outputs.items()}
        self._touch()

    def check_attrs(self) -> None:
        """Give the attributes that are not set their defaults."""
        self._part.attrs = {**default_attrs(self._part.type), **self._part.attrs}
        self._touch()

    def set_block_attr(self, name: str, block: BlockDesc) -> None:
        """Set an attribute that is a block."""
        self._set_attr(name, block._part)

    def _block_attr_id(self, name: str) -> int:
        """Return the number of the block that an attribute is."""
        block = self._part.attrs[name]
        return int(getattr(block, "idx", block))

    def attr_type(self, name: str) -> AttrType:
        """Return the type of an attribute."""
        return AttrType(attr_type(self._part, name))

    def block(self) -> BlockDesc:
        """Return the block that it stands in."""
        return BlockDesc(self._part.block)

    def set_input(self, slot: str, args: Sequence[Any]) -> None:
        """Set the variables, or names of them, that a slot reads."""
        self._part.inputs[slot] = as_names(list(args))
        self._touch()

    def set_output(self, slot: str, args: Sequence[Any]) -> None:
        """Set the variables, or names of them, that a slot writes."""
        self._part.outputs[slot] = as_names(list(args))
        self._touch()

    def remove_attr(self, name: str) -> None:
        """Forget an attribute."""
        del self._part.attrs[name]
        self._touch()


class BlockDesc(_Desc):
    """A block: its operators by number, its variables by name."""

    id, parent = property(_getter("idx")), property(_getter("parent_idx"))

    def op_size(self) -> int:
        """Return the number of operators."""
        return len(self._part.ops)

    def op(self, index: int) -> OpDesc:
        """Return an operator by number."""
        return OpDesc(self._part.ops[index])

    def append_op(self) -> OpDesc:
        """Append an operator that is still to be filled, by `OpDesc.copy_from`."""
        return OpDesc(self._part.add_op(Operator(self._part, "", {}, {}, {})))

    def _insert_op(self, index: int) -> OpDesc:
        """Insert an operator before a position, as `append_op`."""
        return OpDesc(self._part.add_op(Operator(self._part, "", {}, {}, {}), index))

    def _prepend_op(self) -> OpDesc:
        """Insert an operator at the head, as `append_op`."""
        return self._insert_op(0)

    def all_vars(self) -> list[VarDesc]:
        """Return the variables of this block."""
        return [VarDesc(var) for var in self._part.vars.values()]

    def var(self, name: str | bytes) -> VarDesc:
        """Return a variable of this very block, made if it is not there."""
        return VarDesc(self._part.create_var(_text(name)))

    def has_var(self, name: str | bytes) -> bool:
        """Return whether the block itself has this variable."""
        return _text(name) in self._part.vars

    def find_var(self, name: str | bytes) -> VarDesc | None:
        """Return a variable of this very block; None if it is not there."""
        return _desc_of(self._part.vars, _text(name))

    def find_var_recursive(self, name: str | bytes) -> VarDesc | None:
        """Return a variable of this block, or of those around it; None if it is not there."""
        var = self._part.find_var(_text(name))
        return None if var is None else VarDesc(var)

    def _remove_op(self, begin: int, end: int) -> None:
        """Drop the operators of these numbers, up to ``end``."""
        del self._part.ops[begin:end]
        self._part.program.touch()

    def _remove_var(self, name: str | bytes) -> None:
        """Drop a variable."""
        self._part.remove_var(_text(name))


class ProgramDesc(_Desc):
    """A Program: its blocks by number, and itself as bytes."""

    num_blocks = _getter("num_blocks")

    def __init__(self, part: Program | None = None) -> None:
        super().__init__(Program() if part is None else part)

    def append_block(self, parent: BlockDesc) -> BlockDesc:
        """Append a block inside another one."""
        current = self._part.current_block_idx
        block = self._part.create_block(parent.id)
        self._part.current_block_idx = current
        return BlockDesc(block)

    def block(self, index: int) -> BlockDesc:
        """Return a block by number."""
        return BlockDesc(self._part.block(index))

    def serialize_to_string(self) -> bytes:
        """Return the Program in Fluid's format."""
        return program_bytes(self._part)

    def flush(self) -> None:
        """Do nothing: there is one Program, which cannot differ from itself."""


def _desc_of(variables: Mapping[str, Variable], name: str) -> VarDesc | None:
    return VarDesc(variables[name]) if name in variables else None


_OF: dict[type, type[_Desc]] = {
    Variable: VarDesc,
    Operator: OpDesc,
    Block: BlockDesc,
    Program: ProgramDesc,
}
for _kind, _view in _OF.items():
    setattr(_kind, "desc", property(_view))  # noqa: B010 - mypy knows no such field
Operator.attr_type = lambda op, name: OpDesc(op).attr_type(name)  # type: ignore[attr-defined]
Program.parse_from_string = staticmethod(parsed_program)  # type: ignore[attr-defined]
