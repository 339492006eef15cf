"""Arithmetic on two values, one broadcast to the other, and comparisons.

The value of lower rank is placed within the other at ``axis`` (-1: at the end); there, extents are
equal or one of them is 1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from hpcdist.base.errors import FeedError, GraphError
from hpcdist.graph.dtypes import is_float
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import Treatment, broadcast, by_element, linear, product, quotient
from hpcdist.ops.algebra import second_derivatives
from hpcdist.ops.common import broadcast_axis, grad_by, in_sequence, like_inputs, same_buffer
from hpcdist.ops.embedding.selected_rows import SelectedRows
from hpcdist.ops.types import ArrayModule, Bind, Call, DeviceArray, GradRule

_AXIS = {"axis": -1}
Shape = tuple[int, ...]
Write = Callable[[DeviceArray], Call]  # an array to fill -> what fills it


def broadcast_shapes(x: Sequence[int], y: Sequence[int], axis: int) -> tuple[Shape, Shape, Shape]:
    """Return the shapes of x, of y and of the result, all of the result's rank.

    As in Fluid, equal shapes need no ``axis``, whatever it says.
    """
    if tuple(x) == tuple(y):
        return tuple(x), tuple(y), tuple(x)
    rank = max(len(x), len(y))
    if len(x) >= len(y):
        start = broadcast_axis(x, y, axis)
        x_view, y_view = tuple(x), _padded(y, start, rank)
    else:
        start = broadcast_axis(y, x, axis)
        x_view, y_view = _padded(x, start, rank), tuple(y)
    out = []
    for a, b in zip(x_view, y_view):
        if a != b and min(a, b) > 1:
            raise GraphError(f"cannot broadcast {tuple(x)} and {tuple(y)} at axis {axis}")
        out.append(max(a, b) if 1 not in (a, b) else (b if a == 1 else a))
    return x_view, y_view, tuple(out)


def _padded(shape: Sequence[int], start: int, rank: int) -> Shape:
    return (1,) * start + tuple(shape) + (1,) * (rank - start - len(shape))


def _infer(x: Meta, y: Meta, axis: int) -> Meta:
    return Meta(broadcast_shapes(x.shape, y.shape, axis)[2], x.dtype)


def _infer_bool(x: Meta, y: Meta, axis: int) -> Meta:
    return Meta(_infer(x, y, axis).shape, "bool")


def operand_views(x, y, axis: int) -> tuple[DeviceArray, DeviceArray]:
    """Return x and y in shapes that NumPy's rules broadcast to one."""
    x_view, y_view, _ = broadcast_shapes(x.shape, y.shape, axis)
    return x.reshape(x_view), y.reshape(y_view)


def _forward(ufunc: str) -> Bind:
    def bind(xp: ArrayModule, x, y, out, axis: int) -> Call:
        x_view, y_view = operand_views(x, y, axis)
        if y.size == 1:
            y_view = y.reshape(())  # numpy's fast path: no broadcasting to set up
        return functools.partial(getattr(xp, ufunc), x_view, y_view, out=out)

    return bind


def _product_infer(x: Meta, y: Meta, axis: int) -> Meta:
    if x.type != "SELECTED_ROWS":
        return _infer(x, y, axis)
    if y.size != 1:
        raise GraphError(f"SelectedRows can be multiplied by one number only, got shape {y.shape}")
    return x


def _product(xp: ArrayModule, x, y, out, axis: int) -> Call:
    if not isinstance(x, SelectedRows):
        return _forward("multiply")(xp, x, y, out, axis)
    factor = y.reshape(())
    return functools.partial(out.take, x, lambda value, to: xp.multiply(value, factor, out=to))


def _refuse_zeros(xp: ArrayModule, divisor) -> None:
    """Raise FeedError if an integer would be divided by 0: C ends the process, numpy answers 0."""
    if divisor.dtype.kind in "iu" and not xp.all(divisor):
        at = int(xp.flatnonzero(divisor.reshape(-1) == 0)[0])
        raise FeedError(f"integers are divided by 0 (element {at} of {divisor.size} of Y)")


def _truncated_quotient(xp: ArrayModule, x, y, out, axis: int) -> Call:
    """Divide and drop the fraction, as C does (and Fluid): -7 / 2 is -3."""
    x, y = operand_views(x, y, axis)
    rest = xp.empty_like(out)
    return in_sequence(
        functools.partial(_refuse_zeros, xp, y),
        functools.partial(xp.fmod, x, y, out=rest),
        functools.partial(xp.subtract, x, rest, out=rest),
        functools.partial(xp.floor_divide, rest, y, out=out),
    )


