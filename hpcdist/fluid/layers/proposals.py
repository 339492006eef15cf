"""Two-stage detectors and feature pyramids: region proposals and their training targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid.layers.boxes import suppressed
from hpcdist.fluid.layers.helper import LayerHelper, append_all, declared, declared_attrs
from hpcdist.fluid.layers.tensor import gather, reshape
from hpcdist.graph.variable import Variable

__all__ = [
    "box_decoder_and_assign",
    "collect_fpn_proposals",
    "distribute_fpn_proposals",
    "generate_proposal_labels",
    "generate_proposals",
    "locality_aware_nms",
    "matrix_nms",
    "retinanet_detection_output",
    "retinanet_target_assign",
    "rpn_target_assign",
]


def _learnt(
    kind: str, arguments: Mapping[str, Any], classes: int, anchors: Variable
) -> tuple[Variable, ...]:
    """Choose anchors to learn from, and take what is predicted of them: scores and codes."""
    inputs = {**arguments, "Anchor": anchors}
    location, scored, *targets = declared(kind, inputs, None, order=("TargetLabel", "TargetBBox"))
    scores = gather(reshape(arguments["cls_logits"], [-1, classes]), scored)
    codes = gather(reshape(arguments["bbox_pred"], [-1, 4]), location)
    return scores, codes, *targets


def rpn_target_assign(
    bbox_pred: Variable,
    cls_logits: Variable,
    anchor_box: Variable,
    anchor_var: Variable,
    gt_boxes: Variable,
    is_crowd: Variable,
    im_info: Variable,
    rpn_batch_size_per_im: int = 256,
    rpn_straddle_thresh: float = 0.0,
    rpn_fg_fraction: float = 0.5,
    rpn_positive_overlap: float = 0.7,
    rpn_negative_overlap: float = 0.3,
    use_random: bool = True,
) -> tuple[Variable, ...]:
    """Choose anchors to learn from: scores, codes, labels [F + B, 1], codes wanted, their weights.

    bbox_pred: [N, anchors, 4], cls_logits: [N, anchors, 1]; gt_boxes: sequences, one per image;
    im_info: (rows, columns, scale).
    """
    return _learnt("rpn_target_assign", locals(), 1, anchor_box)


def retinanet_target_assign(
    bbox_pred: Variable,
    cls_logits: Variable,
    anchor_box: Variable,
    anchor_var: Variable,
    gt_boxes: Variable,
    gt_labels: Variable,
    is_crowd: Variable,
    im_info: Variable,
    num_classes: int = 1,
    positive_overlap: float = 0.5,
    negative_overlap: float = 0.4,
) -> tuple[Variable, ...]:
    """Like `rpn_target_assign`, of all anchors; also return how many fit in each image.

    That is one more than there are, as in Fluid. cls_logits: [N, anchors, num_classes].
    """
    return _learnt("retinanet_target_assign", locals(), num_classes, anchor_box)


def generate_proposals(
    scores: Variable,
    bbox_deltas: Variable,
    im_info: Variable,
    anchors: Variable,
    variances: Variable,
    pre_nms_top_n: int = 6000,
    post_nms_top_n: int = 1000,
    nms_thresh: float = 0.5,
    min_size: float = 0.1,
    eta: float = 1.0,
    name: str | None = None,
    return_rois_num: bool = False,
) -> tuple[Variable, ...]:
    """Return the boxes of the best anchors that no better one covers, and their scores.

    scores: [N, anchors, rows, columns]; bbox_deltas: 4 for each anchor. Both results are in
    sequences, one per image; ``return_rois_num``: where these end, too.
    """
    outs = declared("generate_proposals", locals(), None)
    return outs if return_rois_num else outs[:2]


def generate_proposal_labels(
    rpn_rois: Variable,
    gt_classes: Variable,
    is_crowd: Variable,
    gt_boxes: Variable,
    im_info: Variable,
    batch_size_per_im: int = 256,
    fg_fraction: float = 0.25,
    fg_thresh: float = 0.25,
    bg_thresh_hi: float = 0.5,
    bg_thresh_lo: float = 0.0,
    bbox_reg_weights: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    class_nums: int | None = None,
    use_random: bool = True,
    is_cls_agnostic: bool = False,
    is_cascade_rcnn: bool = False,
) -> tuple[Variable, ...]:
    """Choose regions to learn from: boxes, classes (0: nothing), codes wanted, weights, weights.

    Codes and weights are [regions, 4 * class_nums]; GraphError if ``class_nums`` is not given.
    """
    if class_nums is None:
        raise GraphError("generate_proposal_labels: class_nums must be given, 0 being nothing")
    return declared("generate_proposal_labels", locals(), None)


def distribute_fpn_proposals(
    fpn_rois: Variable,
    min_level: int,
    max_level: int,
    refer_level: int,
    refer_scale: int,
    name: str | None = None,
) -> tuple[list[Variable], Variable]:
    """Divide regions over levels by their sizes; return them, and where each is after the others.

    One of ``refer_scale`` pixels' side belongs to ``refer_level``, one twice as large to the next.

    fpn_rois: [regions, 4] in sequences, one per image. Returns one such value per level, and int32
    [regions, 1].
    """
    helper = LayerHelper("distribute_fpn_proposals", name)
    count = max_level - min_level + 1
    parts = [helper.new_var(fpn_rois.dtype) for _ in range(count)]
    restore = helper.new_var("int32", stop_gradient=True)
    attrs = declared_attrs(helper.layer_type, locals())
    outputs = {"MultiFpnRois": parts, "RestoreIndex": restore}
    helper.append_op(helper.layer_type, {"FpnRois": fpn_rois}, outputs, attrs)
    return parts, restore


def collect_fpn_proposals(
    multi_rois: Sequence[Variable],
    multi_scores: Sequence[Variable],
    min_level: int,
    max_level: int,
    post_nms_top_n: int,
    name: str | None = None,
) -> Variable:
    """Return the best regions of all levels, in sequences, one per image.

    multi_rois: [n, 4] and multi_scores: [n, 1] per level, in sequences. Returns [at most
    post_nms_top_n, 4] in sequences.
    """
    count = max_level - min_level + 1
    inputs = {
        "MultiLevelRois": list(multi_rois[:count]),
        "MultiLevelScores": list(multi_scores[:count]),
    }
    attrs, outputs = {"post_nms_topN": post_nms_top_n}, {"FpnRois": multi_rois[0].dtype}
    return append_all("collect_fpn_proposals", inputs, attrs, outputs, name)[0]


def box_decoder_and_assign(
    prior_box: Variable,
    prior_box_var: Variable,
    target_box: Variable,
    box_score: Variable,
    box_clip: float,
    name: str | None = None,
) -> tuple[Variable, ...]:
    """Return the box of each class [N, 4 * classes], and that of the likeliest [N, 4].

    Class 0 is the background. ``box_clip``: the largest logarithm of a factor of a side.
    """
    return declared("box_decoder_and_assign", locals())


# -- which are kept --------------------------------------------------------------------------------
def retinanet_detection_output(
    bboxes: Sequence[Variable],
    scores: Sequence[Variable],
    anchors: Sequence[Variable],
    im_info: Variable,
    score_threshold: float = 0.05,
    nms_top_k: int = 1000,
    keep_top_k: int = 100,
    nms_threshold: float = 0.3,
    nms_eta: float = 1.0,
) -> Variable:
    """Return (class, score, box) of all levels' boxes that no better one of their class covers.

    bboxes: [N, anchors, 4] of each level, scores: [N, anchors, classes]. As in Fluid, nms_eta is 1,
    whatever is given. Rows are in sequences, one per image.
    """
    return declared("retinanet_detection_output", {**locals(), "nms_eta": 1.0}, None)


def locality_aware_nms(
    bboxes: Variable,
    scores: Variable,
    score_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    nms_threshold: float = 0.3,
    normalized: bool = True,
    nms_eta: float = 1.0,
    background_label: int = -1,
    name: str | None = None,
) -> Variable:
    """Merge neighbours that share much, then return (0, score, box) of those nothing covers.

    bboxes: [N, M, 4], or convex polygons [N, M, 8, 16, 24 or 32]; scores: [N, 1, M].
    """
    options = score_threshold, nms_top_k, keep_top_k, nms_threshold, normalized, nms_eta
    return suppressed("locality_aware_nms", name, bboxes, scores, *options, background_label)[0]


def matrix_nms(
    bboxes: Variable,
    scores: Variable,
    score_threshold: float,
    post_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    use_gaussian: bool = False,
    gaussian_sigma: float = 2.0,
    background_label: int = 0,
    normalized: bool = True,
    return_index: bool = False,
    name: str | None = None,
) -> Any:
    """Lower scores by what better boxes cover; return (class, score, box) of those left.

    bboxes: [N, M, 4], scores: [N, classes, M]. Rows are in sequences, one per image.
    """
    out, index = declared("matrix_nms", locals(), None)
    return (out, index) if return_index else out
