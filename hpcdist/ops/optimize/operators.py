"""Optimizer operators: they move a parameter and its state in place."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from hpcdist.base.errors import GraphError
from hpcdist.base.optimizer_kind import OptimizerKind
from hpcdist.base.optimizers import ADADELTA, OPTIMIZERS, RATED_ADADELTA
from hpcdist.graph.registry import Given, Meta, define
from hpcdist.graph.rows import not_on_rows
from hpcdist.ops.embedding.selected_rows import SelectedRows
from hpcdist.ops.optimize.sparse_gradients import bind_sparse_update, sparse_refusal
from hpcdist.ops.optimize.update import bind_update
from hpcdist.ops.types import ArrayModule, Call, DeviceArray


def _infer(type: str, param: Meta, grad: Meta, *rest: Meta, **attrs) -> tuple[Meta, ...]:
    update = OPTIMIZERS[type]
    if grad.type == "SELECTED_ROWS" and update.sparse(attrs) is None:
        raise GraphError(sparse_refusal(type))
    if tuple(grad.shape) != tuple(param.shape):
        raise GraphError(f"the gradient is {grad.shape}, but the parameter is {param.shape}")
    rate, state = (rest[:1], rest[1:]) if update.has_rate else ((), rest)
    if any(meta.size != 1 for meta in rate):
        raise GraphError(f"the learning rate must be one number, got shape {rate[0].shape}")
    if None in state and update.rule(attrs) != type:
        missing = [slot for slot, meta in zip(update.state, state) if meta is None]
        raise GraphError(f"{type} with these attributes moves {missing}, which it is not given")
    known = [param if meta is None else meta for meta in state]
    written = [m for m, out in zip(known, update.state.values()) if out is not None]
    return param, *written


def _bind(type: str, xp: ArrayModule, param, grad, *rest, **attrs) -> Call:
    update = OPTIMIZERS[type]
    inputs = len(update.state) + update.has_rate
    rate, state = (rest[0], list(rest[1:inputs])) if update.has_rate else (param, rest[:inputs])
    state = [xp.zeros_like(param) if one is None else one for one in state]
    outputs, copies = list(rest[inputs:]), []
    into = outputs.pop(0)
    if into is not None and into is not param:
        copies.append((into, param))
        param = into
    for i, out_slot in enumerate(update.state.values()):
        out = outputs.pop(0) if out_slot is not None else None
        if out is not None and out is not state[i]:
            copies.append((out, state[i]))
            state[i] = out
    if type == ADADELTA.type and any(target is state[1] for target, _ in copies):
        # Fluid reads the updates that it has just written, if they are the same variable.
        type, rate = RATED_ADADELTA.type, xp.ones(1, param.dtype)
    if isinstance(grad, SelectedRows):
        in_place = not state or rest[inputs - 1] is state[-1]  # where adam has its powers
        apply = bind_sparse_update(xp, type, attrs, param, rate, state, in_place=in_place)
        step: Call = partial(apply, grad)
    else:
        step = bind_update(xp, type, attrs, param, rate, state, grad[None])
    return partial(_copy_and_call, copies, step) if copies else step


def _copy_and_call(copies: Sequence[tuple[DeviceArray, DeviceArray]], step: Call) -> None:
    for target, source in copies:
        target[...] = source
    step()


def _define(type: str, update: OptimizerKind) -> None:
    states = [s.slot + "?" * s.optional for s in update.states]
    inputs = ["Param", "Grad", *(["LearningRate"] if update.has_rate else []), *states]
    inputs += [f"{slot}?" for slot in update.given.values()]
    # `_bind` asks where these lie.
    asked = {state.slot for state in update.states if state.power} | {"AvgSquaredUpdate"}
    define(
        type,
        f"{', '.join(inputs)} -> {', '.join(update.written.values())}",
        rows=not_on_rows,
        attrs=update.attrs,
        ranges=update.ranges,
        given={name: Given(slot) for name, slot in update.given.items()},
        infer=partial(_infer, type),
        bind=partial(_bind, type),
        inplace={o: source for source, o in update.written.items() if source not in asked},
    )


for _type, _update in OPTIMIZERS.items():
    _define(_type, _update)
