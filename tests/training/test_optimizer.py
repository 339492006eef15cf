"""Optimizers: their numbers against plain numpy, and the programs they build."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpcdist import layers, optimizer
from hpcdist.base.optimizers import OPTIMIZERS
from hpcdist.clip import GradientClipByValue
from hpcdist.errors import GraphError
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope
from hpcdist.fluid.layers.param_attr import ParamAttr
from hpcdist.fluid.optimizer.kinds import UnbiasedLamb
from hpcdist.graph.names import guard
from hpcdist.graph.program import (
    Program,
    default_main_program,
    default_startup_program,
    program_guard,
)
from hpcdist.graph.variable import Variable
from hpcdist.initializer import NumpyArrayInitializer

Arrays = list[np.ndarray]


pytestmark = pytest.mark.usefixtures("programs")


# -- closed forms in double precision: (p, g, state, t) -> p; state is changed in place -----------
def momentum(p: Any, g: Any, s: Arrays, t: int, nesterov: bool = False) -> Any:
    s[0][:] = 0.9 * s[0] + g
    return p - 0.1 * (g + 0.9 * s[0] if nesterov else s[0])


def adagrad(p: Any, g: Any, s: Arrays, t: int) -> Any:
    s[0] += g**2
    return p - 0.1 * g / (np.sqrt(s[0]) + 1e-6)


def decayed_adagrad(p: Any, g: Any, s: Arrays, t: int) -> Any:
    s[0][:] = 0.95 * s[0] + 0.05 * g**2
    return p - 0.1 * g / (np.sqrt(s[0]) + 1e-6)


def adam(p: Any, g: Any, s: Arrays, t: int) -> Any:
    s[0][:] = 0.9 * s[0] + 0.1 * g
    s[1][:] = 0.999 * s[1] + 0.001 * g**2
    rate = 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
    return p - rate * s[0] / (np.sqrt(s[1]) + 1e-8)


def adamax(p: Any, g: Any, s: Arrays, t: int) -> Any:
    s[0][:] = 0.9 * s[0] + 0.1 * g
    s[1][:] = np.maximum(np.abs(g), 0.999 * s[1] + 1e-8)
    return p - 0.1 / (1 - 0.9**t) * s[0] / s[1]


def rmsprop(p: Any, g: Any, s: Arrays, t: int, centered: bool = False) -> Any:
    s[1][:] = 0.95 * s[1] + 0.05 * g**2
    s[2][:] = 0.95 * s[2] + 0.05 * g
    mean = s[2] if centered else 0
    s[0][:] = 0.5 * s[0] + 0.1 * g / np.sqrt(s[1] - mean**2 + 0.01)
    return p - s[0]


def ftrl(
    p: Any, g: Any, s: Arrays, t: int, l1: float = 0.0, l2: float = 0.0, q: float = 0.5
) -> Any:
    new = s[0] + g**2
    s[1] += g - (new**q - s[0] ** q) / 0.1 * p
    s[0][:] = new
    moved = np.abs(s[1]) > l1
    below = np.where(moved, new**q / 0.1 + 2 * l2, 1.0)
    return np.where(moved, -(s[1] - np.sign(s[1]) * l1) / below, 0.0)


def lars(p: Any, g: Any, s: Arrays, t: int) -> Any:
    norm = np.linalg.norm
    rate = 0.1 * 0.001 * norm(p) / (norm(g) + 0.0005 * norm(p))
    s[0][:] = 0.9 * s[0] + rate * (g + 0.0005 * p)
    return p - s[0]


def lamb(p: Any, g: Any, s: Arrays, t: int, unbiased: bool = False) -> Any:
    s[0][:] = 0.9 * s[0] + 0.1 * g
    s[1][:] = 0.999 * s[1] + 0.001 * g**2
    whole = (1 - 0.9**t, 1 - 0.999**t) if unbiased else (1, 1)
    step = s[0] / whole[0] / (np.sqrt(s[1] / whole[1]) + 1e-6) + 0.01 * p
    return p - 0.1 * np.linalg.norm(p) / np.linalg.norm(step) * step


def adadelta(p: Any, g: Any, s: Arrays, t: int) -> Any:
    s[0][:] = 0.95 * s[0] + 0.05 * g**2
    step = -np.sqrt((s[1] + 1e-6) / (s[0] + 1e-6)) * g
    s[1][:] = 0.95 * s[1] + 0.05 * step**2
    return p - np.sqrt((s[1] + 1e-6) / (s[0] + 1e-6)) * g


Rule = Callable[..., Any]
RMS = {"rho": 0.95, "epsilon": 0.01, "momentum": 0.5}
RULES: list[tuple[str, Callable[[], optimizer.Optimizer], Rule]] = [
    ("sgd", lambda: optimizer.SGD(0.1), lambda p, g, s, t: p - 0.1 * g),
    ("momentum", lambda: optimizer.Momentum(0.1, 0.9), momentum),
    (
        "nesterov",
        lambda: optimizer.Momentum(0.1, 0.9, use_nesterov=True),
        lambda *a: momentum(*a, nesterov=True),
    ),
    ("adagrad", lambda: optimizer.Adagrad(0.1), adagrad),
    ("decayed_adagrad", lambda: optimizer.DecayedAdagrad(0.1), decayed_adagrad),
    ("adam", lambda: optimizer.Adam(0.1), adam),
    ("adamax", lambda: optimizer.Adamax(0.1), adamax),
    ("rmsprop", lambda: optimizer.RMSProp(0.1, **RMS), rmsprop),
    (
        "centered rmsprop",
        lambda: optimizer.RMSProp(0.1, centered=True, **RMS),
        lambda *a: rmsprop(*a, centered=True),
    ),
    ("ftrl", lambda: optimizer.Ftrl(0.1), ftrl),
    (
        "ftrl l1 l2",
        lambda: optimizer.Ftrl(0.1, l1=0.3, l2=0.2),
        lambda *a: ftrl(*a, l1=0.3, l2=0.2),
    ),
    (
        "ftrl power",
        lambda: optimizer.Ftrl(0.1, l1=0.3, lr_power=-0.3),
        lambda *a: ftrl(*a, l1=0.3, q=0.3),
    ),
    ("lars", lambda: optimizer.LarsMomentum(0.1, 0.9), lars),
    ("lamb", lambda: optimizer.Lamb(0.1), lamb),
    ("unbiased lamb", lambda: UnbiasedLamb(0.1), lambda *a: lamb(*a, unbiased=True)),
    ("adadelta", lambda: optimizer.Adadelta(0.1), adadelta),
]
SHAPE = (37, 83)  # three chunks of the compiled passes, the last one short


def gradient_of_step(t: int) -> np.ndarray:
    return np.sin(np.arange(37 * 83) * (0.1 + 0.01 * t)).reshape(SHAPE).astype(np.float32)


@pytest.mark.parametrize(("make", "rule"), [r[1:] for r in RULES], ids=[r[0] for r in RULES])
def test_against_closed_form(make: Callable[[], optimizer.Optimizer], rule: Rule) -> None:
    first = np.cos(np.arange(37 * 83)).reshape(SHAPE).astype(np.float32)
    g = layers.data("g", list(SHAPE), append_batch_size=False)
    w = layers.create_parameter(
        SHAPE, "float32", name="w", default_initializer=NumpyArrayInitializer(first)
    )
    make().minimize(layers.reduce_sum(layers.elementwise_mul(w, g)))
    scope, exe = Scope(), Executor()
    exe.run(default_startup_program(), scope=scope)
    want, state = first.astype(np.float64), [np.zeros(SHAPE) for _ in range(3)]
    for t in range(1, 7):
        fed = gradient_of_step(t)
        exe.run(default_main_program(), {"g": fed}, [], scope=scope)
        want = rule(want, fed.astype(np.float64), state, t)
        got = np.array(scope.find_var("w").get_tensor())
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-5)


# -- programs --------------------------------------------------------------------------------------
def net(**attr: Any) -> Variable:
    x, y = layers.data("x", [4]), layers.data("y", [1])
    out = layers.fc(x, 1, param_attr=ParamAttr(**attr))
    return layers.mean(layers.square_error_cost(out, y))


def update_ops() -> list[Any]:
    return [op for op in default_main_program().global_block().ops if op.type in OPTIMIZERS]


def test_minimize_returns_operators_and_pairs_and_notes_the_startup_program() -> None:
    ops, pairs = optimizer.Adam(0.1).minimize(net())
    assert ops == update_ops()
    assert [p.name for p, _ in pairs] == ["fc_0.w_0", "fc_0.b_0"]
    assert default_main_program().startup is default_startup_program()


def test_a_startup_program_given_to_minimize_is_used() -> None:
    own = Program()
    optimizer.SGD(0.1).minimize(net(), startup_program=own)
    assert own.global_block().has_var("learning_rate_0")
    assert default_main_program().startup is own


def test_parameter_list_of_minimize_and_of_the_optimizer() -> None:
    optimizer.SGD(0.1, parameter_list=["fc_0.b_0"]).minimize(net())
    assert [op.input("Param")[0] for op in update_ops()] == ["fc_0.b_0"]


def test_multiplier_of_a_parameter() -> None:
    optimizer.SGD(0.1).minimize(net(learning_rate=0.5))
    (scale,) = [op for op in default_main_program().global_block().ops if op.type == "scale"]
    assert (int(scale.role), scale.attr("scale")) == (18, 0.5)
    rates = {op.input("Param")[0]: op.input("LearningRate") for op in update_ops()}
    assert rates == {"fc_0.b_0": ["learning_rate_0"], "fc_0.w_0": scale.output("Out")}


def test_a_name_goes_into_the_accumulators() -> None:
    optimizer.Momentum(0.1, 0.9, name="mine").minimize(net())
    assert "fc_0.w_0_mine_velocity_0" in default_main_program().global_block().vars


def test_initial_accumulator_value() -> None:
    optimizer.Adagrad(0.1, initial_accumulator_value=0.25).minimize(net())
    filled = {
        op.output("Out")[0]: op.attr("value")
        for op in default_startup_program().global_block().ops
        if op.type == "fill_constant"
    }
    assert filled["fc_0.w_0_moment_0"] == 0.25


def test_one_optimizer_for_two_programs() -> None:
    sgd = optimizer.Momentum(0.1, 0.9)
    for _ in range(2):
        with guard(), program_guard(Program(), Program()):
            sgd.minimize(net())
            assert default_main_program().global_block().has_var("learning_rate_0")


def test_backward_then_apply_gradients() -> None:
    sgd = optimizer.SGD(0.1)
    pairs = sgd.backward(net())
    assert not update_ops()
    assert sgd.apply_gradients(pairs) == update_ops()


def test_refusals() -> None:
    with pytest.raises(TypeError, match="learning_rate must be a number"):
        optimizer.SGD("fast")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="grad_clip"):
        optimizer.SGD(0.1, grad_clip=1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="grad_clip"):
        optimizer.SGD(0.1).minimize(net(), grad_clip=1.0)  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="no trainable parameter: nothing is trained"):
        optimizer.SGD(0.1).minimize(layers.mean(layers.data("z", [2])))
    with pytest.raises(AssertionError, match=r"shape \(1,\)"):
        optimizer.SGD(0.1).minimize(layers.fc(layers.data("z", [2]), 2))
    sgd = optimizer.Momentum(0.1, 0.9)
    loss = net()
    sgd.minimize(loss)
    with pytest.raises(GraphError, match="already optimized"):
        sgd.minimize(loss)


@pytest.mark.parametrize("name", ["SGD", "Adam", "Ftrl"])
def test_a_distributed_table_keeps_its_optimizer_and_is_not_clipped(name: str) -> None:
    ids = layers.data("ids", [1], dtype="int64")
    attr = ParamAttr(name="table")
    rows = layers.embedding(ids, [-1, 4], is_sparse=True, is_distributed=True, param_attr=attr)
    clip = GradientClipByValue(1.0)
    kind = getattr(optimizer, name)
    ops, _ = kind(0.1, grad_clip=clip).minimize(layers.mean(layers.fc(rows, 1)))
    assert [op.type for op in update_ops()] == [name.lower()] * 3
    assert update_ops()[0].input("Grad") == ["table@GRAD"]
    assert ops[-1] is update_ops()[0]
    clips = [op for op in default_main_program().global_block().ops if op.type == "clip"]
    assert len(clips) == 2 and all(op.input("X") != ["table@GRAD"] for op in clips)


def test_distributed_tables_may_be_many() -> None:
    ids = layers.data("ids", [1], dtype="int64")
    rows = [
        layers.embedding(ids, [10**11, 4], is_sparse=True, is_distributed=True, param_attr=name)
        for name in ("a", "b")
    ]
    optimizer.Momentum(0.1, 0.9).minimize(layers.mean(layers.sums(rows)))
    assert [op.input("Param") for op in update_ops()] == [["a"], ["b"]]


@pytest.mark.parametrize("name", ["Adamax", "Ftrl", "DecayedAdagrad", "LarsMomentum"])
def test_sparse_gradients_are_refused_when_built(name: str) -> None:
    facts = {"momentum": 0.9} if name == "LarsMomentum" else {}
    loss = layers.mean(
        layers.embedding(layers.data("ids", [1], dtype="int64"), [10, 4], is_sparse=True)
    )
    with pytest.raises(
        GraphError, match=r"sparse gradient.*is_sparse=False.*adagrad, adam, lamb, momentum"
    ):
        getattr(optimizer, name)(learning_rate=0.1, **facts).minimize(loss)


def test_what_scripts_look_up_in_an_optimizer() -> None:
    main, startup = Program(), Program()
    with program_guard(main, startup):
        loss = layers.mean(layers.fc(layers.data("x", [2]), 1, bias_attr=False))
        chosen = optimizer.Momentum(0.25, 0.9)
        assert chosen._global_learning_rate() is None
        _, ((param, _),) = chosen.minimize(loss)
        rate = chosen._global_learning_rate()
        assert rate is chosen._global_learning_rate(main) and rate.shape == (1,)
        velocity = chosen._accumulators["velocity"][param.name]
        assert velocity.name == main.global_block().ops[-1].input("Velocity")[0]
        executor = Executor()
        executor.run(startup)
        found = executor.run(feed={"x": np.ones((2, 2), "float32")}, fetch_list=[rate])
        assert found[0].tolist() == [0.25]
        schedule = layers.piecewise_decay([2], [0.1, 0.01])
        assert optimizer.SGD(schedule)._global_learning_rate() is schedule


def test_a_loss_that_is_minimized_again_is_told(recwarn):
    with program_guard(Program(), Program()):
        out = layers.fc(layers.data("x", [2]), 1, param_attr="w", bias_attr=False)
        first = layers.fc(out, 1, param_attr="v", bias_attr=False)
        losses = [layers.mean(out), layers.mean(first)]
        sgd = optimizer.SGD(0.1)
        sgd.minimize(losses[1], parameter_list=["w"])
        sgd.minimize(losses[1], parameter_list=["v"])  # one rate each, say
        sgd.minimize(losses[0])  # another loss, which moves w too
        assert not recwarn
        with pytest.warns(UserWarning, match="'mean_1.tmp_0' is minimized already.* v, w twice"):
            sgd.minimize(losses[1])
