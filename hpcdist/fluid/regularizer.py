"""Regularizers: operators that add the derivative of a penalty to a gradient."""

from __future__ import annotations

from typing import Any

from hpcdist.base.errors import GraphTypeError
from hpcdist.base.keywords import name_arguments_in
from hpcdist.graph.block import Block, block_of
from hpcdist.graph.dtypes import VarType
from hpcdist.graph.op_role import OpRole
from hpcdist.graph.program import program_of
from hpcdist.graph.variable import Parameter, Variable


class WeightDecayRegularizer:
    """A penalty on a parameter; ``append_to`` appends its derivative."""

    def __init__(self, regularization_coeff: float = 0.0) -> None:
        self.coeff = float(regularization_coeff)

    row_attr = ""  # what tells the update of a distributed table of this penalty

    def append_to(self, param: Parameter, block: Block) -> Variable:
        """Append the derivative of the penalty and return it."""
        raise NotImplementedError

    def __str__(self) -> str:
        kind = type(self).__name__.removesuffix("Regularizer")
        return f"{kind}, regularization_coeff={self.coeff:f}"


class L2DecayRegularizer(WeightDecayRegularizer):
    """coeff / 2 times the sum of squares.

    Examples:
        >>> fluid.optimizer.SGD(0.1, regularization=fluid.regularizer.L2Decay(1e-4)).type
        'sgd'
    """

    row_attr = "l2_decay"

    def append_to(self, param: Parameter, block: Block) -> Variable:
        """Append ``scale``."""
        decay = block.create_var(None, dtype=param.dtype, shape=param.shape)
        block.append_op("scale", {"X": param}, {"Out": decay}, {"scale": self.coeff})
        return decay


class L1DecayRegularizer(WeightDecayRegularizer):
    """coeff times the sum of absolute values.

    Examples:
        >>> fluid.optimizer.SGD(0.1, regularization=fluid.regularizer.L1Decay(1e-4)).type
        'sgd'
    """

    row_attr = "l1_decay"

    def append_to(self, param: Parameter, block: Block) -> Variable:
        """Append ``sign`` and ``scale``."""
        decay = block.create_var(None, dtype=param.dtype, shape=param.shape)
        block.append_op("sign", {"X": param}, {"Out": decay})
        block.append_op("scale", {"X": decay}, {"Out": decay}, {"scale": self.coeff})
        return decay


def append_regularization_ops(
    parameters_and_grads: list[tuple[Parameter, Variable]], regularization: Any = None
) -> list[tuple[Parameter, Variable]]:
    """Add penalties to the gradients, in place; a sparse gradient becomes a new dense variable.

    A parameter's own regularizer wins over ``regularization``.
    """
    return [
        (p, _regularized(p, g, p.regularizer or regularization)) for p, g in parameters_and_grads
    ]


def row_decay(table: Parameter, regularization: Any = None) -> dict[str, float]:
    """Return the attributes that make the update of a distributed table decay the rows it moves.

    No rank has all rows, so there are no operators for this.
    """
    regularizer = table.regularizer or regularization
    if regularizer is None:
        return {}
    if not getattr(regularizer, "row_attr", ""):
        raise _unknown(table, regularizer)
    return {regularizer.row_attr: regularizer.coeff}


def _unknown(param: Parameter, regularizer: Any) -> GraphTypeError:
    return GraphTypeError(
        f"regularization of {param.name!r}: expected L1Decay or L2Decay, got {regularizer!r}"
    )


def _regularized(param: Parameter, grad: Variable, regularizer: Any) -> Variable:
    if regularizer is None:
        return grad
    if not isinstance(regularizer, WeightDecayRegularizer):
        raise _unknown(param, regularizer)
    block = block_of(grad)
    with program_of(block).role_guard(OpRole.OPTIMIZE, (param, grad)):
        term = regularizer.append_to(param, block)
        out = grad
        if grad.type == VarType.SELECTED_ROWS:
            facts: dict[str, Any] = {"dtype": param.dtype, "shape": param.shape}
            out = block.create_var(grad.name + "@NEWGRAD@", **facts)
        block.append_op("sum", {"X": [grad, term]}, {"Out": out})
    return out


L1Decay = L1DecayRegularizer
L2Decay = L2DecayRegularizer

name_arguments_in(__name__)
