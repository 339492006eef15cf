"""Layers on sequences of tags and labels: conditional random fields, chunks, alignments."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.base.errors import GraphError
from hpcdist.fluid.layers.helper import LayerHelper, append_all, present
from hpcdist.fluid.layers.param_attr import ParamAttr, ParamLike
from hpcdist.graph.variable import Variable

__all__ = ["chunk_eval", "crf_decoding", "edit_distance", "linear_chain_crf", "warpctc"]


def linear_chain_crf(
    input: Variable, label: Variable, param_attr: ParamLike = None, length: Variable | None = None
) -> Variable:
    """Return -log of the probability of each sequence's labels, [sequences, 1].

    ``input`` [rows, tags] in sequences, ``label`` int64 [rows, 1]; or padded, [sequences, longest,
    tags], with ``length`` int64 [sequences]. The parameter [tags + 2, tags] holds weights of a tag
    at the beginning, at the end, and after each tag.

    Examples:
        >>> scores = fluid.data("scores", [None, 5], lod_level=1)
        >>> tags = fluid.data("tags", [None, 1], "int64", lod_level=1)
        >>> fluid.layers.linear_chain_crf(scores, tags).shape
        (-1, 1)
    """
    helper = LayerHelper("linear_chain_crf")
    tags = input.shape[1] if length is None else input.shape[2]
    weights = helper.create_parameter(param_attr, [tags + 2, tags], input.dtype)
    slots = present(Emission=input, Transition=weights, Label=label, Length=length)
    names = "Alpha", "EmissionExps", "TransitionExps", "LogLikelihood"
    return helper.apply_all("linear_chain_crf", slots, dict.fromkeys(names, input.dtype))[-1]


def crf_decoding(
    input: Variable,
    param_attr: ParamLike,
    label: Variable | None = None,
    length: Variable | None = None,
) -> Variable:
    """Return the likeliest tags of each sequence, int64 [rows, 1]; of padded ones [sequences, n].

    The parameter is that of `linear_chain_crf`, found by its name. With ``label``: 1 where the tag
    is right, else 0.

    Examples:
        >>> weights = fluid.layers.create_parameter([7, 5], "float32", name="transitions")
        >>> emission = fluid.data("emission", [None, 5], lod_level=1)
        >>> fluid.layers.crf_decoding(emission, param_attr=fluid.ParamAttr("transitions")).shape
        (-1, 1)
    """
    helper = LayerHelper("crf_decoding")
    attr = ParamAttr.of(param_attr)
    name = attr.name if attr is not None else None
    weights = helper.main_program.global_block().vars.get(name or "")
    if weights is None:
        raise GraphError(
            f"crf_decoding: there is no parameter {name!r}: give linear_chain_crf's by its name, "
            "ParamAttr(name=...)"
        )
    slots = present(Emission=input, Transition=weights, Label=label, Length=length)
    return helper.apply("crf_decoding", slots, slot="ViterbiPath", dtype="int64")


def chunk_eval(
    input: Variable,
    label: Variable,
    chunk_scheme: str,
    num_chunk_types: int,
    excluded_chunk_types: Sequence[int] | None = None,
    seq_length: Variable | None = None,
) -> tuple[Variable, ...]:
    """Count chunks of tags: precision, recall, F1, and numbers found, labelled, and right.

    A tag is type * kinds + kind; ``chunk_scheme`` IOB, IOE, IOBES or plain says what kinds there
    are, and tags from ``num_chunk_types`` * kinds on are outside of all chunks.
    """
    outputs = dict.fromkeys(("Precision", "Recall", "F1-Score"), "float32")
    outputs |= dict.fromkeys(("NumInferChunks", "NumLabelChunks", "NumCorrectChunks"), "int64")
    attrs = {
        "num_chunk_types": num_chunk_types,
        "chunk_scheme": chunk_scheme,
        "excluded_chunk_types": list(excluded_chunk_types or ()),
    }
    slots = present(Inference=input, Label=label, SeqLength=seq_length)
    return append_all("chunk_eval", slots, attrs, outputs, constant=())


def edit_distance(
    input: Variable,
    label: Variable,
    normalized: bool = True,
    ignored_tokens: Sequence[int] | None = None,
    input_length: Variable | None = None,
    label_length: Variable | None = None,
) -> tuple[Variable, ...]:
    """Return edit distances from ``input`` to ``label`` [sequences, 1], and how many there are.

    Both int64, in sequences or padded with lengths; ``normalized``: divided by the label's length.

    Examples:
        >>> x, y = (fluid.data(n, [None, 1], "int64", lod_level=1) for n in "xy")
        >>> distances, count = fluid.layers.edit_distance(x, y)
        >>> distances.shape
        (-1, 1)
    """
    helper = LayerHelper("edit_distance")
    if ignored_tokens:
        attrs = {"tokens": list(ignored_tokens)}
        input = helper.apply("sequence_erase", {"X": input}, attrs, dtype="int64")
        label = helper.apply("sequence_erase", {"X": label}, attrs, dtype="int64")
    lengths = {}
    if input_length is not None and label_length is not None:
        lengths = {"HypsLength": input_length, "RefsLength": label_length}
    slots, outputs = {"Hyps": input, "Refs": label, **lengths}, {"Out": "float32"}
    outputs["SequenceNum"] = "int64"
    return helper.apply_all("edit_distance", slots, outputs, {"normalized": normalized})


def warpctc(
    input: Variable,
    label: Variable,
    blank: int = 0,
    norm_by_times: bool = False,
    input_length: Variable | None = None,
    label_length: Variable | None = None,
) -> Variable:
    """Return the CTC loss of each sequence, [sequences, 1].

    ``input`` [rows, classes] in sequences, before softmax, ``label`` int32 [labels, 1] in
    sequences; or padded, [longest, sequences, classes] and [sequences, most], with both lengths.
    ``norm_by_times`` divides gradients by numbers of rows.

    Examples:
        >>> x = fluid.data("x", [None, 10], lod_level=1)
        >>> label = fluid.data("label", [None, 1], "int32", lod_level=1)
        >>> fluid.layers.warpctc(x, label).shape
        (-1, 1)
    """
    helper = LayerHelper("warpctc")
    slots = {"Logits": input, "Label": label}
    if input_length is not None and label_length is not None:
        slots |= {"LogitsLength": input_length, "LabelLength": label_length}
    loss, grad = helper.new_var(input.dtype), helper.new_var(input.dtype)
    attrs = {"blank": blank, "norm_by_times": norm_by_times}
    helper.append_op("warpctc", slots, {"WarpCTCGrad": grad, "Loss": loss}, attrs)
    return loss
