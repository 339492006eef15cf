"""Inputs of an operator have the extents that belong together: none is broadcast in silence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hpcdist.errors import HpcdistError
from hpcdist.lod_tensor import LoDTensor
from tests.cases.operators.forward import WITHOUT_GRADIENT
from tests.support.ops import Case, Seeded, every_case
from tests.support.out_of_bounds import one_off, results

SEEDS = 8
CASES = {**every_case(), **WITHOUT_GRADIENT}

MADE_INSIDE = {"drawn_leaky_relu", "log_gamma_quantile", "poisson_quantile"}  # and so are inputs
# Inputs of which another extent leaves the results' shapes as they are, and means something.
BROADCAST = """
    bitwise_and bitwise_or bitwise_xor dist elementwise_add elementwise_div elementwise_floordiv
    elementwise_max elementwise_min elementwise_mod elementwise_mul elementwise_pow elementwise_sub
    equal fused_elemwise_activation gcd greater_equal greater_than lcm less_equal less_than
    logical_and logical_or logical_xor matmul not_equal elementwise_fmax elementwise_fmin
    cholesky_solve solve triangular_solve
"""
OTHERS = {
    **dict.fromkeys(BROADCAST.split(), "X Y"),
    "atan2": "X1 X2",
    "addmm": "Input",
    "put_along_axis": "Value",
    "sequence_pad": "PadValue",
    "squared_l2_distance": "Y",
    # windows and filters, and what they slide over
    **dict.fromkeys(("deformable_psroi_pooling", "deformable_conv", "deformable_conv_v1"), "Input"),
    **dict.fromkeys(("prroi_pool", "psroi_pool", "roi_align", "roi_pool"), "X"),
    "conv2d": "Filter Input",
    "conv2d_transpose": "Filter",
    "conv3d": "Filter Input",
    "conv_shift": "Y",
    "depthwise_conv2d": "Filter Input",
    "depthwise_conv2d_transpose": "Filter",
    "grid_sampler": "X",
    "roi_perspective_transform": "X",
    "row_conv": "Filter",
    # tables of which numbers take rows or elements
    "bpr_loss": "X",
    "cross_entropy": "X",
    "dequantize_log": "Dict",
    "fused_embedding_fc_lstm": "Embeddings",
    "gather": "X",
    "gather_nd": "X",
    "graph_send_recv": "X",
    "hierarchical_sigmoid": "Bias W",
    "hierarchical_sigmoid_path": "Label PathTable",
    "index_sample": "X",
    "index_select": "X",
    "lookup_table": "W",
    "lookup_table_dequant": "W",
    "lookup_table_v2": "W",
    "nll_loss": "X",
    "tdm_child": "TreeInfo",
    # others are filled up, cut, or may be any number
    "expand_as": "X",
    "pad_constant_like": "Y",
    "sequence_unpad": "X",
    "tree_conv": "EdgeSet",
    # not read
    "fusion_seqpool_cvm_concat": "CVM",
    "nce": "Bias Classes Weight",
}


def shapes(type: str, case: Case) -> list[tuple[int, ...]] | None:
    """Return the shapes of what an operator gives, None if it refuses its inputs."""
    try:
        return [value.shape for value in results(type, case)]
    except (HpcdistError, TypeError, ValueError):
        return None


def others(value: Any) -> Iterator[Any]:
    """Yield an input, or one of a list, with other extents."""
    if isinstance(value, list):
        for at, one in enumerate(value):
            yield from ([*value[:at], other, *value[at + 1 :]] for other in others(one))
    elif not isinstance(value, LoDTensor):
        yield from (other for _, other in one_off(np.asarray(value)))


def of_other_extents(type: str) -> set[str]:
    """Return the inputs of which another extent leaves the shapes of all results as they are."""
    found = set()
    for seed in range(SEEDS):
        case = CASES[type](Seeded(seed))
        given = shapes(type, case)
        if given is None:
            continue
        for slot, value in case.inputs.items():
            if len(case.inputs) > 1 or isinstance(value, list):
                changed = (replace(case, inputs={**case.inputs, slot: v}) for v in others(value))
                if any(shapes(type, other) == given for other in changed):
                    found.add(slot)
    return found


@pytest.mark.parametrize("type", sorted(CASES.keys() - MADE_INSIDE))
def test_no_input_is_broadcast_or_left_unread(type):
    assert of_other_extents(type) == set(OTHERS.get(type, "").split())
