"""Instances filtered by tags, similarity focus, and detection mAP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.base.checks import whole
from hpcdist.base.errors import GraphError
from hpcdist.fluid.layers.helper import LayerHelper, append, append_all, present
from hpcdist.graph.variable import Variable

__all__ = ["detection_map", "filter_by_instag", "similarity_focus"]


def filter_by_instag(
    ins: Variable,
    ins_tag: Variable,
    filter_tag: Variable,
    is_lod: bool,
    out_val_if_empty: float = 0,
) -> list[Variable]:
    """Return the instances that have one of the tags ``filter_tag``, and a weight of 1 for each.

    ``is_lod``: instances are sequences of rows. ins_tag: a sequence of tags for each. If there are
    none, one row of ``out_val_if_empty`` with weight 0.
    """
    inputs = {"Ins": ins, "Ins_tag": ins_tag, "Filter_tag": filter_tag}
    attrs = {"is_lod": is_lod, "out_val_if_empty": out_val_if_empty}
    outputs = {"Out": ins.dtype, "LossWeight": "float64", "IndexMap": "int64"}
    return [*append_all("filter_by_instag", inputs, attrs, outputs, constant=("IndexMap",))[:2]]


def similarity_focus(
    input: Variable, axis: int, indexes: Sequence[int], name: str | None = None
) -> Variable:
    """Return 1 where a plane along ``axis`` has the largest numbers, one in a row and column.

    input: [N, A, B, C]. Of each plane in ``indexes`` the largest number counts first, then the
    largest in other rows and columns; all planes have 1 where one of these has one.
    """
    return append(
        "similarity_focus",
        {"X": input},
        name,
        axis=axis,
        indexes=[whole(index) for index in indexes],
    )


def detection_map(
    detect_res: Variable,
    label: Variable,
    class_num: int | None,
    background_label: int = 0,
    overlap_threshold: float = 0.3,
    evaluate_difficult: bool = True,
    has_state: Variable | None = None,
    input_states: Any = None,
    out_states: Any = None,
    ap_version: str = "integral",
) -> Variable:
    """Return the mean average precision of found boxes (class, score, x1, y1, x2, y2).

    label: (class, [difficult,] x1, y1, x2, y2); both in sequences, one per image. Boxes are in
    parts of the image. ``has_state``: if it is not 0, batches since it was are counted, too; the
    operator keeps them, not ``input_states``. ap_version: integral or 11point.
    """
    if has_state is None and (input_states is not None or out_states is not None):
        raise GraphError("detection_map: states need has_state, which says whether they count")
    helper = LayerHelper("detection_map")
    inputs = present(DetectRes=detect_res, Label=label, HasState=has_state)
    attrs = {
        "background_label": background_label,
        "overlap_threshold": float(overlap_threshold),
        "evaluate_difficult": evaluate_difficult,
        "ap_type": ap_version,
        "class_num": class_num,
    }
    kind = helper.layer_type
    return helper.apply(kind, inputs, attrs, slot="MAP", dtype="float32", stop_gradient=True)
