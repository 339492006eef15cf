"""What operator definitions share: shape rules, checks, and the usual form of a gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.graph.names import EMPTY, GRAD_SUFFIX, grad_name
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Given, GradOp, Meta, Slot, define, operand_slots, parse_signature
from hpcdist.ops.types import ArrayModule, Attrs, Bind, Call, GradRule, Kernel, Metas

Wanted = Callable[[str], bool]


def same(x: Meta, *_, **__) -> Meta:
    """Shape rule: the output is like the first input."""
    return Meta(x.shape, x.dtype)


def shaped_like_batch(
    x: Meta, shape: Sequence[int], dtype: str, input_dim_idx: int, output_dim_idx: int, **_
) -> Meta:
    """Shape rule: ``shape``, with one extent taken from the input."""
    extents = list(shape)
    extents[output_dim_idx] = x.shape[input_dim_idx]
    return Meta(tuple(extents), dtype)


def open_shape(shape: Sequence[int | None]) -> tuple[int, ...]:
    """Return a shape, with -1 for extents that only the step knows."""
    return tuple(-1 if extent is None else int(extent) for extent in shape)


def like_inputs(signature: str, given: Mapping[str, Given] | None = None) -> Callable[..., Metas]:
    """Shape rule of a gradient: output ``S@GRAD`` is like input ``S``, else like the first one."""
    all_inputs, outputs = parse_signature(signature)
    inputs = operand_slots(all_inputs, given or {})
    position = {slot.name: i for i, slot in enumerate(inputs)}

    def infer(*metas, **_) -> Metas:
        return tuple(
            _dense(metas[position.get(slot.name.removesuffix(GRAD_SUFFIX), 0)]) for slot in outputs
        )

    return infer


def _dense(meta) -> Any:
    if isinstance(meta, list):
        return [_dense(m) for m in meta]
    return meta if meta is None else Meta(meta.shape, meta.dtype)


def of_gradients(flops: Callable[..., int | None]) -> Callable[..., int | None]:
    """Return ``flops`` for the gradients of a product: as much again for each factor's."""

    def both(a, b, dout, da, db, **attrs) -> int | None:
        one = flops(a, b, dout, **attrs)
        return None if one is None else one * ((da is not None) + (db is not None))

    return both


def grad_by(type: str, signature: str) -> GradRule:
    """Gradient rule: one operator ``type`` that takes and gives the slots of ``signature``.

    ``S`` stands for the forward operator's slot, ``S@GRAD`` for the gradients of what is in it.
    """
    inputs, outputs = parse_signature(signature)

    def grad(op: Operator, wanted: Wanted) -> list[GradOp]:
        inputs_of = {slot.name: _names(op, slot) for slot in inputs}
        outputs_of = {}
        for slot in outputs:
            forward = _forward_names(op, slot.name.removesuffix(GRAD_SUFFIX))
            names = [grad_name(n) if wanted(n) else EMPTY for n in forward]
            if any(name != EMPTY for name in names):
                outputs_of[slot.name] = names
        return [GradOp(type, {s: n for s, n in inputs_of.items() if n}, outputs_of, dict(op.attrs))]

    return grad


def define_with_grad(
    type: str,
    signature: str,
    grad_signature: str,
    *,
    attrs: Attrs | None = None,
    **parts,
) -> None:
    """Enter an operator, and its gradient ``<type>_grad``, whose parts are called ``grad_...``.

    Unless they are given, the gradient has the operator's attributes, also those that are ``given``
    as values (in slots that are added to its signature), and, where it has a ``bind``, its
    sequences (``lods``), and its results are like the inputs (`like_inputs`).
    A gradient that nobody wants is None for ``grad_kernel`` if its slot has a ``?``.
    """
    grad = {k.removeprefix("grad_"): parts.pop(k) for k in [*parts] if k.startswith("grad_")}
    grad_signature = _with_given(signature, grad_signature, parts.get("given", {}))
    both = {"attrs": attrs or {}, "lods": parts.pop("lods", ()), "given": parts.pop("given", {})}
    define(type, signature, grad=grad_by(f"{type}_grad", grad_signature), **both, **parts)
    if "bind" not in grad:
        both["lods"] = ()
    grad = {**both, "infer": like_inputs(grad_signature, both["given"]), **grad}
    define(f"{type}_grad", grad_signature, **grad)


