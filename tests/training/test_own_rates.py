"""Rates that scripts compute with plain layers, as model zoos do: servers compute them."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers, optimizer
from hpcdist.errors import PlanError
from hpcdist.executor.scope import Scope, scope_guard
from hpcdist.graph.op_role import OpRole
from tests.support.thread_jobs import ranks_as_threads
from tests.support.transpiler import transpile

STEPS, WIDE = 6, 3


def held(value=0.0):
    """Return a rate that is kept from step to step."""
    return layers.create_global_var([1], value, "float32", persistable=True, name="learning_rate")


def cosine_with_warmup():
    step = layers.learning_rate_scheduler._decay_step_counter()
    rate = held()
    warmup = layers.fill_constant([1], "float32", 1.0, force_cpu=True)
    epoch = layers.floor(step / 2)
    with layers.Switch() as switch:
        with switch.case(epoch < warmup):
            layers.assign(0.1 * (step + 1) / (2 * warmup), rate)
        with switch.default():
            angle = (step - warmup * 2) * (math.pi / 8)
            layers.assign(0.1 * (layers.cos(angle) + 1) / 2, rate)
    return rate


def restarts():
    """Cosines one after the other, of a counter that begins with 1."""
    step = layers.cast(layers.autoincreased_step_counter(), "float32")
    within = step - 4.0 * layers.floor(step / 4.0)
    return 0.05 * (layers.cos(within * math.pi / 4.0) + 1.1)


def scaled_schedule():
    """A schedule of the framework's, of which a branch makes what is used."""
    step = layers.autoincreased_step_counter("own", begin=0)
    falling = layers.exponential_decay(0.1, 2, 0.5)
    few = layers.fill_constant([1], "int64", 2)
    return layers.cond(step < few, lambda: falling * 0.1, lambda: falling * 1.0)


def with_a_count_of_its_own():
    """The counter is first made outside of the framework's schedule, for a value to be fetched."""
    epoch = layers.floor(layers.learning_rate_scheduler._decay_step_counter() / 2.0)
    epoch.stop_gradient = True
    return layers.piecewise_decay([1, 2, 4], [0.1, 0.05, 0.02, 0.01])


def clipped():
    return layers.clip(layers.exponential_decay(0.1, 1, 0.7), 0.03, 1.0)


def compounded():
    rate = held(0.1)
    layers.assign(rate * 0.8, rate)
    return rate


def branches_within_branches():
    step = layers.autoincreased_step_counter()
    later = layers.cast(step, "float32")
    two, four = (layers.fill_constant([1], "int64", n) for n in (2, 4))
    return layers.cond(
        step < four,
        lambda: layers.cond(step < two, lambda: later * 0.01, lambda: later * 0.02),
        lambda: 0.1 / later,
    )


RATES = [
    branches_within_branches,
    cosine_with_warmup,
    restarts,
    scaled_schedule,
    with_a_count_of_its_own,
    clipped,
    compounded,
]


def built(make, minimize=optimizer.Momentum, momentum=0.9, table=False):
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x, y = layers.data("x", [WIDE]), layers.data("y", [1])
        hidden = layers.fc(x, WIDE, act="tanh")
        if table:
            ids = layers.cast(layers.ceil(y), "int64")
            rows = layers.embedding(ids, [-1, WIDE], is_sparse=True, is_distributed=True)
            hidden = layers.elementwise_add(hidden, rows)
        loss = layers.mean(layers.square_error_cost(layers.fc(hidden, 1), y))
        rate = make()
        minimize(rate, momentum).minimize(loss)
    return main, startup, loss, rate


def train(main, startup, loss, rate):
    exe = fluid.Executor()
    exe.run(startup)
    found = []
    for step in range(STEPS):
        rng = np.random.default_rng(step)
        x, y = rng.normal(size=(4, WIDE)), rng.normal(size=(4, 1))
        feed = {"x": x.astype(np.float32), "y": y.astype(np.float32)}
        found.append([value.item() for value in exe.run(main, feed, [loss, rate])])
    return found


def in_job(trainers, servers, make, **net):
    scripts = [functools.partial(train, *built(make, **net)) for _ in range(trainers + servers)]
    with ranks_as_threads() as run:
        return run(trainers, servers, scripts)


