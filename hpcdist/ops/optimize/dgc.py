"""Deep gradient compression (Lin et al., 2018): the few largest elements are sent, the rest is kept
for later.

``dgc_momentum`` in a user's program is Momentum. In the program of a trainer that compresses,
``dgc`` selects the elements of a gradient to send, ``c_sparse_sum`` sums those of all trainers, and
plain ``sgd`` updates: momentum was applied before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import not_on_rows
from hpcdist.ops.host_loops import run_on_host
from hpcdist.ops.optimize.update import bind_update
from hpcdist.ops.types import Array, ArrayModule, Call, Metas

COUNTER = "@DGC_COUNTER@"  # the number of the step, from 0
NO_DECAY, L1, L2 = 0, 1, 2  # Fluid's regular_type
_ATTRS = {
    "mu": 0.9,
    "use_nesterov": False,
    "rampup_begin_step": 0,
    "rampup_step": 1,
    "sparsity": (0.999,),
    "regular_type": NO_DECAY,
    "regular_coeff": 0.0,
    "clip_norm": 0.0,
}


def sent(size: int, steps: int, rampup_step: int, sparsity: Sequence[float]) -> int:
    """Return how many of ``size`` elements are sent, ``steps`` after compression has begun."""
    period = min(steps * len(sparsity) // rampup_step, len(sparsity) - 1)
    ratio = np.float32(1) - np.float32(sparsity[period])
    return max(int(np.float32(size) * ratio), 1)


def most_sent(size: int, sparsity: Sequence[float]) -> int:
    """Return the largest number of elements that are sent in a step."""
    return max(sent(size, 0, 1, [s]) for s in sparsity)


def _decay(xp: ArrayModule, param, regular_type: int, regular_coeff: float) -> Array:
    return (param if regular_type == L2 else xp.sign(param)) * param.dtype.type(regular_coeff)


# -- Momentum, as long as nothing is compressed ----------------------------------------------------
def _infer_update(param: Meta, grad: Meta, u: Meta, v: Meta, rate: Meta, **_) -> Metas:
    if grad.type == "SELECTED_ROWS":
        raise GraphError("dgc_momentum: sparse gradients are those of embeddings, take momentum")
    if not param.shape == grad.shape == u.shape == v.shape:
        raise GraphError(f"dgc_momentum: the gradient is {grad.shape}, but {param.shape} is wanted")
    return param, u


def _bind_update(
    xp: ArrayModule,
    param,
    grad,
    u,
    v,
    rate,
    param_out,
    u_out,
    regular_type: int,
    regular_coeff: float,
    **options,
) -> Call:
    if not regular_type:
        return bind_update(xp, "momentum", options, param, rate, [u], grad[None])
    decayed = xp.empty_like(grad)
    move = bind_update(xp, "momentum", options, param, rate, [u], decayed[None])

    def step() -> None:
        decayed[...] = grad + _decay(xp, param, regular_type, regular_coeff)
        move()

    return step


define(
    "dgc_momentum",
    "Param, Grad, Velocity, Residual, LearningRate -> ParamOut, VelocityOut",
    rows=not_on_rows,
    attrs=_ATTRS,
    infer=_infer_update,
    bind=_bind_update,
    inplace={"ParamOut": "Param", "VelocityOut": "Velocity"},
)


# -- what a trainer sends --------------------------------------------------------------------------
def compress(
    u: np.ndarray,
    v: np.ndarray,
    grad: np.ndarray,
    param: np.ndarray,
    count: int,
    trainers: int,
    mu: float,
    use_nesterov: bool,
    regular_type: int = NO_DECAY,
    regular_coeff: float = 0.0,
    clip_norm: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ``count`` largest values and where they are; what is left stays in u and v.

    ``grad`` is a trainer's part of a mean over ``trainers``. Momentum correction: u takes up the
    gradient, v all of u. What is sent starts over in both (momentum factor masking). u, v and
    ``grad`` are flat, u and v are changed.
    """
    f = grad.dtype.type
    if clip_norm:
        norm = math.sqrt(float(np.dot(grad, grad)))
        grad = grad * f(clip_norm / norm) if norm > clip_norm else grad
    grad = grad * f(trainers)
    if regular_type:
        grad += _decay(np, param, regular_type, regular_coeff)
    if use_nesterov:
        u += grad
        u *= f(mu)
        v += grad
    else:
        u *= f(mu)
        u += grad
    v += u
    chosen = np.sort(np.argpartition(np.abs(v), v.size - count)[v.size - count :])
    values = v[chosen]
    u[chosen] = v[chosen] = 0
    return values, chosen


def _infer_choice(
    u: Meta, v: Meta, grad: Meta, param: Meta, step: Meta, sparsity: Sequence[float], **_
) -> Metas:
    most = most_sent(param.size, sparsity)
    return u, v, Meta((most,), grad.dtype), Meta((most,), "int64"), Meta((1,), "int64")


def _bind_choice(
    xp: ArrayModule,
    *arrays,
    rampup_begin_step: int,
    rampup_step: int,
    sparsity: Sequence[float],
    trainers: int,
    **options,
) -> Call:
    def choose(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        u, v, grad, param, step = inputs
        u_out, v_out, values, indices, counted = outputs
        for source, target in ((u, u_out), (v, v_out)):
            if target is not source:
                target[...] = source
        steps = int(step[0]) - rampup_begin_step
        count = sent(grad.size, steps, rampup_step, sparsity)
        values[:count], indices[:count] = compress(
            u_out.reshape(-1),
            v_out.reshape(-1),
            grad.reshape(-1),
            param.reshape(-1),
            count,
            trainers,
            **options,
        )
        counted[0] = count

    return run_on_host(xp, choose, arrays[:5], arrays[5:])


define(
    "dgc",
    "U, V, Grad, Param, Step -> UOut, VOut, Values, Indices, Count",
    rows=not_on_rows,
    attrs={**_ATTRS, "trainers": 1},
    infer=_infer_choice,
    bind=_bind_choice,
    inplace={"UOut": "U", "VOut": "V"},
)
define(
    "c_sparse_sum",
    "Values*, Indices*, Count* -> Out*",
    rows=not_on_rows,
    attrs={"shapes": ()},
    infer=lambda values, indices, count, shapes: (
        [Meta(tuple(shape), v.dtype) for v, shape in zip(values, shapes)],
    ),
)
