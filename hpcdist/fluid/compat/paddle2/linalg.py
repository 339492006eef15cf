"""``paddle.linalg``: products and norms, what torch computes of matrices, statistics of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import declare, reductions
from hpcdist.fluid.compat.paddle2.composed import norm
from hpcdist.fluid.compat.paddle2.composed.arithmetic import matmul as _matmul
from hpcdist.fluid.compat.paddle2.declare import Variables
from hpcdist.fluid.compat.paddle2.scalars import scalar
from hpcdist.fluid.layers.helper import append
from hpcdist.graph.variable import Variable

DECLARED = declare.functions("paddle.linalg")
globals().update(DECLARED, matmul=_matmul, norm=norm)


def det(x: Variable, name: str | None = None) -> Variable:
    """Return the determinants of square matrices."""
    found = append("determinant", {"Input": x}, name)
    return scalar(found) if len(x.shape) == 2 else found


def multi_dot(x: Variables, name: str | None = None) -> Variable:
    """Return the product of matrices, from left to right."""
    if len(x) < 2:
        raise GraphError(f"paddle.linalg.multi_dot: expected two matrices or more, got {len(x)}")
    product = x[0]
    for other in x[1:]:
        product = _matmul(product, other)
    return product


def cov(
    x: Variable,
    rowvar: bool = True,
    ddof: bool = True,
    fweights: Any = None,
    aweights: Any = None,
    name: str | None = None,
) -> Variable:
    """Return the covariances of rows; ``ddof``: by n - 1. Weights are refused."""
    if fweights is not None or aweights is not None:
        raise GraphError("paddle.linalg.cov: weights are not there: weight the rows before")
    rows = x if len(x.shape) == 2 else layers.reshape(x, [1, -1])
    rows = rows if rowvar or len(x.shape) < 2 else layers.transpose(rows, [1, 0])
    count = rows.shape[1]
    if count < 0:
        raise GraphError(f"paddle.linalg.cov: observations must be counted, got {x.shape}")
    apart = rows - reductions.mean(rows, 1, True)  # type: ignore[attr-defined]
    found = _matmul(apart, apart, transpose_y=True) / float(max(count - ddof, 1))
    return found if len(x.shape) == 2 else scalar(layers.reshape(found, [1]))


def corrcoef(x: Variable, rowvar: bool = True, name: str | None = None) -> Variable:
    """Return the correlations of rows, within -1 and 1."""
    if len(x.shape) != 2:
        raise GraphError(f"paddle.linalg.corrcoef: expected a matrix, got {x.shape}")
    found = cov(x, rowvar)
    size = found.shape[0]
    spread = layers.sqrt(layers.reduce_sum(found * layers.eye(size, dtype=x.dtype), 1))
    across = layers.reshape(spread, [1, size])
    return layers.clip(found / layers.reshape(spread, [size, 1]) / across, -1.0, 1.0)


__all__ = declare.offered("paddle.linalg", globals(), [*DECLARED, "matmul", "norm"])

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
