"""Operators whose kernel is a function of PyTorch's, on the same memory: torch is optional.

A function takes the inputs as tensors, in order, and attributes; it returns the outputs. Shapes
follow from running it on tensors without memory, gradients from torch's autograd, which runs it
once more. Without torch, using such an operator is an error that says so.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from hpcdist.base import settings
from hpcdist.base.errors import GraphError, HpcdistError
from hpcdist.base.extras import install_command
from hpcdist.base.warned import warn
from hpcdist.graph.names import GRAD_SUFFIX
from hpcdist.graph.registry import Given, Meta, define, defined, operand_slots, parse_signature
from hpcdist.graph.rows import Treatment
from hpcdist.ops.common import grad_by, like_inputs
from hpcdist.ops.types import Array, Attrs, Call, GradRule, Metas

Function = Callable[..., Any]
# Extents to try where one is not known: those of a result that differ are not known either.
_TRIED = (24, 48)
_defined: dict[str, Function] = {}
MEASURED = "measured"  # of HPCDIST_KERNELS: fused or compiled


class Kernels(enum.Enum):
    """Whose kernels compute, see HPCDIST_KERNELS."""

    OWN = "own"
    TORCH = "torch"  # single operators
    FUSED = "fused"  # runs of operators, as one function
    COMPILED = "compiled"  # the same, by inductor

    @property
    def in_runs(self) -> bool:
        """Whether runs of operators are computed as one."""
        return self in (Kernels.FUSED, Kernels.COMPILED)


def kernels_of(xp) -> Kernels:
    """Return the provider of the kernels for arrays of numpy or cupy."""
    word = settings.KERNELS.read()
    if word == MEASURED:
        return Kernels.FUSED  # until something else is chosen, see `executor.measured`
    if word != "auto":
        return Kernels(word)
    return Kernels.FUSED if xp is not np and _on_gpus() else Kernels.OWN


@functools.cache
def _on_gpus() -> bool:
    """Return whether torch is there, with CUDA."""
    if importlib.util.find_spec("torch") is None:
        return False
    return bool(torch_for("HPCDIST_KERNELS=auto").cuda.is_available())


def functions() -> Mapping[str, Function]:
    """Return the functions of tensors by the type of their operator, without gradients."""
    defined()  # loads them
    return _defined


def torch_for(type: str) -> Any:
    """Return torch, which the operator needs; HpcdistError if it is not installed."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise HpcdistError(
            f"operator {type!r} needs torch, which cannot be imported ({error}): "
            f"{install_command('torch')} on every rank"
        ) from None
    set_rounding(torch)
    return torch


@functools.cache
def set_rounding(torch) -> None:
    """Disable TF32 unless it is wished, and reduced-precision sums of 16-bit products.

    By itself torch lets cuBLAS add parts of such products in 16 bits.
    """
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = settings.TF32.read()
    matmul.allow_fp16_reduced_precision_reduction = False
    matmul.allow_bf16_reduced_precision_reduction = False


def adds_in_order(torch) -> bool:
    """Return whether kernels are to be taken that add in the same order in every run."""
    return bool(torch.are_deterministic_algorithms_enabled())


