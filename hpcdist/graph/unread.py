"""Attributes of Fluid's and Paddle 2's operators beside those that operators here read."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.graph.dtypes import canonical
from hpcdist.graph.registry import OpDef

# What an operator does anyway that does not read an attribute: the only values it may have.
_OF_ALL: dict[str, tuple[Any, ...]] = {
    "data_format": ("NCHW", "AnyLayout", ""),
    "data_layout": ("NCHW", "AnyLayout", ""),
    "padding_algorithm": ("EXPLICIT",),
}
_LINES = """
    flatten=False               arg_max arg_min cumsum
    axis=-1                     bitwise_and bitwise_or bitwise_xor
    axis=[]                     flip roll
    trainable_statistics=False  batch_norm
    interp_method='bicubic'     bicubic_interp
    interp_method='bilinear'    bilinear_interp
    interp_method='nearest'     nearest_interp
    interp_method='trilinear'   trilinear_interp
    output_padding=[]           conv2d_transpose conv3d_transpose depthwise_conv2d_transpose
    background_label=0          detection_map
    padding_weights=False       fc
    head_number=1               matmul
    out_dtype=None              frobenius_norm reduce_all reduce_any reduce_max reduce_mean
    out_dtype=None              reduce_min reduce_prod reduce_sum
    aligned=False               roi_align
    overwrite=True              save
    save_as_fp16=False          save
    use_softmax=True            softmax_with_cross_entropy
    axis1=0                     trace
    axis2=1                     trace
    diag_num=0                  uniform_random_batch_size_like
    iou_aware=False             yolo_box
"""
_OF: dict[str, dict[str, tuple[Any, ...]]] = {}
for _fact, *_types in map(str.split, _LINES.strip().splitlines()):
    _name, _, _value = _fact.partition("=")
    for _type in _types:
        _OF.setdefault(_type, {})[_name] = (ast.literal_eval(_value),)


def as_read(definition: OpDef, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes that Fluid has for an operator as the operator here reads them.

    Element types are names, of which -1 is none; a constant that is told as text, too, is exact.
    GraphError for an attribute that would be ignored, though it asks for something else.
    """
    read = _with_types(attrs)
    if text := read.pop("str_value", ""):
        read["value"] = _exact(text)
    only = {**_OF_ALL, **_OF.get(definition.type, {})}
    for name in only.keys() & read.keys() - definition.attrs.keys():
        if read[name] not in only[name]:
            raise GraphError(
                f"operator {definition.type} with {name}={read[name]!r}: here it does what "
                f"{only[name][0]!r} asks for, and nothing else"
            )
    return read


def _with_types(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes with names for Fluid's numbers of element types; -1, its default, is no
    attribute."""
    typed = {name for name in attrs if name.endswith("dtype") and isinstance(attrs[name], int)}
    return {
        name: canonical(value) if name in typed else value
        for name, value in attrs.items()
        if name not in typed or value >= 0
    }


def _exact(text: str) -> int | float:
    """Return the number that a text says."""
    try:
        return int(text)
    except ValueError:
        return float(text)


__all__ = ["as_read"]
