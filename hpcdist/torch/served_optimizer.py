"""An optimizer whose parameters are kept and updated by parameter servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from hpcdist.base.errors import TableError
from hpcdist.ps.facts import MODES, OptimizerFacts, TrainingMode
from hpcdist.ps.optimizers import FOR_ROWS
from hpcdist.torch.kept_optimizer import KeptOptimizer, check
from hpcdist.torch.tables import open_tables

PREFIX = "served."  # of the parameters' names on servers


class ServedOptimizer(KeptOptimizer):
    """Sends a model's gradients to the servers, which keep the parameters, and takes these back.

    Parameters are cut into slices over the servers, as those of Programs. In mode "sync" a step of
    the job is a step on the mean of all trainers' gradients; in "async" a server applies each
    trainer's as it comes, in "dc_asgd" compensated for its delay. In "geo" each trainer trains by
    itself, with any optimizer of torch's, and every ``push_every`` steps the servers add a
    trainer's part of what has changed. Every trainer begins with trainer 0's values.
    ``param_groups[0]["lr"]`` is the learning rate. Every trainer makes it, and calls `step` in
    every step. It needs a job with servers (``--pservers``), else TableError.

    >>> optimizer = hpcdist.torch.ServedOptimizer(model, "Adam", lr=1e-3)  # doctest: +SKIP
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
        push_every: int = 1,
        name: str | None = None,
        **arguments: float,
    ) -> None:
        """``kind``: the name of an optimizer of Fluid's, with ``arguments`` of its own and ``lr``.

        Or a new one of torch's for the same parameters that has the same formula, SGD or Adagrad,
        from which all this is taken; schedules made on either move the rate. ``name`` tells models
        apart whose parameters have the same names. Collective. TableError for others, and for
        parameters that servers cannot keep.
        """
        if not isinstance(model, nn.Module):
            raise TableError(
                f"ServedOptimizer: expected a module, got a {type(model).__name__}: give the model "
                "itself, not its parameters"
            )
        geo = mode == "geo"
        if geo and isinstance(kind, str):
            raise TableError(
                'mode "geo": each trainer trains by itself, so give it an optimizer of torch\'s, '
                f"such as torch.optim.{kind}(model.parameters(), ...)"
            )
        if isinstance(kind, str) and kind in FOR_ROWS:
            raise TableError(
                f"ServedOptimizer: {kind} moves rows of tables only (hpcdist.torch.TableOptimizer)"
            )
        if isinstance(kind, str):
            twin, facts = None, OptimizerFacts(kind, arguments, l2_decay)
        else:
            if lr is not None or l2_decay or arguments:
                raise TableError("lr, l2_decay and arguments are taken from torch's optimizer")
            twin = kind
            # With "geo" the servers move nothing, and need no formula.
            facts, lr = (OptimizerFacts("SGD"), 0.0) if geo else _of_torch(kind)
        if lr is None:
            raise TableError(f"ServedOptimizer {kind}: lr must be given")
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
        if not any(parameter.numel() for parameter in trained.values()):
            raise TableError("ServedOptimizer: the model has no parameters to train")
        if twin is not None:
            _check_twin(twin, trained, begun=geo)
        for local_name, tensor in trained.items():
            plain = tensor.dtype == torch.float32 and tensor.device.type == "cpu"
            if not (plain and tensor.is_contiguous() and tensor.dim()):
                raise TableError(
                    f"parameter {local_name!r}: servers keep contiguous float32 of the CPU "
                    f"with at least one dimension, got {tensor.dtype} {tuple(tensor.shape)} "
                    f"on {tensor.device}, strides {tensor.stride()}"
                )
        training_mode = TrainingMode(mode, max_staleness, push_every)
        check(facts, lr, training_mode, MODES)
        prefix = PREFIX if name is None else f"{PREFIX}{name}."
        served = {prefix + name: p for name, p in trained.items() if p.numel()}
        tables = open_tables()
        number = tables.serve(served, facts, lr, training_mode)
        super().__init__(tables, number, trained.values(), lr)
        self._twin, self._facts, self._geo, self._frozen = twin, facts, geo, frozen
        self._stepping = False
        if twin is not None and geo:
            twin.register_step_pre_hook(self._refuse_second_step)
        if twin is not None:
            self._rate_only = False
            self.param_groups = twin.param_groups
            for one, other in ((self, twin), (twin, self)):
                one.register_load_state_dict_post_hook(partial(_share_groups, other))
        if tables.group.size > 1:
            for parameter in served.values():
                tables.group.broadcast(parameter.detach().numpy())

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Do as `KeptOptimizer.step`, with "geo" after torch's own step.

        TableError for torch's that has more than another rate, where servers have its formula,
        and for a parameter that trains now and did not when servers began.
        """
        self._refuse_scaler()  # before torch's own step
        for name, parameter in self._frozen.items():
            if parameter.requires_grad:
                raise TableError(
                    f"parameter {name!r} was frozen when ServedOptimizer was made, so servers do "
                    "not train it: make it with all that will train, and freeze what must wait "
                    "after that, which SGD and Adagrad without decay take for zeros"
                )
        if self._geo and self._twin is not None:
            self.tables.settle()  # servers begin with the values from before the first step
            self._stepping = True
            try:
                loss = self._twin.step(closure)
            finally:
                self._stepping = False
            super().step()
            return loss
        now = self._facts if self._twin is None else _of_torch(self._twin)[0]
        if now != self._facts:
            raise TableError(
                f"torch.optim.{type(self._twin).__name__}: servers started with {self._facts} and "
                f"can change only the learning rate, but now it is {now}"
            )
        if self._twin is not None:
            vars(self._twin)["_opt_called"] = True  # schedules ask for it: servers step instead
        return super().step(closure)

    def _refuse_second_step(self, *_: Any) -> None:
        if not self._stepping:
            raise TableError(
                f"torch.optim.{type(self._twin).__name__}: ServedOptimizer.step() already calls "
                "this optimizer's step(): call only that"
            )


def _check_twin(
    twin: torch.optim.Optimizer, trained: Mapping[str, nn.Parameter], *, begun: bool
) -> None:
    """Refuse an optimizer of torch's that has other parameters, or has begun where it must not."""
    of_twin = {id(p) for group in twin.param_groups for p in group["params"] if p.requires_grad}
    missing = sorted(name for name, parameter in trained.items() if id(parameter) not in of_twin)
    if missing or len(of_twin) != len(trained):
        difference = f"leaves {missing[0]!r} out" if missing else "has others beside"
        raise TableError(
            f"torch.optim.{type(twin).__name__} {difference}: servers train all parameters of the "
            "model that require a gradient; give the part of the model that it is for, or "
            "freeze others (requires_grad_(False))"
        )
    if not begun and any(state.get("step", state) for state in twin.state.values()):
        raise TableError(
            f"torch.optim.{type(twin).__name__} has stepped before, and servers begin without its "
            "state: give a new one"
        )


