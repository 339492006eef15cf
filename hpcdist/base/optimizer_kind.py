"""What is declared of an optimizer: `optimizers` has the declarations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Attrs = Mapping[str, Any]


@dataclass(frozen=True)
class Formula:
    """How elements move by themselves, and the rate: (lr, *powers of beta) -> rate."""

    step: Callable[..., Any]
    states: int  # how many it moves
    rate: Callable[..., Any] | None = None  # None: the learning rate itself
    last: Callable[..., Any] | None = None  # (last constant, *powers) -> that of a step
    times: tuple[int, ...] = ()  # the constants by which it multiplies its powers after a step

    @property
    def powers(self) -> int:
        """How many powers of beta the rate is made from: states after those it moves."""
        return 0 if self.rate is None else len(inspect.signature(self.rate).parameters) - 1

    @property
    def constants(self) -> int:
        """How many constants the step takes."""
        return len(inspect.signature(self.step).parameters) - 3 - self.states


@dataclass(frozen=True)
class Accumulator:
    """What an optimizer keeps of a parameter: in the parameter's shape, or a power of beta.

    ``name`` is Fluid's kind of accumulator, ``first`` the argument that has its first value (None:
    0), ``power`` the argument that it begins with and is a power of.
    """

    slot: str
    name: str
    out: str | None = ""  # the output slot, "": the slot with Out behind it; None: only read
    first: str | None = None
    power: str | None = None
    in_rows: str = ""  # its name beside rows of tables, if it is another
    optional: bool = False  # an operator that does not move it may lack it


@dataclass(frozen=True)
class Argument:
    """An argument of an optimizer's own: a number, or whether something is so."""

    default: float  # of the operator's attribute; a bool for what is a bool
    attr: str = ""  # the attribute's name, if it is another
    required: bool = False  # Fluid's class has no default
    of_operator: bool = True  # whether the operator has that attribute
    below_1: bool = False
    given: str = ""  # the slot that may give it as a value
    any_sign: bool = False

    @property
    def range(self) -> str:
        """What it may be, in the words of `base.checks`."""
        return "[0, 1)" if self.below_1 else "a finite number" if self.any_sign else "at least 0"


@dataclass(frozen=True)
class OptimizerKind:
    """How one type of optimizer moves a parameter.

    ``type`` is the operator's, ``name`` that of Fluid's class; ``arguments`` are in its order. What
    takes norms has no ``formulas``; where it is ``whole``, they are over all of a parameter.
    ``hyper(attrs, float type)`` are the constants. ``choose(attrs)`` names the formula, None: as
    the type. ``sparse(attrs)`` says which rows a sparse gradient moves: ``each`` listed row on its
    own, the ``listed`` ones after merging repeats, ``all``; None: it is refused. ``rows``: whether
    it moves rows of distributed tables. ``of_fluid``: whether there is such a class of Fluid's, and
    so for scripts without a Program; else it is a class of Paddle 2's.
    """

    type: str
    name: str
    hyper: Callable[[Attrs, Any], Sequence[float]]
    formulas: Mapping[str, Formula] = field(default_factory=dict)
    states: tuple[Accumulator, ...] = ()
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    choose: Callable[[Attrs], str] | None = None
    sparse: Callable[[Attrs], str | None] = lambda attrs: None
    more_attrs: Attrs = field(default_factory=dict)
    has_rate: bool = True
    rows: bool = False
    whole: bool = False
    of_fluid: bool = True

    def rule(self, attrs: Attrs) -> str:
        """Return the name of the formula, or of the passes of what takes norms."""
        return self.type if self.choose is None else self.choose(attrs)

    @cached_property
    def state(self) -> Mapping[str, str | None]:
        """Output slots by input slots; None: only read."""
        return {s.slot: f"{s.slot}Out" if s.out == "" else s.out for s in self.states}

    @cached_property
    def attrs(self) -> Attrs:
        """The operator's attributes, with defaults."""
        own = {a.attr or n: a.default for n, a in self.arguments.items() if a.of_operator}
        return {**own, **self.more_attrs}

    @cached_property
    def ranges(self) -> dict[str, str]:
        """What the operator's attributes may be, in words; those that are numbers."""
        numbers = {n: a for n, a in self.arguments.items() if not isinstance(a.default, bool)}
        return {a.attr or n: a.range for n, a in numbers.items() if a.of_operator}

    @property
    def given(self) -> dict[str, str]:
        """Slots that may give attributes as values, by attribute."""
        return {a.attr or n: a.given for n, a in self.arguments.items() if a.given}

    @property
    def written(self) -> dict[str, str]:
        """Output slots by the input slots whose values they replace."""
        return {"Param": "ParamOut", **{s: o for s, o in self.state.items() if o is not None}}
