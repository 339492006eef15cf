"""Two sequences of different lengths side by side: edit distances, and the CTC loss."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hpcdist.base.errors import FeedError, GraphError
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import Applied, How, MixesRows, OfRows
from hpcdist.ops.common import define_with_grad
from hpcdist.ops.host_loops import run_on_host
from hpcdist.ops.scratch import scratch
from hpcdist.ops.sequence.crf import lengths_within, spans, tag_of_each
from hpcdist.ops.sequence.pool_softmax_conv import rowwise, sequences_of
from hpcdist.ops.types import ArrayModule, Call, DeviceArray, Metas, Operands


def _pairs(**results: How) -> Any:
    """Treatment: each sample has a sequence on either side; results have one row for each."""

    def treat(op: Applied) -> dict[str, OfRows]:
        for operand in op.operands:
            allowed = operand.of == OfRows(How.ROWS) or operand.of.how is How.RAGGED
            if not allowed or operand.lod_level > 1:
                raise MixesRows(f"{operand.name!r} is {operand.of.how.value}")
        return {slot: OfRows(how) for slot, how in results.items()}

    return treat


def _sequences(type: str, sides: dict[str, Meta], lengths: Sequence[DeviceArray]) -> int:
    """Return how many pairs of sequences there are; -1 if that is not known."""
    present = [meta for meta in lengths if meta is not None]
    if len(present) == 1:
        raise GraphError(f"{type}: give the lengths of both sides, or of none")
    if present:
        return present[0].shape[0]
    counts = {sequences_of(meta, type, slot).sequences for slot, meta in sides.items()} - {-1}
    if len(counts) > 1:
        raise GraphError(f"{type}: the sides have {sorted(counts)} sequences")
    return counts.pop() if counts else -1


def _expect_pairs(type: str, **begins: DeviceArray) -> None:
    """Raise FeedError unless there are as many sequences on either side."""
    if len({len(side) for side in begins.values()}) > 1:
        counts = " and ".join(f"{slot} {len(side)}" for slot, side in begins.items())
        raise FeedError(f"{type}: expected as many sequences on both sides, got of {counts}")


# -- edit_distance ---------------------------------------------------------------------------------
def _distance_infer(hyps: Meta, refs: Meta, found_lengths, wanted_lengths, **_) -> Metas:
    sides = {"Hyps": hyps, "Refs": refs}
    count = _sequences("edit_distance", sides, (found_lengths, wanted_lengths))
    return Meta((count, 1), "float32"), Meta((1,), "int64")


def _distances(lods, normalized: bool, inputs: Operands, outputs: Operands) -> None:
    from hpcdist.ops.sequence.alignment_kernels import edit_distances

    hyps, refs, found_lengths, wanted_lengths = inputs
    out, count = outputs
    of_found = spans(lods[0], hyps.shape, found_lengths, "edit_distance")
    of_wanted = spans(lods[1], refs.shape, wanted_lengths, "edit_distance")
    lengths = of_wanted[1] - of_wanted[0]
    result = np.empty(len(lengths), np.int64)
    room = scratch("edit distance", (int(lengths.max(initial=0)) + 1,), np.int64)
    _expect_pairs("edit_distance", Hyps=of_found[0], Refs=of_wanted[0])
    found = tag_of_each("edit_distance", "Hyps", hyps, lods[0], hyps.shape, found_lengths)
    wanted = tag_of_each("edit_distance", "Refs", refs, lods[1], refs.shape, wanted_lengths)
    edit_distances(found, *of_found, wanted, *of_wanted, room, result)
    if normalized and not lengths.all():
        raise FeedError(
            f"edit_distance: reference {int(np.flatnonzero(lengths == 0)[0])} is empty, so no "
            "distance can be divided by its length; use normalized=False"
        )
    if out is not None:
        out.reshape(-1)[...] = result / lengths if normalized else result
    if count is not None:
        count.fill(len(lengths))


def _distance_bind(xp: ArrayModule, *operands, lods, normalized: bool) -> Call:
    loop = partial(_distances, lods, normalized)
    return run_on_host(xp, loop, operands[:4], operands[4:])


define(
    "edit_distance",
    "Hyps, Refs, HypsLength?, RefsLength? -> Out, SequenceNum",
    rows=_pairs(Out=How.ROWS, SequenceNum=How.SUM),
    attrs={"normalized": False},
    infer=_distance_infer,
    bind=_distance_bind,
    lods=("Hyps", "Refs"),
)


# -- warpctc ---------------------------------------------------------------------------------------
_CTC = {"blank": 0, "norm_by_times": False}


def _ctc_infer(logits: Meta, label: Meta, logits_length, label_length, blank: int, **_) -> Metas:
    sides = {"Logits": logits, "Label": label}
    count = _sequences("warpctc", sides, (logits_length, label_length))
    if not 0 <= blank < logits.shape[-1]:
        raise GraphError(f"warpctc: blank {blank} is not among the {logits.shape[-1]} classes")
    return Meta(logits.shape, logits.dtype), Meta((count, 1), logits.dtype)


def _row_spans(lod, shape, lengths) -> tuple[DeviceArray, DeviceArray, int]:
    """Return where each sequence's logits begin and end, and how far apart its steps are."""
    if lengths is None:
        return *spans(lod, shape, None, "warpctc"), 1
    longest, count = shape[:2]  # padded logits are [longest, sequences, classes]
    begins = np.arange(count, dtype=np.int64)
    return begins, begins + lengths_within(lengths, count, longest, "warpctc") * count, count


