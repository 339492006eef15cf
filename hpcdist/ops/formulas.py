"""Operators whose kernel and form are one formula, written once for arrays and for tensors.

A formula ``formula(xp, *inputs, **attrs)`` returns what becomes of each output slot. It may call
what numpy, cupy and torch have under one name and with one order of arguments, such as
``xp.where``, ``xp.clip`` or ``value.sum(axis, keepdims=True)``. Its temporaries take memory: an
operator of many steps has a kernel that writes into its output, and a form in `ops.torch_forms`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpcdist.graph.registry import parse_signature
from hpcdist.ops.common import define_with_grad
from hpcdist.ops.types import Array, ArrayModule, Kernel

Formula = Callable[..., Any]  # of tensors it is the function of a `torch_forms.TorchForm`
_defined: dict[str, tuple[Formula, bool]] = {}


def define_by_formulas(
    type: str,
    signature: str,
    grad_signature: str,
    formula: Formula,
    grad_formula: Formula,
    *,
    grad_wanted: bool = False,
    **parts: Any,
) -> None:
    """Enter an operator and its gradient; ``parts``: see `define_with_grad`.

    ``grad_wanted``: the gradient's formula takes a keyword ``wanted``, a bool for each output slot,
    and may return None for what is not.
    """
    define_with_grad(
        type,
        signature,
        grad_signature,
        kernel=_kernel(type, signature, formula, False),
        grad_kernel=_kernel(f"{type}_grad", grad_signature, grad_formula, grad_wanted),
        **parts,
    )


def formulas() -> Mapping[str, tuple[Formula, bool]]:
    """Return each formula, and whether it takes ``wanted``, by the type of its operator."""
    return _defined


def _kernel(type: str, signature: str, formula: Formula, takes_wanted: bool) -> Kernel:
    """Return the kernel that writes a formula's results to the wanted outputs."""
    _defined[type] = formula, takes_wanted
    count = len(parse_signature(signature)[0])

    def kernel(xp: ArrayModule, *operands: Array, **attrs: Any) -> None:
        targets = operands[count:]
        if takes_wanted:
            attrs["wanted"] = [target is not None for target in targets]
        values = formula(xp, *operands[:count], **attrs)
        for target, value in zip(targets, values if isinstance(values, tuple) else (values,)):
            if target is not None:
                target[...] = value

    return kernel


# -- what formulas have in common ------------------------------------------------------------------
def sigmoid(xp: ArrayModule, x: Array) -> Array:
    """Return 1 / (1 + exp(-x)), by way of tanh, which cannot overflow."""
    return xp.tanh(x * 0.5) * 0.5 + 0.5


def softplus(xp: ArrayModule, x: Array) -> Array:
    """Return log(1 + exp(x)), which does not overflow."""
    return xp.clip(x, 0, None) + xp.log1p(xp.exp(-xp.abs(x)))
