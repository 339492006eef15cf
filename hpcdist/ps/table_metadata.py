"""Facts about a table: the initializer of its rows and their optimizer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

import numpy as np

from hpcdist.base.errors import TableError

# What each optimizer keeps beside a row, one column of the row's width each.
STATE_NAMES: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("velocity",),
    "adagrad": ("moment",),
    "adam": ("moment1", "moment2"),
    "ftrl": ("squared", "linear"),
}
INITIALIZERS = ("constant", "uniform", "normal", "truncated_normal")


@dataclass(frozen=True)
class RowOptimizer:
    """An optimizer of rows: only rows that a gradient lists are moved, after adding up repeats.

    Formulas, names and defaults of the constants are Fluid's; each kind uses its own. ``adam`` is
    Fluid's with ``lazy_mode=True``: the powers of beta are the table's, not a row's, and count its
    pushes; as in Fluid they are multiplied before they are used. Momentum, too, is lazy.
    """

    kind: str = "sgd"
    mu: float = 0.9  # momentum
    use_nesterov: bool = False
    epsilon: float = 1e-6  # adagrad and adam; Fluid's default for adam is 1e-8
    initial_moment: float = 0.0  # adagrad
    beta1: float = 0.9  # adam
    beta2: float = 0.999
    l1: float = 0.0  # ftrl
    l2: float = 0.0
    lr_power: float = -0.5
    l1_decay: float = 0.0  # times the sign of the row, and
    l2_decay: float = 0.0  # times the row, are added to its gradient: of any kind

    def __post_init__(self) -> None:
        if self.kind not in STATE_NAMES:
            raise TableError(
                f"optimizer of rows {self.kind!r}: expected one of {', '.join(STATE_NAMES)}"
            )

    @property
    def state_names(self) -> tuple[str, ...]:
        """The columns of a row's state, in order; each is as wide as the row."""
        return STATE_NAMES[self.kind]

    def state_widths(self, dim: int) -> tuple[int, ...]:
        """Return how wide each column of the state of a row of ``dim`` elements is."""
        return (dim,) * len(self.state_names)

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
        if self.kind == "momentum" and self.use_nesterov:
            return "nesterov"
        return "sqrt_ftrl" if self.kind == "ftrl" and self.lr_power == -0.5 else self.kind

    @property
    def constants(self) -> tuple[np.float32, ...]:
        """What that pass takes besides the learning rate, in its order."""
        one, two = np.float32(1), np.float32(2)
        beta1, beta2 = np.float32(self.beta1), np.float32(self.beta2)
        epsilon, l1, l2 = np.float32(self.epsilon), np.float32(self.l1), np.float32(self.l2)
        return {
            "sgd": (),
            "momentum": (np.float32(self.mu),),
            "nesterov": (np.float32(self.mu),),
            "adagrad": (epsilon,),
            "adam": (beta1, one - beta1, beta2, one - beta2, epsilon),
            "ftrl": (l1, two * l2, np.float32(-self.lr_power)),
            "sqrt_ftrl": (l1, two * l2),
        }[self.formula]

    @property
    def shared_names(self) -> tuple[str, ...]:
        """The numbers that all rows of a table share."""
        return ("beta1_power", "beta2_power") if self.kind == "adam" else ()


@dataclass(frozen=True)
class RowInitializer:
    """The values of a row nobody has touched: a function of the table's seed and the row's id.

    ``constant(a)``, ``uniform(a, b)`` over [a, b), ``normal(mean a, deviation b)`` and
    ``truncated_normal``, cut off at two deviations.
    """

    kind: str = "uniform"
    a: float = -1.0
    b: float = 1.0

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


@dataclass(frozen=True)
class TableStatistics:
    """What a table has done so far. ``payload_bytes`` are those of ids, rows and state alone."""

    name: str
    rows: int
    nbytes: int
    payload_bytes: int
    rows_pulled: int
    rows_pushed: int
