"""Operators whose kernel and form are one formula, written once for arrays and for tensors.

A formula ``formula(xp, *inputs, **attrs)`` returns what becomes of each output slot. It may call
what numpy, cupy and torch have under one name and with one order of arguments, such as
``xp.where``, ``xp.clip`` or ``value.sum(axis, keepdims=True)``. One that computes element by
element may be `traced`: its calls are known when a Program is compiled, and write into the results
and scratch memory. The temporaries of others take memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import parse_signature
from hpcdist.ops.common import define_with_grad, in_sequence
from hpcdist.ops.scratch import scratch, with_scratch
from hpcdist.ops.types import Array, ArrayModule, Bind, Call, Kernel, Operands

Formula = Callable[..., Any]  # of tensors it is the function of a `torch_forms.TorchForm`
_defined: dict[str, tuple[Formula, bool]] = {}
FEW = 4096  # elements, of which temporaries have memory of their own


def define_by_formulas(
    type: str,
    signature: str,
    grad_signature: str,
    formula: Formula,
    grad_formula: Formula,
    *,
    by_element: bool = False,
    grad_wanted: bool = False,
    **parts: Any,
) -> None:
    """Enter an operator and its gradient; ``parts``: see `define_with_grad`.

    ``by_element``: both formulas may be `traced`.

    ``grad_wanted``: the gradient's formula takes a keyword ``wanted``, a bool for each output slot,
    and may return None for what is not.
    """
    enter(type, formula)
    enter(f"{type}_grad", grad_formula, grad_wanted)
    if by_element:
        counts = [len(parse_signature(text)[0]) for text in (signature, grad_signature)]
        parts["bind"], parts["grad_bind"] = map(traced, (formula, grad_formula), counts)
    else:
        parts["kernel"] = _kernel(signature, formula, False)
        parts["grad_kernel"] = _kernel(grad_signature, grad_formula, grad_wanted)
    define_with_grad(type, signature, grad_signature, **parts)


def enter(type: str, formula: Formula | None, takes_wanted: bool = False) -> None:
    """Take a formula as the form of an operator; see `torch_forms`."""
    if formula is None:
        raise GraphError(f"operator {type!r} has neither a formula nor a function of tensors")
    _defined[type] = formula, takes_wanted


def formulas() -> Mapping[str, tuple[Formula, bool]]:
    """Return each formula, and whether it takes ``wanted``, by the type of its operator."""
    return _defined


def _kernel(signature: str, formula: Formula, takes_wanted: bool) -> Kernel:
    """Return the kernel that writes a formula's results to the wanted outputs."""
    count = len(parse_signature(signature)[0])

    def kernel(xp: ArrayModule, *operands: Array, **attrs: Any) -> None:
        targets = operands[count:]
        if takes_wanted:
            attrs["wanted"] = [target is not None for target in targets]
        for target, value in zip(targets, _several(formula(xp, *operands[:count], **attrs))):
            if target is not None:
                target[...] = value

    return kernel


def _several(values) -> Operands:
    return values if isinstance(values, tuple) else (values,)


# -- formulas of single elements -------------------------------------------------------------------
@dataclass(eq=False)
class _Traced(NDArrayOperatorsMixin):
    """A value of a formula that is traced: what numpy would compute of it notes a step instead.

    ``sample``: one element, for the type; ``array``: of an input.
    """

    steps: list[_Operation]
    sample: Any
    shape: tuple[int, ...]
    array: Any = None
    __hash__ = object.__hash__  # equal is a step, too

    @property
    def dtype(self) -> np.dtype:
        """The element type."""
        return self.sample.dtype

    def __array_ufunc__(self, function, method: str, *operands: Any, **named: Any) -> Any:
        return NotImplemented if method != "__call__" or named else self._note(function, operands)

    def __array_function__(self, function, types, operands, named) -> Any:
        if function not in (np.where, np.clip) or named:
            return NotImplemented
        if function is np.clip and operands[1] is None:  # as numpy does, after more words
            return self._note(np.minimum, (operands[0], operands[2]))
        if function is np.clip and operands[2] is None:
            return self._note(np.maximum, operands[:2])
        return self._note(function, operands)

    def _note(self, function: Callable[..., Any], operands: Sequence[Any]) -> _Traced:
        samples = [o.sample if isinstance(o, _Traced) else o for o in operands]
        with np.errstate(all="ignore"):
            sample = np.asarray(function(*samples))[()]
        shapes = (o.shape for o in operands if isinstance(o, _Traced))
        result = _Traced(self.steps, sample, np.broadcast_shapes(*shapes))
        self.steps.append(_Operation(function, operands, result))
        return result


