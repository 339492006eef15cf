"""Updates that need norms of a complete parameter or gradient, of which a server may have only a
part."""

from __future__ import annotations

import math

from hpcdist.base import optimizers as rules
from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import not_on_rows
from hpcdist.ops.common import define_with_grad
from hpcdist.ops.embedding.selected_rows import SelectedRows
from hpcdist.ops.types import ArrayModule

CHUNK = 1 << 16  # elements whose squares are added at once, in double precision


def _squared_norm(xp: ArrayModule, x, out) -> None:
    """Add up squares; repeated rows of a sparse gradient count with their sum."""
    flat = (x.totals(again=False).value if isinstance(x, SelectedRows) else x).reshape(-1)
    parts = (flat[i : i + CHUNK].astype("float64") for i in range(0, flat.size, CHUNK))
    out[...] = math.fsum(float(xp.dot(part, part)) for part in parts)


def _squared_norm_grad(xp: ArrayModule, x, dout, dx) -> None:
    if isinstance(x, SelectedRows):
        raise GraphError("squared_l2_norm: no gradient of the norm of a sparse gradient")
    xp.multiply(x, dout * 2, out=dx)


define_with_grad(
    "squared_l2_norm",
    "X -> Out",
    "X, Out@GRAD -> X@GRAD",
    rows=not_on_rows,
    infer=lambda x: Meta((1,), x.dtype),
    kernel=_squared_norm,
    grad_kernel=_squared_norm_grad,
)


def _lars(
    xp: ArrayModule,
    param,
    grad,
    rate,
    velocity,
    param_norm,
    grad_norm,
    param_out,
    velocity_out,
    mu: float,
    lars_coeff: float,
    lars_weight_decay: float,
) -> None:
    number = param.dtype.type
    coeff, decay = number(lars_coeff), number(lars_weight_decay)
    norms = xp.sqrt(param_norm), xp.sqrt(grad_norm)
    local_rate = rules.lars_rate(rate, coeff, decay, *norms)
    moved, speed = rules.lars_rule(param, grad, velocity, local_rate, number(mu), decay)
    param_out[...], velocity_out[...] = moved, speed


define(
    "lars_momentum_of_norms",
    "Param, Grad, LearningRate, Velocity, SquaredParamNorm, SquaredGradNorm"
    " -> ParamOut, VelocityOut",
    rows=not_on_rows,
    attrs=rules.OPTIMIZERS["lars_momentum"].attrs,
    infer=lambda param, grad, rate, velocity, *_, **__: (param, velocity),
    kernel=_lars,
)
