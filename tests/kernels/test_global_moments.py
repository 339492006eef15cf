"""Sums of moments over trainers: how parts are joined, and what is said if one is missing."""

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.errors import FeedError
from hpcdist.executor.backend import CPUPlace, backend_of
from hpcdist.executor.control import Binding
from hpcdist.ops.normalization.sync_batch_norm import joined_moments
from hpcdist.runtime.batches.global_moments import bind_moments
from hpcdist.transpiler.sync_batch_norm import synchronize_batch_norm


def told(rows):
    means = rows.mean(0) if len(rows) else np.zeros(rows.shape[1])
    return np.concatenate([[len(rows)], means, ((rows - means) ** 2).sum(0)])


@pytest.mark.parametrize("cuts", [(), (3,), (1, 1, 7), (0, 4, 10)])
def test_parts_of_any_sizes_have_the_moments_of_the_whole(cuts):
    rows = np.random.default_rng(0).normal(1e6, 1.0, (10, 4))  # far from 0: squares would cancel
    count, means, squares = joined_moments([told(part) for part in np.split(rows, cuts)])
    assert count == 10
    np.testing.assert_allclose(means, rows.mean(0), rtol=1e-15)
    np.testing.assert_allclose(squares / count, rows.var(0), rtol=1e-9)


def bound(exchange, rows=4):
    main = fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, fluid.Program()):
        y = fluid.layers.batch_norm(fluid.data("x", [None, 3]))
    block = main.global_block()
    synchronize_batch_norm(block)
    (op,) = block.ops
    arrays = {n: np.ones(3, np.float32) for n in (*op.input_arg_names, *op.output_arg_names)}
    arrays |= {n: np.full(3, np.nan, np.float32) for n in op.output("SavedVariance")}
    arrays |= {"x": np.eye(rows, 3, dtype=np.float32), y.name: np.empty((rows, 3), np.float32)}
    backend = backend_of(CPUPlace())
    return bind_moments(op, Binding(main, None, backend, arrays), exchange), arrays[y.name], arrays


def test_a_batch_of_one_row_leaves_no_moment_unwritten():
    call, found, arrays = bound(None, rows=1)
    call()
    np.testing.assert_array_equal(found, [[1, 0, 0]])
    assert all(np.isfinite(array).all() for array in arrays.values())


def test_one_that_died_is_left_out_and_one_that_ended_is_named():
    alone, expected, _ = bound(None)
    alone()
    call, found, _ = bound(lambda data, what: [None, data])
    call()
    np.testing.assert_array_equal(found, expected)
    call, _, _ = bound(lambda data, what: [data, b""])
    with pytest.raises(FeedError, match="got 0 from trainer 1; its script has ended"):
        call()