def _remainder(xp: ArrayModule, x, y, out, axis: int) -> Call:
    """Return the remainder: with the sign of x as C does, of floats that of y, as Fluid."""
    x, y = operand_views(x, y, axis)
    if x.dtype.kind in "iu":
        whole = functools.partial(xp.fmod, x, y, out=out)
        return in_sequence(functools.partial(_refuse_zeros, xp, y), whole)
    wide = xp.empty(out.shape, "float64")  # the sum rounds what is small beside y, as Fluid's
    return in_sequence(
        functools.partial(xp.fmod, x, y, out=wide),
        functools.partial(xp.add, wide, y, out=wide),
        functools.partial(xp.fmod, wide, y, out=out, casting="same_kind"),
    )


def _quotient(xp: ArrayModule, x, y, out, axis: int) -> Call:
    bind = _truncated_quotient if x.dtype.kind in "iu" else _forward("true_divide")
    return bind(xp, x, y, out, axis)


def _side(xp: ArrayModule, grad, view: Shape, full: Shape, write: Write) -> list[Call]:
    """Return the steps that bring a gradient of the result's shape into one input's."""
    if grad is None:
        return []
    target = grad.reshape(view)
    if view == full:
        return [write(target)]
    scratch = xp.empty(full, grad.dtype)
    return [write(scratch), _reduction(xp, scratch, target)]


def _reduction(xp: ArrayModule, full, target) -> Call:
    axes = tuple(i for i, (a, b) in enumerate(zip(target.shape, full.shape)) if a != b)
    if axes == (0,) and full.ndim == 2:
        return functools.partial(xp.add.reduce, full, 0, None, target.reshape(-1))
    return functools.partial(xp.add.reduce, full, axes, None, target, True)


# -- add, sub: gradients need no values, only shapes -------------------------------------------
def _linear_grad(sign: int) -> Bind:
    def bind(xp: ArrayModule, x, y, dout, dx, dy, axis: int) -> Call:
        x_view, y_view, full = broadcast_shapes(x.shape, y.shape, axis)
        steps: list[Call] = []
        # dy first: dx may lie in dout's buffer, but only as a copy of it.
        for grad, view, factor in ((dy, y_view, sign), (dx, x_view, 1)):
            if grad is None:
                continue
            target = grad.reshape(view)
            if view != full:
                steps.append(_reduction(xp, dout, target))
                if factor < 0:
                    steps.append(functools.partial(xp.negative, target, out=target))
            elif factor < 0:
                steps.append(functools.partial(xp.negative, dout, out=target))
            elif not same_buffer(xp, dout, target):
                steps.append(functools.partial(xp.copyto, target, dout))
        return in_sequence(*steps)

    return bind


# -- the others: partial derivatives times dout -------------------------------------------------
def _mul_grad(xp: ArrayModule, x, y, dout) -> tuple[Write, Write]:
    """dx = y dout;  dy = x dout."""
    return (
        lambda t: functools.partial(xp.multiply, dout, y, out=t),
        lambda t: functools.partial(xp.multiply, dout, x, out=t),
    )


def _chosen_grad(x_wins: str, y_wins: str) -> Callable[..., tuple[Write, Write]]:
    """Gradient goes to the side that was chosen (max, min)."""

    def rule(xp: ArrayModule, x, y, dout) -> tuple[Write, Write]:
        def write(name: str) -> Write:
            def to(target) -> Call:
                mask = xp.empty(dout.shape, bool)
                return in_sequence(
                    functools.partial(getattr(xp, name), x, y, out=mask),
                    functools.partial(xp.multiply, dout, mask, out=target),
                )

            return to

        return write(x_wins), write(y_wins)

    return rule


def _pow_grad(xp: ArrayModule, x, y, dout) -> tuple[Write, Write]:
    """dx = y x^(y - 1) dout;  dy = x^y log(x) dout."""

    def to_x(target) -> Call:
        def run() -> None:
            xp.multiply(dout, y * xp.power(x, y - 1), out=target)

        return run

    def to_y(target) -> Call:
        def run() -> None:
            slope = xp.log(x) * xp.power(x, y)  # a fraction, which whole numbers cut as in Fluid
            xp.multiply(dout, slope, out=target, casting="unsafe")

        return run

    return to_x, to_y


def _grad_bind(rule: Callable[..., tuple[Write, Write]]) -> Bind:
    def bind(xp: ArrayModule, x, y, dout, dx, dy, axis: int) -> Call:
        x_view, y_view, full = broadcast_shapes(x.shape, y.shape, axis)
        to_x, to_y = rule(xp, x.reshape(x_view), y.reshape(y_view), dout)
        return in_sequence(*(_side(xp, dx, x_view, full, to_x) + _side(xp, dy, y_view, full, to_y)))

    return bind


