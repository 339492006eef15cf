"""Layers of fluid.contrib that draw at random: what is drawn, and that every process draws it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.errors import FeedError, GraphError

TRAVEL = np.array([[1, 3], [1, 4], [2, 5], [2, 0]], "int32")  # leaf 3 is not that deep
LAYER = np.array([[1], [2], [3], [4], [5], [6]], "int32")


def given(array: Any) -> fluid.ParamAttr:
    return fluid.ParamAttr(initializer=fluid.initializer.NumpyArrayInitializer(array))


def run(build: Any, feed: dict[str, Any], steps: int = 1) -> list[list[np.ndarray]]:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        fetch = build()
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        return [exe.run(main, feed=feed, fetch_list=fetch) for _ in range(steps)]


def test_a_batch_is_shuffled_alike_in_every_process() -> None:
    rows = np.arange(40, dtype="float32").reshape(20, 2)

    def build() -> list[Any]:
        x = fluid.data("x", [None, 2])
        x.stop_gradient = False
        out = fluid.contrib.layers.shuffle_batch(x, seed=3)
        return [out, *fluid.gradients([fluid.layers.reduce_sum(out * out)], [x])]

    first, second = run(build, {"x": rows}, 2), run(build, {"x": rows}, 2)
    for (one, gradient), (other, _) in zip(first, second):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(sorted(one[:, 0]), rows[:, 0])
        np.testing.assert_array_equal(gradient, 2 * rows)
    assert (first[0][0] != rows).any() and (first[0][0] != first[1][0]).any()


def test_children_of_nodes_and_which_are_leaves() -> None:
    tree = [[0, 0, 0, 1, 2], [0, 1, 0, 3, 4], [0, 1, 0, 5, 6], [0, 2, 1, 0, 0], [1, 2, 1, 0, 0]]
    tree += [[2, 2, 2, 0, 0], [3, 2, 2, 0, 0]]

    def build() -> list[Any]:
        x, info = fluid.data("x", [None, 1], dtype="int32"), given(np.array(tree, "int32"))
        return list(fluid.contrib.layers.tdm_child(x, 7, 2, param_attr=info))

    ((child, leaf),) = run(build, {"x": np.array([[2], [3], [0], [1]], "int32")})
    assert child.tolist() == [[[5, 6]], [[0, 0]], [[0, 0]], [[3, 4]]]  # as Fluid 1.8.5
    assert leaf.tolist() == [[[1, 1]], [[0, 0]], [[0, 0]], [[0, 1]]]
    with pytest.raises(FeedError, match="tdm_child: id 9"):
        run(build, {"x": np.array([[9]], "int32")})


@pytest.mark.parametrize("positive", [True, False])
def test_nodes_are_sampled_layer_by_layer(positive: bool) -> None:
    def build() -> list[Any]:
        x = fluid.data("x", [None, 1], dtype="int32")
        how = {"tree_travel_attr": given(TRAVEL), "tree_layer_attr": given(LAYER)}
        found = fluid.contrib.layers.tdm_sampler(
            x, [1, 2], [2, 4], 4, output_positive=positive, **how
        )
        return [value for parts in found for value in parts]

    leaves = np.array([[2], [0], [3]] * 8, "int32")
    one = run(build, {"x": leaves}, 2)
    for step, other in zip(one, run(build, {"x": leaves}, 2)):
        for value, same in zip(step, other):
            np.testing.assert_array_equal(value, same)
        nodes, labels, mask = step[:2], step[2:4], step[4:]
        for k, layer in enumerate(({1, 2}, {3, 4, 5, 6})):
            assert nodes[k].shape == (24, k + 1 + positive, 1)
            for leaf, row, label, there in zip(leaves[:, 0], nodes[k], labels[k], mask[k]):
                above, drawn = TRAVEL[leaf, k], row[:, 0].tolist()
                assert there.all() == bool(above) and there.any() == bool(above)
                if not above:
                    assert not row.any() and not label.any()
                    continue
                assert len(set(drawn)) == len(drawn) and set(drawn) <= layer
                assert label.reshape(-1).tolist() == [int(positive)] + [0] * (len(drawn) - 1)
                assert (drawn[0] == above) if positive else above not in drawn
    assert any((a != b).any() for a, b in zip(*one))


def test_what_does_not_fit_is_refused() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data("x", [None, 3])
        with pytest.raises(GraphError, match="columns 2:5 of 'x'"):
            fluid.contrib.layers.partial_sum([x, x], 2, 3)
        with pytest.raises(GraphError, match="cannot be drawn beside the one above"):
            fluid.contrib.layers.tdm_sampler(x, [2], [2], 1)
    with pytest.raises(AttributeError, match="search_pyramid_hash.*n-grams"):
        _ = fluid.contrib.layers.search_pyramid_hash
