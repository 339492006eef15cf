"""Operators of Paddle 2 on matrices and along axes whose kernel is a function of torch's."""

from __future__ import annotations

from hpcdist.graph.rows import Applied, broadcast, by_element, by_row, mixed, off_rows
from hpcdist.ops.by_torch import define_by_torch
from hpcdist.ops.types import Array


def _of_batches(op: Applied) -> bool:
    """Return whether dimension 0 counts matrices."""
    return op.rank > 2


_ROWS_OF_MATRICES = by_row(apart=_of_batches)


# -- of one number, and of two -------------------------------------------------------------------
for _type in ("lgamma", "digamma", "erfinv"):
    define_by_torch(
        _type,
        "X -> Out",
        lambda torch, x, _type=_type: getattr(torch, _type)(x),
        rows=by_element(),
        wrt=("X",),
    )

for _type in ("i0", "i0e", "i1", "i1e"):
    define_by_torch(
        _type,
        "X -> Out",
        lambda torch, x, _type=_type: getattr(torch.special, _type)(x),
        rows=by_element(),
        wrt=("X",),
    )

define_by_torch(
    "polygamma",
    "X -> Out",
    lambda torch, x, n: torch.special.polygamma(n, x),
    rows=by_element(),
    attrs={"n": 1},
    wrt=("X",),
)

for _type in ("fmax", "fmin"):
    define_by_torch(
        f"elementwise_{_type}",
        "X, Y -> Out",
        lambda torch, x, y, axis, _type=_type: getattr(torch, _type)(x, y),
        rows=broadcast(),
        attrs={"axis": -1},
        wrt=("X", "Y"),
    )

define_by_torch(
    "atan2",
    "X1, X2 -> Out",
    lambda torch, x, y: torch.atan2(x, y),
    rows=by_element(),
    wrt=("X1", "X2"),
)


def _poisson_quantile(torch, mean: Array, chance: Array) -> Array:
    """Return the least counts whose chance, with all below them, is ``chance`` or more."""
    mean, wanted = mean.double(), chance.double()
    low = torch.full_like(mean, -1.0)
    high = torch.ceil(mean + 12 * torch.sqrt(mean) + 60)
    for _ in range(40):  # until one is left
        middle = torch.floor((low + high) / 2).clamp_min(0)
        enough = torch.special.gammaincc(middle + 1, mean) >= wanted
        high, low = torch.where(enough, middle, high), torch.where(enough, low, middle)
    return high.to(chance.dtype)


def _log_gamma_quantile(torch, shape: Array, chance: Array) -> Array:
    """Return the logarithms of the quantiles of gamma distributions of scale 1."""
    a, wanted = shape.double(), chance.double()
    small = (torch.log(wanted) + torch.lgamma(a + 1)) / a  # where exp(-x) is 1
    low, high = torch.full_like(a, -40.0), torch.log(a + 12 * torch.sqrt(a) + 60)
    for _ in range(45):
        middle = (low + high) / 2
        enough = torch.special.gammainc(a, torch.exp(middle)) >= wanted
        high, low = torch.where(enough, middle, high), torch.where(enough, low, middle)
    return torch.where(small < -38, small, high).to(chance.dtype)


for _type, _quantile in (
    ("poisson_quantile", _poisson_quantile),
    ("log_gamma_quantile", _log_gamma_quantile),
):
    define_by_torch(_type, "X, Chance -> Out", _quantile, rows=by_element(), wrt=())


# -- matrices --------------------------------------------------------------------------------------
def _inverse(torch, x: Array) -> Array:
    return torch.linalg.inv(x)


def _cholesky(torch, x: Array, upper: bool) -> Array:
    # The triangle that is read is the gradient's place, too.
    root = torch.linalg.cholesky(x.mT if upper else x)
    return root.mT if upper else root


def _determinant(torch, x: Array) -> Array:
    found = torch.linalg.det(x)
    return found if x.ndim > 2 else found.reshape(1)


def _log_determinant(torch, x: Array) -> Array:
    sign, size = torch.linalg.slogdet(x)
    return torch.stack([sign, size])


def _solve(torch, x: Array, y: Array) -> Array:
    if y.ndim == 1:
        return torch.linalg.solve(x, y[:, None])[:, 0]
    return torch.linalg.solve(x, y)


def _solve_triangular(
    torch, x: Array, y: Array, upper: bool, transpose: bool, unitriangular: bool
) -> Array:
    if transpose:
        x, upper = x.mT, not upper
    return torch.linalg.solve_triangular(x, y, upper=upper, unitriangular=unitriangular)