@dataclass(frozen=True)
class _Operation:
    """``result = function(*operands)``; operands are what is traced, and numbers."""

    function: Callable[..., Any]
    operands: Sequence[Any]
    result: _Traced

    @property
    def values(self) -> Sequence[_Traced]:
        """The operands that are traced, each once."""
        return list(dict.fromkeys(o for o in self.operands if isinstance(o, _Traced)))

    def call(self, xp: ArrayModule, arrays: Mapping[_Traced, Any]) -> Call:
        """Return the call that writes into the result's array."""
        operands = [arrays[o] if isinstance(o, _Traced) else o for o in self.operands]
        target = arrays[self.result]
        if self.function is np.where:
            return partial(_choose, xp, target, *operands)
        return partial(getattr(xp, self.function.__name__), *operands, out=target)


def _choose(xp: ArrayModule, target, mask, this, other) -> None:
    target[...] = xp.where(mask, this, other)


@dataclass
class _Storage:
    """Which array holds each value of a traced formula: inputs, the result, or scratch memory."""

    arrays: dict[_Traced, Any]
    free: list[Any]
    empty: Callable[..., Any] | None  # of a few elements, by which memory of their own is made
    taken: int = 0

    def place(self, step: _Operation, dying: Sequence[_Traced]) -> None:
        """Find an array for a step's result; ``dying``: the values that only this step reads."""
        value = step.result
        last = [self.arrays[o] for o in dying if o.array is None]
        # np.where would read what it has written over.
        candidates = self.free if step.function is np.where else last + self.free
        fit = (a for a in candidates if a.dtype == value.sample.dtype and a.shape == value.shape)
        array = next(fit, None)
        if array is None and self.empty is not None:
            array = self.empty(value.shape, value.sample.dtype)
        elif array is None:
            array = scratch(f"formula {self.taken}", value.shape, value.sample.dtype)
            self.taken += 1
        self.free = [a for a in [*self.free, *last] if a is not array]
        self.arrays[value] = array


def traced(formula: Formula | None, count: int) -> Bind:
    """Return the bind of a formula of single elements with one result, of ``count`` inputs.

    It may use signs, ufuncs, ``xp.where`` and ``xp.clip``. The result is no input's memory, unless
    the formula is one call. Of few elements its calls may become one with others
    (`executor.loop_runs`). On a GPU, one that needs scratch memory is computed as it stands.
    """

    def bind(xp: ArrayModule, *operands: Array, **attrs: Any) -> Call:
        assert formula is not None
        *inputs, out = operands
        steps: list[_Operation] = []
        values = [_Traced(steps, a.dtype.type(1), a.shape, a) for a in inputs]
        result = formula(np, *values, **attrs)
        last_read = {value: i for i, step in enumerate(steps) for value in step.values}

        def calls() -> tuple[list[Call], bool]:
            """Return the calls, and whether they need scratch memory."""
            empty = xp.empty if out.size <= FEW else None
            memory = _Storage({value: value.array for value in values}, [out], empty)
            made = []
            for i, step in enumerate(steps):
                if step.result is result:
                    memory.arrays[result] = out
                else:
                    memory.place(step, [v for v in step.values if last_read[v] == i])
                made.append(step.call(xp, memory.arrays))
            return made, memory.taken > 0

        made, need_scratch = calls()
        if not need_scratch:
            return in_sequence(*made)
        if xp is np:
            return with_scratch(lambda: calls()[0])
        return lambda: xp.copyto(out, formula(xp, *inputs, **attrs), casting="same_kind")

    return bind


# -- what formulas have in common ------------------------------------------------------------------
@functools.cache
def _most_of_exp(dtype: Any) -> int:
    """The greatest whole number of which exp does not overflow."""
    return int(np.log(np.finfo(dtype).max))


def sigmoid(xp: ArrayModule, x: Array) -> Array:
    """Return 1 / (1 + exp(-x)), which does not overflow; tensors by torch's own function.

    By way of tanh, 1 + tanh(x / 2) would keep no digits far below 0, and its logarithm be -inf.
    """
    own = getattr(xp, "sigmoid", None)
    if own is not None:
        return own(x)
    return 1 / (1 + xp.exp(xp.clip(-x, None, _most_of_exp(x.dtype))))


def softplus(xp: ArrayModule, x: Array) -> Array:
    """Return log(1 + exp(x)), which does not overflow."""
    return xp.clip(x, 0, None) + xp.log1p(xp.exp(-xp.abs(x)))
