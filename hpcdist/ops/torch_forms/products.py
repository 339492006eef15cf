"""Forms of products, and of reductions over dimensions."""

from __future__ import annotations

from hpcdist.ops.algebra.matmul import flat2d, product_views
from hpcdist.ops.algebra.products import cross_axis
from hpcdist.ops.algebra.reduce import keepdim_shape, reduced_axes
from hpcdist.ops.torch_forms import by_autograd, expressions, form


# -- mul: both sides flattened to matrices ---------------------------------------------------------
@form("mul")
def mul(torch, x, y, x_num_col_dims, y_num_col_dims):
    out = flat2d(x, x_num_col_dims) @ flat2d(y, y_num_col_dims)
    return out.reshape(x.shape[:x_num_col_dims] + y.shape[y_num_col_dims:])


@form("mul_grad", wanted=True)
def mul_grad(torch, x, y, dout, x_num_col_dims, y_num_col_dims, wanted):
    x2, y2 = flat2d(x, x_num_col_dims), flat2d(y, y_num_col_dims)
    d2 = dout.reshape(x2.shape[0], y2.shape[1])
    dx = (d2 @ y2.t()).reshape(x.shape) if wanted[0] else None
    return dx, (x2.t() @ d2).reshape(y.shape) if wanted[1] else None


# -- matmul ----------------------------------------------------------------------------------------
def _scaled(product, alpha, like):
    """Return alpha times a product, added up over the batches that ``like`` does not have."""
    extra = product.ndim - like.ndim
    full_shape = (1,) * extra + tuple(like.shape)
    axes = [i for i, (extent, all_) in enumerate(zip(full_shape, product.shape)) if extent != all_]
    total = product.sum(axes, keepdim=True) if axes else product
    return (total if alpha == 1 else total * alpha).reshape(like.shape)


@form("matmul", outs=True)
def matmul(torch, x, y, transpose_X, transpose_Y, alpha, outs):
    view = product_views(x, y, transpose_X, transpose_Y)
    product = view.a_of(x) @ view.b_of(y)
    return (product if alpha == 1 else product * alpha).reshape(outs[0].shape)


@form("matmul_grad", wanted=True)
def matmul_grad(torch, x, y, dout, transpose_X, transpose_Y, alpha, wanted):
    view = product_views(x, y, transpose_X, transpose_Y)
    a, b, d = view.a_of(x), view.b_of(y), view.out_of(dout)
    # A view of the gradient is undone by the same view of what has its places.
    dx = dy = None
    if wanted[0]:
        da = _scaled(d @ b.swapaxes(-1, -2), alpha, a)
        dx = (da.swapaxes(-1, -2) if transpose_X else da).reshape(x.shape)
    if wanted[1]:
        db = _scaled(a.swapaxes(-1, -2) @ d, alpha, b)
        dy = (db.swapaxes(-1, -2) if transpose_Y else db).reshape(y.shape)
    return dx, dy


# -- other products --------------------------------------------------------------------------------
@form("bmm")
def bmm(torch, x, y):
    return torch.bmm(x, y)


@form("bmm_grad", wanted=True)
def bmm_grad(torch, x, y, dout, wanted):
    dx = torch.bmm(dout, y.swapaxes(1, 2)) if wanted[0] else None
    return dx, torch.bmm(x.swapaxes(1, 2), dout) if wanted[1] else None


expressions(
    addmm=lambda torch, bias, x, y, Alpha, Beta: torch.addmm(bias, x, y, beta=Beta, alpha=Alpha),
    dot=lambda torch, x, y: (x * y).sum(-1, keepdim=True),
    cross=lambda torch, x, y, dim: torch.linalg.cross(x, y, dim=cross_axis(x.shape, dim)),
)


@form("kron", outs=True)
def kron(torch, x, y, outs):
    return torch.kron(x, y).reshape(outs[0].shape)


@form("bilinear_tensor_product")
def bilinear_tensor_product(torch, x, y, weight, bias):
    out = torch.einsum("ni,kij,nj->nk", x, weight, y)
    return out if bias is None else out + bias.reshape(1, -1)


@form("fsp")
def fsp(torch, x, y):
    a, b = x.flatten(2), y.flatten(2)
    return torch.bmm(a, b.swapaxes(1, 2)) / a.shape[2]


by_autograd("addmm", "dot", "cross", "kron", "bilinear_tensor_product", "fsp")


