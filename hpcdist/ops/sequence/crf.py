"""Tags of the rows of sequences: linear-chain conditional random fields, and chunks of tags.

Rows are ragged, or padded [sequences, longest, ...] with the lengths as another operand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hpcdist.base.errors import FeedError, GraphError
from hpcdist.graph.lod import Lod
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import Applied, How, MixesRows, OfRows, common_rows
from hpcdist.ops.common import define_with_grad
from hpcdist.ops.host_loops import run_on_host
from hpcdist.ops.scratch import scratch
from hpcdist.ops.sequence.pool_softmax_conv import rowwise, sequences_of
from hpcdist.ops.types import ArrayModule, Attrs, Call, DeviceArray, Metas, Operands


# -- where sequences are ---------------------------------------------------------------------------
def expect_one_lod(type: str, **lods: Lod | None) -> None:
    """Raise FeedError unless the rows of two operands are grouped alike, where both are."""
    (first, of_first), (second, of_second) = lods.items()
    if of_first is None or of_second is None:
        return
    ends = [lod.last.tolist() for lod in (of_first, of_second)]
    if ends[0] != ends[1]:
        raise FeedError(
            f"{type}: {first} and {second} must be of the same sequences, which end at "
            f"{ends[0][1:]!s:.60} and {ends[1][1:]!s:.60}"
        )


def spans(
    lod: Lod | None, rows: tuple[int, ...], lengths, type: str
) -> tuple[DeviceArray, DeviceArray]:
    """Return where sequences begin and end among all rows: ragged ones, or padded with lengths."""
    if lengths is None:
        assert lod is not None, "without lengths, rows are in sequences"
        return lod.last[:-1], lod.last[1:]
    count, longest = rows[:2]
    begins = np.arange(count, dtype=np.int64) * longest
    return begins, begins + lengths_within(lengths, count, longest, type)


def lengths_within(lengths, count: int, longest: int, type: str) -> DeviceArray:
    """Return the lengths of padded sequences as int64; FeedError if they are not theirs."""
    lengths = lengths.reshape(-1).astype(np.int64)
    if (
        len(lengths) != count
        or not 0 <= lengths.min(initial=0) <= lengths.max(initial=0) <= longest
    ):
        raise FeedError(
            f"{type}: expected lengths within 0..{longest}, one of each of {count} sequences, "
            f"got {lengths.tolist()!s:.60}"
        )
    return lengths


def tag_of_each(
    type: str, slot: str, tags, lod: Lod | None, rows: Sequence[int], lengths
) -> DeviceArray:
    """Return one tag of each row, of `spans` of these rows, flat; FeedError if there are others."""
    if lod is not None and lengths is None:  # a row in no sequence says that nothing was found
        count, fits = lod.rows, len(tags) == tags.size >= lod.rows
    else:
        count = math.prod(rows[:2])
        fits = tags.size == count
    if not fits:
        raise FeedError(
            f"{type}: expected {slot} to be one of each of {count} rows, got {tags.shape}"
        )
    return tags.reshape(-1)


def tagged_rows(*of_rows: str, each: Sequence[str] = (), sums: Sequence[str] = ()) -> Any:
    """Treatment of operators on tags: operands in slots ``of_rows`` have the same rows.

    Results ``each`` have one row for each sequence, ``sums`` are added up over them; others are
    nothing to be joined, unless they are named as ``of_rows``.
    """

    def treat(op: Applied) -> dict[str, OfRows]:
        rows = []
        for slot, operands in op.inputs.items():
            for operand in operands:
                if slot in of_rows and operand.lod_level < 2:
                    rows.append(operand)
                elif operand.of.how is not How.SAME:
                    raise MixesRows(f"{operand.name!r} is {operand.of.how.value}")
        of = common_rows(op, rows, {How.RAGGED, How.ROWS})
        results = {slot: OfRows(How.ROWS) for slot in each} | dict.fromkeys(of_rows, of)
        return results | {slot: OfRows(How.SUM) for slot in sums}

    return treat


def _check_labels(labels, begins, ends, count: int, type: str) -> None:
    for begin, end in zip(begins, ends):
        part = labels[begin:end]
        if len(part) and not 0 <= part.min() <= part.max() < count:
            raise FeedError(f"{type}: labels must be in 0..{count - 1}, got {part.tolist()}")


# -- linear_chain_crf ------------------------------------------------------------------------------
def _check_chain(type: str, x: Meta, weights: Meta, lengths) -> int:
    """Check the operands; return the number of sequences."""
    tags = x.shape[-1]
    if weights.shape != (tags + 2, tags):
        raise GraphError(
            f"{type}: Transition must be {[tags + 2, tags]} for {tags} tags, got {weights.shape}"
        )
    if lengths is None:
        return sequences_of(x, type, "Emission").sequences
    if len(x.shape) != 3:
        raise GraphError(f"{type}: with lengths, Emission is [sequences, rows, tags]: {x.shape}")
    return x.shape[0]


def _chain_infer(x: Meta, weights: Meta, label: Meta, lengths) -> Metas:
    sequences = _check_chain("linear_chain_crf", x, weights, lengths)
    like = Meta(x.shape, x.dtype)
    return like, like, Meta(weights.shape, x.dtype), Meta((sequences, 1), x.dtype)


def _matrix(array) -> DeviceArray:
    return array.reshape(-1, array.shape[-1])


def _chain(lod, inputs: Operands, outputs: Operands) -> None:
    from hpcdist.ops.sequence.crf_kernels import chain_forward

    x, weights, label, lengths = inputs
    alpha, exps, weight_exps, cost = outputs
    begins, ends = spans(lod, x.shape, lengths, "linear_chain_crf")
    labels = tag_of_each("linear_chain_crf", "Label", label, lod, x.shape, lengths)
    _check_labels(labels, begins, ends, x.shape[-1], "linear_chain_crf")
    room = {"alpha": alpha, "exps": exps}
    for name, buffer in room.items():
        room[name] = scratch(f"crf {name}", x.shape, x.dtype) if buffer is None else buffer
        if lengths is not None:
            room[name].fill(0)
    if weight_exps is None:
        weight_exps = scratch("crf weights", weights.shape, x.dtype)
    chain_forward(
        _matrix(x),
        weights,
        labels,
        begins,
        ends,
        *map(_matrix, room.values()),
        weight_exps,
        cost.reshape(-1),
    )


def _chain_bind(xp: ArrayModule, *operands, lods) -> Call:
    if operands[3] is None:  # without lengths
        expect_one_lod("linear_chain_crf", Emission=lods[0], Label=lods[1])
    return run_on_host(xp, partial(_chain, lods[0]), operands[:4], operands[4:])


def _chain_grad(lod, inputs: Operands, outputs: Operands) -> None:
    from hpcdist.ops.sequence.crf_kernels import chain_backward

    label, lengths, alpha, exps, weight_exps, dcost = inputs
    dx, dweights = outputs
    begins, ends = spans(lod, alpha.shape, lengths, "linear_chain_crf")
    tags, dtype = alpha.shape[-1], alpha.dtype
    chain_backward(
        label.reshape(-1),
        begins,
        ends,
        _matrix(alpha),
        _matrix(exps),
        weight_exps,
        dcost.reshape(-1),
        scratch("crf beta", _matrix(alpha).shape, dtype),
        scratch("crf pairs", (tags, tags), dtype),
        _matrix(scratch("crf dx", alpha.shape, dtype) if dx is None else dx),
        scratch("crf dweights", weight_exps.shape, dtype) if dweights is None else dweights,
    )


def _chain_grad_bind(xp: ArrayModule, x, weights, *operands, lods) -> Call:
    return run_on_host(xp, partial(_chain_grad, lods[0]), operands[:6], operands[6:])


_CHAIN_GRAD = """Emission, Transition, Label, Length?, Alpha, EmissionExps, TransitionExps,
    LogLikelihood@GRAD -> Emission@GRAD?, Transition@GRAD?"""
define_with_grad(
    "linear_chain_crf",
    "Emission, Transition, Label, Length? -> Alpha, EmissionExps, TransitionExps, LogLikelihood",
    _CHAIN_GRAD,
    rows=tagged_rows("Emission", "Label", "Length", each=["LogLikelihood"]),
    infer=_chain_infer,
    bind=_chain_bind,
    lods=("Emission", "Label"),
    grad_lods=("Emission",),
    grad_infer=lambda x, weights, *_: (rowwise(x, x.lod), Meta(weights.shape, weights.dtype)),
    grad_bind=_chain_grad_bind,
    grad_shape_only=("Emission", "Transition"),
)


# -- crf_decoding ----------------------------------------------------------------------------------
def _decoding_infer(x: Meta, weights: Meta, label, lengths) -> Meta:
    _check_chain("crf_decoding", x, weights, lengths)
    if lengths is not None:
        return Meta(x.shape[:2], "int64")
    return Meta((x.shape[0], 1), "int64", lod=x.lod)


def _decoding(lod, inputs: Operands, outputs: Operands) -> None:
    from hpcdist.ops.sequence.crf_kernels import best_path

    x, weights, label, lengths = inputs
    (path,) = outputs
    begins, ends = spans(lod, x.shape, lengths, "crf_decoding")
    rows = _matrix(x)
    best, came = scratch("crf best", rows.shape, x.dtype), scratch("crf came", rows.shape, np.int64)
    path.fill(0)
    best_path(rows, weights, begins, ends, best, came, path.reshape(-1))
    if label is not None:
        labels = tag_of_each("crf_decoding", "Label", label, None, (path.size,), lengths)
        right = path.reshape(-1) == labels
        path.fill(0)
        for begin, end in zip(begins, ends):
            path.reshape(-1)[begin:end] = right[begin:end]


def _decoding_rows(op: Applied) -> OfRows:
    return tagged_rows("Emission", "Label", "Length")(op)["Emission"]


define(
    "crf_decoding",
    "Emission, Transition, Label?, Length? -> ViterbiPath",
    rows=_decoding_rows,
    infer=_decoding_infer,
    bind=lambda xp, *operands, lods: run_on_host(
        xp, partial(_decoding, lods[0]), operands[:4], operands[4:]
    ),
    lods=("Emission",),
)


# -- chunk_eval ------------------------------------------------------------------------------------
_SCHEMES = {  # number of kinds of tags; begin, inside, end, single
    "IOB": (2, 0, 1, -1, -1),
    "IOE": (2, -1, 0, 1, -1),
    "IOBES": (4, 0, 1, 2, 3),
    "plain": (1, -1, -1, -1, -1),
}
_CHUNKS: Attrs = {
    "num_chunk_types": 1,
    "chunk_scheme": "IOB",
    "excluded_chunk_types": (),
}


def _chunk_infer(inferred: Meta, label: Meta, lengths, chunk_scheme: str, **_) -> tuple[Meta, ...]:
    if chunk_scheme not in _SCHEMES:
        raise GraphError(f"chunk_eval: no scheme {chunk_scheme!r}: one of {sorted(_SCHEMES)}")
    if lengths is None:
        for slot, meta in (("Inference", inferred), ("Label", label)):
            sequences_of(meta, "chunk_eval", slot)
    return (*[Meta((1,), "float32")] * 3, *[Meta((1,), "int64")] * 3)


def _evaluated(lod, attrs, inputs: Operands, outputs: Operands) -> None:
    from hpcdist.ops.sequence.crf_kernels import count_chunks

    inferred, label, lengths = inputs
    begins, ends = spans(lod, label.shape, lengths, "chunk_eval")
    scheme = (*_SCHEMES[attrs["chunk_scheme"]], attrs["num_chunk_types"])
    sides = {"Inference": inferred, "Label": label}
    flat = [tag_of_each("chunk_eval", *side, lod, label.shape, lengths) for side in sides.items()]
    for tags in flat:
        _check_labels(tags, begins, ends, scheme[0] * scheme[5] + 1, "chunk_eval")
    counts = np.zeros(3, np.int64)
    room = [scratch(f"chunks {k}", (label.size,), np.int64) for k in range(2)]
    excluded = np.array(attrs["excluded_chunk_types"], np.int64)
    count_chunks(*flat, begins, ends, scheme, excluded, *room, counts)
    for array, value in zip(outputs, (*chunk_scores(*map(int, counts)), *counts)):
        if array is not None:
            array.fill(value)


def chunk_scores(found: Any, labelled: Any, correct: Any) -> tuple[Any, Any, Any]:
    """Return precision, recall and F1 of so many chunks; 0 where nothing is divided by."""
    precision = correct / found if found else 0.0
    recall = correct / labelled if labelled else 0.0
    f1 = 2 * precision * recall / (precision + recall) if correct else 0.0
    return precision, recall, f1


def _chunk_bind(xp: ArrayModule, *operands, lods, **attrs) -> Call:
    if operands[2] is None:  # without lengths
        expect_one_lod("chunk_eval", Label=lods[0], Inference=lods[1])
    return run_on_host(xp, partial(_evaluated, lods[0], attrs), operands[:3], operands[3:])


define(
    "chunk_eval",
    "Inference, Label, SeqLength? -> "
    "Precision, Recall, F1-Score, NumInferChunks, NumLabelChunks, NumCorrectChunks",
    rows=tagged_rows(
        "Inference",
        "Label",
        "SeqLength",
        sums=["NumInferChunks", "NumLabelChunks", "NumCorrectChunks"],
    ),
    attrs=_CHUNKS,
    infer=_chunk_infer,
    bind=_chunk_bind,
    lods=("Label", "Inference"),
)
