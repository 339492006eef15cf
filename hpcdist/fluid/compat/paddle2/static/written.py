"""Operators of hpcdist in files of Paddle 2.6.2: `operators` the other way round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdist.base.errors import CheckpointError
from hpcdist.fluid.compat.paddle2.static.operators import RESULTS_OF_ONE, calls

Message = dict[str, Any]  # of a block, a variable or an operator, as `program_desc` makes them

TEXT, INTS = 2, 3  # types of attributes
# What has another name and other slots there.
RENAMED = {"diag": ("diag_v2", {"Diagonal": "X"})}
# What 2.6.2 does not have, has no kernel of, or takes other variables for.
_MISSING = """
    center_loss conv_shift cos_sim drawn_leaky_relu expand_as filter_by_instag flatten
    fused_embedding_fc_lstm gcd lcm
    gaussian_random_batch_size_like isfinite lod_reset_by_values log_gamma_quantile
    lookup_saved_rows lstm_unit lstmp margin_rank_loss mean_iou one_hot pad2d pad_constant_like
    poisson_quantile prroi_pool random_crop recurrent rnn_memory_helper
    roi_perspective_transform round_to_bfloat16 round_to_float16 sample_logits
    sequence_topk_avg_pooling
    sigmoid_focal_loss smooth_l1_loss space_to_depth squared_l2_distance squeeze sync_batch_norm
    target_assign torch_module torch_segment tree_conv unsqueeze
"""
MISSING = frozenset(_MISSING.split())
# Results of shape [1], by their slots, that have [] there.
_OF_ONE = RESULTS_OF_ONE | dict.fromkeys(
    ("reduce_all", "reduce_any", "reduce_max", "reduce_mean", "reduce_min", "reduce_prod",
     "reduce_sum"), "Out"
)  # fmt: skip


def in_words_of_paddle(blocks: list[Message]) -> list[Message]:
    """Return the blocks of a Program with operators of Paddle 2.6.2; CheckpointError if it has
    what 2.6.2 does not know."""
    known = {var["name"]: var for block in blocks for var in block["vars"]}
    for block in blocks:
        block["ops"] = [
            one for op in block["ops"] for one in _with_a_dimension(_written(op), block, known)
        ]
    return blocks


def _written(op: Message) -> Message:
    type = op["type"]
    if type in MISSING or any(attr["name"] == "sub_block" for attr in op["attrs"]):
        raise _refuse(f"operator {type!r} cannot be written for Paddle 2.6.2")
    call = calls().get(type)
    if call is not None and call.function is None:
        attrs = {attr["name"]: attr for attr in op["attrs"]}
        for name, value in call.fixed.items():
            if name in attrs and _value(attrs.pop(name)) != value:
                raise _refuse(f"operator {type!r} of Paddle 2.6.2 knows {name}={value!r} only")
        there = {here: name for name, here in call.renamed.items()}
        op["attrs"] = [{**attr, "name": there.get(n, n)} for n, attr in attrs.items()]
    if type == "strided_slice" and all(attr["name"] != "infer_flags" for attr in op["attrs"]):
        (axes,) = (attr["ints"] for attr in op["attrs"] if attr["name"] == "axes")
        op["attrs"].append({"name": "infer_flags", "type": INTS, "ints": [1] * len(axes)})
    if type == "allclose":  # numbers are text there
        op["attrs"] = [_as_text(attr) if "f" in attr else attr for attr in op["attrs"]]
    op["type"], slots = RENAMED.get(type, (type, {}))
    for slot in op["inputs"]:
        slot["parameter"] = slots.get(slot["parameter"], slot["parameter"])
    return op


def _with_a_dimension(op: Message, block: Message, known: Mapping[str, Message]) -> list[Message]:
    """Return the operator, and what gives a dimension to results that have none there."""
    slots = [slot for slot in op["outputs"] if slot["parameter"] == _OF_ONE.get(op["type"])]
    for slot in slots:
        (name,) = slot["arguments"]
        var = known[name]
        tensor = var["type"].get("lod_tensor", {}).get("tensor", {})
        if tensor.get("dims") == [1]:
            none = f"{name}/of_none"
            dense = {"tensor": {**tensor, "dims": []}, "lod_level": 0}
            kind = {"type": var["type"]["type"], "lod_tensor": dense}
            block["vars"].append({**var, "name": none, "type": kind, "persistable": 0})
            slot["arguments"] = [none]
            return [op, _reshape(none, name)]
    return [op]


def _reshape(name: str, result: str) -> Message:
    return {
        "type": "reshape2",
        "inputs": [{"parameter": "X", "arguments": [name]}],
        "outputs": [{"parameter": "Out", "arguments": [result]}],
        "attrs": [{"name": "shape", "type": INTS, "ints": [1]}],
    }


def _as_text(attr: Message) -> Message:
    return {"name": attr["name"], "type": TEXT, "s": repr(attr["f"])}


def _value(attr: Message) -> Any:
    (value,) = (value for field, value in attr.items() if field not in ("name", "type"))
    return value


def _refuse(what: str) -> CheckpointError:
    return CheckpointError(
        f"save_inference_model: {what}: format='hdf5' saves a model that hpcdist loads"
    )


__all__ = ["in_words_of_paddle"]
