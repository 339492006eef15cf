"""Gradient clipping in its three spellings: the numbers, and who is told what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hpcdist import layers, optimizer
from hpcdist.clip import (
    GradientClipByGlobalNorm,
    GradientClipByNorm,
    GradientClipByValue,
    set_gradient_clip,
)
from hpcdist.errors import GraphError
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope
from hpcdist.fluid.layers.param_attr import ParamAttr
from hpcdist.graph.names import guard
from hpcdist.graph.program import (
    Program,
    default_main_program,
    default_startup_program,
    program_guard,
)
from hpcdist.graph.variable import Variable
from hpcdist.initializer import Constant

A, B = np.float32([3.0, -1.0]), np.float32([0.5, 4.0])  # gradients of the parameters a and b


@pytest.fixture(autouse=True)
def programs() -> Iterator[None]:
    with guard(), program_guard(Program(), Program()):
        yield


def net(**attrs: Any) -> Variable:
    """Return a . A + b . B; both parameters begin at 0."""
    products = []
    for name, gradient in (("a", A), ("b", B)):
        attr = ParamAttr(name=name, initializer=Constant(0.0), gradient_clip=attrs.get(name))
        parameter = layers.create_parameter([2], "float32", attr=attr)
        values = layers.assign(gradient)
        products.append(layers.reduce_sum(layers.elementwise_mul(parameter, values)))
    return layers.sums(products)


def moved() -> tuple[np.ndarray, np.ndarray]:
    """Return how far a step of SGD at rate 1 moved a and b: their clipped gradients."""
    scope, exe = Scope(), Executor()
    exe.run(default_startup_program(), scope=scope)
    exe.run(default_main_program(), {}, [], scope=scope)
    a, b = (-np.array(scope.find_var(n).get_tensor()) for n in "ab")
    return a, b


def spelt_by_optimizer(clip: Any) -> None:
    optimizer.SGD(1.0, grad_clip=clip).minimize(net())


def spelt_by_minimize(clip: Any) -> None:
    optimizer.SGD(1.0).minimize(net(), grad_clip=clip)


def spelt_by_set_gradient_clip(clip: Any) -> None:
    loss = net()
    set_gradient_clip(clip)
    optimizer.SGD(1.0).minimize(loss)


def spelt_by_param_attr(clip: Any) -> None:
    optimizer.SGD(1.0).minimize(net(a=clip, b=clip))


SPELLINGS = [spelt_by_optimizer, spelt_by_minimize, spelt_by_set_gradient_clip, spelt_by_param_attr]


def norm(*gradients: np.ndarray) -> float:
    return float(np.linalg.norm(np.concatenate(gradients)))


@pytest.mark.parametrize("spell", SPELLINGS)
@pytest.mark.parametrize(
    ("clip", "want"),
    [
        (GradientClipByValue(1.0), ([1.0, -1.0], [0.5, 1.0])),
        (GradientClipByValue(max=2.0, min=-0.5), ([2.0, -0.5], [0.5, 2.0])),
        (GradientClipByNorm(2.0), (A * 2 / norm(A), B * 2 / norm(B))),
        (GradientClipByNorm(100.0), (A, B)),
        (GradientClipByGlobalNorm(2.0), (A * 2 / norm(A, B), B * 2 / norm(A, B))),
        (GradientClipByGlobalNorm(100.0), (A, B)),
    ],
)
def test_numbers(spell: Any, clip: Any, want: Any) -> None:
    spell(clip)
    for got, wanted in zip(moved(), want):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize("spell", SPELLINGS)
def test_the_update_names_the_clipped_gradient(spell: Any) -> None:
    spell(GradientClipByGlobalNorm(2.0))
    block = default_main_program().global_block()
    for op in block.ops:
        if op.type == "sgd":
            assert op.attrs["op_role_var"] == [op.input("Param")[0], op.input("Grad")[0]]
            assert op.input("Grad")[0].startswith("elementwise_mul")


def test_need_clip_chooses_parameters() -> None:
    for clip, want in (
        (GradientClipByValue(1.0, need_clip=lambda p: p.name == "b"), ([3, -1], [0.5, 1])),
        (GradientClipByGlobalNorm(2.0, need_clip=lambda p: p.name == "b"), (A, B * 2 / norm(B))),
        (GradientClipByNorm(2.0, need_clip=lambda p: False), (A, B)),
    ):
        with guard(), program_guard(Program(), Program()):
            spelt_by_optimizer(clip)
            for got, wanted in zip(moved(), want):
                np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_only_the_parameters_that_have_a_clip_are_clipped() -> None:
    optimizer.SGD(1.0).minimize(net(b=GradientClipByValue(1.0)))
    np.testing.assert_allclose(moved(), [[3, -1], [0.5, 1]])


def test_set_gradient_clip_for_some_by_name_or_parameter() -> None:
    loss = net()
    a = default_main_program().global_block().var("a")
    set_gradient_clip(GradientClipByValue(1.0), param_list=[a])
    set_gradient_clip(GradientClipByValue(0.25), param_list=["b"])
    optimizer.SGD(1.0).minimize(loss)
    np.testing.assert_allclose(moved(), [[1, -1], [0.25, 0.25]])


def test_groups_have_their_own_norms() -> None:
    clips = {n: GradientClipByGlobalNorm(2.0, group_name=n) for n in "ab"}
    optimizer.SGD(1.0).minimize(net(**clips))
    np.testing.assert_allclose(moved(), [A * 2 / norm(A), B * 2 / norm(B)], rtol=1e-6)


def test_one_group_must_have_one_norm() -> None:
    loss = net(a=GradientClipByGlobalNorm(1.0), b=GradientClipByGlobalNorm(2.0))
    with pytest.raises(ValueError, match=r"clip_norm 1\.0, but 'b' asks for 2\.0"):
        optimizer.SGD(1.0).minimize(loss)


def test_grad_clip_of_the_optimizer_wins_over_set_gradient_clip() -> None:
    loss = net()
    set_gradient_clip(GradientClipByValue(0.1))
    optimizer.SGD(1.0, grad_clip=GradientClipByValue(1.0)).minimize(loss)
    np.testing.assert_allclose(moved(), [[1, -1], [0.5, 1]])


@pytest.mark.parametrize(
    "clip", [GradientClipByValue(0.02), GradientClipByNorm(0.1), GradientClipByGlobalNorm(0.1)]
)
def test_sparse_gradients_are_clipped_as_dense_ones(clip: Any) -> None:
    tables = []
    for sparse in (False, True):
        with guard(), program_guard(Program(), Program()):
            ids = layers.data("ids", [1], dtype="int64")
            attr = ParamAttr(name="table", initializer=Constant(0.5))
            rows = layers.embedding(ids, [6, 2], is_sparse=sparse, param_attr=attr)
            loss = layers.mean(layers.square(rows))
            optimizer.SGD(1.0, grad_clip=clip).minimize(loss)
            scope, exe = Scope(), Executor()
            exe.run(default_startup_program(), scope=scope)
            fed = np.array([[1], [4], [1]])
            exe.run(default_main_program(), {"ids": fed}, [], scope=scope)
            tables.append(np.array(scope.find_var("table").get_tensor()))
    np.testing.assert_allclose(tables[1], tables[0], rtol=1e-6)
    assert (tables[0][[1, 4]] < 0.5).all()


def test_refusals() -> None:
    with pytest.raises(GraphError, match="max must be positive"):
        GradientClipByValue(-1.0)
    with pytest.raises(TypeError, match="need_clip"):
        GradientClipByNorm(1.0, need_clip=3)
    with pytest.raises(TypeError, match="set_gradient_clip: expected"):
        set_gradient_clip(1.0)  # type: ignore[arg-type]
    loss = net()
    with pytest.raises(TypeError, match="not a parameter"):
        set_gradient_clip(GradientClipByNorm(1.0), [loss])  # type: ignore[list-item]
    with guard(), program_guard(Program(), Program()):
        loss = net(a=1.0)
        with pytest.raises(TypeError, match="gradient_clip of 'a'"):
            optimizer.SGD(1.0).minimize(loss)


def test_a_clip_passes_by_what_has_no_gradient_and_says_what_it_is() -> None:
    with program_guard(Program(), Program()):
        w = layers.create_parameter([2], "float32")
        assert GradientClipByGlobalNorm(1.0)([(w, None)]) == [(w, None)]
    assert str(GradientClipByNorm(2.0)) == "Gradient Clip By Norm, clip_norm=2.000000"
    assert str(GradientClipByGlobalNorm(1.0)) == "Gradient Clip By GlobalNorm, global_norm=1.000000"
    assert str(GradientClipByValue(1.0)) == "Gradient Clip By Value, min = -1.000000, max=1.000000"
