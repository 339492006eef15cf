"""The optimizer of rows that Fluid has no class of."""

from __future__ import annotations

from hpcdist.fluid import optimizer
from hpcdist.fluid.optimizer.weight_decay import extend_with_decoupled_weight_decay


class AdamW(extend_with_decoupled_weight_decay(optimizer.Adam)):  # type: ignore[misc]
    """Adam that first takes ``learning_rate * weight_decay`` of each row that a step moves."""

    decay_attr = "rate_decay"

    def __init__(self, learning_rate: object, weight_decay: float = 0.01, **adam: float) -> None:
        super().__init__(float(weight_decay), learning_rate=learning_rate, lazy_mode=True, **adam)
