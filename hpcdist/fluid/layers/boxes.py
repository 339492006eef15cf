"""Boxes in images: priors and anchors, overlaps, codes, suppression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.base.checks import whole
from hpcdist.base.errors import GraphError
from hpcdist.fluid.layers.helper import LayerHelper, append, append_all, declared, declared_attrs
from hpcdist.fluid.layers.nn import softmax
from hpcdist.fluid.layers.tensor import slice, transpose
from hpcdist.graph.dtypes import DTypeLike
from hpcdist.graph.variable import Variable

__all__ = [
    "anchor_generator",
    "box_clip",
    "box_coder",
    "density_prior_box",
    "detection_output",
    "iou_similarity",
    "multiclass_nms",
    "nonzero",
    "polygon_box_transform",
    "prior_box",
    "unique",
    "unique_with_counts",
    "where",
    "yolo_box",
    "yolov3_loss",
]

_VARIANCE = (0.1, 0.1, 0.2, 0.2)


def _floats(value: Any) -> list[float]:
    return [float(v) for v in (value if isinstance(value, (list, tuple)) else [value])]


def prior_box(
    input: Variable,
    image: Variable,
    min_sizes: Any,
    max_sizes: Any = None,
    aspect_ratios: Any = (1.0,),
    variance: Sequence[float] = _VARIANCE,
    flip: bool = False,
    clip: bool = False,
    steps: Sequence[float] = (0.0, 0.0),
    offset: float = 0.5,
    name: str | None = None,
    min_max_aspect_ratios_order: bool = False,
) -> tuple[Variable, ...]:
    """Return prior boxes [rows, columns, priors, 4] of a feature map, and their variances.

    Examples:
        >>> features = fluid.data("features", [None, 8, 6, 6])
        >>> images = fluid.data("images", [None, 3, 48, 48])
        >>> boxes, variances = fluid.layers.prior_box(features, images, min_sizes=[16.0])
        >>> boxes.shape
        (6, 6, 1, 4)
    """
    largest = _floats(max_sizes or ())
    max_sizes = largest if largest and largest[0] > 0 else None
    min_sizes, aspect_ratios = _floats(min_sizes), _floats(aspect_ratios)
    step_w, step_h = steps
    return declared("prior_box", locals(), None, variances=variance)


def density_prior_box(
    input: Variable,
    image: Variable,
    densities: Sequence[int] | None = None,
    fixed_sizes: Sequence[float] | None = None,
    fixed_ratios: Sequence[float] | None = None,
    variance: Sequence[float] = _VARIANCE,
    clip: bool = False,
    steps: Sequence[float] = (0.0, 0.0),
    offset: float = 0.5,
    flatten_to_2d: bool = False,
    name: str | None = None,
) -> tuple[Variable, ...]:
    """Return prior boxes of fixed sizes, ``densities[i]`` squared of size i over each cell."""
    if not densities or not fixed_sizes or not fixed_ratios or len(densities) != len(fixed_sizes):
        raise GraphError("density_prior_box: as many densities as fixed_sizes must be given")
    densities = [whole(d) for d in densities]
    fixed_sizes, fixed_ratios = _floats(fixed_sizes), _floats(fixed_ratios)
    step_w, step_h = steps
    return declared("density_prior_box", locals(), None, variances=variance)


def anchor_generator(
    input: Variable,
    anchor_sizes: Any = None,
    aspect_ratios: Any = None,
    variance: Sequence[float] = _VARIANCE,
    stride: Sequence[float] | None = None,
    offset: float = 0.5,
    name: str | None = None,
) -> tuple[Variable, ...]:
    """Return anchors [rows, columns, anchors, 4] in pixels, and their variances."""
    if stride is None or len(stride) != 2:
        raise GraphError(f"anchor_generator: stride must be (width, height), got {stride}")
    anchor_sizes, aspect_ratios = _floats(anchor_sizes), _floats(aspect_ratios)
    stride = _floats(stride)
    return declared("anchor_generator", locals(), None, variances=variance)


def iou_similarity(
    x: Variable, y: Variable, box_normalized: bool = True, name: str | None = None
) -> Variable:
    """Return |x and y| / |x or y| of all pairs of boxes.

    x: [n, 4] (lod_level 0 or 1), y: [m, 4], float32 boxes (x1, y1, x2, y2). Returns [n, m] with the
    sequences of x.

    Examples:
        >>> x = fluid.layers.assign(np.array([[0, 0, 1, 1]], "float32"))
        >>> y = fluid.layers.assign(np.array([[0, 0, 1, 2]], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.iou_similarity(x, y)])
        [array([[0.5]], dtype=float32)]
    """
    return append("iou_similarity", {"X": x, "Y": y}, name, box_normalized=box_normalized)


def box_coder(
    prior_box: Variable,
    prior_box_var: Variable | Sequence[float],
    target_box: Variable,
    code_type: str = "encode_center_size",
    box_normalized: bool = True,
    name: str | None = None,
    axis: int = 0,
) -> Variable:
    """Encode boxes by their distances from priors (encode_center_size), or decode them.

    prior_box: [m, 4]; target_box: [n, 4] to encode, [n, m, 4] to decode (or as ``axis`` says),
    float32. Returns [n, m, 4].
    """
    inputs = {"PriorBox": prior_box, "TargetBox": target_box}
    attrs = {"code_type": code_type, "box_normalized": box_normalized, "axis": axis}
    if isinstance(prior_box_var, Variable):
        inputs["PriorBoxVar"] = prior_box_var
    else:
        attrs["variance"] = _floats(list(prior_box_var))
    helper = LayerHelper("box_coder", name)
    return helper.apply("box_coder", inputs, attrs, slot="OutputBox", dtype=prior_box.dtype)


def box_clip(input: Variable, im_info: Variable, name: str | None = None) -> Variable:
    """Cut boxes off at the borders of their image: im_info has (rows, columns, scale)."""
    return append("box_clip", {"Input": input, "ImInfo": im_info}, name, slot="Output")


def yolo_box(
    x: Variable,
    img_size: Variable,
    anchors: Sequence[int],
    class_num: int,
    conf_thresh: float,
    downsample_ratio: int,
    clip_bbox: bool = True,
    name: str | None = None,
    scale_x_y: float = 1.0,
) -> tuple[Variable, ...]:
    """Return boxes and scores that the head of a YOLO network says.

    x: [n, anchors * (5 + classes), rows, columns]; img_size: int32 [n, 2] (height, width). Returns
    boxes [n, rows * columns * anchors, 4] and scores [n, rows * columns * anchors, classes].
    """
    anchors = [whole(a) for a in anchors]
    return declared("yolo_box", locals(), None)


def yolov3_loss(
    x: Variable,
    gt_box: Variable,
    gt_label: Variable,
    anchors: Sequence[int],
    anchor_mask: Sequence[int],
    class_num: int,
    ignore_thresh: float,
    downsample_ratio: int,
    gt_score: Variable | None = None,
    use_label_smooth: bool = True,
    name: str | None = None,
    scale_x_y: float = 1.0,
) -> Variable:
    """Return the loss of each image: where boxes are, whether there are any, of which class.

    gt_box: [N, boxes, 4], center, width and height in parts of the image; 0 where there is none.
    """
    anchors, anchor_mask = [whole(a) for a in anchors], [whole(a) for a in anchor_mask]
    return declared("yolov3_loss", locals(), ("ObjectnessMask", "GTMatchMask"))[0]


def polygon_box_transform(input: Variable, name: str | None = None) -> Variable:
    """Turn distances of corners from pixels of a 4 times smaller map into places.

    input: float32 [n, 2 * corners, rows, columns]; the result has its shape.
    """
    return append("polygon_box_transform", {"Input": input}, name, slot="Output")


# -- which are kept --------------------------------------------------------------------------------
def suppressed(
    kind: str,
    name: str | None,
    bboxes: Variable,
    scores: Variable,
    score_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    nms_threshold: float = 0.3,
    normalized: bool = True,
    nms_eta: float = 1.0,
    background_label: int = 0,
    **more: Any,
) -> tuple[Variable, ...]:
    """Append what keeps the best boxes; ``more``: its slots behind Out, with types."""
    attrs = declared_attrs(kind, locals())
    inputs = {"BBoxes": bboxes, "Scores": scores}
    return append_all(kind, inputs, attrs, {"Out": bboxes.dtype, **more}, name)


def multiclass_nms(
    bboxes: Variable,
    scores: Variable,
    score_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    nms_threshold: float = 0.3,
    normalized: bool = True,
    nms_eta: float = 1.0,
    background_label: int = 0,
    name: str | None = None,
) -> Variable:
    """Return (class, score, box) of boxes [N, M, 4] that no better one of their class overlaps.

    scores: [N, classes, M]. Rows are in sequences, one for each image. Boxes that single classes
    have are [M, classes, 4], their scores [M, classes], and both come in such sequences.
    """
    options = score_threshold, nms_top_k, keep_top_k, nms_threshold, normalized, nms_eta
    return suppressed("multiclass_nms", name, bboxes, scores, *options, background_label)[0]


def detection_output(
    loc: Variable,
    scores: Variable,
    prior_box: Variable,
    prior_box_var: Any,
    background_label: int = 0,
    nms_threshold: float = 0.3,
    nms_top_k: int = 400,
    keep_top_k: int = 200,
    score_threshold: float = 0.01,
    nms_eta: float = 1.0,
    return_index: bool = False,
) -> Any:
    """Decode boxes, and keep those that no better one of their class overlaps.

    ``loc`` [N, M, 4] are codes of the M boxes ``prior_box`` [M, 4], ``scores`` [N, M, classes]
    before softmax. Returns what `multiclass_nms` does; with ``return_index`` also int32 places.
    As in Fluid, the background is class 0 and nms_eta 1, whatever is given.
    """
    decoded = box_coder(prior_box, prior_box_var, loc, "decode_center_size")
    chances = transpose(softmax(scores), [0, 2, 1])
    chances.stop_gradient = True
    options = score_threshold, nms_top_k, keep_top_k, nms_threshold
    if not return_index:
        return multiclass_nms(decoded, chances, *options)
    return suppressed("multiclass_nms2", None, decoded, chances, *options, Index="int32")


# -- chosen by value -------------------------------------------------------------------------------
def where(condition: Variable) -> Variable:
    """Return the places [n, dimensions] of what is true; only the step knows how many.

    Examples:
        >>> x = fluid.layers.assign(np.array([True, False, True]))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.where(x)])
        [array([[0],
               [2]])]
    """
    return append("where_index", {"Condition": condition}, dtype="int64", stop_gradient=True)


def nonzero(input: Variable, as_tuple: bool = False) -> Any:
    """Return the places of what is not zero: int64 [n, dimensions], in row-major order.

    With ``as_tuple`` an int64 [n, 1] for each dimension. Only the step knows n; CPUPlace only.

    Examples:
        >>> x = fluid.layers.assign(np.array([[0, 1], [2, 0]]))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.nonzero(x)])
        [array([[0, 1],
               [1, 0]])]
    """
    helper = LayerHelper("nonzero")
    kind = {"in_dtype": input.dtype, "out_dtype": "bool"}
    places = where(helper.apply("cast", {"X": input}, kind, dtype="bool"))
    if not as_tuple:
        return places
    axes = range(len(input.shape))
    return tuple(slice(places, axes=[1], starts=[i], ends=[i + 1]) for i in axes)


def unique(x: Variable, dtype: DTypeLike = "int32") -> tuple[Variable, ...]:
    """Return the different numbers of a vector, in order, and which of them each element is.

    Examples:
        >>> x = fluid.layers.assign(np.array([3, 1, 3]))
        >>> fluid.Executor().run(fetch_list=list(fluid.layers.unique(x)))
        [array([3, 1]), array([0, 1, 0], dtype=int32)]
    """
    outputs = {"Out": x.dtype, "Index": dtype}
    return append_all("unique", {"X": x}, {"dtype": str(dtype)}, outputs)


def unique_with_counts(x: Variable, dtype: DTypeLike = "int32") -> tuple[Variable, ...]:
    """Like `unique`, and return how often each number occurs.

    Examples:
        >>> x = fluid.layers.assign(np.array([3, 1, 3]))
        >>> fluid.Executor().run(fetch_list=list(fluid.layers.unique_with_counts(x)))
        [array([3, 1]), array([0, 1, 0], dtype=int32), array([2, 1], dtype=int32)]
    """
    outputs = {"Out": x.dtype, "Index": dtype, "Count": dtype}
    return append_all("unique_with_counts", {"X": x}, {"dtype": str(dtype)}, outputs)
