"""Facts about a table: the initializer of its rows and their optimizer."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np

from hpcdist.base.errors import TableError
from hpcdist.base.optimizer_kind import Formula, OptimizerKind
from hpcdist.base.optimizers import FORMULAS, OPTIMIZERS

KINDS = tuple(type for type, kind in OPTIMIZERS.items() if kind.rows)  # that move rows
# Attributes of an update: coefficients of a regularizer, and of decoupled decays.
DECAYS = ("l1_decay", "l2_decay", "decoupled_decay", "rate_decay")
INITIALIZERS = ("constant", "uniform", "normal", "truncated_normal")


@dataclass(frozen=True)
class RowOptimizer:
    """An optimizer of rows: only rows that a gradient lists are moved, after adding up repeats.

    Formulas, names and defaults of the constants are Fluid's; each kind uses its own. ``adam`` is
    Fluid's with ``lazy_mode=True``: the powers of beta are the table's, not a row's, and count its
    pushes; as in Fluid they are multiplied before they are used. Momentum, too, is lazy, and so are
    all others; ``adamax`` multiplies its power after it is used. ``lamb`` has a rate for each row,
    by the row's norm; ``unbiased_lamb`` is Paddle 2's. A ``row_wise`` adagrad adds up the mean
    square of a row's gradient: it has one moment for a row. The gradient of a row whose norm is
    above ``clip_norm`` is scaled to it (0: never), before it is decayed; decoupled decays go before
    all else; values that a step has moved are kept within ``weight_bounds``.
    """

    kind: str = "sgd"
    mu: float = 0.9  # momentum
    use_nesterov: bool = False
    epsilon: float = 1e-6  # adagrad and adam; Fluid's default for adam is 1e-8
    initial_moment: float = 0.0  # adagrad
    beta1: float = 0.9  # adam, adamax and lamb
    beta2: float = 0.999
    l1: float = 0.0  # ftrl
    l2: float = 0.0
    lr_power: float = -0.5
    l1_decay: float = 0.0  # times the sign of the row, and
    l2_decay: float = 0.0  # times the row, are added to its gradient: of any kind
    decay: float = 0.95  # rmsprop
    momentum: float = 0.0
    centered: bool = False
    weight_decay: float = 0.01  # lamb
    always_adapt: bool = False  # unbiased_lamb
    row_wise: bool = False  # adagrad
    decoupled_decay: float = 0.0  # this part of a row is taken from it first, of any kind, and
    rate_decay: float = 0.0  # this part times the learning rate
    clip_norm: float = 0.0  # of any kind
    weight_bounds: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise TableError(f"optimizer of rows {self.kind!r}: expected one of {', '.join(KINDS)}")
        if self.row_wise and self.kind != "adagrad":
            raise TableError(f"optimizer of rows {self.kind!r}: row_wise is for adagrad")

    @property
    def declared(self) -> OptimizerKind:
        """What is declared of its kind."""
        return OPTIMIZERS[self.kind]

    @property
    def attrs(self) -> dict[str, Any]:
        """The attributes of the operator that moves parameters in the same way."""
        return {**self.declared.attrs, **vars(self)}

    @property
    def rule(self) -> Formula | None:
        """The formula, None for what takes norms."""
        return FORMULAS.get(self.declared.rule(self.attrs))

    @property
    def state_names(self) -> tuple[str, ...]:
        """The columns of a row's state, in order."""
        columns = [s.in_rows or s.name for s in self.declared.states if s.power is None]
        return tuple(columns if self.rule is None else columns[: self.rule.states])

    def state_widths(self, dim: int) -> tuple[int, ...]:
        """Return how wide each column of the state of a row of ``dim`` elements is."""
        return (1 if self.row_wise else dim,) * len(self.state_names)

    def state_width(self, dim: int) -> int:
        """Return how many float32 numbers of optimizer state a row of ``dim`` elements has."""
        return sum(self.state_widths(dim))

    @property
    def first_state(self) -> float:
        """The value of a new row's state."""
        return self.initial_moment if self.kind == "adagrad" else 0.0

    @property
    def formula(self) -> str:
        """The name of the pass in `row_kernels` that moves rows."""
        return f"{'row_wise_' if self.row_wise else ''}{self.declared.rule(self.attrs)}"

    @property
    def constants(self) -> tuple[np.float32, ...]:
        """What that pass takes besides the learning rate, in its order."""
        return tuple(np.float32(c) for c in self.declared.hyper(self.attrs, np.float32))

    @property
    def shared_names(self) -> tuple[str, ...]:
        """The numbers that all rows of a table share."""
        return tuple(f"{name}_power" for name in self._bases)

    @property
    def betas(self) -> np.ndarray:
        """What these numbers begin with and are multiplied by at each push, float32."""
        return np.array([getattr(self, name) for name in self._bases], np.float32)

    @property
    def powers_first(self) -> bool:
        """Whether they are multiplied before a push, and not after it."""
        return self.rule is not None and bool(self.rule.times)

    @property
    def _bases(self) -> list[str]:
        """The arguments of which there are powers, if the formula takes them."""
        powers = [s for s in self.declared.states if s.power is not None]
        return [str(s.power) for s in powers if self.rule or s.out is not None]

    @property
    def changes_gradients(self) -> bool:
        """Whether a row's gradient is not the plain sum of what is pushed."""
        return bool(self.l1_decay or self.l2_decay or self.clip_norm)


@dataclass(frozen=True)
class RowInitializer:
    """The values of a row nobody has touched: a function of the table's seed and the row's id.

    ``constant(a)``, ``uniform(a, b)`` over [a, b), ``normal(mean a, deviation b)`` and
    ``truncated_normal``, cut off at two deviations. ``drawn``: of how many elements, 0: of all; the
    others are 0.
    """

    kind: str = "uniform"
    a: float = -1.0
    b: float = 1.0
    drawn: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if self.kind not in INITIALIZERS:
            raise TableError(
                f"initializer of rows {self.kind!r}: expected one of {', '.join(INITIALIZERS)}"
            )
        if not all(isinstance(v, Real) and math.isfinite(v) for v in (self.a, self.b)):
            raise TableError(
                f"initializer of rows {self.kind!r}: expected finite numbers, got "
                f"{self.a!r} and {self.b!r}"
            )
        if self.kind == "uniform" and self.a > self.b:
            raise TableError(
                f"initializer of rows 'uniform': expected the lower bound first, got {self.a!r} "
                f"and {self.b!r}"
            )
        if self.kind in ("normal", "truncated_normal") and self.b < 0:
            raise TableError(
                f"initializer of rows {self.kind!r}: expected a deviation that is not negative, "
                f"got {self.b!r}"
            )
        if self.drawn < 0:
            raise TableError(f"initializer of rows: {self.drawn} elements cannot be drawn")

    def constants(self, first_state: float) -> np.ndarray:
        """Return float64 [4], what kernels take as ``initial``: see `row_values.write_initial`."""
        return np.array([self.a, self.b, first_state, self.drawn])

    def to_plain(self) -> dict[str, Any]:
        """Return the facts as JSON can say them."""
        return {name: value for name, value in vars(self).items() if name != "drawn" or value}


@dataclass(frozen=True)
class TableStatistics:
    """What a table has done so far. ``payload_bytes`` are those of ids, rows and state alone.

    ``disk_bytes``: the size of the file of rows that are not in memory.
    """

    name: str
    rows: int
    nbytes: int
    payload_bytes: int
    rows_pulled: int
    rows_pushed: int
    disk_bytes: int = 0
