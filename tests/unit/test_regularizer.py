"""L1 and L2 penalties: what they add to gradients, and which one counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hpcdist import layers, optimizer
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
from hpcdist.initializer import NumpyArrayInitializer
from hpcdist.regularizer import L1Decay, L2Decay

W = np.float32([2.0, -0.5, 0.0])
G = np.float32([1.0, 2.0, 3.0])


@pytest.fixture(autouse=True)
def programs() -> Iterator[None]:
    with guard(), program_guard(Program(), Program()):
        yield


def stepped(global_one: Any = None, own: Any = None, clip: Any = None) -> np.ndarray:
    """Return w after a step of SGD at rate 1 with gradient G."""
    attr = ParamAttr(name="w", initializer=NumpyArrayInitializer(W), regularizer=own)
    w = layers.create_parameter([3], "float32", attr=attr)
    loss = layers.reduce_sum(layers.elementwise_mul(w, layers.assign(G)))
    optimizer.SGD(1.0, regularization=global_one, grad_clip=clip).minimize(loss)
    scope, exe = Scope(), Executor()
    exe.run(default_startup_program(), scope=scope)
    exe.run(default_main_program(), {}, [], scope=scope)
    return np.array(scope.find_var("w").get_tensor())


@pytest.mark.parametrize(
    ("facts", "penalty"),
    [
        ({}, 0 * W),
        ({"global_one": L2Decay(0.1)}, 0.1 * W),
        ({"global_one": L1Decay(0.1)}, 0.1 * np.sign(W)),
        ({"own": L2Decay(0.5)}, 0.5 * W),
        ({"own": L1Decay(0.5), "global_one": L2Decay(0.1)}, 0.5 * np.sign(W)),
    ],
)
def test_penalties(facts: dict[str, Any], penalty: np.ndarray) -> None:
    np.testing.assert_allclose(stepped(**facts), W - G - penalty, rtol=1e-6)


def test_penalty_comes_after_clip() -> None:
    from hpcdist.clip import GradientClipByValue

    got = stepped(global_one=L2Decay(0.5), clip=GradientClipByValue(1.0))
    np.testing.assert_allclose(got, W - np.clip(G, -1, 1) - 0.5 * W, rtol=1e-6)


def test_sparse_gradient_becomes_dense() -> None:
    ids = layers.data("ids", [1], dtype="int64")
    first = np.arange(8, dtype=np.float32).reshape(4, 2)
    attr = ParamAttr(name="table", initializer=NumpyArrayInitializer(first))
    loss = layers.reduce_sum(layers.embedding(ids, [4, 2], is_sparse=True, param_attr=attr))
    optimizer.SGD(1.0, regularization=L2Decay(0.5)).minimize(loss)
    block = default_main_program().global_block()
    assert block.var("table@GRAD").type == "SELECTED_ROWS"
    assert block.var("table@GRAD@NEWGRAD@").type == "LOD_TENSOR"
    scope, exe = Scope(), Executor()
    exe.run(default_startup_program(), scope=scope)
    exe.run(default_main_program(), {"ids": np.array([[2], [2]])}, [], scope=scope)
    want = first - 0.5 * first
    want[2] -= 2
    np.testing.assert_allclose(np.array(scope.find_var("table").get_tensor()), want)


def test_text_and_refusal() -> None:
    assert str(L2Decay(0.1)) == "L2Decay, regularization_coeff=0.100000"
    with pytest.raises(TypeError, match="regularization of 'w'"):
        stepped(global_one=0.1)
