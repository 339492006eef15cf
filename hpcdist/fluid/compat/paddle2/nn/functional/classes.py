"""Losses of classes: by margins between their scores, and down a tree of them."""

from __future__ import annotations

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import composed, declare, reductions
from hpcdist.fluid.compat.paddle2.kinds import Reduction
from hpcdist.fluid.compat.paddle2.reductions import reduced_losses
from hpcdist.fluid.layers.helper import LayerHelper, present
from hpcdist.graph.variable import Variable


def multi_margin_loss(
    input: Variable,
    label: Variable,
    p: int = 1,
    margin: float = 1.0,
    weight: Variable | None = None,
    reduction: Reduction = "mean",
    name: str | None = None,
) -> Variable:
    """Return the mean over other classes of max(0, margin - score of the label + score)^p.

    weight: of each class; the label's multiplies what is within the power, as in 2.6.2.
    """
    classes, places = input.shape[1], layers.reshape(label, [-1, 1])
    apart = input - layers.index_sample(input, places) + margin
    own = margin**p / classes
    if weight is not None:
        of_label = layers.reshape(layers.gather(weight, layers.reshape(label, [-1])), [-1, 1])
        apart = apart * of_label
    above = composed.pow(layers.relu(apart), float(p))
    means = reductions.mean(above, 1)  # type: ignore[attr-defined]
    losses = means - own if weight is None else means - of_label * own
    return reduced_losses("multi_margin_loss", losses, reduction)


def hsigmoid_loss(
    input: Variable,
    label: Variable,
    num_classes: int,
    weight: Variable,
    bias: Variable | None = None,
    path_table: Variable | None = None,
    path_code: Variable | None = None,
    is_sparse: bool = False,
    name: str | None = None,
) -> Variable:
    """Return the cost of the decisions that lead down a tree to each row's label.

    The tree is a heap, or each row's own path: `hpcdist.layers.hsigmoid`.
    """
    if (path_table is None) != (path_code is None):
        raise GraphError(
            "paddle.nn.functional.hsigmoid_loss: a tree of your own needs both path_table and "
            "path_code"
        )
    inputs = present(
        X=input, W=weight, Label=label, Bias=bias, PathTable=path_table, PathCode=path_code
    )
    outputs = dict.fromkeys(("Out", "PreOut"), input.dtype)
    helper, attrs = LayerHelper("hsigmoid_loss", name), {"num_classes": num_classes}
    return helper.apply_all("hierarchical_sigmoid", inputs, outputs, attrs, constant=("PreOut",))[0]


__all__ = declare.offered("paddle.nn.functional", globals())