@pytest.mark.parametrize("make", RATES)
def test_they_are_those_of_one_process(make):
    with scope_guard(Scope()):
        wanted = train(*built(make))
    assert len({rate for _, rate in wanted}) > 3
    for got in in_job(2, 2, make):
        np.testing.assert_allclose(got, wanted, rtol=2e-5)


def test_servers_of_tables_have_the_rates_of_trainers(monkeypatch):
    net = {"minimize": lambda rate, _: optimizer.Adagrad(rate), "table": True}
    with scope_guard(Scope()):
        wanted = train(*built(cosine_with_warmup, **net))
    monkeypatch.setenv("HPCDIST_DENSE", "collective")
    for got in in_job(2, 1, cosine_with_warmup, **net):
        np.testing.assert_allclose(got, wanted, rtol=2e-5)


def test_two_programs_in_turns_have_such_rates():
    def built_two():
        mains, startup, fetched = [fluid.Program(), fluid.Program()], fluid.Program(), []
        startup.random_seed = 3
        with fluid.unique_name.guard():
            for main, make in zip(mains, (cosine_with_warmup, restarts)):
                with fluid.program_guard(main, startup):
                    x = layers.data("x", [WIDE])
                    loss = layers.mean(layers.square(layers.fc(x, 1)))
                    rate = make()
                    optimizer.SGD(rate).minimize(loss)
                    fetched.append([loss, rate])
        return mains, startup, fetched

    def script(mains, startup, fetched):
        exe = fluid.Executor()
        exe.run(startup)
        feed = {"x": np.ones((4, WIDE), np.float32)}
        turns = [0, 1] * STEPS
        return [[v.item() for v in exe.run(mains[t], feed, fetched[t])] for t in turns]

    with scope_guard(Scope()):
        wanted = script(*built_two())
    scripts = [functools.partial(script, *built_two()) for _ in range(3)]
    with ranks_as_threads() as run:
        for got in run(2, 1, scripts):
            np.testing.assert_allclose(got, wanted, rtol=2e-5)


@pytest.mark.parametrize("sync", [True, False])
def test_trainers_run_nothing_of_it(sync):
    main, startup, *_ = built(cosine_with_warmup)
    before = [op.role for op in main.global_block().ops]
    made = transpile((main, startup), 0, "ps0:1,ps1:1", 2, sync_mode=sync)
    assert [op.role for op in main.global_block().ops] == before, "the script's own stays"
    kinds = {op.type for op in made.get_trainer_program().global_block().ops}
    assert not kinds & {"increment", "floor", "cos", "conditional_block", "less_than"}
    for endpoint in made.pserver_endpoints:
        server = made.get_pserver_program(endpoint)
        first = server.block(server.distribution.schedule).ops[0]
        counters = server.distribution.plan.counters
        assert (first.type, len(counters)) == (("increment", 0) if sync else ("sum", 2))
        schedule = server.block(server.distribution.schedule)
        assert {op.role for op in schedule.ops} == {OpRole.LR_SCHED}


def test_rates_of_constants_stay_on_trainers_too_where_they_can_be_fetched():
    main, startup, *_ = built(lambda: layers.fill_constant([1], "float32", 0.2) * 0.5)
    made = transpile((main, startup), 0, "ps0:1", 2, sync_mode=False)
    kinds = [op.type for op in made.get_trainer_program().global_block().ops]
    assert "scale" in kinds and made.get_pserver_program("ps0:1").distribution.schedule == -1


def counted(begin=1, step=1):
    count = layers.autoincreased_step_counter("own", begin, step)
    return 0.1 / layers.cast(count, "float32")


def read_before_it_counts():
    count = layers.create_global_var([1], 0.0, "float32", persistable=True, name="own")
    rate = 0.1 / (count + 1.0)
    layers.increment(count)
    return rate


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (compounded, "'learning_rate' from one step to the next"),
        (read_before_it_counts, "'own' from one step to the next"),
        (lambda: counted(step=2), "'own' is not incremented by 1"),
        (lambda: counted(begin=100), "'own' begins with 100"),
    ],
)
def test_what_trainers_cannot_count_is_refused(make, why):
    with pytest.raises(PlanError, match=why):
        transpile(built(make)[:2], 0, "ps0:1", 2, sync_mode=False)


def of_data():
    step = layers.cast(layers.autoincreased_step_counter(), "float32")
    return 0.1 / (step + layers.reduce_mean(fluid.default_main_program().global_block().var("x")))


