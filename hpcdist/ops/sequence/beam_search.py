"""Selecting tokens: beam search, CTC decoding, erased tokens. Their number is known only in the
step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hpcdist.base.errors import FeedError
from hpcdist.graph.lod import Lod
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import Applied, How, MixesRows
from hpcdist.graph.sequence_rows import grouped
from hpcdist.graph.values import Value
from hpcdist.ops.shape_patterns import shaped
from hpcdist.ops.tensor.tensor_array import in_loops
from hpcdist.ops.types import ArrayModule, Metas


# -- beam search -----------------------------------------------------------------------------------
def _search(
    pre_ids: Value,
    pre_scores: Value,
    ids,
    scores: Value,
    level: int,
    beam_size: int,
    end_id: int,
    is_accumulated: bool,
) -> tuple[Value, Value, Value]:
    """For each source keep the best continuations of its prefixes; rows are prefixes."""
    lod = scores.lod if scores.lod is not None else pre_ids.lod
    if lod is None or lod.level < 2:
        raise FeedError(
            "beam_search: scores must be in two levels of sequences, sources of prefixes: feed the "
            "first ids and scores with lod_level=2"
        )
    sources = lod.offsets[level]
    if level == 0:
        sources = lod.offsets[1][sources]
    chances = scores.array.reshape(len(scores.array), -1)
    tokens = np.broadcast_to(np.arange(chances.shape[1]), chances.shape)
    if ids is not None:
        tokens = ids.array.reshape(chances.shape)
    last, totals = pre_ids.array.reshape(-1), pre_scores.array.reshape(-1)
    if not is_accumulated:
        chances = totals[:, None] + np.log(chances)
    prefixes = int(sources[-1])
    ended = last[:prefixes] == end_id
    # Candidates, by prefix: its continuations, or of one that has ended only itself.
    keeps = np.zeros((prefixes, chances.shape[1]), bool)
    keeps[~ended], keeps[ended, :1] = True, True
    candidates = np.where(ended[:, None], totals[:prefixes, None], chances[:prefixes])[keeps]
    words = np.where(ended[:, None], end_id, tokens[:prefixes])[keeps]
    prefix = np.nonzero(keeps)[0]
    source = np.repeat(np.arange(len(sources) - 1), np.diff(sources))[prefix]
    # The better score first, of equal ones the later prefix; those of a prefix in their order.
    order = np.lexsort((-prefix, -candidates, source))
    begins = np.searchsorted(source, np.arange(len(sources) - 1))
    best = order[np.arange(len(order)) - begins[source[order]] < beam_size]
    goes_on = np.zeros(len(sources) - 1, bool)
    goes_on[source[best[~(ended[prefix[best]] & (words[best] == end_id))]]] = True
    best = best[goes_on[source[best]]]
    best = best[np.argsort(prefix[best], kind="stable")]
    parents = prefix[best]
    best_lod = Lod.of_offsets(
        [sources, np.concatenate([[0], np.cumsum(np.bincount(parents, minlength=prefixes))])]
    )
    return (
        Value(words[best].astype(np.int64).reshape(-1, 1), best_lod),
        Value(candidates[best].astype(totals.dtype).reshape(-1, 1), best_lod),
        Value(parents.astype(np.int32)),
    )


def _search_infer(pre_ids: Meta, pre_scores: Meta, ids, scores: Meta, **_) -> Metas:
    lod = Lod(2)
    return (
        Meta((-1, 1), "int64", lod=lod),
        Meta((-1, 1), pre_scores.dtype, lod=lod),
        Meta((-1,), "int32"),
    )


define(
    "beam_search",
    "pre_ids, pre_scores, ids?, scores -> selected_ids, selected_scores, parent_idx?",
    rows=in_loops,
    attrs={"level": 0, "beam_size": 1, "end_id": 0, "is_accumulated": True},
    infer=_search_infer,
    values=_search,
)


def _sentences(ids, scores, beam_size: int, end_id: int) -> tuple[Value, Value]:
    """Follow every candidate of the last step back to the first; the best sentence comes first."""
    steps = [(i, s) for i, s in zip(ids or (), scores or ()) if i is not None]
    if not steps or any(i.lod is None or i.lod.level < 2 for i, _ in steps):
        raise FeedError("beam_search_decode: the arrays must hold what beam_search has given")
    count = len(steps[0][0].lod.offsets[0]) - 1
    words: list[list[list[Any]]] = [[[] for _ in range(beam_size)] for _ in range(count)]
    at: list[list[int]] = [[] for _ in range(count)]  # where each sentence stands: a prefix
    for chosen, scored in reversed(steps):
        outer, inner = (offsets.tolist() for offsets in chosen.lod.offsets)
        tokens, values = chosen.array.reshape(-1).tolist(), scored.array.reshape(-1).tolist()
        owner = np.repeat(np.arange(len(inner) - 1), np.diff(inner)).tolist()
        for source in range(count):
            begin, end = outer[source], outer[source + 1]
            if not at[source]:  # it ended at this step, or it is the last one
                for candidate in range(inner[begin], inner[end]):
                    word = words[source][len(at[source])]
                    word.append((tokens[candidate], values[candidate]))
                    at[source].append(owner[candidate])
                continue
            for k, candidate in enumerate(at[source]):
                if tokens[candidate] != end_id or not words[source][k]:
                    words[source][k].append((tokens[candidate], values[candidate]))
                at[source][k] = owner[candidate]
    for beams in words:
        beams.sort(key=lambda word: -word[0][1] if word else np.inf)
    flat = [pair for beams in words for word in beams for pair in reversed(word)]
    lengths = [len(word) for beams in words for word in beams]
    lod = Lod.of_lengths([[beam_size] * count, lengths])
    dtype = steps[0][1].array.dtype
    return (
        Value(np.array([token for token, _ in flat], np.int64).reshape(-1, 1), lod),
        Value(np.array([score for _, score in flat], dtype).reshape(-1, 1), lod),
    )


define(
    "beam_search_decode",
    "Ids, Scores -> SentenceIds, SentenceScores",
    rows=in_loops,
    attrs={"beam_size": 1, "end_id": 0},
    infer=lambda ids, scores, **_: (
        Meta((-1, 1), "int64", lod=Lod(2)),
        Meta((-1, 1), scores.dtype, lod=Lod(2)),
    ),
    values=_sentences,
)


def _gather_tree(xp: ArrayModule, ids, parents, out) -> None:
    """Follow parents back from the last step: [steps, batch, beams]."""
    out[-1] = ids[-1]
    beams = parents[-1]
    for step in range(len(ids) - 2, -1, -1):
        out[step] = xp.take_along_axis(ids[step], beams, axis=1)
        beams = xp.take_along_axis(parents[step], beams, axis=1)


define(
    "gather_tree",
    "Ids, Parents -> Out",
    rows=in_loops,
    infer=shaped("Ids: t n b; Parents: t n b", lambda ids, parents: Meta(ids.shape, ids.dtype)),
    kernel=_gather_tree,
)


# -- tokens left out -------------------------------------------------------------------------------
def _rows_where(x: Value, keeps) -> Value:
    assert x.lod is not None, "checked before"
    ends = np.concatenate([[0], np.cumsum(keeps)])[x.lod.last]
    return Value(x.array[keeps], Lod.of_offsets([*x.lod.offsets[:-1], ends]))


def _erased(x: Value, tokens) -> Value:
    if x.lod is None:
        raise FeedError("sequence_erase: X is not grouped into sequences; declare lod_level=1")
    return _rows_where(x, ~np.isin(x.array.reshape(-1), list(tokens)))


define(
    "sequence_erase",
    "X -> Out",
    rows=in_loops,
    attrs={"tokens": ()},
    infer=lambda x, **_: Meta((-1, *x.shape[1:]), x.dtype, lod=Lod(1)),
    values=_erased,
)


def _is_label(tokens, begins, blank: int, merge_repeated: bool) -> Any:
    keeps = tokens != blank
    if merge_repeated and len(tokens):
        repeats = np.concatenate([[False], tokens[1:] == tokens[:-1]])
        repeats[begins[begins < len(tokens)]] = False
        keeps &= ~repeats
    return keeps


def _aligned(
    x: Value, lengths, blank: int, merge_repeated: bool, padding_value: int
) -> tuple[Value, Any]:
    if lengths is None:
        if x.lod is None:
            raise FeedError("ctc_greedy_decoder: give sequences, or input_length")
        tokens = x.array.reshape(-1)
        out = _rows_where(x, _is_label(tokens, x.lod.last[:-1], blank, merge_repeated))
        if not len(out.array):  # as Fluid: one row says that nothing is there
            empty = np.zeros_like(x.lod.last)
            out = Value(np.full((1, 1), -1, x.array.dtype), Lod.of_offsets([empty]))
        return out, None
    padded = np.full_like(x.array, padding_value)
    counts = np.zeros((len(x.array), 1), np.int64)
    for row, length in enumerate(lengths.array.reshape(-1)):
        tokens = x.array[row, :length]
        labels = tokens[_is_label(tokens, np.array([0]), blank, merge_repeated)]
        padded[row, : len(labels)] = labels
        counts[row] = len(labels)
    return Value(padded), Value(counts)


def _aligned_infer(x: Meta, lengths, **_) -> Metas:
    if lengths is None:
        return Meta((-1, 1), x.dtype, lod=Lod(1)), None
    return Meta(x.shape, x.dtype), Meta((x.shape[0], 1), "int64")


def _aligned_rows(op: Applied) -> Any:
    """Tokens of a sequence follow from its own rows; if no sequence has any, a row says so."""
    (x,) = op.inputs["Input"]
    if op.inputs.get("InputLength") or x.of.how is not How.RAGGED:
        raise MixesRows("the rows are not in sequences")
    return {"Output": replace(grouped(op.outputs["Output"][0]), spare=True)}


define(
    "ctc_align",
    "Input, InputLength? -> Output, OutputLength?",
    rows=_aligned_rows,
    attrs={"blank": 0, "merge_repeated": True, "padding_value": 0},
    infer=_aligned_infer,
    values=_aligned,
)
