"""An optimizer that also distributes the program it minimizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hpcdist.base.errors import FleetTypeError
from hpcdist.fluid.optimizer import AnyOptimizer
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.variable import Parameter, Variable

ParamGrads = list[tuple[Parameter, Variable]]


class DistributedOptimizer:
    """Fleet's wrapper of an optimizer; ``distribute`` is called when the loss is minimized."""

    def __init__(self, optimizer: AnyOptimizer, distribute: Callable[[Variable], None]) -> None:
        self._optimizer = optimizer
        self._distribute = distribute

    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Parameter | str] | None = None,
        no_grad_set: Iterable[Variable | str] | None = None,
        callbacks: Sequence[Any] | None = None,
    ) -> ParamGrads:
        """Append the backward operators; `minimize` is what distributes."""
        return self._optimizer.backward(
            loss, startup_program, parameter_list, no_grad_set, callbacks
        )

    def apply_gradients(self, params_grads: ParamGrads) -> list[Operator]:
        """Append clip, regularization and updates; `minimize` is what distributes."""
        return self._optimizer.apply_gradients(params_grads)

    def minimize(
        self,
        loss: Variable,
        scopes: Program | None = None,
        startup_program: Program | None = None,
        parameter_list: Sequence[Parameter | str] | None = None,
        no_grad_set: Iterable[Variable | str] | None = None,
    ) -> tuple[list[Operator], ParamGrads]:
        """Append what a training step needs, then make the programs of this process's role.

        Every rank calls it on the same program. ``scopes`` is Fluid's and must be None; fleet 2.0
        has the startup program in its place.
        """
        if isinstance(scopes, Program) and startup_program is None:
            scopes, startup_program = None, scopes
        if not isinstance(loss, Variable):
            raise FleetTypeError(f"minimize: expected one loss Variable, got {loss!r}")
        if scopes is not None:
            raise FleetTypeError(
                f"minimize: scopes must be None, got {scopes!r}; "
                "a startup program is given by its name, startup_program="
            )
        if startup_program is not None and not isinstance(startup_program, Program):
            raise FleetTypeError(f"minimize: expected one startup Program, got {startup_program!r}")
        result = self._optimizer.minimize(loss, startup_program, parameter_list, no_grad_set)
        self._distribute(loss)
        return result
