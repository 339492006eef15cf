"""The base of learning rates that a script steps, and which of them there are."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid.compat.paddle2 import declare

schedulers: weakref.WeakSet[LRScheduler] = weakref.WeakSet()  # those that a script may step


class LRScheduler:
    """Base of rates: ``get_lr`` computes the rate of ``last_epoch``, which ``step`` counts."""

    def __new__(cls, *args: Any, **kwargs: Any) -> LRScheduler:
        """Note the scheduler, and that no optimizer has it yet."""
        made = super().__new__(cls)
        made.optimizers = []
        schedulers.add(made)
        return made

    optimizers: list[Any]  # those whose rate it is; an Executor sets that of their Programs

    def __init__(
        self, learning_rate: float = 0.1, last_epoch: int = -1, verbose: bool = False
    ) -> None:
        where = f"paddle.optimizer.lr.{type(self).__name__}: learning_rate"
        self.base_lr = declare.KINDS["float"](where, learning_rate)
        self.last_lr = self.base_lr
        self.last_epoch, self.verbose = last_epoch, verbose
        self.step()

    def __call__(self) -> float:
        """Return the rate of now."""
        return self.last_lr

    def get_lr(self) -> float:
        """Return the rate of ``last_epoch``; to be written by subclasses."""
        raise NotImplementedError(f"{type(self).__name__} has no get_lr")

    def step(self, epoch: float | None = None) -> None:
        """Count one step, or go to ``epoch``."""
        if not isinstance(epoch, (Real, type(None))):
            raise declare.refusal(f"{type(self).__name__}.step: epoch", "a number", epoch)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self.last_lr = float(self.get_lr())
        self._tell()

    def _tell(self) -> None:
        if self.verbose:
            print(
                f"Epoch {self.last_epoch}: {type(self).__name__} set learning rate to "
                f"{self.last_lr}."
            )

    def state_keys(self) -> Sequence[str]:
        """Return the attributes that `state_dict` has."""
        return ("last_epoch", "last_lr")

    def state_dict(self) -> dict[str, Any]:
        """Return the counters of the schedule."""
        return {key: getattr(self, key) for key in self.state_keys()}

    def set_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` has returned."""
        if not isinstance(state_dict, Mapping):
            raise declare.refusal(f"{type(self).__name__}.set_state_dict", "a dict", state_dict)
        for key in self.state_keys():
            if key not in state_dict:
                raise GraphError(f"{type(self).__name__}.set_state_dict: {key!r} is missing")
            setattr(self, key, state_dict[key])

    set_dict = set_state_dict
