"""Cases of operators without gradients, as `CASES` has them of the others."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from hpcdist.lod_tensor import LoDTensor
from tests.support.ops import CASES, Case, Seeded


def _two(draw: Seeded) -> Case:
    case = CASES["elementwise_add"](draw)
    return Case({slot: np.round(x) for slot, x in case.inputs.items()}, case.attrs)


def _two_wholes(draw: Seeded) -> Case:
    shape = draw.shape()
    whole = {slot: draw.rng.integers(1, 9, shape) for slot in ("X", "Y")}
    return Case(whole)


def _two_truths(draw: Seeded) -> Case:
    return Case({slot: x > 4 for slot, x in _two_wholes(draw).inputs.items()})


def _one(draw: Seeded) -> Case:
    return Case({"X": draw.apart(draw.shape())})


def _single(draw: Seeded) -> Case:
    return Case({"X": draw.floats(draw.shape()).astype("float32")})


def _drawn(draw: Seeded) -> Case:
    x = draw.floats(draw.shape(), 0.5, 3.0)
    return Case({"X": x, "Chance": draw.rng.random(x.shape)})


def _chosen(draw: Seeded) -> Case:
    shape = draw.shape()
    axis = draw.int(-len(shape), len(shape) - 1)
    return Case({"X": draw.apart(shape)}, {"axis": axis, "keepdims": draw.bool()})


def _ids(draw: Seeded) -> Case:
    return Case({"X": draw.rng.integers(0, 5, (*draw.shape(1, 2), 1))}, {"depth": 5})


class _Saved:
    """Rows that a model was saved with: as many times the id as the column's number."""

    def look_up(self, ids: np.ndarray, out: np.ndarray) -> None:
        out[:] = ids[:, None] * np.arange(out.shape[1])


def _saved_rows(draw: Seeded) -> Case:
    last = draw.bool()
    shape = (*draw.shape(1, 2), 1) if last else draw.shape(1, 3)
    facts = {"width": 3, "padding_idx": draw.of(-1, 2), "rows": _Saved()}
    return Case({"Ids": draw.rng.integers(0, 5, shape)}, {"last_is_one": last, **facts})


def _top_k(draw: Seeded) -> Case:
    return Case({"X": draw.apart((*draw.shape(0, 2), 4))}, {"k": draw.int(1, 3)})


def _accuracy(draw: Seeded) -> Case:
    rows, k = draw.int(1, 5), draw.int(1, 3)
    indices = draw.rng.integers(0, 3, (rows, k))
    labels = draw.rng.integers(0, 3, (rows, 1))
    return Case({"Out": draw.floats((rows, k)), "Indices": indices, "Label": labels})


def _classes(draw: Seeded) -> Case:
    shape = draw.int(1, 5), 1
    found = draw.rng.integers(0, 3, shape), draw.rng.integers(0, 3, shape)
    inputs = {"MaxProbs": draw.floats(shape), "Indices": found[0], "Labels": found[1]}
    return Case(inputs, {"class_number": 3})


def _like_batch(draw: Seeded) -> Case:
    x = draw.floats(draw.shape(1, 3))
    shape = draw.shape(1, 3)
    places = {
        "input_dim_idx": draw.int(0, x.ndim - 1),
        "output_dim_idx": draw.int(0, len(shape) - 1),
    }
    return Case({"Input": x}, {"shape": list(shape), "value": 2.0, **places})


def _norm(draw: Seeded) -> Case:
    return Case({"X": draw.floats(draw.shape())}, {"max_norm": 0.5})


def _path(draw: Seeded) -> Case:
    case = CASES["hierarchical_sigmoid"](draw)
    inputs = {s: case.inputs[s] for s in ("Label", "PathTable") if s in case.inputs}
    return Case(inputs, {"num_classes": case.attrs["num_classes"]})


def _enumerated(draw: Seeded) -> Case:
    lengths = draw.lengths()
    ids = LoDTensor(draw.rng.integers(0, 9, (sum(lengths), 1)))
    ids.set_recursive_sequence_lengths([lengths])
    return Case({"X": ids}, {"win_size": draw.int(1, 3)})


def _decoded(draw: Seeded) -> Case:
    return CASES["linear_chain_crf"](draw)


def _chunks(draw: Seeded) -> Case:
    found, label = (draw.ragged([2, 0, 3], [1]) for _ in range(2))
    for tags in (found, label):
        tags.set(draw.rng.integers(0, 5, (5, 1)))
    return Case({"Inference": found, "Label": label}, {"num_chunk_types": 2})


def _distance(draw: Seeded) -> Case:
    found, label = (draw.ragged([draw.int(1, 3) for _ in range(3)], [1]) for _ in range(2))
    for tokens in (found, label):
        tokens.set(draw.rng.integers(0, 3, (len(tokens), 1)))
    return Case({"Hyps": found, "Refs": label}, {"normalized": draw.bool()})


def _mask(draw: Seeded) -> Case:
    lengths = np.array(draw.lengths())
    return Case({"X": lengths}, {"maxlen": draw.of(-1, 5), "out_dtype": "int64"})


