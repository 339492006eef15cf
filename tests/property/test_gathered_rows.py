"""Sparse gradients without servers: clipped and regularized behind the gathering of their rows."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import PlanError
from hpcdist.graph.registry import lookup
from hpcdist.ops.embedding.selected_rows import SelectedRows
from hpcdist.transpiler.gathered_rows import ANY_ROWS, check_sparse, with_norms
from hpcdist.transpiler.grad_allreduce import sum_over_trainers
from tests.equality.features import BATCHES, REGULARIZER, RUN
from tests.equality.jobs import EQUAL, compare

HEIGHT, WIDTH = 7, 2
ATTRS = {
    "clip": {"min": -0.3, "max": 0.2},
    "clip_by_norm": {"max_norm": 0.5},
    "elementwise_mul": {"axis": -1},
    "scale": {"scale": 0.5, "bias": 0.0, "bias_after_scale": True},
}
OPTIMIZERS = ["SGD", "Momentum", "Nesterov", "Adagrad", "Adam", "lazy Adam", "RMSProp"]
TABLES = [{"table": "sparse"}, {"sharing": "sparse table"}, {"table": "sparse", "ragged": "pool"}]


@pytest.mark.parametrize("mode", ["no servers", "own rows"])
@pytest.mark.parametrize("clip", ["by value", "by norm", "by global norm"])
def test_clips_of_gathered_rows_are_those_of_one_process(clip, mode):
    draw = random.Random(f"{clip} {mode}")
    choice = {
        "mode": mode,
        "clip": clip,
        **draw.choice(TABLES),
        "trainers": draw.choice(["2", "3"]),
        "optimizer": draw.choice(OPTIMIZERS),
        "regularizer": draw.choice(list(REGULARIZER.levels)),
        "batches": draw.choice(list(BATCHES.levels)),
        "run": draw.choice(list(RUN.levels)),
    }
    assert (outcome := compare(choice)).kind == EQUAL, (choice, outcome)


def rows_of(numbers: list[int]) -> SelectedRows:
    rng = np.random.default_rng(len(numbers))
    values = rng.uniform(-1, 1, (len(numbers), WIDTH)).astype("float32")
    return SelectedRows(np.array(numbers, np.int64), values, HEIGHT)


@pytest.mark.parametrize("type", ANY_ROWS)
@settings(max_examples=30)
@given(numbers=st.lists(st.integers(0, HEIGHT - 1), max_size=9), compiled_for=st.integers(0, 9))
def test_an_operator_takes_any_number_of_rows(type, numbers, compiled_for):
    def run(x: SelectedRows, gathered: SelectedRows) -> np.ndarray:
        """Bind the operator for the rows of ``x``, and run it on what these have become."""
        definition = lookup(type)
        number = np.array([0.25], "float32")
        more = {"elementwise_mul": [number], "clip_by_norm": [None]}.get(type, [])
        out = np.zeros(1, "float32") if type == "squared_l2_norm" else x.copy()
        operands = (np, x, *more, out)
        call = definition.bind and definition.bind(*operands, **ATTRS.get(type, {}))
        x.rows, x.value = gathered.rows, gathered.value
        if call:
            call()
        else:
            definition.kernel(*operands, **ATTRS.get(type, {}))
        return out.to_dense() if isinstance(out, SelectedRows) else out

    wanted = run(rows_of(numbers), rows_of(numbers))
    np.testing.assert_array_equal(run(rows_of([0] * compiled_for), rows_of(numbers)), wanted)


@pytest.mark.parametrize("tables", [1, 2])
def test_norms_of_tables_need_no_dense_values(tables):
    """The first of what is summed up, and all of it."""
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        word = layers.data("word", [1], dtype="int64")
        rows = [layers.embedding(word, [HEIGHT, WIDTH], is_sparse=True) for _ in range(tables)]
        clip = fluid.clip.GradientClipByGlobalNorm(1.0)
        fluid.optimizer.SGD(0.1, grad_clip=clip).minimize(layers.mean(layers.sums(rows)))
    sum_over_trainers(main.global_block(), 1)
    with pytest.raises(PlanError, match="has rows of all trainers"):
        check_sparse(main)
    check_sparse(new := with_norms(main))
    types = [op.type for op in new.global_block().ops]
    assert types.count("squared_l2_norm") == tables
    assert not {"merge_selected_rows", "get_tensor_from_selected_rows", "square"} & {*types}


def test_what_needs_the_number_of_rows_is_refused():
    """A script that makes a dense value of a sparse gradient by itself."""
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        word = layers.data("word", [1], dtype="int64")
        rows = layers.embedding(word, [HEIGHT, WIDTH], is_sparse=True, param_attr="table")
        ((_, gradient),) = fluid.backward.append_backward(layers.mean(rows))
        block = main.global_block()
        block.append_op("c_allreduce_sum", {"X": gradient}, {"Out": gradient}, {"ring_id": 0})
        layers.reduce_mean(layers.get_tensor_from_selected_rows(gradient))
    with pytest.raises(PlanError, match="has rows of all trainers"):
        check_sparse(main)
