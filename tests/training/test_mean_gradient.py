"""Clip and norms of the mean gradient: what goes to servers, and in which stage."""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.clip import GradientClipByGlobalNorm, GradientClipByNorm, GradientClipByValue
from hpcdist.graph import lookup
from hpcdist.ps.shards import DuePacket
from hpcdist.ps.whole_steps import WholeSteps
from hpcdist.transpiler import DistributeTranspiler
from hpcdist.transpiler.mean_gradient import STAGE, of_mean_gradient
from hpcdist.transpiler.pserver import server_plan
from tests.support.ops import Case, Graph


def build(optimizer=fluid.optimizer.SGD, width=150, **settings):
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x = layers.data("x", [width])
        loss = layers.mean(layers.fc(x, width, bias_attr="b", param_attr="w"))
        optimizer(0.1, **settings).minimize(loss)
    return main, startup


def transpiled(main, startup, servers):
    names = [f"ps{k}:1" for k in range(servers)]
    made = DistributeTranspiler()
    made.transpile(0, of_mean_gradient(main, servers), ",".join(names), 2, startup_program=startup)
    return made, [made.get_pserver_program(name) for name in names]


def types(program):
    return [op.type for op in program.global_block().ops]


def stages(program, block):
    return [(op.type, op.attrs.get(STAGE)) for op in program.block(block.block).ops]


@pytest.mark.parametrize("servers", [1, 2])
def test_a_program_that_needs_nothing_of_the_kind_stays_as_it_is(servers):
    for main, _ in (build(), build(fluid.optimizer.Adam)):
        assert of_mean_gradient(main, servers) is main
    lars, _ = build(fluid.optimizer.LarsMomentum, momentum=0.9)
    assert (of_mean_gradient(lars, servers) is lars) == (servers == 1)  # one has whole parameters


def test_a_common_norm_is_summed_between_two_stages():
    main, startup = build(grad_clip=GradientClipByGlobalNorm(1.0))
    made, programs = transpiled(main, startup, 2)
    assert "square" not in types(made.get_trainer_program())
    plans = [server_plan(program) for program in programs]
    for program, plan in zip(programs, plans, strict=True):
        assert plan.sums.stages == 2
        scalars = [op.type for op in program.block(plan.sums.scalars).ops]
        assert scalars == ["sum", "sqrt", "fill_constant", "elementwise_max", "elementwise_div"]
        for block in plan.blocks:
            tail = stages(program, block)[2:]
            assert tail == [("square", 0), ("reduce_sum", 0), ("elementwise_mul", 1), ("sgd", 1)]
    totals = [[(s.total, s.stage) for s in plan.sums.sums] for plan in plans]
    assert totals[0] == totals[1] and len(totals[0]) == 2, "all servers exchange the same numbers"
    cut = [b for plan in plans for b in plan.blocks if b.parameter == "w"]
    parts = [p for plan in plans for s in plan.sums.sums for p in s.parts]
    assert len(cut) == 2 and len(parts) == len(set(parts)) == 3


def test_norms_of_one_gradient_and_of_lars_come_one_after_the_other():
    main, startup = build(
        fluid.optimizer.LarsMomentum, momentum=0.9, grad_clip=GradientClipByNorm(1.0)
    )
    _, programs = transpiled(main, startup, 2)
    for program in programs:
        plan = server_plan(program)
        assert plan.sums.stages == 3
        for block in plan.blocks:
            assert stages(program, block)[2:] == [
                ("squared_l2_norm", 0),
                ("clip_by_norm", 1),
                ("squared_l2_norm", 1),
                ("squared_l2_norm", 1),
                ("lars_momentum_of_norms", 2),
            ]


def test_nobody_is_warned_of_norms_that_servers_sum(recwarn):
    transpiled(*build(fluid.optimizer.LarsMomentum, momentum=0.9), 2)
    assert not [w for w in recwarn if "its own part" in str(w.message)]


def test_values_are_cut_on_servers_without_any_sum():
    main, startup = build(grad_clip=GradientClipByValue(1.0))
    made, (program,) = transpiled(main, startup, 1)
    assert "clip" not in types(made.get_trainer_program())
    assert server_plan(program).sums is None
    assert [op.type for op in program.block(1).ops][-2:] == ["clip", "sgd"]


def test_a_script_that_transpiles_itself_clips_on_the_trainer():
    main, startup = build(grad_clip=GradientClipByGlobalNorm(1.0))
    made = DistributeTranspiler()
    made.transpile(0, main, "ps0:1", 2, startup_program=startup)
    assert "square" in types(made.get_trainer_program())
    assert server_plan(made.get_pserver_program("ps0:1")).sums is None


# -- operators -------------------------------------------------------------------------------------
def test_lars_by_given_norms_is_lars():
    rng = np.random.default_rng(0)
    param, grad, velocity = (rng.normal(size=(5, 3)).astype(np.float32) for _ in range(3))
    rate = np.array([0.1], np.float32)
    attrs = {"mu": 0.9, "lars_coeff": 0.01, "lars_weight_decay": 0.001}
    slots = {"Param": param, "Grad": grad, "LearningRate": rate, "Velocity": velocity}
    names = ("ParamOut", "VelocityOut")
    out = [np.empty_like(param), np.empty_like(param)]
    norms = [np.array([np.vdot(a, a)], np.float32) for a in (param, grad)]
    lookup("lars_momentum_of_norms").kernel(np, *slots.values(), *norms, *out, **attrs)
    graph = Graph("lars_momentum", Case(slots, attrs))
    for mine, wanted in zip(out, graph.run([graph.outputs[n][0] for n in names]), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-5)


def test_squares_of_many_small_numbers_are_added_in_double_precision():
    x = np.full(200_001, 1e-3, np.float32)
    out = np.empty(1, np.float32)
    lookup("squared_l2_norm").kernel(np, x, out)
    assert out[0] == np.float32(200_001 * float(np.float32(1e-3)) ** 2)


# -- whole steps -----------------------------------------------------------------------------------
def update(packet, step=0):
    return DuePacket(packet, (0, step), False, ())


def test_updates_wait_for_those_of_all_packets():
    steps = WholeSteps(3)
    assert steps.add(update(2)) == [] and steps.holds(2) and not steps.holds(0)
    assert steps.add(update(0)) == []
    assert steps.add(update(0, 1)) == [], "of the next step already"
    assert steps.add(update(1)) == [update(0), update(1), update(2)]
    assert steps.holds(0) and not steps.holds(1)
    assert steps.add(update(2, 1)) == []
    assert steps.add(update(1, 1)) == [update(k, 1) for k in range(3)]
