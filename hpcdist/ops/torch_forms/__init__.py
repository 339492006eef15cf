"""Operators as pure functions of tensors, which compose to one torch function.

A form has the inputs of its operator in the order of its signature (None: absent, a list for
``X*``), then all attributes as keywords, and returns a tensor for each output slot (a list for
``X*``; None for one that nobody wants). It writes into nothing, looks at no value on the host, and
gives the shapes and types of the operator's shape rule; so ``make_fx`` can trace it, inductor
compile and a CUDA graph replay it. Its results are those of the operator's kernel within rounding.
What it returns may be an input, or a view of one. What it makes from nothing it makes on torch's
default device: use it under ``torch.device``.

The families of forms are imported when they are first asked for; torch is given by the caller.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.graph.names import GRAD_SUFFIX
from hpcdist.graph.registry import Meta, lookup
from hpcdist.ops import by_torch
from hpcdist.ops.formulas import formulas
from hpcdist.ops.types import Array, Attrs, Operands

Function = Callable[..., Any]
FAMILIES = ("activation", "images", "losses", "norms", "pairs", "products", "recurrent", "updates")
EXACT_FAMILIES = ("arithmetic", "gather_scatter", "shape")  # on integers, and there for them, too


@dataclass(frozen=True)
class Checked:
    """Integers that must be in 0 .. count - 1, and what they tell apart ("rows", "classes").

    Forms read some other element where an integer is outside: who runs them tells the user.
    """

    ids: Array
    count: int
    of: str

    def worst(self, torch) -> Array:
        """Return the greatest as an int64 of shape (), negative ones being greater than others."""
        lowest = -(2**63)
        return (self.ids.to(torch.int64).reshape(-1) ^ lowest).amax() ^ lowest


@dataclass(frozen=True)
class TorchForm:
    """An operator's form; ``family`` is the module that it stands in, ``formulas`` or ``by_torch``.

    wanted: the function takes a keyword ``wanted``, a bool for each output slot.
    outs: it takes a keyword ``outs``, the Meta of each output slot (a list for ``X*``).
    draws: it takes a keyword ``draw``, an int64 of shape (): how often the operator drew before;
        a kernel has it from its state (`random.counter.Draws`).
    when: tells from attributes and the inputs' Metas whether the form holds; else use the kernel.
    checks: what is to be checked of the inputs, a `Checked`, a list of them or None; ask `checked`.
    """

    type: str
    family: str
    function: Function
    wanted: bool = False
    outs: bool = False
    draws: bool = False
    when: Callable[..., bool] | None = None
    checks: Callable[..., Checked | list[Checked] | None] | None = None

    def holds(self, metas: Sequence[Array], attrs: Attrs) -> bool:
        """Return whether the form may be used on inputs like these; all extents must be known."""
        flat = [
            m
            for metas_of_slot in metas
            for m in (metas_of_slot if isinstance(metas_of_slot, list) else [metas_of_slot])
            if m
        ]
        dense = all(m.type == "LOD_TENSOR" and m.size >= 0 for m in flat)
        return dense and (self.when is None or self.when(*metas, **attrs))

    def checked(self, inputs: Operands, attrs: Attrs) -> list[Checked]:
        """Return the integers among the inputs that must be in a range, as tensors."""
        checked = None if self.checks is None else self.checks(*inputs, **attrs)
        several = checked if isinstance(checked, list) else [checked]
        return [check for check in several if check is not None and check.ids.numel()]

    def __call__(
        self,
        torch,
        inputs: Operands,
        attrs: Attrs,
        outs: Operands,
        wanted: Sequence[bool] | None = None,
        draw=None,
    ) -> tuple[Array, ...]:
        """Return a tensor, a list or None for each output slot.

        ``outs``: a Meta (a list for ``X*``) for each output slot; ``wanted``: default all of them;
        ``draw``: for forms with ``draws``.
        """
        more: dict[str, Any] = {"outs": tuple(outs)} if self.outs else {}
        if self.wanted:
            more["wanted"] = tuple(wanted or [True] * len(outs))
        if self.draws:
            more["draw"] = draw
        result = self.function(torch, *inputs, **attrs, **more)
        return result if isinstance(result, tuple) else (result,)


_forms: dict[str, TorchForm] = {}
_entering = threading.Lock()


def form(*types: str, **options) -> Callable[[Function], Function]:
    """Enter a function as the form of these types; ``options``: fields of `TorchForm`."""

    def enter(function: Function) -> Function:
        family = function.__module__.rpartition(".")[2]
        for type in types:
            _enter(TorchForm(type, options.pop("family", family), function, **options))
        return function

    return enter


def expressions(**functions: Function) -> None:
    """Enter functions of one expression as the forms of the operators whose names they have."""
    for type, function in functions.items():
        form(type)(function)


def _enter(form: TorchForm) -> None:
    if form.type in _forms:
        raise GraphError(f"operator {form.type!r} has two forms")
    _forms[form.type] = form


def forms() -> Mapping[str, TorchForm]:
    """Return the forms by the type of their operator; threads may ask at the same time."""
    with _entering:
        return _entered()


@functools.cache
def _entered() -> Mapping[str, TorchForm]:
    for family in (*FAMILIES, *EXACT_FAMILIES):
        importlib.import_module(f"{__name__}.{family}")
    for type, (formula, wanted) in formulas().items():
        _enter(TorchForm(type, "formulas", formula, wanted=wanted))
    for type, function in by_torch.functions().items():
        _enter_by_torch(type, function)
    return _forms


def _enter_by_torch(type: str, function: Function) -> None:
    """Enter what is a function of torch's, and its gradient, if it does not read sequences."""
    definition = lookup(type)
    if definition.lods:
        return

    def shaped(torch, *inputs, outs: Sequence[Meta], **attrs) -> tuple[Array, ...]:
        result = function(torch, *inputs, **attrs)
        several = result if isinstance(result, tuple) else (result,)
        return tuple(tensor.reshape(meta.shape) for tensor, meta in zip(several, outs))

    _enter(TorchForm(type, "by_torch", shaped, outs=True))
    if definition.grad is not None:
        by_autograd(type)


