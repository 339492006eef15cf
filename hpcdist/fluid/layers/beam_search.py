"""Layers that choose tokens: beam search, decoding of CTC, tokens left out."""

from __future__ import annotations

from typing import Any

from hpcdist.fluid.layers.helper import LayerHelper, append, declared, declared_attrs, present
from hpcdist.fluid.layers.metric import topk
from hpcdist.fluid.layers.tensor import squeeze
from hpcdist.graph.variable import Variable

__all__ = ["beam_search", "beam_search_decode", "ctc_greedy_decoder", "gather_tree"]


def beam_search(
    pre_ids: Variable,
    pre_scores: Variable,
    ids: Variable | None,
    scores: Variable,
    beam_size: int,
    end_id: int,
    level: int = 0,
    is_accumulated: bool = True,
    name: str | None = None,
    return_parent_idx: bool = False,
) -> tuple[Variable, ...]:
    """Keep the ``beam_size`` best continuations of each source's prefixes: ids and scores [n, 1].

    ``scores`` [prefixes, candidates] of ``ids`` (default: 0, 1, ...), in two levels of sequences:
    sources of prefixes. ``is_accumulated``: they include the prefix's; else they are probabilities.
    A prefix that ends with ``end_id`` stays; a source of which all have ended has none any more.
    """
    helper = LayerHelper("beam_search", name)
    slots = present(pre_ids=pre_ids, pre_scores=pre_scores, scores=scores, ids=ids)
    chosen_scores, chosen = helper.new_var(pre_scores.dtype), helper.new_var(pre_ids.dtype)
    parents = helper.new_var("int32")
    outputs = {"selected_ids": chosen, "selected_scores": chosen_scores, "parent_idx": parents}
    attrs = declared_attrs("beam_search", locals())
    helper.append_op("beam_search", slots, outputs, attrs)
    return (chosen, chosen_scores, parents) if return_parent_idx else (chosen, chosen_scores)


def beam_search_decode(
    ids: Variable, scores: Variable, beam_size: int, end_id: int, name: str | None = None
) -> tuple[Variable, ...]:
    """Return the sentences of arrays that `beam_search` has filled, in sources of sentences.

    Ids and scores [n, 1], in two levels of sequences; the best sentence of a source comes first.
    """
    return declared("beam_search_decode", locals())


def gather_tree(ids: Variable, parents: Variable) -> Variable:
    """Return whole sentences [steps, batch, beams], followed back from the last step.

    Examples:
        >>> ids = fluid.layers.assign(np.array([[[1, 2]], [[3, 4]]]))
        >>> parents = fluid.layers.assign(np.array([[[0, 0]], [[1, 0]]]))
        >>> fluid.layers.gather_tree(ids, parents).shape
        (2, 1, 2)
    """
    return append("gather_tree", {"Ids": ids, "Parents": parents})


def ctc_greedy_decoder(
    input: Variable,
    blank: int,
    input_length: Variable | None = None,
    padding_value: int = 0,
    name: str | None = None,
) -> Any:
    """Return the likeliest classes of each row, repeats merged and ``blank`` left out.

    ``input`` [rows, classes] in sequences gives sequences; [batch, longest, classes] with
    ``input_length`` gives padded tokens and their numbers.
    """
    helper = LayerHelper("ctc_greedy_decoder", name)
    _, best = topk(input, k=1)
    out = helper.new_var("int64")
    attrs = {"merge_repeated": True, "blank": blank}
    if input_length is None:
        helper.append_op("ctc_align", {"Input": best}, {"Output": out}, attrs)
        return out
    length = helper.new_var("int64")
    helper.append_op(
        "ctc_align",
        {"Input": squeeze(best, [2]), "InputLength": input_length},
        {"Output": out, "OutputLength": length},
        {**attrs, "padding_value": padding_value},
    )
    return out, length