def _truths(draw: Seeded) -> Case:
    shape = draw.shape()
    axis = draw.int(-len(shape), len(shape) - 1)
    attrs = {"dim": [axis], "keep_dim": draw.bool(), "reduce_all": draw.bool()}
    return Case({"X": draw.apart(shape) > 0}, attrs)


def _shards(draw: Seeded) -> Case:
    ids = draw.rng.integers(0, 20, draw.shape())
    return Case({"X": ids}, {"index_num": 20, "nshards": 3, "shard_id": draw.int(0, 2)})


def _hashed(draw: Seeded) -> Case:
    return Case({"X": draw.rng.integers(0, 9, draw.shape(2, 2))}, {"num_hash": 2, "mod_by": 99})


def _of_classes(draw: Seeded) -> Case:
    rows, classes = draw.int(1, 5), draw.int(2, 4)
    corners = draw.floats((rows, 2), 0, 20)
    inputs = {
        "PriorBox": np.concatenate([corners, corners + draw.floats((rows, 2), 1, 9)], 1),
        "PriorBoxVar": draw.floats((4,), 0.1, 0.2),
        "TargetBox": draw.floats((rows, 4 * classes)),
        "BoxScore": draw.floats((rows, classes)),
    }
    return Case(inputs)


def _planes(draw: Seeded) -> Case:
    attrs = {"axis": draw.int(1, 3), "indexes": [draw.int(0, 1)]}
    return Case({"X": draw.apart((draw.int(1, 3), 2, 3, 2))}, attrs)


def _children(draw: Seeded) -> Case:
    inputs = {
        "X": draw.rng.integers(0, 4, draw.shape(1, 2)),
        "TreeInfo": draw.rng.integers(0, 4, (4, 5)),
    }
    return Case(inputs, {"child_nums": 2, "dtype": "int64"})


def _full(draw: Seeded) -> Case:
    width = draw.int(1, 3), draw.int(1, 4)
    inputs = {"Input": draw.floats((draw.int(1, 5), *width))}
    if draw.bool():
        inputs["Bias"] = draw.floats((3,))
    columns = draw.int(1, 2)
    inputs["W"] = draw.floats((width[1] * (width[0] if columns == 1 else 1), 3))
    activation = draw.of("", "relu")
    return Case(inputs, {"in_num_col_dims": columns, "activation_type": activation})


def _layers(draw: Seeded) -> Case:
    widths = [draw.int(1, 4) for _ in range(draw.int(3, 5))]
    inputs = {
        "X": draw.floats((draw.int(1, 5), widths[0])),
        "W": [draw.floats(pair) for pair in itertools.pairwise(widths)],
        "Bias": [draw.floats((width,)) for width in widths[1:]],
    }
    return Case(inputs, outputs={"ReluOut": len(widths) - 2})


def _factors(draw: Seeded) -> Case:
    inner = draw.int(1, 4)
    inputs = {"X": draw.floats((draw.int(1, 5), inner)), "Y": draw.floats((inner, 3))}
    return Case(inputs, {"scalar": 0.5})


def _pools(draw: Seeded) -> Case:
    count = len(draw.lengths())
    inputs = [draw.ragged([draw.int(1, 3) for _ in range(count)], (4,)) for _ in range(2)]
    for x in inputs:
        x.set(np.abs(np.asarray(x)))  # shows and clicks are counts
    return Case({"X": inputs}, {"pooltype": draw.of("SUM", "AVERAGE", "SQRT")})


def _pools_of_clicks(draw: Seeded) -> Case:
    case = _pools(draw)
    clicks = draw.floats((case.inputs["X"][0].samples, 2))
    return Case({**case.inputs, "CVM": clicks}, {**case.attrs, "use_cvm": draw.bool()})


def _windows(draw: Seeded) -> Case:
    case = CASES["sequence_conv"](draw)
    return Case({**case.inputs, "Bias": draw.floats((case.inputs["Filter"].shape[1],))}, case.attrs)


def _fed(draw: Seeded, kind: str, layer: str = "") -> Case:
    """A recurrent operator whose Input is a product, or rows of a table."""
    case = CASES[kind](draw)
    inputs = dict(case.inputs)
    fed, inner = inputs.pop("Input"), inputs.pop("Weight")
    lengths, width = fed.recursive_sequence_lengths()[0], fed.shape()[1]
    if layer == "fused_embedding_fc_lstm":
        ids = draw.ragged(lengths, (1,))
        ids.set(draw.rng.integers(0, 5, (sum(lengths), 1)))
        inputs |= {"Ids": ids, "Embeddings": draw.floats((5, width))}
    else:
        inputs |= {"X": draw.ragged(lengths, (3,)), "WeightX": draw.floats((3, width))}
    return Case({**inputs, "WeightH": inner}, case.attrs)