def of_a_parameter():
    weight = fluid.default_main_program().all_parameters()[0]
    return 0.1 / (layers.reduce_sum(layers.square(weight)) + 1.0)


def drawn():
    return layers.uniform_random([1], min=0.01, max=0.1)


def counted_for_the_model_too():
    step = layers.cast(layers.autoincreased_step_counter(), "float32")
    block = fluid.default_main_program().global_block()
    x = block.var("x")
    block.append_op("elementwise_add", {"X": x, "Y": step}, {"Out": x})
    return 0.1 / step


@pytest.mark.parametrize("make", [of_data, of_a_parameter, drawn, counted_for_the_model_too])
def test_what_servers_cannot_compute_is_refused_by_name(make):
    main, startup, *_ = built(make, lambda rate, _: optimizer.SGD(rate))
    with pytest.raises(PlanError, match="which (trainers compute|is another parameter)"):
        transpile((main, startup), 0, "ps0:1", 2)


def test_what_moves_a_rate_behind_the_updates_is_refused_by_name():
    main, startup, _, rate = built(lambda: held(0.1))
    with fluid.program_guard(main, startup):
        layers.assign(rate * 0.5, rate)
    with pytest.raises(PlanError, match="'learning_rate', which trainers compute"):
        transpile((main, startup), 0, "ps0:1", 2)


def test_counts_of_steps_whose_gradients_are_merged_are_refused_by_name():
    def merged(rate, _):
        return optimizer.GradientMergeOptimizer(optimizer.SGD(rate), k_steps=2)

    with pytest.raises(PlanError, match="LearningRate=.* which trainers compute"):
        transpile(built(restarts, merged)[:2], 0, "ps0:1", 2)


def test_a_count_that_an_evaluation_moves_is_refused_by_name():
    def evaluate_after_a_step(main, startup, loss, rate):
        exe = fluid.Executor()
        exe.run(startup)
        feed = {"x": np.ones((4, WIDE), np.float32), "y": np.ones((4, 1), np.float32)}
        for program in (main, main.clone(for_test=True), main):
            exe.run(program, feed, [loss])

    scripts = [functools.partial(evaluate_after_a_step, *built(restarts)) for _ in range(2)]
    with ranks_as_threads() as run, pytest.raises(PlanError, match="@STEP_COUNTER@.* was changed"):
        run(1, 1, scripts)


@pytest.mark.parametrize("dense", ["servers", "collective"])
def test_what_a_rate_is_made_of_may_be_fed(monkeypatch, dense):
    net = {"minimize": lambda rate, _: optimizer.Adagrad(rate), "table": dense == "collective"}

    def halved():
        return held(0.1) * 0.5

    def feeding(main, startup, loss, rate):
        exe = fluid.Executor()
        exe.run(startup)
        feed = {"x": np.ones((4, WIDE), np.float32), "y": np.ones((4, 1), np.float32)}
        rates = [np.array([0.1 * step], np.float32) for step in range(STEPS)]
        fed = [feed if step == 3 else {**feed, "learning_rate": r} for step, r in enumerate(rates)]
        return [[v.item() for v in exe.run(main, one, [loss, rate])] for one in fed]

    with scope_guard(Scope()):
        wanted = feeding(*built(halved, **net))
    if dense == "collective":
        monkeypatch.setenv("HPCDIST_DENSE", dense)
    with ranks_as_threads() as run:
        scripts = [functools.partial(feeding, *built(halved, **net)) for _ in range(3)]
        for got in run(2, 1, scripts):
            np.testing.assert_allclose(got, wanted, rtol=2e-5)


def test_a_startup_of_an_evaluation_that_runs_first_changes_nothing():
    def script(main, startup, loss, rate, evaluated):
        exe = fluid.Executor()
        for program in (evaluated[1], startup):
            exe.run(program)
        feed = {"x": np.ones((4, WIDE), np.float32), "y": np.ones((4, 1), np.float32)}
        return [[v.item() for v in exe.run(main, feed, [loss, rate])] for _ in range(3)]

    scripts = [functools.partial(script, *built(restarts), built(restarts)) for _ in range(3)]
    with scope_guard(Scope()):
        wanted = scripts.pop()()
    with ranks_as_threads() as run:
        np.testing.assert_allclose(run(1, 1, scripts)[0], wanted, rtol=2e-5)
