"""Gradients of gradient operators, for second derivatives.

A gradient operator computes dX from dOut, and maybe from X or Out. The rules here say how the
gradient of dX flows on to what it was computed from, in operators that are there already: so third
derivatives are there, too. A gradient operator without a rule is refused by name, in
`graph/autodiff/backward.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcdist.graph.names import EMPTY, grad_name
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import GradOp
from hpcdist.ops.common import Wanted
from hpcdist.ops.types import GradRule


def linear(forward: str, *, x: str = "X", out: str = "Out") -> GradRule:
    """A gradient that is linear in dOut and reads shapes only: its gradient is ``forward``.

    Slots of the operator other than X are handed on, and its attributes.
    """

    def rule(op: Operator, wanted: Wanted) -> list[GradOp]:
        (dout,) = op.input(f"{out}@GRAD")
        (dx,) = op.output(f"{x}@GRAD")
        if not wanted(dout):
            return []
        left_out = (x, "XShape", f"{out}@GRAD")
        more = {slot: names for slot, names in op.inputs.items() if slot not in left_out}
        outputs = {out: [grad_name(dout)]}
        if "XShape" in op.inputs:
            outputs["XShape"] = [f"{_unique_name(op)}@XSHAPE"]
        return [GradOp(forward, {x: [grad_name(dx)], **more}, outputs, dict(op.attrs))]

    return rule


def joining(forward: str) -> GradRule:
    """The gradient of what joins several values ``X*``: they are joined again."""

    def rule(op: Operator, wanted: Wanted) -> list[GradOp]:
        (dout,) = op.input("Out@GRAD")
        if not wanted(dout):
            return []
        grad_ops, joined = [], []
        for x, dx in zip(op.input("X"), op.output("X@GRAD")):
            if dx != EMPTY:
                joined.append(grad_name(dx))
                continue
            joined.append(f"{_unique_name(op)}@ZEROS{len(joined)}")
            grad_ops.append(GradOp("fill_zeros_like", {"X": [x]}, {"Out": [joined[-1]]}, {}))
        outputs = {"Out": [grad_name(dout)]}
        more = {s: names for s, names in op.inputs.items() if s not in ("X", "Out@GRAD")}
        return [*grad_ops, GradOp(forward, {"X": joined, **more}, outputs, dict(op.attrs))]

    return rule


def bilinear(forward: str, x: str = "X", y: str = "Y", out: str = "Out") -> GradRule:
    """The gradient of a product of X and Y: dX = dOut Y, dY = dOut X, with sums where they belong.

    Each is such a product again.
    """

    def rule(op: Operator, wanted: Wanted) -> list[GradOp]:
        ((dout,), attrs) = op.input(f"{out}@GRAD"), dict(op.attrs)
        names = {x: op.input(x)[0], y: op.input(y)[0]}
        grad_ops = []
        for slot, other in ((x, y), (y, x)):
            for d in op.output(f"{slot}@GRAD"):
                if d == EMPTY:
                    continue
                operands = {**{s: [n] for s, n in names.items()}, slot: [grad_name(d)]}
                if wanted(dout):
                    grad_ops.append(GradOp(forward, operands, {out: [grad_name(dout)]}, attrs))
                if wanted(names[other]):
                    grad_inputs = {**operands, f"{out}@GRAD": [dout]}
                    grad_outputs = {f"{other}@GRAD": [grad_name(names[other])]}
                    grad_ops.append(GradOp(f"{forward}_grad", grad_inputs, grad_outputs, attrs))
        return grad_ops

    return rule


def additive(forward: str) -> GradRule:
    """The gradient of X + Y or X - Y: dOut, or sums of it, for both."""

    def rule(op: Operator, wanted: Wanted) -> list[GradOp]:
        (dout,) = op.input("Out@GRAD")
        if not wanted(dout):
            return []
        grad_ops, operands = [], {}
        for slot in ("X", "Y"):
            fills, operands[slot] = _gradient_or_zeros(op, slot)
            grad_ops += fills
        return [*grad_ops, GradOp(forward, operands, {"Out": [grad_name(dout)]}, dict(op.attrs))]

    return rule


def of_quotient(op: Operator, wanted: Wanted) -> list[GradOp]:
    """dX = dOut / Y and dY = -dOut Out / Y; with ddX and ddY let W be (ddX - Out ddY) / Y.

    Then dOut gets W, Out gets -dOut ddY / Y, and Y gets -dOut W / Y, with sums where they belong.
    """
    (y,), (out,), (dout,) = op.input("Y"), op.input("Out"), op.input("Out@GRAD")
    attrs, name = dict(op.attrs), _unique_name(op)
    grad_ops, ddx = _gradient_or_zeros(op, "X")
    fills, ddy = _gradient_or_zeros(op, "Y")
    grad_ops += fills

    def emit(type: str, left: str, right: list[str], to: str) -> None:
        grad_ops.append(GradOp(type, {"X": [left], "Y": right}, {"Out": [to]}, attrs))

    emit("elementwise_mul", out, ddy, f"{name}@OUT_DDY")
    emit("elementwise_sub", ddx[0], [f"{name}@OUT_DDY"], f"{name}@DIFFERENCE")
    emit("elementwise_div", f"{name}@DIFFERENCE", [y], f"{name}@W")
    if wanted(dout):
        grad_ops.append(GradOp("assign", {"X": [f"{name}@W"]}, {"Out": [grad_name(dout)]}, {}))
    if wanted(out):
        emit("elementwise_mul", dout, ddy, f"{name}@DOUT_DDY")
        emit("elementwise_div", f"{name}@DOUT_DDY", [y], f"{name}@DOUT_DDY_Y")
        grad_ops.append(_negated(f"{name}@DOUT_DDY_Y", grad_name(out)))
    if wanted(y):
        operands = {"X": op.input("X"), "Y": [y], "Out": [f"{name}@W"], "Out@GRAD": [dout]}
        grad_ops.append(GradOp(op.type, operands, {"Y@GRAD": [grad_name(y)]}, attrs))
    return grad_ops


def of_unary(slot: str, curve: Callable[..., list[GradOp]] | None = None) -> GradRule:
    """The gradient of a function of one value: dX = dOut f'(value), ``slot`` of X or Out.

    ``curve(value, product, to, scratch)`` gives what computes ``to``, the product times the
    derivative of f' by the value; None where that is 0. ``product``: ddX dOut.
    """

    def rule(op: Operator, wanted: Wanted) -> list[GradOp]:
        (value,), (dout,), (dx,) = op.input(slot), op.input("Out@GRAD"), op.output("X@GRAD")
        ddx, attrs, grad_ops = grad_name(dx), dict(op.attrs), []
        if wanted(dout):
            grad_inputs = {slot: [value], "Out@GRAD": [ddx]}
            grad_ops.append(GradOp(op.type, grad_inputs, {"X@GRAD": [grad_name(dout)]}, attrs))
        if curve is not None and wanted(value):
            product, to = f"{_unique_name(op)}@DDX", grad_name(value)
            operands = {"X": [dout], "Y": [ddx]}
            grad_ops.append(GradOp("elementwise_mul", operands, {"Out": [product]}, {"axis": -1}))
            grad_ops += curve(value, product, to, attrs)
        return grad_ops

    return rule


# -- f'' of functions, by X or by Out --------------------------------------------------------------
def _of_square(value: str, product: str, to: str, attrs) -> list[GradOp]:
    """(2 x)' = 2."""
    return [GradOp("scale", {"X": [product]}, {"Out": [to]}, _scaled(2.0))]


