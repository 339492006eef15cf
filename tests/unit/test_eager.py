"""Operators that run at once, in fluid.dygraph.guard."""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.errors import GraphError, MissingNameError

dygraph, layers = fluid.dygraph, fluid.layers


def variable(values, dtype="float32"):
    made = dygraph.to_variable(np.array(values, dtype))
    made.stop_gradient = False
    return made


def test_operators_run_at_once():
    assert not fluid.in_dygraph_mode()
    with dygraph.guard(fluid.CPUPlace()):
        assert fluid.in_dygraph_mode() and dygraph.enabled()
        x = dygraph.to_variable(np.array([[1, 2], [3, 4]], "float32"))
        y = layers.matmul(x, x) + x
        assert y.numpy().tolist() == [[8, 12], [18, 26]] and y.shape == (2, 2)
        total = layers.reduce_sum(y)
        assert float(total) == 64.0 and int(total) == 64 and len(y) == 2
        assert "abc"[dygraph.to_variable(np.array([2]))] == "c"
    assert not fluid.in_dygraph_mode()


def test_gradients_are_added_up_until_they_are_cleared():
    with dygraph.guard():
        x, y = variable([1.0, 2.0]), variable([3.0, 4.0])
        layers.reduce_sum(x * y + layers.square(x)).backward()
        assert x.gradient().tolist() == [5.0, 8.0] and y.gradient().tolist() == [1.0, 2.0]
        layers.reduce_sum(x * y).backward()
        assert x.gradient().tolist() == [8.0, 12.0]
        x.clear_gradient()
        assert x.gradient() is None


def test_random_values_of_the_forward_pass_are_those_of_the_backward_pass():
    with dygraph.guard():
        x = variable(np.ones(1000))
        kept = layers.dropout(x, 0.5, dropout_implementation="upscale_in_train")
        layers.reduce_sum(kept).backward()
        np.testing.assert_array_equal(x.gradient(), kept.numpy())


def test_no_gradients_are_kept_where_none_are_wanted():
    with dygraph.guard():
        x = variable([2.0])
        with dygraph.no_grad():
            y = x * x
        constant = dygraph.to_variable(np.ones(1, "float32"))
        (x * y * constant).backward()
        assert x.gradient().tolist() == [4.0] and constant.gradient() is None

        @dygraph.no_grad
        def squared(z):
            return z * z

        (squared(x) * x).backward()
        assert x.gradient().tolist() == [8.0]
        assert x.detach().stop_gradient and x.detach().numpy().tolist() == [2.0]


def test_sequences_are_kept():
    with dygraph.guard():
        x = dygraph.to_variable(np.arange(5, dtype="float32")[:, None])
        x.value().get_tensor().set_recursive_sequence_lengths([[2, 3]])
        assert layers.sequence_pool(x, "sum").numpy().reshape(-1).tolist() == [1.0, 9.0]


def test_what_does_not_run_at_once_is_refused():
    with pytest.raises(AssertionError, match=r"call it inside fluid\.dygraph\.guard"):
        dygraph.to_variable(np.ones(1))
    with pytest.raises(MissingNameError, match="what has parameters is a Program"):
        dygraph.Linear(2, 3)
    with dygraph.guard():
        x = variable([[1.0, 2.0]])
        with pytest.raises(GraphError, match="layers with parameters"):
            layers.fc(x, 2)
        with pytest.raises(GraphError, match="loops and branches"):
            layers.cond(layers.fill_constant([1], "bool", True), lambda: x, lambda: x)
    with pytest.raises(MissingNameError, match="imperative"):
        layers.fill_constant([1], "float32", 1.0).numpy()


def test_whole_numbers_get_whole_slopes_of_a_power():
    with fluid.dygraph.guard():
        x, y = (fluid.dygraph.to_variable(np.array(v)) for v in ([1, 3, 6], [1, 2, 1]))
        x.stop_gradient = y.stop_gradient = False
        (x**y).backward()
        assert x.gradient().tolist() == [1, 6, 1]
        assert y.gradient().tolist() == [0, 9, 10]  # 0, 9.89 and 10.75
