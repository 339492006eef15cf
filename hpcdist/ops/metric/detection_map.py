"""detection_map: mean average precision of found boxes (Everingham et al., 2010)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hpcdist.base.errors import FeedError, GraphError
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import not_on_rows
from hpcdist.graph.values import Value
from hpcdist.ops.detection.boxes import overlaps
from hpcdist.ops.detection.proposals import rows_of

Scored = dict[int, list[tuple[float, bool]]]  # by class: scores, and whether a box was found


@dataclass
class MatchTotals:
    """What was found in the batches since the last reset; kept by the operator, not in a scope."""

    name: str
    count: int = 0
    positives: dict[int, int] = field(default_factory=dict)
    scored: Scored = field(default_factory=dict)
    _added: int = 0  # batches that this process has added

    def begin(self, goes_on: bool) -> None:
        """Count a batch more; forget the others unless it ``goes_on``."""
        if not goes_on:
            self.count = self._added = 0
            self.positives, self.scored = {}, {}
        elif self.count != self._added:
            raise FeedError(
                f"{self.name}: {self.count} batches were added up before, which are not in this "
                "process; call reset() of the metric, and start again"
            )
        self.count += 1
        self._added += 1


def _score(detections, true, threshold: float, evaluate_difficult: bool, into: MatchTotals) -> None:
    """Add one image: (class, score, box) of what was found, (class, [difficult,] box) of truth."""
    labels, difficult = true[:, 0].astype(int), np.zeros(len(true), np.bool_)
    if true.shape[1] == 6:
        difficult = true[:, 1] != 0
    counted = np.ones(len(true), np.bool_) if evaluate_difficult else ~difficult
    for label in labels[counted].tolist():
        into.positives[label] = into.positives.get(label, 0) + 1
    for label in np.unique(detections[:, 0].astype(int)).tolist():
        of_label = detections[detections[:, 0].astype(int) == label]
        of_label = of_label[np.argsort(-of_label[:, 1], kind="stable")]
        scored = into.scored.setdefault(label, [])
        places = np.flatnonzero(labels == label)
        if not len(places):
            scored += [(float(score), False) for score in of_label[:, 1]]
            continue
        shared = overlaps(np, np.clip(of_label[:, 2:6], 0, 1), true[places, -4:], True)
        matched = np.zeros(len(places), np.bool_)
        for score, row in zip(of_label[:, 1].tolist(), shared):
            best = int(row.argmax())
            if row[best] <= threshold:
                scored.append((score, False))
            elif evaluate_difficult or not difficult[places[best]]:
                scored.append((score, not matched[best]))
                matched[best] = True


def _mean_precision(totals: MatchTotals, ap_type: str) -> float:
    total, classes = 0.0, 0
    for label, positives in sorted(totals.positives.items()):
        if label not in totals.scored:
            classes += 1
            continue
        pairs = sorted(totals.scored[label], key=lambda pair: -pair[0])
        hits = np.cumsum([hit for _, hit in pairs])
        precision, recall = hits / np.arange(1, len(hits) + 1), hits / positives
        if ap_type == "11point":
            total += sum(precision[recall >= k / 10].max(initial=0) for k in range(11)) / 11
        else:
            total += float((precision * np.diff(recall, prepend=0)).sum())
        classes += 1
    return total / classes if classes else 0.0


def _map(
    detections: Value,
    label: Value,
    has_state,
    overlap_threshold: float,
    evaluate_difficult: bool,
    ap_type: str,
    class_num: int,
    state: MatchTotals,
) -> Value:
    state.begin(has_state is not None and bool(has_state.number))
    of_found = rows_of(detections, "detection_map", "DetectRes")
    of_true = rows_of(label, "detection_map", "Label")
    if len(of_found) != len(of_true):
        raise FeedError(
            f"detection_map: boxes of {len(of_found)} images, true ones of {len(of_true)}"
        )
    for detected, true in zip(of_found, of_true):
        if detected.shape[1] != 6:  # what layers of detectors give where they find nothing at all
            detected = np.zeros((0, 6))
        _score(detected, true, overlap_threshold, evaluate_difficult, state)
    return Value(np.array([_mean_precision(state, ap_type)], np.float32))


def _map_infer(detections: Meta, label: Meta, has_state, ap_type: str, **_) -> Meta:
    if ap_type not in ("integral", "11point"):
        raise GraphError(f"ap_version must be integral or 11point, got {ap_type!r}")
    if label.shape[1] not in (5, 6):
        raise GraphError(f"true boxes must be [n, 5 or 6], got {label.shape}")
    return Meta((1,), "float32")


define(
    "detection_map",
    "DetectRes, Label, HasState? -> MAP",
    rows=not_on_rows,
    attrs={
        "overlap_threshold": 0.3,
        "evaluate_difficult": True,
        "ap_type": "integral",
        "class_num": 1,
    },
    infer=_map_infer,
    values=_map,
    state=MatchTotals,
)
