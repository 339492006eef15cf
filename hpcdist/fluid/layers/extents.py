"""Attributes that may be Variables, alone or among numbers, as Fluid takes them.

Which ones, and the slots that hold them, operators declare (`graph.registry.OpDef.given`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdist.base.checks import whole
from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.graph import names
from hpcdist.graph.block import Block
from hpcdist.graph.registry import Given, lookup
from hpcdist.graph.variable import Variable

_KINDS = ("int32", "int64")
_OF_FLOATS = ("float32",)  # what gives an attribute whose default is a float


def refuse_variables(layer: str, argument: str, *values: Any) -> None:
    """Refuse Variables, also in a list, in place of what is part of a compiled Program."""
    if any(map(has_variables, values)):
        raise GraphError(
            f"layers.{layer}: {argument} must be known before the step, got a Variable: shapes are "
            "fixed when a Program is compiled"
        )


def has_variables(value: Any) -> bool:
    """Return whether it is a Variable, or one is in it."""
    listed = value if isinstance(value, (list, tuple)) else [value]
    return any(isinstance(one, Variable) for one in listed)


def from_variables(
    block: Block, layer: str, type: str, attrs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the input slots of an operator that give attributes, and the attributes.

    Numbers beside Variables are made values of shape (1,). Variables stop gradients. GraphError for
    an attribute that must be known before the step, GraphTypeError for Variables of another element
    type than int32 or int64.
    """
    definition = lookup(type)
    slots: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    for name, value in attrs.items():
        if not has_variables(value):
            kept[name] = _known(value, definition.attrs.get(name), name in definition.given)
            continue
        places = definition.given.get(name, Given())
        several = isinstance(value, (list, tuple))
        if not (places.listed or places.tensor if several else places.tensor):
            refuse_variables(layer, name, value)
        default = definition.attrs.get(name)
        kinds = _OF_FLOATS if isinstance(default, float) else _KINDS
        of = [_checked(layer, name, one, kinds) for one in (value if several else [value])]
        if not several:
            slots[places.tensor] = of[0]
        else:
            values = [one if isinstance(one, Variable) else _one(block, one) for one in of]
            slot = places.listed or places.tensor
            slots[slot] = values if places.listed else _joined(block, values)
        if name in definition.attrs:
            numbers = [places.mark if isinstance(one, Variable) else whole(one) for one in of]
            alone = [] if isinstance(default, (list, tuple)) else default
            kept[name] = numbers if several else alone
    return slots, kept


def _known(value: Any, default: Any, is_number: bool) -> Any:
    """Return an attribute that is known; of extents, bounds and the like, as whole numbers."""
    if not is_number or value is None or isinstance(default, float):
        return value
    return [whole(one) for one in value] if isinstance(value, (list, tuple)) else whole(value)


def as_extents(shape: Any) -> Any:
    """Return a shape as an attribute: a Variable, or a list of integers and Variables."""
    if isinstance(shape, Variable):
        return shape
    return [d if isinstance(d, Variable) else whole(d) for d in shape]


def _checked(layer: str, name: str, one: Any, kinds: tuple[str, ...]) -> Any:
    if not isinstance(one, Variable):
        return one
    if one.dtype not in kinds:
        raise GraphTypeError(
            f"layers.{layer}: {name}: {one.name!r} is {one.dtype}, expected "
            f"{' or '.join(kinds)}: use layers.cast"
        )
    one.stop_gradient = True
    return one


def _one(block: Block, number: int) -> Variable:
    """Return a constant of shape (1,)."""
    out = block.create_var(names.generate("extent.tmp"), dtype="int32", stop_gradient=True)
    attrs = {"shape": [1], "dtype": "int32", "value": float(number), "force_cpu": True}
    block.append_op("fill_constant", {}, {"Out": out}, attrs)
    return out


def _joined(block: Block, values: list[Variable]) -> Variable:
    """Return one value of several of shape (1,)."""
    same = []
    for value in values:
        if value.dtype != "int32":
            of_int32 = block.create_var(names.generate("extent.tmp"), stop_gradient=True)
            attrs = {"in_dtype": value.dtype, "out_dtype": "int32"}
            block.append_op("cast", {"X": value}, {"Out": of_int32}, attrs)
            value = of_int32
        same.append(value)
    out = block.create_var(names.generate("extent.tmp"), dtype="int32", stop_gradient=True)
    block.append_op("concat", {"X": same}, {"Out": out}, {"axis": 0})
    return out