@form("trace", outs=True)
def trace(torch, x, offset, dim1, dim2, outs):
    first, second = sorted((dim1 % x.ndim, dim2 % x.ndim))  # whatever their order, as Fluid
    return torch.diagonal(x, offset, first, second).sum(-1).reshape(outs[0].shape)


by_autograd("trace")


# -- reductions ------------------------------------------------------------------------------------
expressions(
    mean=lambda torch, x: x.mean().reshape(1),
    mean_grad=lambda torch, x, dout: (dout.reshape(()) * (1 / x.numel())).expand(x.shape),
)


def _product(torch, x, axes):
    for axis in axes:
        x = x.prod(axis, keepdim=True, dtype=x.dtype)
    return x


_REDUCED = {
    "sum": lambda torch, x, axes: x.sum(axes, dtype=x.dtype),
    "mean": lambda torch, x, axes: x.mean(axes),
    "max": lambda torch, x, axes: torch.amax(x, axes),
    "min": lambda torch, x, axes: torch.amin(x, axes),
    "prod": _product,
    "all": lambda torch, x, axes: torch.all(x, axes),
    "any": lambda torch, x, axes: torch.any(x, axes),
}


def _reduced(function):
    def form_function(torch, x, dim, keep_dim, reduce_all, outs):
        axes = reduced_axes(x.ndim, dim, reduce_all)
        return function(torch, x, axes).reshape(outs[0].shape)

    return form_function


for _name, _function in _REDUCED.items():
    form(f"reduce_{_name}", family="products", outs=True)(_reduced(_function))


def _with_axes(x, value, dim, reduce_all):
    return value.reshape(keepdim_shape(x.shape, reduced_axes(x.ndim, dim, reduce_all)))


@form("reduce_sum_grad")
def reduce_sum_grad(torch, x, dout, dim, keep_dim, reduce_all):
    return _with_axes(x, dout, dim, reduce_all).expand(x.shape)


@form("reduce_mean_grad")
def reduce_mean_grad(torch, x, dout, dim, keep_dim, reduce_all):
    return (_with_axes(x, dout, dim, reduce_all) * (dout.numel() / x.numel())).expand(x.shape)


@form("reduce_max_grad", "reduce_min_grad")
def reduce_chosen_grad(torch, x, out, dout, dim, keep_dim, reduce_all):
    chosen = x == _with_axes(x, out, dim, reduce_all)
    return _with_axes(x, dout, dim, reduce_all) * chosen


@form("reduce_prod_grad")
def reduce_prod_grad(torch, x, out, dout, dim, keep_dim, reduce_all):
    return _with_axes(x, dout * out, dim, reduce_all) / x


@form("arg_max", outs=True)
def arg_max(torch, x, axis, keepdims, dtype, outs):
    return _as_dtype(torch, torch.argmax(x, axis), dtype, outs)


@form("arg_min", outs=True)
def arg_min(torch, x, axis, keepdims, dtype, outs):
    return _as_dtype(torch, torch.argmin(x, axis), dtype, outs)


def _as_dtype(torch, index, dtype, outs):
    return index.to(getattr(torch, dtype)).reshape(outs[0].shape)


def _cumulated(torch, x, axis, exclusive, reverse):
    ordered = torch.flip(x, (axis,)) if reverse else x
    summed = torch.cumsum(ordered, axis, dtype=x.dtype)
    summed = summed - ordered if exclusive else summed
    return torch.flip(summed, (axis,)) if reverse else summed


@form("cumsum")
def cumsum(torch, x, axis, exclusive, reverse):
    return _cumulated(torch, x, axis, exclusive, reverse)


@form("cumsum_grad")
def cumsum_grad(torch, dout, axis, exclusive, reverse):
    return _cumulated(torch, dout, axis, exclusive, not reverse)


# -- top_k, accuracy -------------------------------------------------------------------------------
@form("top_k")
def top_k(torch, x, k):
    if k == 1:
        index = torch.argmax(x, -1, keepdim=True)
        return torch.amax(x, -1, keepdim=True), index
    chosen = torch.sort(torch.topk(x, k, -1).indices, dim=-1).values
    values, order = torch.sort(torch.gather(x, -1, chosen), dim=-1, descending=True, stable=True)
    return values, torch.gather(chosen, -1, order)


@form("accuracy")
def accuracy(torch, out, indices, label):
    rows = indices.shape[0]
    correct = (indices == label).any(1).sum(dtype=torch.int32).reshape(1)
    total = torch.full_like(correct, rows)
    return (correct / max(rows, 1)).to(torch.float32), correct, total
