"""Values of a Program's variables by name: methods of Programs and Variables in Paddle 2."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.base.fetched import holds_fetched
from hpcdist.base.warned import warn
from hpcdist.executor.scope import Scope, ScopeTensor, ScopeVariable, global_scope
from hpcdist.fluid.io import is_parameter, is_persistable, set_program_state
from hpcdist.fluid.io.variables import values_of
from hpcdist.graph.program import Program, program_of
from hpcdist.graph.variable import Variable
from hpcdist.runtime.kept.peers import program_peers

NAMES_OF_LAYERS = "StructuredToParameterName@@"  # an entry of files of Paddle 2.0


def state_dict(
    program: Program, mode: str = "all", scope: Scope | None = None
) -> dict[str, ScopeTensor]:
    """Return the tensors of what a Program keeps, by name: they have the values of the scope.

    ``mode``: 'param', 'opt' or 'all'. What only servers have is read there, when a tensor is. Each
    trainer may call this, between its steps. GraphError for a variable without a value.
    """
    modes = {"param": (True,), "opt": (False,), "all": (True, False)}
    if mode not in modes:
        raise GraphError(
            f"Program.state_dict: mode: expected 'param', 'opt' or 'all', got {mode!r}"
        )
    kept = [v for v in program.list_vars() if is_persistable(v) and not v.checks_feed]
    return {v.name: _tensor(v, scope) for v in kept if is_parameter(v) in modes[mode]}


def set_state_dict(
    program: Program, state_dict: Mapping[str, Any], scope: Scope | None = None
) -> None:
    """Give variables of a Program their values in ``state_dict``, by name; servers have them, too.

    After the startup Program. As in 2.6.2, entries that do not fit are left out with a warning. In
    a job every trainer calls it, with the same values.
    """
    if not isinstance(state_dict, Mapping):
        raise GraphTypeError(f"Program.set_state_dict: expected a dict, got {state_dict!r:.80}")
    names = state_dict.get(NAMES_OF_LAYERS, {})
    known = {v.name: v for v in program.list_vars() if is_persistable(v)}
    values = {names.get(k, k): v for k, v in state_dict.items() if k != NAMES_OF_LAYERS}
    fitting = {}
    for name, value in values.items():
        why = _misfit(known[name], value, scope) if name in known else "it is not in the program"
        if why:
            warn(f"Program.set_state_dict: {name!r} is left out: {why}")
        else:
            fitting[name] = np.asarray(value)
    set_program_state(program, fitting, scope=scope)


def get_value(variable: Variable, scope: Scope | None = None) -> ScopeTensor:
    """Return the tensor of a variable that is kept from step to step; see `state_dict`."""
    return _tensor(variable, scope)


def set_value(variable: Variable, value: Any, scope: Scope | None = None) -> None:
    """Give a variable that is kept a value, in this scope and on servers; see `set_state_dict`.

    GraphError if it has another shape or element type.
    """
    why = _misfit(variable, value, scope)
    if why:
        raise GraphError(f"Variable.set_value: {variable.name!r}: {why}")
    set_program_state(program_of(variable), {variable.name: np.asarray(value)}, scope=scope)


@holds_fetched
class _OfNone(ScopeTensor):
    """A learning rate: without dimensions in 2.6.2, of one element here."""

    def _array(self) -> Any:
        return super()._array().reshape(())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return super().__array__(dtype).reshape(())


def _tensor(variable: Variable, scope: Scope | None) -> ScopeTensor:
    if scope is not None and not isinstance(scope, Scope):
        raise GraphTypeError(f"scope: expected a paddle.static.Scope, got {scope!r:.80}")
    place, program, name = scope or global_scope(), program_of(variable), variable.name
    rates = {
        rate for op in program.global_block().ops for rate in op.inputs.get("LearningRate", [])
    }
    kind = _OfNone if name in rates else ScopeTensor
    here, peers = place.find_var(name), program_peers()
    if peers.trains_in(place) and (here is None or here.value is None):
        there = ScopeVariable(place, name)
        there.elsewhere = functools.partial(_read_there, program, name)
        return kind(there)
    if here is None or (here.value is None and here.elsewhere is None):
        raise GraphError(f"variable {name!r} has no value in this scope: run the startup program")
    return kind(here)


def _read_there(program: Program, name: str) -> np.ndarray:
    return values_of(program_peers(), program, [name])[name]


def _misfit(variable: Variable, value: Any, scope: Scope | None) -> str:
    """Return why a value cannot be that of a variable; empty if it can."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        return f"no array can be made of a {type(value).__name__} ({error})"
    current = (scope or global_scope()).array_of(variable.name)
    shape, dtype = (
        (variable.shape, variable.dtype) if current is None else (current.shape, current.dtype)
    )
    if tuple(shape) != array.shape and {tuple(shape), array.shape} != {(), (1,)}:
        return f"its shape is {list(shape)}, that of the value {list(array.shape)}"
    return "" if array.dtype == dtype else f"it is {dtype}, the value {array.dtype}"


METHODS = {
    Program: {"state_dict": state_dict, "set_state_dict": set_state_dict},
    Variable: {"get_value": get_value, "set_value": set_value},
}