def by_autograd(*types: str, **options) -> None:
    """Enter the form of each TYPE_grad, by torch's autograd through the form of TYPE.

    The gradient operator must take all inputs that the form reads. ``options``: of `TorchForm`.
    """
    for type in types:
        family = _forms[type].family
        function = partial(_differentiated, type)
        _enter(TorchForm(f"{type}_grad", family, function, wanted=True, **options))


def _differentiated(
    type: str, torch, *arrays, wanted: Sequence[bool], **attrs
) -> tuple[Array, ...]:
    forward, gradient = lookup(type), lookup(f"{type}_grad")
    by_slot = {slot.name: value for slot, value in zip(gradient.operands, arrays)}
    inputs = [by_slot.get(slot.name) for slot in forward.operands]
    places = {slot.name: i for i, slot in enumerate(forward.operands)}
    of_slot = [
        places[slot.name.removesuffix(GRAD_SUFFIX)] if want else None
        for slot, want in zip(gradient.outputs, wanted)
    ]
    metas = [_meta_of(value) for value in inputs]
    inferred = forward.infer(*metas, **attrs)  # type: ignore[misc]
    outs = inferred if isinstance(inferred, tuple) else (inferred,)
    douts = [by_slot.get(slot.name + GRAD_SUFFIX) for slot in forward.outputs]
    given_douts = [dout for dout in douts if dout is not None]
    moved = [i for i in of_slot if i is not None and inputs[i] is not None]

    def run(values: Sequence[Array]) -> Array:
        operands = list(inputs)
        for i, value in zip(moved, values):
            operands[i] = value
        results = _forms[type](torch, operands, attrs, outs)
        return [value for value, dout in zip(results, douts) if dout is not None]

    _, back = torch.func.vjp(run, [inputs[i] for i in moved])
    (gradients,) = back(given_douts)
    by_place = dict(zip(moved, gradients))
    return tuple(None if i is None else by_place.get(i) for i in of_slot)


def _meta_of(value) -> Any:
    if isinstance(value, list):
        return [_meta_of(one) for one in value]
    return None if value is None else Meta(tuple(value.shape), dtype_name(value))


def dtype_name(tensor) -> str:
    """Return the name of a tensor's element type, as Meta has it."""
    return str(tensor.dtype).removeprefix("torch.")