@contextlib.contextmanager
def _in_order(torch) -> Iterator[None]:
    """Make torch use kernels that add in the same order in every run; it warns of others."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


def _order(torch, xp) -> Callable[[], AbstractContextManager[None]]:
    """Return the context of torch's calls: on a GPU in order, if that is asked.

    It is with `Kernels.OWN`, which promise the same bits in every run.
    """
    if xp is np or kernels_of(xp) is not Kernels.OWN:
        return contextlib.nullcontext
    settings.tell_cublas()
    return functools.partial(_in_order, torch)


def define_by_torch(
    type: str,
    signature: str,
    function: Function,
    *,
    rows: Treatment,
    attrs: Attrs | None = None,
    wrt: Sequence[str] = (),
    infer: Callable[..., Any] | None = None,
    lods: Sequence[str] = (),
    given: Mapping[str, Given] | None = None,
    second: GradRule | None = None,
    unordered: Callable[..., bool] | None = None,
) -> None:
    """Enter an operator and its gradient by the inputs ``wrt``; ``function(torch, *inputs)``.

    ``infer``: its shape rule, where shapes alone do not tell what it does. ``second``: the rule
    of its gradient's gradient. ``unordered``: tells by the attributes whether torch has no kernel
    for its gradient that adds in the same order in every run.
    """
    all_inputs, outputs = parse_signature(signature)
    inputs = operand_slots(all_inputs, given or {})
    attributes = attrs or {}
    gradients = ", ".join(f"{name}{GRAD_SUFFIX}?" for name in wrt)
    first = outputs[0].name
    input_names = ", ".join(map(str, all_inputs))
    grad_signature = f"{input_names}, {first}{GRAD_SUFFIX} -> {gradients}"
    _defined[type] = function

    def bind(xp, *arrays, **attributes) -> Call:
        torch = torch_for(type)
        tensors = [tensor_on(torch, array) for array in arrays]
        values, targets = tensors[: len(inputs)], tensors[len(inputs) :]
        order = _order(torch, xp)

        def run() -> None:
            with order(), torch.no_grad():
                for target, value in zip(targets, _several(function(torch, *values, **attributes))):
                    if target is not None:
                        target.copy_(value.reshape(target.shape))

        return run

    def grad_bind(xp, *arrays, **attributes) -> Call:
        torch = torch_for(type)
        tensors = [tensor_on(torch, array) for array in arrays]
        values, (dout, *targets) = tensors[: len(inputs)], tensors[len(inputs) :]
        places = {slot.name: i for i, slot in enumerate(inputs)}
        differentiated = [
            (places[name], target) for name, target in zip(wrt, targets) if target is not None
        ]
        order = _order(torch, xp)
        if (
            order is not contextlib.nullcontext
            and unordered is not None
            and unordered(**attributes)
        ):
            warn(
                f"operator {type!r}: PyTorch adds up its gradient as threads come, so last digits "
                "may differ between two runs on a GPU"
            )

        def run() -> None:
            with order(), torch.enable_grad():
                leaves = list(values)
                for place, _ in differentiated:
                    leaves[place] = values[place].detach().requires_grad_()
                out = _several(function(torch, *leaves, **attributes))[0]
                gradients = torch.autograd.grad(
                    out,
                    [leaves[place] for place, _ in differentiated],
                    dout.reshape(out.shape),
                    allow_unused=True,
                )
            for (_, target), gradient in zip(differentiated, gradients):
                target.zero_() if gradient is None else target.copy_(gradient)

        return run

    def by_trying(*metas: Meta | None, **attributes) -> Any:
        return inferred(type, function, metas, attributes)

    sequences: dict[str, Any] = {"lods": lods} if lods else {}
    sequences["given"] = given or {}
    define(
        type,
        signature,
        rows=rows,
        attrs=attributes,
        infer=infer or by_trying,
        bind=bind,
        grad=grad_by(f"{type}_grad", grad_signature) if wrt else None,
        **sequences,
    )
    if wrt:
        define(
            f"{type}_grad",
            grad_signature,
            attrs=attributes,
            infer=like_inputs(grad_signature, given),
            bind=grad_bind,
            grad=second,
            **sequences,
        )


def _several(result) -> Sequence[Any]:
    return result if isinstance(result, tuple) else (result,)


def tensor_on(torch, array) -> Array:
    """Return a tensor on an array's memory, whether numpy's or cupy's; None of None."""
    if array is None:
        return None
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else torch.from_dlpack(array)


def inferred(
    type: str, function: Function, metas: Sequence[Meta | None], attributes
) -> Meta | Metas:
    """Return the Metas of a function of tensors, without computing it."""
    torch = torch_for(type)
    shapes_known = all(meta is None or -1 not in meta.shape for meta in metas)
    tried = [
        _shapes(torch, function, metas, e, attributes)
        for e in (_TRIED[:1] if shapes_known else _TRIED)
    ]
    result = []
    for (shape, dtype), (other, _) in zip(tried[0], tried[-1]):
        if len(shape) != len(other):
            raise GraphError("the number of dimensions of the result depends on the batch")
        result.append(Meta(tuple(a if a == b else -1 for a, b in zip(shape, other)), dtype))
    return tuple(result) if len(result) > 1 else result[0]


def _shapes(
    torch, function: Function, metas: Sequence[Meta | None], extent: int, attributes
) -> list[tuple[tuple[int, ...], str]]:
    def empty(meta: Meta) -> Array:
        shape = [extent if d < 0 else d for d in meta.shape]
        return torch.empty(shape, dtype=getattr(torch, meta.dtype), device="meta")

    try:
        result = function(torch, *(None if m is None else empty(m) for m in metas), **attributes)
    except RuntimeError as error:
        shapes = [None if m is None else m.shape for m in metas]
        raise GraphError(f"values of shapes {shapes} do not fit: {error}") from None
    return [(tuple(v.shape), str(v.dtype).removeprefix("torch.")) for v in _several(result)]
