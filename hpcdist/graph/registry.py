"""The table of operators: one `define` each, in the modules of `hpcdist.ops`."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.base.nearest import did_you_mean
from hpcdist.graph.lod import Lod
from hpcdist.graph.names import EMPTY, GRAD_SUFFIX
from hpcdist.graph.rows import Treatment

Call = Callable[[], object]  # what a step calls; nobody reads what it returns


@dataclass(frozen=True)
class Meta:
    """Shape, element type and kind of a value; -1 in a shape is not known yet.

    A SELECTED_ROWS value has ``shape`` (height, width) and ``rows`` present rows. ``lod`` tells how
    rows group into sequences. ``lengths``: the value is known when a Program is compiled, as the
    lengths of these sequences, so that shapes may depend on it. ``numbers``: likewise, as a few
    integers that follow from shapes and constants; in the step, also the numbers (floats, too)
    by which an attribute is `Given`.
    """

    shape: tuple[int, ...]
    dtype: str
    type: str = "LOD_TENSOR"
    rows: int = -1
    lod: Lod | None = field(default=None, compare=False)
    lengths: Lod | None = field(default=None, compare=False)
    numbers: tuple[Any, ...] | None = field(default=None, compare=False)

    @property
    def sequences(self) -> Lod | None:
        """The sequences that the rows form, or whose lengths the values are."""
        return self.lod if self.lengths is None else self.lengths

    @property
    def size(self) -> int:
        """Number of elements, negative if not known."""
        size = 1
        for extent in self.shape:
            if extent < 0:
                return -1
            size *= extent
        return size


@dataclass(frozen=True)
class Slot:
    """One slot of an operator: ``X`` one variable, ``X?`` maybe one, ``X*`` a list."""

    name: str
    many: bool
    optional: bool

    def __str__(self) -> str:
        return self.name + ("*" if self.many else "?" if self.optional else "")


@dataclass(frozen=True)
class Given:
    """Where an attribute may be given as values: all its numbers in ``tensor``, or one in each
    value of ``listed``; "" where an operator has no such slot.

    ``read``: they are operands, too. ``mark``: what the attribute says in place of a listed value.
    """

    tensor: str = ""
    listed: str = ""
    read: bool = False
    mark: int = -1

    @property
    def slots(self) -> tuple[str, ...]:
        """The slots that there are."""
        return tuple(slot for slot in (self.tensor, self.listed) if slot)

    def holder(self, slots: Mapping[str, Sequence[Any]]) -> str:
        """Return the slot that is filled; "" if the attribute says all itself."""
        return next((slot for slot in self.slots if slots.get(slot)), "")


LAYOUTS = "NCHW or NHWC or NCDHW or NDHWC or NCW or NWC or AnyLayout"
# What an attribute of the name may be, whichever operator has it.
RANGES = {
    "align_mode": "0 or 1",
    "data_format": LAYOUTS,
    "data_layout": LAYOUTS,
    "epsilon": "at least 0",
}


@dataclass(frozen=True)
class OpDef:
    """What there is to know of an operator type.

    infer(*input_metas, **attrs) -> Meta, or a tuple with one per output slot (a list for ``X*``).
    kernel(xp, *inputs, *outputs, **attrs) writes into its outputs, arrays of the inferred metas;
        an absent input and an output nobody wants are None.
    bind(xp, *inputs, *outputs, **attrs) -> callable, instead of a kernel: called once when a
        Program is compiled; what it returns is called, without arguments, at every step.
    grad(op, wanted) -> list[GradOp]: the operators that turn gradients of the outputs into those
        of the inputs; None: the operator has no gradient.
    alias: output slot -> input slot whose buffer it may share as a view of another shape.
    inplace: output slot -> input slot whose buffer it may overwrite element by element.
    shape_only: input slots of which it reads the shape only, so that the values may be gone.
    state: state(name) -> what an operator keeps from step to step beside its variables, such as
        how often it has drawn random numbers. ``bind`` gets it as keyword ``state`` at every call.
    lods: input slots whose sequences it reads: ``bind`` gets their Lods, one per slot (a list for
        ``X*``), as keyword ``lods``, and ``infer`` says which outputs are sequences. Outputs of
        other operators group as the first input with sequences does that has as many rows.
    measures: input slots that hold lengths of sequences; of these the Lods, as with ``lods``.
    values: values(*inputs, **attrs) -> results, instead of a kernel, for an operator whose results
        have shapes that only the step knows: Values in and out, see `hpcdist.graph.values`.
    given: attributes that may be given as values (extents, bounds, a depth, k, sections, axes) and
        the slots that hold these. ``infer``, ``kernel`` and ``bind`` get the numbers as if the
        attribute had them, ``infer`` None in place of one that only the step knows; not the slots.
        An operator whose results have open shapes for it is interpreted (`executor.dynamic`).
    folds: its results are known when a Program is compiled if its operands are, see `Meta.numbers`.
    acts: it does something that nobody reads, so it runs even if nobody wants its results.
    flops: flops(*inputs, *outputs, **attrs) -> how many multiplications and additions the products
        take that it computes, by its arrays; None: something else takes it longer.
    sums: output slots of what it keeps from step to step and adds up over the rows of all trainers:
        each keeps the sum of its rows.
    by_number: it calls what this process has registered, such as a Python function, by its number;
        a stored Program has no such operator.
    ranges: what attributes may be, in the words of `base.checks`, beside `RANGES` of all operators.
    rows: how it treats the rows of a batch, see `hpcdist.graph.rows`; None: a Program that applies
        it to values of the batch is refused where trainers share batches.
    """

    type: str
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    infer: Callable[..., Any] | None = None
    kernel: Callable[..., None] | None = None
    bind: Callable[..., Call] | None = None
    grad: Callable[..., list[GradOp]] | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)
    alias: Mapping[str, str] = field(default_factory=dict)
    inplace: Mapping[str, str] = field(default_factory=dict)
    shape_only: Sequence[str] = ()
    state: Callable[..., Any] | None = None
    lods: Sequence[str] = ()
    measures: Sequence[str] = ()
    values: Callable[..., Any] | None = None
    given: Mapping[str, Given] = field(default_factory=dict)
    folds: bool = False
    acts: bool = False
    by_number: bool = False
    flops: Callable[..., int | None] | None = None
    sums: Sequence[str] = ()
    ranges: Mapping[str, str] = field(default_factory=dict)
    rows: Treatment | None = None

    @functools.cached_property
    def giving(self) -> tuple[str, ...]:
        """The input slots that hold attributes."""
        return tuple(slot for places in self.given.values() for slot in places.slots)

    @functools.cached_property
    def operands(self) -> tuple[Slot, ...]:
        """The input slots that ``infer``, ``kernel`` and ``bind`` get."""
        return operand_slots(self.inputs, self.given)

    @functools.cached_property
    def limits(self) -> Mapping[str, str]:
        """What its attributes may be, in words."""
        return {name: RANGES[name] for name in self.attrs if name in RANGES} | {**self.ranges}

    def may_overwrite(self, slot: str) -> bool:
        """Return whether an output may be the operand itself: declared, or like ``ParamOut``."""
        sources = {s.name for s in self.inputs}
        return slot in self.inplace or (slot.endswith("Out") and slot[:-3] in sources)


@dataclass(frozen=True)
class GradOp:
    """A backward operator to be appended: slots hold variable names."""

    type: str
    inputs: Mapping[str, list[str]]
    outputs: Mapping[str, list[str]]
    attrs: Mapping[str, Any]


MOST_NUMBERS = 64  # values with more elements are no shapes
INTEGERS = ("int32", "int64")

operators: dict[str, OpDef] = {}  # by type; `define` enters them
_unloaded: list[Call] = []  # what defines more
_under_way: list[bool] = []  # whether that is being called
_loading = threading.RLock()


@functools.cache
def parse_signature(signature: str) -> tuple[tuple[Slot, ...], tuple[Slot, ...]]:
    """Parse ``"X, Y*, Z? -> Out"`` into input and output slots."""
    left, arrow, right = signature.partition("->")
    if not arrow:
        raise GraphError(f"operator signature {signature!r} has no '->'")

    def side(text: str) -> tuple[Slot, ...]:
        words = [word.strip() for word in text.split(",") if word.strip()]
        return tuple(Slot(w.rstrip("*?"), w.endswith("*"), w.endswith(("?", "*"))) for w in words)

    return side(left), side(right)


def operand_slots(inputs: Sequence[Slot], given: Mapping[str, Given]) -> tuple[Slot, ...]:
    """Leave out the slots that give attributes."""
    giving = {slot for places in given.values() if not places.read for slot in places.slots}
    return tuple(slot for slot in inputs if slot.name not in giving)


def define(type: str, signature: str, **parts: Any) -> OpDef:
    """Enter an operator type into the table; a second definition of a type is an error."""
    if type in operators:
        raise GraphError(f"operator {type!r} is defined twice")
    inputs, outputs = parse_signature(signature)
    operators[type] = OpDef(type, inputs, outputs, **parts)
    return operators[type]


def define_later(load: Call) -> None:
    """Register a function that defines more operators, called when a type is not in the table."""
    _unloaded.append(load)


def is_defined(type: str) -> bool:
    """Return whether there is an operator of a type."""
    if type not in operators and _unloaded:
        _load()
    return type in operators


def lookup(type: str) -> OpDef:
    """Return the definition of an operator type; GraphError if there is none."""
    definition = operators.get(type)
    if definition is not None:
        return definition
    if is_defined(type):
        return operators[type]
    hint = did_you_mean(type, [name for name in operators if not name.endswith("_grad")])
    raise GraphError(f'Operator "{type}" has not been registered{hint or "."}')


def _load() -> None:
    """Define all operators; a thread that comes meanwhile waits until they are there."""
    with _loading:
        if _under_way:  # in this thread: what is loaded looks one up
            return
        _under_way.append(True)
        try:
            while _unloaded:
                _unloaded[-1]()
                _unloaded.pop()
        finally:
            _under_way.clear()


def check_read(definition: OpDef, inputs: Mapping[str, Sequence[str]]) -> None:
    """Raise GraphError for a filled slot that the operator does not read: it would be ignored.

    Fluid has some that are not here, most of which replace an attribute by a value. A gradient may
    be given all that its operator reads and gives, whatever of it the formula needs.
    """
    read = [slot.name for slot in definition.inputs]
    known = {*read, *_of_forward(definition.type)}
    for slot, names in inputs.items():
        if slot not in known and any(name != EMPTY for name in names):
            raise GraphError(
                f"operator {definition.type} does not read slot {slot!r}, given {list(names)}: it "
                f"reads {', '.join(read) or 'nothing'}{did_you_mean(slot, read)}"
            )


def _of_forward(type: str) -> set[str]:
    """Return the slots that Fluid gives a gradient: its operator's, and those of gradients."""
    forward = type.removesuffix("_grad")
    if forward == type or not is_defined(forward):
        return set()
    outputs = [slot.name for slot in operators[forward].outputs]
    return {slot.name for slot in operators[forward].inputs}.union(
        outputs, (name + GRAD_SUFFIX for name in outputs)
    )


