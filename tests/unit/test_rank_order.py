"""Sequences in the order of their lengths are not rows of the batch: each trainer sorts its own."""

import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.graph.rows import How
from hpcdist.runtime.batches.analysis import RowTreatment
from hpcdist.runtime.batches.scatter import batched_names

pytestmark = pytest.mark.usefixtures("programs")


def how_of(var):
    program = fluid.default_main_program()
    return RowTreatment(program, batched_names(program)).of(var.name).how


def test_rows_that_each_trainer_sorts_by_length_are_not_rows_of_the_batch():
    words = layers.data("words", [3], lod_level=1)
    table = layers.lod_rank_table(words)
    steps = layers.lod_tensor_to_array(words, table)
    back = layers.array_to_lod_tensor(steps, table)
    first = layers.array_read(steps, layers.fill_constant([1], "int64", 0))
    pooled = layers.sequence_pool(layers.reorder_lod_tensor_by_rank(words, table), "sum")
    assert how_of(back) is How.RAGGED and how_of(layers.sequence_pool(back, "sum")) is How.ROWS
    assert how_of(first) is how_of(layers.scale(first, 2.0)) is how_of(pooled) is How.MIXED
