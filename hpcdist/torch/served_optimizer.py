"""An optimizer whose parameters are kept, and moved, by parameter servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hpcdist.errors import TableError
from hpcdist.torch.facts import MODES, OptimizerFacts, optimizer_of
from hpcdist.torch.tables import tables

PREFIX = "served."  # of the parameters' names on servers


class ServedOptimizer(torch.optim.Optimizer):
    """Sends a model's gradients to the servers, which keep the parameters, and takes these back.

    Parameters are cut into slices over the servers, as those of Programs. In mode "sync" a step of
    the job is a step on the mean of all trainers' gradients; in "async" a server applies each
    trainer's as it comes, in "dc_asgd" compensated for its delay. Every trainer begins with trainer
    0's values. ``param_groups[0]["lr"]`` is the learning rate.
    """

    def __init__(
        self,
        model: nn.Module,
        kind: str | torch.optim.Optimizer = "SGD",
        *,
        lr: float | None = None,
        l2_decay: float = 0.0,
        mode: str = "sync",
        max_staleness: int | None = None,
        **arguments: float,
    ) -> None:
        """``kind``: the name of an optimizer of Fluid's, with ``arguments`` of its own and ``lr``.

        Or one of torch's that has the same formula, SGD or Adagrad, from which all this is taken.
        Collective. TableError for others, and for parameters that servers cannot keep.
        """
        if isinstance(kind, torch.optim.Optimizer):
            if lr is not None or l2_decay or arguments:
                raise TableError("lr, l2_decay and arguments are taken from torch's optimizer")
            kind, lr, l2_decay, arguments = _of_torch(kind)
        if lr is None:
            raise TableError(f"ServedOptimizer {kind}: lr must be given")
        if mode not in MODES:
            raise TableError(f"mode: expected one of {', '.join(MODES)}, got {mode!r}")
        if max_staleness is not None and mode == "sync":
            raise TableError('max_staleness is for mode="async"')
        found = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not found:
            raise TableError("ServedOptimizer: the model has no parameters to train")
        for name, held in found.items():
            plain = held.dtype == torch.float32 and held.device.type == "cpu"
            if not (plain and held.is_contiguous() and held.dim()):
                raise TableError(
                    f"parameter {name!r}: servers keep contiguous float32 of the CPU with at least "
                    f"one dimension, got {held.dtype} {tuple(held.shape)} on {held.device}"
                )
        facts = OptimizerFacts(kind, arguments, l2_decay)
        optimizer_of(facts, lr)
        served = {PREFIX + name: held for name, held in found.items()}
        self._number = tables().serve(served, facts, lr, (mode, max_staleness))
        super().__init__(found.values(), {"lr": lr})
        if tables().group.size > 1:
            for parameter in found.values():
                tables().group.broadcast(parameter.detach().numpy())

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Exchange gradients for parameters with the servers. Every trainer calls this."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        tables().rates[self._number] = float(self.param_groups[0]["lr"])
        tables().step(self._number)
        return loss


def _of_torch(given: torch.optim.Optimizer) -> tuple[str, float, float, dict[str, Any]]:
    """Return kind, rate, decay and arguments of an optimizer of torch's; TableError if it differs.

    Its Adam adds epsilon to another root than Fluid's.
    """
    if len(given.param_groups) != 1:
        raise TableError(f"expected one group of parameters, got {len(given.param_groups)}")
    group = dict(given.param_groups[0])
    name = type(given).__name__
    known: dict[str, Any] = {}
    if type(given) is torch.optim.SGD:
        kind, same = "SGD", ("dampening", "maximize")
        if group["momentum"]:
            kind = "Momentum"
            known = {"momentum": group["momentum"], "use_nesterov": group["nesterov"]}
    elif type(given) is torch.optim.Adagrad:
        kind, same = "Adagrad", ("lr_decay", "maximize")
        known = {"epsilon": group["eps"]}
        known["initial_accumulator_value"] = group["initial_accumulator_value"]
    else:
        raise TableError(
            f"torch.optim.{name} has no twin on the servers: give SGD or Adagrad, or the name of "
            "an optimizer of Fluid's, such as ServedOptimizer(model, 'Adam', lr=1e-3)"
        )
    for argument in same:
        if group[argument]:
            raise TableError(f"torch.optim.{name}: servers cannot do {argument}={group[argument]}")
    return kind, float(group["lr"]), float(group["weight_decay"]), known