def _ctc(lods, blank: int, inputs: Operands, outputs: Operands) -> None:
    from hpcdist.ops.sequence.alignment_kernels import ctc

    logits, label, logits_length, label_length = inputs
    grad, loss = outputs
    begins, ends, step = _row_spans(lods[0], logits.shape, logits_length)
    label_begins, label_ends = spans(lods[1], label.shape, label_length, "warpctc")
    _expect_pairs("warpctc", Logits=begins, Label=label_begins)
    classes = logits.shape[-1]
    labels = tag_of_each("warpctc", "Label", label, lods[1], label.shape, label_length)
    for begin, end in zip(label_begins, label_ends):
        part = labels[begin:end]
        if len(part) and not (0 <= part.min() <= part.max() < classes and (part != blank).all()):
            raise FeedError(
                f"warpctc: labels must be in 0..{classes - 1} and not blank {blank}: {part}"
            )
    most = 2 * int((label_ends - label_begins).max(initial=0)) + 1
    longest = int(((ends - begins + step - 1) // step).max(initial=0))
    if grad is None:
        grad = scratch("ctc gradient", logits.shape, logits.dtype)
    grad.fill(0)
    ctc(
        logits.reshape(-1, classes),
        begins,
        ends,
        step,
        labels,
        label_begins,
        label_ends,
        blank,
        scratch("ctc", (2, longest, most), np.float64),
        scratch("ctc states", (most,), np.int64),
        loss.reshape(-1) if loss is not None else np.empty(len(begins), logits.dtype),
        grad.reshape(-1, classes),
    )


def _ctc_bind(xp: ArrayModule, *operands, lods, blank: int, **_) -> Call:
    return run_on_host(xp, partial(_ctc, lods, blank), operands[:4], operands[4:])


def _ctc_grad(lods, norm_by_times: bool, inputs: Operands, outputs: Operands) -> None:
    length, grad, dloss = inputs
    (dlogits,) = outputs
    begins, ends, step = _row_spans(lods[0], grad.shape, length)
    flat = grad.reshape(-1, grad.shape[-1])
    out = dlogits.reshape(flat.shape)
    out.fill(0)
    for begin, end, weight in zip(begins, ends, dloss.reshape(-1)):
        rows = slice(begin, end, step)
        times = (end - begin) // step
        out[rows] = flat[rows] * (weight / times if norm_by_times and times else weight)


def _ctc_grad_bind(xp: ArrayModule, logits, *operands, lods, norm_by_times: bool, **_) -> Call:
    loop = partial(_ctc_grad, lods, norm_by_times)
    return run_on_host(xp, loop, operands[:3], operands[3:])


define_with_grad(
    "warpctc",
    "Logits, Label, LogitsLength?, LabelLength? -> WarpCTCGrad, Loss",
    "Logits, LogitsLength?, WarpCTCGrad, Loss@GRAD -> Logits@GRAD",
    rows=_pairs(Loss=How.ROWS),
    attrs=_CTC,
    infer=_ctc_infer,
    bind=_ctc_bind,
    lods=("Logits", "Label"),
    grad_infer=lambda logits, *_, **__: rowwise(logits, logits.lod),
    grad_bind=_ctc_grad_bind,
    grad_shape_only=("Logits",),
    grad_lods=("Logits",),
)