def _share_groups(twin: torch.optim.Optimizer, loaded: torch.optim.Optimizer) -> None:
    twin.param_groups = loaded.param_groups


def _of_torch(torch_optimizer: torch.optim.Optimizer) -> tuple[OptimizerFacts, float]:
    """Return the facts and the rate of an optimizer of torch's; TableError if it differs.

    Its Adam adds epsilon to another root than Fluid's.
    """
    if len(torch_optimizer.param_groups) != 1:
        raise TableError(
            f"expected one group of parameters, got {len(torch_optimizer.param_groups)}"
        )
    group = dict(torch_optimizer.param_groups[0])
    name = type(torch_optimizer).__name__
    arguments: dict[str, Any] = {}
    if type(torch_optimizer) is torch.optim.SGD:
        kind, same = "SGD", ("dampening", "maximize")
        if group["momentum"]:
            kind = "Momentum"
            arguments = {"momentum": group["momentum"], "use_nesterov": group["nesterov"]}
    elif type(torch_optimizer) is torch.optim.Adagrad:
        kind, same = "Adagrad", ("lr_decay", "maximize")
        arguments = {"epsilon": group["eps"]}
        arguments["initial_accumulator_value"] = group["initial_accumulator_value"]
    else:
        raise TableError(
            f"torch.optim.{name} has no counterpart on the servers: give SGD, Adagrad, or the name "
            "of an optimizer of Fluid's, such as ServedOptimizer(model, 'Adam', lr=1e-3)"
        )
    for argument in same:
        if group[argument]:
            raise TableError(
                f"torch.optim.{name}: servers do not support {argument}={group[argument]}"
            )
    return OptimizerFacts(kind, arguments, float(group["weight_decay"])), float(group["lr"])