def _attended(draw: Seeded) -> Case:
    lengths, width = draw.lengths(), draw.int(1, 3)
    inputs = {
        "X": draw.ragged(lengths, (3,)),
        "C0": draw.floats((len(lengths), width)),
        "AttentionWeight": draw.floats((3 + width, 1)),
        "LSTMWeight": draw.floats((width + 3, 4 * width)),
        "LSTMBias": draw.floats((1, 4 * width)),
    }
    if draw.bool():
        inputs["H0"] = draw.floats((len(lengths), width))
        inputs["AttentionScalar"] = draw.floats((1, 1))
    return Case(inputs)


def _said_once(draw: Seeded) -> Case:
    lengths = draw.lengths()
    xs = [draw.ragged(lengths, (3,)), draw.ragged([1] * len(lengths), (2,))]
    inputs = {"X": xs, "FCWeight": draw.floats((5, 4)), "FCBias": draw.floats((1, 4))}
    return Case(inputs, {"fc_activation": draw.of("identity", "relu", "sigmoid", "tanh")})


def _channels(draw: Seeded) -> Case:
    return Case({"X": draw.floats(draw.shape(2, 4))}, {"bit_length": draw.int(2, 8)})


def _steps(draw: Seeded) -> Case:
    steps = draw.rng.integers(-127, 128, draw.shape())
    return Case({"X": steps.astype("float64"), "Scale": draw.floats((1,), 0.1, 2)})


def _rows_of_steps(draw: Seeded) -> Case:
    x = draw.floats((draw.int(1, 5), 3, 2), -9, 9).round()
    scales = [draw.floats((3,), 0.1, 2), draw.floats((1,), 0.1, 2)]
    return Case({"X": x, "Scales": scales}, {"quant_bits": [8, 5]})


def _logs(draw: Seeded) -> Case:
    x = draw.rng.integers(-128, 128, draw.shape()).astype("int8")
    return Case({"X": x, "Dict": draw.floats((128,))})


def _bytes(draw: Seeded) -> Case:
    ids = draw.rng.integers(0, 5, (draw.int(1, 5), 1))
    table = draw.floats((5, 4), 0.5, 1).astype("float32")
    return Case({"W": table, "Ids": ids}, {"padding_idx": draw.of(-1, 2)})


WITHOUT_GRADIENT: dict[str, Callable[[Seeded], Case]] = {
    **dict.fromkeys(["elementwise_mod", "elementwise_floordiv"], _two_wholes),
    **dict.fromkeys(["bitwise_and", "bitwise_or", "bitwise_xor", "gcd", "lcm"], _two_wholes),
    **dict.fromkeys(["less_than", "less_equal", "greater_than", "greater_equal"], _two),
    **dict.fromkeys(["equal", "not_equal"], _two),
    **dict.fromkeys(["logical_and", "logical_or", "logical_xor"], _two_truths),
    **dict.fromkeys(["isfinite", "isnan", "isinf", "increment", "shape"], _one),
    **dict.fromkeys(["fill_zeros_like", "fill_zeros_like2", "fill_any_like"], _one),
    **dict.fromkeys(["arg_max", "arg_min"], _chosen),
    **dict.fromkeys(["one_hot", "one_hot_v2"], _ids),
    "lookup_saved_rows": _saved_rows,
    **dict.fromkeys(["reduce_all", "reduce_any"], _truths),
    "shard_index": _shards,
    "hash": _hashed,
    "logical_not": lambda draw: Case({"X": _two_truths(draw).inputs["X"]}),
    **dict.fromkeys(["round_to_float16", "round_to_bfloat16"], _single),
    "top_k": _top_k,
    "accuracy": _accuracy,
    "precision_recall": _classes,
    "fill_constant_batch_size_like": _like_batch,
    "hierarchical_sigmoid_path": _path,
    "sequence_enumerate": _enumerated,
    "sequence_mask": _mask,
    "crf_decoding": _decoded,
    "chunk_eval": _chunks,
    "edit_distance": _distance,
    "box_decoder_and_assign": _of_classes,
    "tdm_child": _children,
    "similarity_focus": _planes,
    "fc": _full,
    "fusion_repeated_fc_relu": _layers,
    "fusion_squared_mat_sub": _factors,
    "fusion_seqpool_concat": _pools,
    "fusion_seqpool_cvm_concat": _pools_of_clicks,
    "fusion_seqconv_eltadd_relu": _windows,
    "fusion_gru": lambda draw: _fed(draw, "gru"),
    "fusion_lstm": lambda draw: _fed(draw, "lstm"),
    "fused_embedding_fc_lstm": lambda draw: _fed(draw, "lstm", "fused_embedding_fc_lstm"),
    "attention_lstm": _attended,
    "fusion_seqexpand_concat_fc": _said_once,
    "fake_channel_wise_quantize_abs_max": _channels,
    **dict.fromkeys(["fake_dequantize_max_abs", "dequantize_abs_max"], _steps),
    "fake_channel_wise_dequantize_max_abs": _rows_of_steps,
    "dequantize_log": _logs,
    "lookup_table_dequant": _bytes,
    **dict.fromkeys(["poisson_quantile", "log_gamma_quantile"], _drawn),
}
