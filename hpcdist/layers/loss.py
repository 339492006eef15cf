"""Losses per sample; training minimizes their mean."""

from __future__ import annotations

from hpcdist.graph.variable import Variable
from hpcdist.layers.helper import LayerHelper

IGNORE_INDEX = -100


def cross_entropy(
    input: Variable, label: Variable, soft_label: bool = False, ignore_index: int = IGNORE_INDEX
) -> Variable:
    """Return -log of the probability [..., classes] of each label, as [..., 1].

    Hard labels are class indices [..., 1], 0 loss where they equal ``ignore_index``; soft ones
    are probabilities like ``input``.
    """
    if soft_label:
        attrs = {"soft_label": True, "ignore_index": ignore_index}
        inputs = {"X": input, "Label": label}
        helper = LayerHelper("cross_entropy")
        return helper.apply("cross_entropy", inputs, attrs, slot="Y", dtype=input.dtype)
    helper = LayerHelper("cross_entropy2")
    loss, shape, match = (helper.new_var(input.dtype) for _ in range(3))
    helper.append_op(
        "cross_entropy2",
        {"X": input, "Label": label},
        {"Y": loss, "XShape": shape, "MatchX": match},
        {"ignore_index": ignore_index},
    )
    return loss


def softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    soft_label: bool = False,
    ignore_index: int = IGNORE_INDEX,
    numeric_stable_mode: bool = True,
    return_softmax: bool = False,
    axis: int = -1,
) -> Variable | tuple[Variable, Variable]:
    """Return the cross entropy of softmax(logits) over ``axis``; with return_softmax, that too.

    It is numerically stable whatever ``numeric_stable_mode`` says.
    """
    helper = LayerHelper("softmax_with_cross_entropy")
    softmax, loss = helper.new_var(logits.dtype), helper.new_var(logits.dtype)
    helper.append_op(
        "softmax_with_cross_entropy",
        {"Logits": logits, "Label": label},
        {"Softmax": softmax, "Loss": loss},
        {
            "soft_label": soft_label,
            "ignore_index": ignore_index,
            "numeric_stable_mode": numeric_stable_mode,
            "axis": axis,
        },
    )
    return (loss, softmax) if return_softmax else loss


def square_error_cost(input: Variable, label: Variable) -> Variable:
    """Return (input - label)^2, element by element."""
    helper = LayerHelper("square_error_cost")
    inputs = {"X": input, "Y": label}
    difference = helper.apply("elementwise_sub", inputs, dtype=input.dtype)
    return helper.apply("square", {"X": difference}, dtype=input.dtype)