def default_attrs(type: str) -> Mapping[str, Any]:
    """Return the attributes of an operator type with their defaults; {} for an unknown type."""
    return operators[type].attrs if is_defined(type) else {}


def defined() -> Sequence[str]:
    """Names of all operator types, sorted."""
    if _unloaded:
        _load()
    return sorted(operators)


def arguments(slots: Sequence[Slot], values: Mapping[str, Sequence[Any]]) -> list[Any]:
    """Order slot contents as a kernel takes them: a list for ``X*``, None for an absent one."""
    out: list[Any] = []
    for slot in slots:
        operands = values.get(slot.name, ())
        out.append(list(operands) if slot.many else (operands[0] if operands else None))
    return out


def declared_attrs(definition: OpDef, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the attributes an operator declares, defaults filled in."""
    return {name: attrs.get(name, default) for name, default in definition.attrs.items()}


def known_attrs(
    definition: OpDef,
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Sequence[Meta]],
    in_step: bool = False,
) -> dict[str, Any]:
    """Return the declared attributes, those that are given as values with the values' numbers.

    None stands in place of a number that is not known; of a list given as one value with an
    attribute beside it, this says what all but the first are until then. While a Program is built,
    it stands for listed values, too; ``in_step`` only these count.
    """
    known = declared_attrs(definition, attrs)
    for name, places in definition.given.items():
        default = definition.attrs.get(name)
        slot = places.holder(inputs)
        if not slot:
            known.setdefault(name, None)
        elif slot == places.listed and in_step:
            known[name] = [meta.numbers[0] if meta.numbers else None for meta in inputs[slot]]
        elif slot == places.listed:
            own = itertools.zip_longest(known.get(name) or (), attrs.get("infer_flags", ()))
            sure = [
                None if flag == -1 or (number == places.mark and flag != 1) else number
                for number, flag in own
            ]
            known[name] = [
                meta.numbers[0] if meta.numbers else number
                for meta, number in itertools.zip_longest(inputs[slot], sure[: len(inputs[slot])])
            ]
        elif isinstance(default, (tuple, list)) or places.listed:
            (meta,) = inputs[slot]
            rest = (known.get(name) or ())[1:] or (None,) * (meta.size - 1)
            known[name] = [None, *rest] if meta.numbers is None else list(meta.numbers)
        else:
            numbers = inputs[slot][0].numbers
            known[name] = numbers[0] if numbers else None
    return known


def attrs_of(
    type: str,
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Sequence[str]],
    metas: Mapping[str, Meta],
) -> dict[str, Any]:
    """Return the attributes of one use of an operator, as `known_attrs`."""
    definition = lookup(type)
    giving = {
        slot: [metas[n] for n in inputs[slot]] for slot in definition.giving if slot in inputs
    }
    return known_attrs(definition, attrs, giving)


def gives_open(type: str, inputs: Mapping[str, Sequence[str]], metas: Mapping[str, Meta]) -> bool:
    """Return whether a value gives an attribute of an operator numbers that are not known."""
    giving = (name for slot in lookup(type).giving for name in inputs.get(slot, ()))
    return any(metas[name].numbers is None for name in giving)