def _of_sqrt(value: str, product: str, to: str, attrs) -> list[GradOp]:
    """(1 / (2 out))' = -1 / (2 out^2)."""
    square = f"{product}@SQUARE"
    return [
        GradOp("square", {"X": [value]}, {"Out": [square]}, {}),
        GradOp(
            "elementwise_div",
            {"X": [product], "Y": [square]},
            {"Out": [f"{product}@QUOTIENT"]},
            {"axis": -1},
        ),
        GradOp("scale", {"X": [f"{product}@QUOTIENT"]}, {"Out": [to]}, _scaled(-0.5)),
    ]


def _of_tanh(value: str, product: str, to: str, attrs) -> list[GradOp]:
    """(1 - out^2)' = -2 out."""
    doubled = f"{product}@DOUBLED"
    return [_double(value, product, doubled), _negated(doubled, to)]


def _of_sigmoid(value: str, product: str, to: str, attrs) -> list[GradOp]:
    """(out - out^2)' = 1 - 2 out."""
    doubled = f"{product}@DOUBLED"
    operands = {"X": [product], "Y": [doubled]}
    return [
        _double(value, product, doubled),
        GradOp("elementwise_sub", operands, {"Out": [to]}, {"axis": -1}),
    ]


def _of_exp(value: str, product: str, to: str, attrs) -> list[GradOp]:
    """out' = 1."""
    return [GradOp("assign", {"X": [product]}, {"Out": [to]}, {})]


