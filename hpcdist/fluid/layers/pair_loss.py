"""Losses of pairs, ranks, centers, clicks and overlaps; and the divergence of distributions."""

from __future__ import annotations

from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid.initializer import Constant
from hpcdist.fluid.layers.activation import square
from hpcdist.fluid.layers.control_flow import equal
from hpcdist.fluid.layers.embedding import one_hot
from hpcdist.fluid.layers.helper import LayerHelper, append, append_all
from hpcdist.fluid.layers.loss import softmax_with_cross_entropy
from hpcdist.fluid.layers.math import matmul, reduce_mean, reduce_sum
from hpcdist.fluid.layers.param_attr import ParamLike
from hpcdist.fluid.layers.tensor import cast, expand, reshape, transpose
from hpcdist.graph.variable import Variable

__all__ = [
    "bpr_loss",
    "center_loss",
    "continuous_value_model",
    "dice_loss",
    "kldiv_loss",
    "margin_rank_loss",
    "npair_loss",
    "rank_loss",
    "sigmoid_focal_loss",
    "teacher_student_sigmoid_loss",
]


def bpr_loss(input: Variable, label: Variable, name: str | None = None) -> Variable:
    """Return for each row the mean over other classes of log(1 + exp(score - score of label)).

    input: scores [rows, classes]; label: int64 [rows, 1]. Returns [rows, 1].

    Examples:
        >>> scores = fluid.data("scores", [None, 10])
        >>> label = fluid.data("label", [None, 1], "int64")
        >>> fluid.layers.bpr_loss(scores, label).shape
        (-1, 1)
    """
    return append("bpr_loss", {"X": input, "Label": label}, name, slot="Y")


def rank_loss(
    label: Variable, left: Variable, right: Variable, name: str | None = None
) -> Variable:
    """Return log(1 + exp(left - right)) - label (left - right) (RankNet, Burges et al., 2005).

    All are floats [rows, 1]: two scores, and a label, 1 where ``left`` ranks higher, else 0.

    Examples:
        >>> label, left, right = (fluid.data(n, [None, 1]) for n in ("label", "a", "b"))
        >>> fluid.layers.rank_loss(label, left, right).shape
        (-1, 1)
    """
    inputs = {"Label": label, "Left": left, "Right": right}
    return LayerHelper("rank_loss", name).apply("rank_loss", inputs, dtype=left.dtype)


def margin_rank_loss(
    label: Variable, left: Variable, right: Variable, margin: float = 0.1, name: str | None = None
) -> Variable:
    """Return max(0, margin - label (left - right)); label is 1 or -1.

    All three [rows, 1], float32. Returns [rows, 1].

    Examples:
        >>> label = fluid.layers.assign(np.array([[1.0]], "float32"))
        >>> left = fluid.layers.assign(np.array([[0.25]], "float32"))
        >>> right = fluid.layers.assign(np.array([[0.5]], "float32"))
        >>> out = fluid.layers.margin_rank_loss(label, left, right, margin=0.5)
        >>> fluid.Executor().run(fetch_list=[out])
        [array([[0.75]], dtype=float32)]
    """
    inputs, attrs = {"Label": label, "X1": left, "X2": right}, {"margin": float(margin)}
    outputs = dict.fromkeys(("Out", "Activated"), left.dtype)
    return append_all("margin_rank_loss", inputs, attrs, outputs, name, ("Activated",))[0]


def center_loss(
    input: Variable,
    label: Variable,
    num_classes: int,
    alpha: float | Variable,
    param_attr: ParamLike,
    update_center: bool = True,
) -> Variable:
    """Return half the squared distance of each row to its class's center, which moves towards it.

    ``alpha``: how fast the centers move; the gradient does not reach them.

    Examples:
        >>> x, label = fluid.data("x", [None, 4]), fluid.data("label", [None, 1], "int64")
        >>> fluid.layers.center_loss(x, label, num_classes=10, alpha=0.1, param_attr=None).shape
        (-1, 1)
    """
    helper = LayerHelper("center_loss")
    centers = helper.create_parameter(param_attr, [num_classes, input.shape[1]], input.dtype)
    if centers is None:
        raise GraphError("center_loss needs centers: param_attr must not be False")
    centers.stop_gradient = True
    rate: Any = alpha
    if not isinstance(alpha, Variable):
        facts: dict[str, Any] = {"shape": [1], "dtype": "float32", "persistable": True}
        rate = helper.create_global_variable(None, Constant(float(alpha)), **facts)
        rate.stop_gradient = True
    difference, loss = helper.new_var(input.dtype, stop_gradient=True), helper.new_var(input.dtype)
    helper.append_op(
        "center_loss",
        {"X": input, "Label": label, "Centers": centers, "CenterUpdateRate": rate},
        {"SampleCenterDiff": difference, "Loss": loss, "CentersOut": centers},
        {"cluster_num": num_classes, "need_update": update_center},
    )
    return loss


