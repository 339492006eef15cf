"""Shapes that inputs of an operator must have beside one another."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.base.errors import GraphError, HpcdistError
from hpcdist.fluid.compat.paddle2 import tensor
from hpcdist.fluid.compat.paddle2.composed import arithmetic, selection
from hpcdist.fluid.compat.paddle2.nn import functional
from hpcdist.graph.registry import Meta
from hpcdist.ops.shape_patterns import shaped


def _meta(*shape: int) -> Meta:
    return Meta(shape, "float32")


CHECKED = shaped("X: n c ...; Label: n 1; Rows*: c ...", lambda *_: "inferred")


@pytest.mark.parametrize(
    "shapes",
    [
        (_meta(4, 3, 2), _meta(4, 1), [_meta(3, 2), _meta(3, 2)]),
        (_meta(4, 3), _meta(4, 1), [_meta(3)]),
        (_meta(-1, 3, 2), _meta(4, 1), [_meta(3, -1)]),
        (_meta(4, 3, 2), None, []),
        (_meta(4, 3, 2),),
    ],
)
def test_shapes_that_fit_are_inferred_from(shapes: Any) -> None:
    assert CHECKED(*shapes) == "inferred"


@pytest.mark.parametrize(
    "shapes",
    [
        (_meta(4), _meta(4, 1)),
        (_meta(4, 3, 2), _meta(5, 1)),
        (_meta(4, 3, 2), _meta(4, 2)),
        (_meta(4, 3, 2), _meta(4)),
        (_meta(4, 3, 2), None, [_meta(3, 2), _meta(3, 1)]),
        (_meta(4, 3, 2), None, [_meta(3)]),
        (_meta(-1, 3), _meta(4, 1), [_meta(2)]),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes: Any) -> None:
    with pytest.raises(GraphError, match=r"expected shapes X \[n, c, \.\.\.\], Label \[n, 1\]"):
        CHECKED(*shapes)


layers = fluid.layers
LAYERS: dict[str, tuple[Callable[..., Any], tuple[list[int], ...]]] = {
    "kldiv_loss": (layers.kldiv_loss, ([4, 2], [4, 1])),
    "rank_loss": (layers.rank_loss, ([4, 1], [4, 2], [4, 1])),
    "margin_rank_loss": (layers.margin_rank_loss, ([4, 1], [4, 2], [4, 1])),
    "stack": (lambda a, b: layers.stack([a, b]), ([4, 3], [4, 2])),
    "bilinear": (lambda a, b: layers.bilinear_tensor_product(a, b, 3), ([4, 3], [5, 2])),
    "fsp_matrix": (layers.fsp_matrix, ([2, 3, 4, 4], [2, 3, 5, 4])),
    "label_smooth": (layers.label_smooth, ([4, 9], [1, 8])),
    "iou_similarity": (layers.iou_similarity, ([4, 4], [4, 3])),
    "affine_channel": (layers.affine_channel, ([2, 3, 4, 4], [4], [4])),
    "matmul": (layers.matmul, ([2, 3, 4], [1, 4, 5])),
    "matmul of more batches": (layers.matmul, ([2, 3, 4], [2, 1, 4, 5])),
    "mul": (layers.mul, ([4], [1, 4])),
    "pad_constant_like": (layers.pad_constant_like, ([3], [1, 4])),
    "smaller pad_constant_like": (layers.pad_constant_like, ([3, 4], [4, 4])),
    "negative pad": (lambda x: layers.pad(x, [0, -1]), ([3],)),
    "negative pad2d": (lambda x: layers.pad2d(x, [-1, 0, 0, 0]), ([2, 3, 5, 4],)),
    "pad2d past the other edge": (
        lambda x: layers.pad2d(x, [5, 0, 0, 0], "reflect"),
        ([1, 1, 5, 4],),
    ),
    "a dimension twice": (lambda x: layers.reduce_sum(x, [1, -1]), ([3, 4],)),
    "prroi_pool": (layers.prroi_pool, ([2, 3, 4, 4], [3, 5])),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_do_not_broadcast_what_fluid_refuses(layer: str) -> None:
    build, shapes = LAYERS[layer]
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        pytest.raises(GraphError, match="expected|need|must be"),
    ):
        build(*(fluid.data(f"x{i}", shape) for i, shape in enumerate(shapes)))


def test_shapes_that_only_a_step_knows_are_checked_in_the_step() -> None:
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        loss = layers.kldiv_loss(
            fluid.data("x", [None, None]), fluid.data("target", [None, None]), "sum"
        )
    feed = {"x": np.ones((3, 2), "float32"), "target": np.ones((3, 1), "float32")}
    with pytest.raises(GraphError, match="expected one shape, got X .3, 2., Target .3, 1."):
        fluid.Executor().run(main, feed=feed, fetch_list=[loss])


def test_what_is_padded_may_have_any_number_of_rows() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        like, y = fluid.layers.ones([3, 4], "float32"), fluid.data("y", [None, 2])
        padded = layers.pad_constant_like(like, y)
        (found,) = fluid.Executor().run(feed={"y": np.ones((2, 2), "float32")}, fetch_list=[padded])
    assert padded.shape == (3, 4)
    np.testing.assert_array_equal(found, np.pad(np.ones((2, 2), "float32"), ((0, 1), (0, 2))))


PADDLE: dict[str, tuple[Callable[..., Any], tuple[list[int], ...]]] = {
    "soft_margin_loss": (functional.soft_margin_loss, ([4, 2], [4, 1])),
    "multi_label": (functional.multi_label_soft_margin_loss, ([4, 2], [4, 1])),
    "poisson_nll_loss": (functional.poisson_nll_loss, ([4, 2], [4, 1])),
    "triplet_margin_loss": (functional.triplet_margin_loss, ([4, 2], [4, 1], [4, 1])),
    "kl_div": (functional.kl_div, ([4, 2], [4, 1])),
    "dot": (arithmetic.dot, ([4, 2], [4, 1])),
    "bmm": (tensor.DECLARED["bmm"], ([2, 3, 4], [3, 4, 2])),
}


@pytest.mark.parametrize("name", PADDLE)
def test_paddle_2_does_not_broadcast_them_either(name: str) -> None:
    build, shapes = PADDLE[name]
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        pytest.raises(GraphError, match="expected .*shape"),
    ):
        build(*(fluid.data(f"x{i}", shape) for i, shape in enumerate(shapes)))


def test_places_of_several_dimensions_are_refused() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x, index = fluid.data("x", [4, 2]), fluid.data("index", [2, 2], "int64")
        with pytest.raises(GraphError, match="expected .n., or .n, 1., got .2, 2."):
            selection.gather(x, index)
        with pytest.raises(GraphError, match="Index: expected .n., or .n, 1., got"):
            tensor.DECLARED["index_select"](x, index)


def test_places_and_priors_may_lie_in_a_column_or_a_row() -> None:
    values = np.arange(8, dtype="float32").reshape(4, 2)
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.layers.assign(values)
        places = fluid.layers.assign(np.array([[2], [0]]))
        chosen = tensor.DECLARED["index_select"](x, places)
        prior = fluid.layers.assign(np.array([1.0, 3.0], "float32"))
        smooth = layers.label_smooth(x, prior, 0.5)
        found = fluid.Executor().run(fetch_list=[chosen, smooth])
    np.testing.assert_array_equal(found[0], values[[2, 0]])
    np.testing.assert_array_equal(found[1], values / 2 + np.array([0.5, 1.5], "float32"))


STEPS: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "quotient": (
        lambda: layers.elementwise_div(_whole("x"), _whole("y")),
        {"x": np.array([[4], [3]]), "y": np.array([[2], [0]])},
        "integers are divided by 0 .element 1 of 2 of Y",
    ),
    "remainder": (
        lambda: layers.elementwise_mod(_whole("x"), _whole("y")),
        {"x": np.array([[4]]), "y": np.array([[0]])},
        "integers are divided by 0",
    ),
    "hsigmoid": (
        lambda: layers.hsigmoid(fluid.data("x", [None, 3]), _whole("y"), 4),
        {"x": np.ones((2, 3), "float32"), "y": np.array([[1]])},
        "expected shapes X .n, d.",
    ),
    "teacher_student": (
        lambda: layers.teacher_student_sigmoid_loss(
            fluid.data("x", [None, 1]), fluid.data("y", [None, 1])
        ),
        {"x": np.ones((2, 1), "float32"), "y": np.ones((1, 1), "float32")},
        "expected shapes X .n, 1., Label .n, 1., got X .2, 1., Label .1, 1.",
    ),
    "linear_chain_crf": (
        lambda: layers.linear_chain_crf(fluid.data("x", [None, 3], lod_level=1), _whole("y", 1)),
        {
            "x": fluid.create_lod_tensor(np.ones((3, 3), "float32"), [[1, 2]]),
            "y": fluid.create_lod_tensor(np.zeros((3, 1), "int64"), [[2, 1]]),
        },
        "Emission and Label must be of the same sequences, which end at .1, 3. and .2, 3.",
    ),
    "chunk_eval": (
        lambda: layers.chunk_eval(_whole("x", 1), _whole("y", 1), "IOB", 3)[0],
        {
            "x": fluid.create_lod_tensor(np.zeros((3, 1), "int64"), [[1, 2]]),
            "y": fluid.create_lod_tensor(np.zeros((3, 1), "int64"), [[2, 1]]),
        },
        "Label and Inference must be of the same sequences",
    ),
}


def _whole(name: str, lod_level: int = 0) -> Any:
    return fluid.data(name, [None, 1], "int64", lod_level=lod_level)


@pytest.mark.parametrize("name", STEPS)
def test_what_only_a_step_knows_is_refused_in_it(name: str) -> None:
    build, feed, refusal = STEPS[name]
    startup, main = fluid.Program(), fluid.Program()
    with (
        fluid.program_guard(main, startup),
        fluid.unique_name.guard(),
        fluid.scope_guard(fluid.Scope()),
    ):
        result, exe = build(), fluid.Executor()
        exe.run(startup)
        with pytest.raises(HpcdistError, match=refusal):
            exe.run(main, feed=feed, fetch_list=[result])


RANGES: dict[str, Callable[[Any], Any]] = {
    "max_norm: expected above 0": lambda x: layers.clip_by_norm(x, -1.0),
    "power_iters: expected at least 0": lambda x: layers.spectral_norm(x, power_iters=-1),
    "epsilon: expected at least 0": lambda x: layers.layer_norm(x, epsilon=-1.0),
    "epsilon: expected at least 0, got nan": lambda x: layers.layer_norm(x, epsilon=math.nan),
    "expand_times: expected at least 1": lambda x: layers.expand(x, [0, 1]),
    "expected extents of 0 or more": lambda x: layers.fill_constant([-2], "float32", 1.0),
    "expected a step from 0 towards 5": lambda x: layers.range(0, 5, -1, "float32"),
    "expected min of at most max": lambda x: layers.uniform_random([2], min=1.0, max=-1.0),
    "expected a clip_norm above 0": lambda x: fluid.clip.GradientClipByNorm(-1.0),
    "expected a clip_norm above 0, got 0": lambda x: fluid.clip.GradientClipByGlobalNorm(0),
    "data_layout: expected NCHW or": lambda x: layers.image_resize(
        layers.reshape(x, [1, 1, 4, 4]), [3, 3], data_format="NONSENSE"
    ),
}


@pytest.mark.parametrize("says", RANGES)
def test_numbers_and_words_are_within_their_ranges(says: str) -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data("x", [4, 4])
        with pytest.raises(GraphError, match=says):
            RANGES[says](x)


@pytest.mark.parametrize(
    ("name", "wrong"), [("Adam", {"beta1": 1.5}), ("Momentum", {"momentum": -1.0})]
)
def test_optimizers_of_programs_take_what_servers_take(name: str, wrong: dict[str, float]) -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        loss = layers.mean(layers.fc(fluid.data("x", [4, 4]), 1))
        optimizer = getattr(fluid.optimizer, name)(learning_rate=0.1, **wrong)
        with pytest.raises(GraphError, match="expected"):
            optimizer.minimize(loss)