def _with_given(signature: str, grad_signature: str, given: Mapping[str, Given]) -> str:
    inputs = parse_signature(signature)[0]
    giving = set(inputs) - set(operand_slots(inputs, given))
    return ", ".join([*(str(slot) for slot in inputs if slot in giving), grad_signature])


def _names(op: Operator, slot: Slot) -> list[str]:
    if slot.name.endswith(GRAD_SUFFIX):
        return [grad_name(n) for n in _forward_names(op, slot.name.removesuffix(GRAD_SUFFIX))]
    return _forward_names(op, slot.name)


def _forward_names(op: Operator, slot: str) -> list[str]:
    return list(op.inputs.get(slot) or op.outputs.get(slot) or [])


def fits(shape: Sequence[int], expected: Sequence[int]) -> bool:
    """Return whether a shape is the one wanted, as far as both are known."""
    return len(shape) == len(expected) and all(
        -1 in (a, b) or a == b for a, b in zip(shape, expected)
    )


def broadcast_axis(x_shape: Sequence[int], y_shape: Sequence[int], axis: int) -> int:
    """Return where ``y``'s dimensions start within ``x``'s (Fluid's ``axis``; -1 = at the end)."""
    start = len(x_shape) - len(y_shape) if axis == -1 else axis
    if start < 0 or start + len(y_shape) > len(x_shape):
        raise GraphError(
            f"cannot place shape {tuple(y_shape)} within {tuple(x_shape)} at axis {axis}"
        )
    return start


def resolve_axis(axis: int, rank: int, name: str = "axis") -> int:
    """Return a non-negative axis; GraphError if it is outside the rank."""
    if not -rank <= axis < rank:
        raise GraphError(f"{name} {axis} is outside a value of {rank} dimensions")
    return axis % rank


def in_sequence(*steps: Call) -> Call:
    """Return one callable that runs all steps; its ``sequence`` and ``parts`` are these."""
    if len(steps) == 1:
        return steps[0]

    def run() -> None:
        for step in steps:
            step()

    run.sequence = run.parts = steps  # type: ignore[attr-defined]
    return run


def in_turn(step: Call) -> list[Call]:
    """Return the calls of a step that is an `in_sequence`, itself if it is none."""
    steps = getattr(step, "sequence", None)
    return [step] if steps is None else [inner for part in steps for inner in in_turn(part)]


class _Noting:
    """Stands for numpy: notes the calls of its functions, and makes none."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        def note(*args, **named) -> None:
            self.calls.append(functools.partial(getattr(np, name), *args, **named))

        return note


def by_calls(kernel: Kernel) -> Bind:
    """Return the bind of a kernel that is nothing but calls with ``out=array``.

    They are known when it is bound, so that those on few elements may become one
    (`executor.loop_runs`). On a GPU the kernel is called as it is.
    """

    def bind(xp: ArrayModule, *arrays, **attrs) -> Call:
        if xp is not np:
            return functools.partial(kernel, xp, *arrays, **attrs)
        noting: Any = _Noting()
        kernel(noting, *arrays, **attrs)
        return in_sequence(*noting.calls)

    return bind


def put_along(xp: ArrayModule, array, index, values, axis: int) -> None:
    """Write ``values`` at ``index`` along an axis: what `take_along_axis` reads."""
    axis %= array.ndim
    places: list[Any] = []
    for i, extent in enumerate(index.shape):
        extents = [1] * array.ndim
        extents[i] = extent
        places.append(index if i == axis else xp.arange(extent).reshape(extents))
    array[tuple(places)] = values


def same_buffer(xp: ArrayModule, a, b) -> bool:
    """Return whether a kernel was given one buffer twice (outputs never overlap partly)."""
    return bool(xp.may_share_memory(a, b))
