"""Operators: a type, named slots of variable names, and attributes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any

from hpcdist.base.errors import GraphTypeError, MissingNameError
from hpcdist.graph.op_role import DEVICE_ATTR, ROLE_ATTR, ROLE_VAR_ATTR, OpRole
from hpcdist.graph.owner import OwningBlock

Slots = dict[str, list[str]]
NAMESCOPE = "op_namescope"  # an attribute of all of Fluid's operators
_EVERYONES: dict[str, Any] = {ROLE_VAR_ATTR: [], DEVICE_ATTR: ""}  # of Fluid's, where not set
BLOCKS = "optimize_blocks"  # the attribute that is a list of blocks, kept as their indices


def as_names(value: Any) -> list[str]:
    """Return variables, names, or sequences of them, as a list of names.

    GraphTypeError for anything else, an array say.
    """
    if value is None:
        return []
    if not isinstance(value, (list, tuple)):
        value = [value]
    return [v if isinstance(v, str) else _name_of(v) for v in value]


def _name_of(variable: Any) -> str:
    name = getattr(variable, "name", None)
    if not isinstance(name, str):
        raise GraphTypeError(
            f"expected a Variable, or the name of one, got {type(variable).__name__}: feed it, or "
            "make it a Variable by layers.assign(array)"
        )
    return name


def rename_in(slots: Slots, old: str, new: str) -> None:
    """Replace a variable wherever it stands in ``slots``."""
    for slot, names in slots.items():
        slots[slot] = [new if name == old else name for name in names]


class Operator:
    """One operator of a block. ``attrs["sub_block"]`` is the index of a nested block."""

    def __init__(
        self,
        block: OwningBlock,
        type: str,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        attrs: Mapping[str, Any],
    ) -> None:
        self.block = block
        self.type = type
        self.inputs: Slots = {slot: as_names(v) for slot, v in inputs.items()}
        self.outputs: Slots = {slot: as_names(v) for slot, v in outputs.items()}
        self.attrs: dict[str, Any] = dict(attrs)

    def input(self, slot: str) -> list[str]:
        """Names in an input slot; empty if the operator has no such slot."""
        return self.inputs.get(slot, [])

    def output(self, slot: str) -> list[str]:
        """Names in an output slot; empty if the operator has no such slot."""
        return self.outputs.get(slot, [])

    @property
    def input_names(self) -> list[str]:
        """Slots on the input side."""
        return list(self.inputs)

    @property
    def output_names(self) -> list[str]:
        """Slots on the output side."""
        return list(self.outputs)

    @property
    def input_arg_names(self) -> list[str]:
        """Every variable read, slot after slot."""
        return [name for names in self.inputs.values() for name in names]

    @property
    def output_arg_names(self) -> list[str]:
        """Every variable written, slot after slot."""
        return [name for names in self.outputs.values() for name in names]

    @property
    def role(self) -> OpRole:
        """Why the operator is there."""
        return OpRole(self.attrs.get(ROLE_ATTR, 0))

    @property
    def idx(self) -> int:
        """Its number in its block."""
        return next(i for i, op in enumerate(self.block.ops) if op is self)

    @property
    def place(self) -> str:
        """Where it stands, as `str` of its Program numbers it: ``op #3``, ``block 1, op #0``."""
        number = f"op #{self.idx}"
        return f"block {self.block.idx}, {number}" if self.block.idx else number

    def attr(self, name: str) -> Any:
        """Return one attribute, of blocks these themselves; KeyError if there is none."""
        if name == NAMESCOPE and name not in self.attrs:
            raise MissingNameError(
                f"{self.place} {self.type}: {name!r} is not stored, because name_scope does not "
                "mark operators: use op.idx or the names of variables to tell them apart"
            )
        if name == BLOCKS:
            return self._blocks_attr(name)
        return self.attrs[name] if name in self.attrs else copy(_EVERYONES[name])

    def _block_attr_id(self, name: str) -> int:
        """Return the index of the block that an attribute names."""
        return int(self.attrs[name])

    def _block_attr(self, name: str) -> OwningBlock:
        block: OwningBlock = self.block.program.block(self._block_attr_id(name))
        return block

    def _blocks_attr_ids(self, name: str) -> list[int]:
        """Return the indices of the blocks that an attribute names."""
        return list(self.attrs[name])

    def _blocks_attr(self, name: str) -> list[OwningBlock]:
        return [self.block.program.block(index) for index in self._blocks_attr_ids(name)]

    @property
    def attr_names(self) -> list[str]:
        """The attributes that it has."""
        return list(self.attrs)

    def has_attr(self, name: str) -> bool:
        """Return whether the operator has this attribute; every one has those of `_EVERYONES`."""
        return name in self.attrs or name in _EVERYONES

    def all_attrs(self) -> dict[str, Any]:
        """Return a copy of all attributes, of blocks these themselves."""
        return {name: self.attr(name) for name in self.attrs}

    def set_attr(self, name: str, value: object) -> None:
        """Set one attribute and tell the Program that it changed."""
        self.attrs[name] = value
        self.block.program.touch()

    _set_attr = set_attr

    def rename(self, new_names: Mapping[str, str]) -> None:
        """Replace variables, old name to new name, wherever they stand in the slots."""
        for slots in (self.inputs, self.outputs):
            for slot, names in slots.items():
                slots[slot] = [new_names.get(name, name) for name in names]
        self.block.program.touch()

    def _rename_input(self, old_name: str, new_name: str) -> None:
        """Replace a variable wherever it stands among the inputs."""
        self._rename_in(self.inputs, old_name, new_name)

    def _rename_output(self, old_name: str, new_name: str) -> None:
        """Replace a variable wherever it stands among the outputs."""
        self._rename_in(self.outputs, old_name, new_name)

    def _rename_in(self, slots: Slots, old: str, new: str) -> None:
        rename_in(slots, old, new)
        self.block.program.touch()

    def copied_to(self, block: OwningBlock) -> Operator:
        """Return the same operator as a member of ``block`` (not added to it)."""
        return Operator(block, self.type, self.inputs, self.outputs, self.attrs)

    def __repr__(self) -> str:
        return f"<Operator {self}>"

    def to_string(self, throw_on_error: bool = False) -> str:
        """Return the operator as text, as its Program shows it."""
        return str(self)

    def __str__(self) -> str:
        results = _slots(self.outputs)
        return f"{self.type}({_slots(self.inputs)})" + (f" -> {results}" if results else "")


def read_before_written(ops: Iterable[Operator]) -> list[str]:
    """Names that operators, one after the other, read before one of them has written them."""
    made: set[str] = set()
    names: dict[str, None] = {}
    for op in ops:
        names.update(dict.fromkeys(n for n in op.input_arg_names if n not in made))
        made.update(op.output_arg_names)
    return list(names)


def _slots(slots: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{slot}={_names(names)}" for slot, names in slots.items() if names)


def _names(names: Iterable[str]) -> str:
    names = list(names)
    return names[0] if len(names) == 1 else "[" + ", ".join(names) + "]"