def _solve_by_root(torch, x: Array, y: Array, upper: bool) -> Array:
    # Torch's gradient takes the other triangle for zeros.
    return torch.cholesky_solve(x, y.triu() if upper else y.tril(), upper=upper)


define_by_torch("inverse", "Input -> Output", _inverse, rows=_ROWS_OF_MATRICES, wrt=("Input",))
define_by_torch(
    "cholesky",
    "X -> Out",
    _cholesky,
    rows=_ROWS_OF_MATRICES,
    attrs={"upper": False},
    wrt=("X",),
)
define_by_torch("determinant", "Input -> Out", _determinant, rows=_ROWS_OF_MATRICES, wrt=("Input",))
define_by_torch("slogdeterminant", "Input -> Out", _log_determinant, rows=mixed, wrt=("Input",))
define_by_torch("solve", "X, Y -> Out", _solve, rows=_ROWS_OF_MATRICES, wrt=("X", "Y"))
define_by_torch(
    "triangular_solve",
    "X, Y -> Out",
    _solve_triangular,
    rows=_ROWS_OF_MATRICES,
    attrs={"upper": True, "transpose": False, "unitriangular": False},
    wrt=("X", "Y"),
)
define_by_torch(
    "cholesky_solve",
    "X, Y -> Out",
    _solve_by_root,
    rows=_ROWS_OF_MATRICES,
    attrs={"upper": False},
    wrt=("X", "Y"),
)
define_by_torch(
    "matrix_power",
    "X -> Out",
    lambda torch, x, n: torch.linalg.matrix_power(x, n),
    rows=_ROWS_OF_MATRICES,
    attrs={"n": 0},
    wrt=("X",),
)


# -- along an axis ---------------------------------------------------------------------------------
define_by_torch(
    "cumprod",
    "X -> Out",
    lambda torch, x, dim: torch.cumprod(x, dim),
    rows=by_row(apart=off_rows("dim")),
    attrs={"dim": -1},
    wrt=("X",),
)
define_by_torch(
    "logcumsumexp",
    "X -> Out",
    lambda torch, x, axis: torch.logcumsumexp(x, axis),
    rows=by_row(apart=off_rows("axis")),
    attrs={"axis": -1},
    wrt=("X",),
)
for _type in ("cummax", "cummin"):
    define_by_torch(
        _type,
        "x -> out, indices",
        lambda torch, x, axis, _type=_type: tuple(getattr(torch, _type)(x, axis)),
        rows=by_row(apart=off_rows("axis")),
        attrs={"axis": -1},
        wrt=("x",),
    )


def _kth(torch, x: Array, k: int, axis: int, keepdim: bool) -> tuple[Array, Array]:
    found = torch.kthvalue(x, k, axis, keepdim)
    return found.values, found.indices


define_by_torch(
    "kthvalue",
    "X -> Out, Indices",
    _kth,
    rows=by_row(apart=off_rows("axis")),
    attrs={"k": 1, "axis": -1, "keepdim": False},
    wrt=("X",),
)


def _off_diagonal(op: Applied) -> bool:
    return bool(op.attrs["axis1"] % op.rank and op.attrs["axis2"] % op.rank)


define_by_torch(
    "diagonal",
    "Input -> Out",
    lambda torch, x, offset, axis1, axis2: torch.diagonal(x, offset, axis1, axis2),
    rows=by_row(apart=_off_diagonal),
    attrs={"offset": 0, "axis1": 0, "axis2": 1},
    wrt=("Input",),
)
define_by_torch(
    "renorm",
    "X -> Out",
    lambda torch, x, p, axis, max_norm: torch.renorm(x, p, axis, max_norm),
    rows=by_row(apart=lambda op: op.attrs["axis"] % op.rank == 0),
    attrs={"p": 2.0, "axis": 0, "max_norm": 1.0},
    wrt=("X",),
)


# -- places ----------------------------------------------------------------------------------------
_REDUCTIONS = {"add": "sum", "mul": "prod", "multiply": "prod", "mean": "mean", "amax": "amax",
               "amin": "amin"}  # fmt: skip


def _put_along(torch, x: Array, index: Array, value: Array, Axis: int, Reduce: str) -> Array:
    index, value = index.long(), value.expand(index.shape)
    if Reduce == "assign":
        return x.scatter(Axis, index, value)
    return x.scatter_reduce(Axis, index, value, _REDUCTIONS[Reduce])


define_by_torch(
    "put_along_axis",
    "Input, Index, Value -> Result",
    _put_along,
    rows=by_row(apart=off_rows("Axis")),
    attrs={"Axis": 0, "Reduce": "assign"},
    wrt=("Input", "Value"),
)