def _of_hyperbolic(other: str) -> Callable[..., list[GradOp]]:
    """sinh' = cosh and cosh' = sinh: the second derivative is the first of the ``other``."""

    def curve(value: str, product: str, to: str, attrs) -> list[GradOp]:
        grad_inputs = {"X": [value], "Out@GRAD": [product]}
        return [GradOp(f"{other}_grad", grad_inputs, {"X@GRAD": [to]}, {})]

    return curve


def _of_elu(value: str, product: str, to: str, attrs) -> list[GradOp]:
    """alpha exp(x) below 0: the first derivative, less 1 above 0."""
    first, above = f"{product}@FIRST", f"{product}@ABOVE"
    grad_inputs = {"X": [value], "Out@GRAD": [product]}
    return [
        GradOp("elu_grad", grad_inputs, {"X@GRAD": [first]}, attrs),
        GradOp("relu_grad", {"Out": [value], "Out@GRAD": [product]}, {"X@GRAD": [above]}, {}),
        GradOp("elementwise_sub", {"X": [first], "Y": [above]}, {"Out": [to]}, {"axis": -1}),
    ]


# Of each function: whether its gradient reads X or Out, and its second derivative.
UNARY: dict[str, GradRule] = {
    "relu": of_unary("Out"),
    "leaky_relu": of_unary("Out"),
    "square": of_unary("X", _of_square),
    "sqrt": of_unary("Out", _of_sqrt),
    "tanh": of_unary("Out", _of_tanh),
    "sigmoid": of_unary("Out", _of_sigmoid),
    "exp": of_unary("Out", _of_exp),
    "expm1": of_unary("Out", _of_exp),
    "sinh": of_unary("X", _of_hyperbolic("cosh")),
    "cosh": of_unary("X", _of_hyperbolic("sinh")),
    "elu": of_unary("X", _of_elu),
}


def _unique_name(op: Operator) -> str:
    """Return the prefix of names of intermediate values: dOut may be another operator's, too."""
    return grad_name(next(name for name in op.output_arg_names if name != EMPTY))


def _gradient_or_zeros(op: Operator, slot: str) -> tuple[list[GradOp], list[str]]:
    """Return the gradient of dX (or dY), zeros where there is no such output, and what makes it."""
    gradients = [d for d in op.output(f"{slot}@GRAD") if d != EMPTY]
    if gradients:
        return [], [grad_name(gradients[0])]
    zeros = f"{_unique_name(op)}@ZEROS_{slot}"
    return [GradOp("fill_zeros_like", {"X": op.input(slot)}, {"Out": [zeros]}, {})], [zeros]


def _double(value: str, product: str, to: str) -> GradOp:
    """2 value product."""
    return GradOp("square_grad", {"X": [value], "Out@GRAD": [product]}, {"X@GRAD": [to]}, {})


def _negated(name: str, to: str) -> GradOp:
    return GradOp("scale", {"X": [name]}, {"Out": [to]}, _scaled(-1.0))


def _scaled(factor: float) -> dict[str, Any]:
    return {"scale": factor, "bias": 0.0, "bias_after_scale": True}
