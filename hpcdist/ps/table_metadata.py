"""Facts about a table: the initializer of its rows and their optimizer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

import numpy as np

from hpcdist.base.errors import TableError

# What each optimizer keeps beside a row, one column of the row's width each, or one number.
STATE_NAMES: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("velocity",),
    "adagrad": ("moment",),
    "adam": ("moment1", "moment2"),
    "adamax": ("moment", "inf_norm"),
    "rmsprop": ("momentum", "mean_square"),
    "ftrl": ("squared", "linear"),
    "lamb": ("moment1", "moment2"),
}
INITIALIZERS = ("constant", "uniform", "normal", "truncated_normal")


@dataclass(frozen=True)
class RowOptimizer:
    """An optimizer of rows: only rows that a gradient lists are moved, after adding up repeats.

    Formulas, names and defaults of the constants are Fluid's; each kind uses its own. ``adam`` is
    Fluid's with ``lazy_mode=True``: the powers of beta are the table's, not a row's, and count its
    pushes; as in Fluid they are multiplied before they are used. Momentum, too, is lazy, and so are
    all others; ``adamax`` multiplies its power after it is used. ``lamb`` has a rate for each row,
    by the row's norm. A ``row_wise`` adagrad adds up the mean square of a row's gradient: it has
    one moment for a row. The gradient of a row whose norm is above ``clip_norm`` is scaled to it
    (0: never), before it is decayed; decoupled decays go before all else; values that a step has
    moved are kept within ``weight_bounds``.
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
    row_wise: bool = False  # adagrad
    decoupled_decay: float = 0.0  # this part of a row is taken from it first, of any kind, and
    rate_decay: float = 0.0  # this part times the learning rate
    clip_norm: float = 0.0  # of any kind
    weight_bounds: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.kind not in STATE_NAMES:
            raise TableError(
                f"optimizer of rows {self.kind!r}: expected one of {', '.join(STATE_NAMES)}"
            )
        if self.row_wise and self.kind != "adagrad":
            raise TableError(f"optimizer of rows {self.kind!r}: row_wise is for adagrad")

    @property
    def state_names(self) -> tuple[str, ...]:
        """The columns of a row's state, in order."""
        return STATE_NAMES[self.kind] + (("mean_gradient",) if self.centered else ())

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
        if self.kind == "momentum" and self.use_nesterov:
            return "nesterov"
        if self.row_wise or self.centered:
            return f"{'row_wise' if self.row_wise else 'centered'}_{self.kind}"
        return "sqrt_ftrl" if self.kind == "ftrl" and self.lr_power == -0.5 else self.kind

    @property
    def constants(self) -> tuple[np.float32, ...]:
        """What that pass takes besides the learning rate, in its order."""
        one, two = np.float32(1), np.float32(2)
        beta1, beta2 = np.float32(self.beta1), np.float32(self.beta2)
        epsilon, l1, l2 = np.float32(self.epsilon), np.float32(self.l1), np.float32(self.l2)
        moments, rho = (beta1, one - beta1, beta2, one - beta2, epsilon), np.float32(self.decay)
        squares = rho, one - rho, epsilon, np.float32(self.momentum)
        return {
            "sgd": (),
            "momentum": (np.float32(self.mu),),
            "nesterov": (np.float32(self.mu),),
            "adagrad": (epsilon,),
            "row_wise_adagrad": (epsilon,),
            "adam": moments,
            "adamax": (beta1, one - beta1, beta2, epsilon),
            "rmsprop": squares,
            "centered_rmsprop": squares,
            "lamb": (*moments, np.float32(self.weight_decay)),
            "ftrl": (l1, two * l2, np.float32(-self.lr_power)),
            "sqrt_ftrl": (l1, two * l2),
        }[self.formula]

    @property
    def shared_names(self) -> tuple[str, ...]:
        """The numbers that all rows of a table share."""
        if self.kind == "adamax":
            return ("beta1_power",)
        return ("beta1_power", "beta2_power") if self.kind == "adam" else ()

    @property
    def changes_gradients(self) -> bool:
        """Whether a row's gradient is not the plain sum of what is pushed."""
        return bool(self.l1_decay or self.l2_decay or self.clip_norm)


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