def _div_grad_bind(xp: ArrayModule, x, y, out, dout, dx, dy, axis: int) -> Call:
    """dx = dout / y;  dy = -out dout / y."""
    x_view, y_view, full = broadcast_shapes(x.shape, y.shape, axis)
    divisor = y.reshape(y_view)

    def to_x(target) -> Call:
        return functools.partial(xp.true_divide, dout, divisor, out=target)

    def to_y(target) -> Call:
        return in_sequence(
            functools.partial(xp.multiply, dout, out, out=target),
            functools.partial(xp.true_divide, target, divisor, out=target),
            functools.partial(xp.negative, target, out=target),
        )

    return in_sequence(*(_side(xp, dx, x_view, full, to_x) + _side(xp, dy, y_view, full, to_y)))


def _define(
    type: str,
    forward,
    grad_bind=None,
    grad_slots: str = "X, Y, Out@GRAD -> X@GRAD?, Y@GRAD?",
    infer=_infer,
    totals: Treatment | None = None,
    second: GradRule | None = None,
) -> None:
    define(
        type,
        "X, Y -> Out",
        rows=broadcast(totals),
        attrs=_AXIS,
        infer=infer,
        bind=forward,
        folds=True,
        inplace={"Out": "X"},
        grad=None if grad_bind is None else grad_by(f"{type}_grad", grad_slots),
    )
    if grad_bind is not None:
        additive = type in ("elementwise_add", "elementwise_sub")
        define(
            f"{type}_grad",
            grad_slots,
            attrs=_AXIS,
            infer=like_inputs(grad_slots),
            bind=grad_bind,
            grad=second,
            inplace={"X@GRAD": "Out@GRAD"} if additive else {},
            shape_only=("X", "Y") if additive else (),
        )


for _type, _ufunc, _sign in (("elementwise_add", "add", 1), ("elementwise_sub", "subtract", -1)):
    _define(
        _type,
        _forward(_ufunc),
        _linear_grad(_sign),
        totals=linear,
        second=second_derivatives.additive(_type),
    )
_define(
    "elementwise_mul",
    _product,
    _grad_bind(_mul_grad),
    infer=_product_infer,
    totals=product,
    second=second_derivatives.bilinear("elementwise_mul"),
)
_define(
    "elementwise_div",
    _quotient,
    _div_grad_bind,
    "X, Y, Out, Out@GRAD -> X@GRAD?, Y@GRAD?",
    totals=quotient,
    second=second_derivatives.of_quotient,
)
_define("elementwise_max", _forward("maximum"), _grad_bind(_chosen_grad("greater", "less_equal")))
_define("elementwise_min", _forward("minimum"), _grad_bind(_chosen_grad("less", "greater_equal")))
_define("elementwise_pow", _forward("power"), _grad_bind(_pow_grad))
_define("elementwise_mod", _remainder)
_define("elementwise_floordiv", _truncated_quotient)


def _infer_wholes(x: Meta, y: Meta, axis: int) -> Meta:
    for value in (x, y):
        if is_float(value.dtype):
            raise GraphError(f"expected integers, got {value.dtype}: cast makes them")
    return _infer(x, y, axis)


for _wholes in ("bitwise_and", "bitwise_or", "bitwise_xor", "gcd", "lcm"):
    _define(_wholes, _forward(_wholes), infer=_infer_wholes)


def _comparison_bind(ufunc: str) -> Bind:
    forward = _forward(ufunc)

    def bind(xp: ArrayModule, x, y, out, axis: int = -1, force_cpu: bool = False) -> Call:
        return forward(xp, x, y, out, axis)

    return bind


for _type, _ufunc in (
    ("less_than", "less"),
    ("less_equal", "less_equal"),
    ("greater_than", "greater"),
    ("greater_equal", "greater_equal"),
    ("equal", "equal"),
    ("not_equal", "not_equal"),
):
    define(
        _type,
        "X, Y -> Out",
        rows=broadcast(),
        attrs={"axis": -1, "force_cpu": False},
        infer=lambda x, y, axis, force_cpu: _infer_bool(x, y, axis),
        bind=_comparison_bind(_ufunc),
    )

for _type in ("logical_and", "logical_or", "logical_xor"):
    define(
        _type,
        "X, Y -> Out",
        rows=broadcast(),
        infer=lambda x, y: _infer_bool(x, y, -1),
        bind=_comparison_bind(_type),
    )


def _logical_not_bind(xp: ArrayModule, x, out) -> Call:
    return functools.partial(xp.logical_not, x, out=out)


define(
    "logical_not",
    "X -> Out",
    rows=by_element(),
    infer=lambda x: Meta(x.shape, "bool"),
    bind=_logical_not_bind,
    inplace={"Out": "X"},
)
