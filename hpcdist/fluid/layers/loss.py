"""Losses per sample; training minimizes their mean."""

from __future__ import annotations

from hpcdist.base.errors import GraphError
from hpcdist.fluid.layers.helper import LayerHelper, append, append_all, declared, present
from hpcdist.graph.variable import Variable

__all__ = [
    "cross_entropy",
    "huber_loss",
    "label_smooth",
    "log_loss",
    "mse_loss",
    "sigmoid_cross_entropy_with_logits",
    "smooth_l1",
    "softmax_with_cross_entropy",
    "square_error_cost",
]

IGNORE_INDEX = -100


def cross_entropy(
    input: Variable, label: Variable, soft_label: bool = False, ignore_index: int = IGNORE_INDEX
) -> Variable:
    """Return -log of the probability [..., classes] of each label, as [..., 1].

    Hard labels are class indices [..., 1], 0 loss where they equal ``ignore_index``; of labels
    [...] the loss has that shape, too. Soft ones are probabilities like ``input``.

    Examples:
        >>> chances = fluid.data("chances", [None, 10])
        >>> label = fluid.data("label", [None, 1], "int64")
        >>> fluid.layers.cross_entropy(chances, label).shape
        (-1, 1)
    """
    if soft_label:
        attrs = {"soft_label": True, "ignore_index": ignore_index}
        inputs = {"X": input, "Label": label}
        helper = LayerHelper("cross_entropy")
        return helper.apply("cross_entropy", inputs, attrs, slot="Y", dtype=input.dtype)
    inputs, outputs = {"X": input, "Label": label}, ("Y", "XShape", "MatchX")
    made = dict.fromkeys(outputs, input.dtype)
    return append_all("cross_entropy2", inputs, {"ignore_index": ignore_index}, made, constant=())[
        0
    ]


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

    logits: [..., classes] (with axis=-1); label: int64 [..., 1], or with soft_label as logits.
    Returns [..., 1], and the softmax in the shape of logits.

    Examples:
        >>> logits = fluid.data("logits", [None, 10])
        >>> label = fluid.data("label", [None, 1], "int64")
        >>> fluid.layers.softmax_with_cross_entropy(logits, label).shape
        (-1, 1)
    """
    softmax, loss = declared("softmax_with_cross_entropy", locals())
    return (loss, softmax) if return_softmax else loss


def square_error_cost(input: Variable, label: Variable) -> Variable:
    """Return (input - label)^2, element by element.

    Both of one shape, float32 or float64, which is that of the result.

    Examples:
        >>> a = fluid.layers.assign(np.array([3.0], "float32"))
        >>> b = fluid.layers.assign(np.array([1.0], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.square_error_cost(a, b)])
        [array([4.], dtype=float32)]
    """
    helper = LayerHelper("square_error_cost")
    inputs = {"X": input, "Y": label}
    difference = helper.apply("elementwise_sub", inputs, dtype=input.dtype)
    return helper.apply("square", {"X": difference}, dtype=input.dtype)


def mse_loss(input: Variable, label: Variable) -> Variable:
    """Return the mean of (input - label)^2, of shape [1].

    Examples:
        >>> a = fluid.layers.assign(np.array([3.0, 1.0], "float32"))
        >>> b = fluid.layers.assign(np.array([1.0, 1.0], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.mse_loss(a, b)])
        [array([2.], dtype=float32)]
    """
    cost = square_error_cost(input, label)
    attrs = {"dim": [0], "keep_dim": False, "reduce_all": True}
    return LayerHelper("reduce_mean").apply("reduce_mean", {"X": cost}, attrs, dtype=input.dtype)


def sigmoid_cross_entropy_with_logits(
    x: Variable,
    label: Variable,
    ignore_index: int = IGNORE_INDEX,
    name: str | None = None,
    normalize: bool = False,
) -> Variable:
    """Return the cross entropy of sigmoid(x), element by element; ``label`` is like ``x``.

    It is 0 where the label equals ignore_index; normalize: divided by the number of others.

    Examples:
        >>> x = fluid.data("x", [None, 1])
        >>> label = fluid.data("label", [None, 1])
        >>> fluid.layers.sigmoid_cross_entropy_with_logits(x, label).shape
        (-1, 1)
    """
    return declared("sigmoid_cross_entropy_with_logits", locals())


def log_loss(
    input: Variable, label: Variable, epsilon: float = 1e-4, name: str | None = None
) -> Variable:
    """Return -label log(input + epsilon) - (1 - label) log(1 - input + epsilon).

    input: probabilities; label: 0 or 1; both float32 of one shape, which is that of the result.

    Examples:
        >>> chance = fluid.data("chance", [None, 1])
        >>> label = fluid.data("label", [None, 1])
        >>> fluid.layers.log_loss(chance, label).shape
        (-1, 1)
    """
    return declared("log_loss", locals(), Predicted=input, Labels=label)


def huber_loss(input: Variable, label: Variable, delta: float) -> Variable:
    """Return d^2 / 2 where |d| <= delta, else delta (|d| - delta / 2), for d = label - input.

    Both float32 of one shape, which is that of the result.

    Examples:
        >>> x = fluid.data("x", [None, 1])
        >>> y = fluid.data("y", [None, 1])
        >>> fluid.layers.huber_loss(x, y, delta=1.0).shape
        (-1, 1)
    """
    return declared("huber_loss", locals(), X=input, Y=label)[1]


def smooth_l1(
    x: Variable,
    y: Variable,
    inside_weight: Variable | None = None,
    outside_weight: Variable | None = None,
    sigma: float | None = None,
) -> Variable:
    """Return the sum per row of outside_weight * smooth_l1(inside_weight * (x - y)), as [n, 1].

    Examples:
        >>> x = fluid.data("x", [None, 4])
        >>> y = fluid.data("y", [None, 4])
        >>> fluid.layers.smooth_l1(x, y).shape
        (-1, 1)
    """
    return declared("smooth_l1_loss", {**locals(), "sigma": 1.0 if sigma is None else sigma})[1]


def label_smooth(
    label: Variable,
    prior_dist: Variable | None = None,
    epsilon: float = 0.1,
    dtype: str = "float32",
    name: str | None = None,
) -> Variable:
    """Return (1 - epsilon) label + epsilon prior; the prior is uniform, or given as [1, classes].

    ``dtype`` is accepted for Fluid's sake: the result has the label's.

    Examples:
        >>> label = fluid.data("label", [None, 10])
        >>> fluid.layers.label_smooth(label, epsilon=0.1).shape
        (-1, 10)
    """
    if not 0 <= epsilon <= 1:
        raise GraphError(f"label_smooth: epsilon must be within 0..1, got {epsilon}")
    label.stop_gradient = True
    return append("label_smooth", present(X=label, PriorDist=prior_dist), name, epsilon=epsilon)