def teacher_student_sigmoid_loss(
    input: Variable,
    label: Variable,
    soft_max_up_bound: float = 15.0,
    soft_max_lower_bound: float = -15.0,
) -> Variable:
    """Return cross entropies with a click and, if there is one, a teacher's value z in [0, 1].

    label: -2 no click, -1 click; with a teacher z or 1 + z.

    Examples:
        >>> x, label = fluid.data("x", [None, 1]), fluid.data("label", [None, 1])
        >>> fluid.layers.teacher_student_sigmoid_loss(x, label).shape
        (-1, 1)
    """
    return append(
        "teacher_student_sigmoid_loss",
        {"X": input, "Label": label},
        slot="Y",
        soft_max_lower_bound=float(soft_max_lower_bound),
        soft_max_up_bound=float(soft_max_up_bound),
    )


def continuous_value_model(input: Variable, cvm: Variable, use_cvm: bool = True) -> Variable:
    """Turn shows and clicks, the first two columns, into logarithms, or leave them out.

    Their gradients are ``cvm``, the shows and clicks of each row.
    """
    return append("cvm", {"X": input, "CVM": cvm}, slot="Y", use_cvm=use_cvm)


def kldiv_loss(
    x: Variable, target: Variable, reduction: str = "mean", name: str | None = None
) -> Variable:
    """Return target (log(target) - x), x a logarithm; reduction: none, mean, sum or batchmean.

    x and target of one shape. Returns that shape for none, else [1].

    Examples:
        >>> x, target = fluid.data("x", [None, 5]), fluid.data("target", [None, 5])
        >>> fluid.layers.kldiv_loss(x, target, reduction="mean").shape
        (1,)
    """
    return append("kldiv_loss", {"X": x, "Target": target}, name, slot="Loss", reduction=reduction)


def sigmoid_focal_loss(
    x: Variable, label: Variable, fg_num: Variable, gamma: float = 2.0, alpha: float = 0.25
) -> Variable:
    """Return cross entropies of each class by itself that count hard examples more.

    label: [rows, 1], 0 the background; fg_num: [1], by how many rows all are divided.

    Examples:
        >>> x, label = fluid.data("x", [4, 3]), fluid.data("label", [4, 1], "int32")
        >>> count = fluid.layers.fill_constant([1], "int32", 2)
        >>> fluid.layers.sigmoid_focal_loss(x, label, count).shape
        (4, 3)
    """
    inputs = {"X": x, "Label": label, "FgNum": fg_num}
    return append("sigmoid_focal_loss", inputs, gamma=float(gamma), alpha=float(alpha))


def dice_loss(
    input: Variable, label: Variable, epsilon: float = 1e-5, name: str | None = None
) -> Variable:
    """Return the mean over rows of 1 - 2 |overlap| / (|input| + |label|).

    Examples:
        >>> shares = fluid.data("shares", [None, 8, 2])
        >>> label = fluid.data("label", [None, 8, 1], "int64")
        >>> fluid.layers.dice_loss(shares, label).shape
        (1,)
    """
    truth = one_hot(label, input.shape[-1])
    dims = list(range(1, len(input.shape)))
    overlap = reduce_sum(input * truth, dims)
    both = reduce_sum(input, dims) + reduce_sum(truth, dims)
    return reduce_mean(1 - overlap * 2 / (both + epsilon))


def npair_loss(
    anchor: Variable, positive: Variable, labels: Variable, l2_reg: float = 0.002
) -> Variable:
    """Return the cross entropy of which rows of ``positive`` have an anchor's label (Sohn, 2016).

    A quarter of ``l2_reg`` times the mean squared length of the rows is added.

    Examples:
        >>> x = fluid.data("x", [4, 8])
        >>> y = fluid.data("y", [4, 8])
        >>> label = fluid.data("label", [4])
        >>> fluid.layers.npair_loss(x, y, label).shape
        (1,)
    """
    rows = labels.shape[0]
    if rows < 0:
        raise GraphError("layers.npair_loss: the number of rows of labels must be known")
    row = expand(reshape(labels, [rows, 1]), [1, rows])
    alike = cast(equal(row, transpose(row, [1, 0])), "float32")
    alike = alike / reduce_sum(alike, 1, True)
    lengths = [reduce_mean(reduce_sum(square(v), 1)) for v in (anchor, positive)]
    penalty = (lengths[0] + lengths[1]) * (0.25 * l2_reg)
    scores = matmul(anchor, positive, transpose_y=True)
    entropy: Any = softmax_with_cross_entropy(scores, alike, soft_label=True)
    return penalty + reduce_mean(reduce_sum(alike * entropy, 0))
