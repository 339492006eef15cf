"""What scripts compute after an update, such as BERT's weight decay, moves to the servers."""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.clip import GradientClipByGlobalNorm, set_gradient_clip
from hpcdist.errors import FeedError, PlanError
from hpcdist.executor.scope import Scope, scope_guard
from hpcdist.transpiler import DistributeTranspiler
from hpcdist.transpiler.pserver import server_plan
from tests.support.thread_jobs import ranks_as_threads

SHAPES = [(2, 1), (1, 2), (2, 2)]  # trainers, servers
ROWS = [7, 6, 1, 4]
WIDE = 150  # so that two servers share the weight of the first layer
SEED = 3


def warmup():
    """Return BERT's rate: it rises for two steps, then falls."""
    with fluid.default_main_program()._lr_schedule_guard():
        name = "scheduled_learning_rate"
        rate = layers.create_global_var([1], 0.0, "float32", persistable=True, name=name)
        step = layers.learning_rate_scheduler._decay_step_counter()
        with layers.Switch() as switch:
            with switch.case(step < 2):
                layers.assign(0.1 * (step / 2.0), rate)
            with switch.default():
                layers.assign(layers.polynomial_decay(0.1, 8, 0.0, 1.0), rate)
    return rate


def adam(loss, rate):
    set_gradient_clip(GradientClipByGlobalNorm(0.5))
    return fluid.optimizer.Adam(rate, epsilon=1e-3).minimize(loss)[1]  # smooth near zero


def sgd(loss, rate):
    return fluid.optimizer.SGD(rate).minimize(loss)[1]


def times(before, rate):
    return before * 0.3 * rate


def build(minimize=adam, schedule=warmup, term=times, copy=lambda param: param * 1.0):
    """Return main, startup, loss of a net whose weights decay by ``term`` of their copies."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = SEED
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x, y = layers.data("x", [WIDE]), layers.data("y", [1])
        hidden = layers.fc(x, WIDE, act="tanh", param_attr="wide_w", bias_attr="wide_b")
        loss = layers.mean(layers.square_error_cost(layers.fc(hidden, 1, param_attr="w"), y))
        rate = schedule()
        before = {}
        for param in main.global_block().all_parameters():
            before[param.name] = copy(param)
            before[param.name].stop_gradient = True
        for param, grad in minimize(loss, rate):
            if not param.name.endswith("w"):
                continue
            with main._optimized_guard([param, grad]), fluid.name_scope("weight_decay"):
                layers.assign(param - term(before[param.name], rate), param)
    return main, startup, loss


def batch(step, **more):
    rng = np.random.default_rng(step)
    x, y = rng.uniform(-1, 1, (ROWS[step], WIDE)), rng.uniform(-3, 3, (ROWS[step], 1))
    return {"x": x.astype(np.float32), "y": y.astype(np.float32), **more}


def train(main, startup, loss, **more):
    exe = fluid.Executor()
    exe.run(startup)
    fetch = [loss, "wide_w", "w"]
    return [exe.run(main, batch(step, **more), fetch) for step in range(len(ROWS))]


def jobs(shapes, make, **more):
    with ranks_as_threads() as run:
        for trainers, servers in shapes:
            built = [make() for _ in range(trainers + servers)]
            scripts = [lambda programs=programs: train(*programs, **more) for programs in built]
            yield from run(trainers, servers, scripts)


def check(make, shapes=SHAPES):
    with scope_guard(Scope()):
        wanted = train(*make())
    for got in jobs(shapes, make):
        for step, expected in zip(got, wanted, strict=True):
            for value, one in zip(step, expected, strict=True):
                np.testing.assert_allclose(value, one, rtol=2e-5, atol=2e-6)
    return wanted


def test_the_decay_of_bert_trains_as_one_process():
    wanted = check(build)
    with scope_guard(Scope()):
        without = train(*build(term=lambda before, rate: before * 0.0))
    assert np.abs(wanted[-1][1] - without[-1][1]).max() > 1e-3, "the decay must matter"


@pytest.mark.parametrize("copy", [layers.assign, lambda p: p * constant() + constant()])
def test_copies_of_any_kind_are_made_before_the_update(copy):
    check(lambda: build(sgd, lambda: 0.1, copy=copy), [(2, 2)])


@pytest.mark.parametrize("minimize", [adam, sgd])
def test_constants_may_be_made_behind_the_update(minimize):
    check(lambda: build(minimize, lambda: 0.1, lambda before, rate: before * constant()), [(2, 2)])


def constant():
    return layers.fill_constant([1], "float32", 0.5)


@pytest.mark.parametrize("minimize", [adam, sgd])
def test_a_rate_that_is_a_constant_of_the_script_will_do(minimize):
    check(lambda: build(minimize, lambda: constant() * 0.2), [(2, 2)])


def test_servers_copy_a_block_before_they_update_it():
    main, startup, _ = build(sgd, lambda: 0.1)
    made = DistributeTranspiler()
    made.transpile(0, main, "ps0:1,ps1:1", 2, startup_program=startup)
    for endpoint in ("ps0:1", "ps1:1"):
        program = made.get_pserver_program(endpoint)
        (held,) = (b for b in server_plan(program).blocks if b.parameter == "wide_w")
        *merge, copy, update, one, two, minus, put = program.block(held.block).ops
        assert [op.type for op in merge] == ["sum", "scale"]
        assert (copy.type, update.type) == ("scale", "sgd")
        assert copy.input("X") == minus.input("X") == put.output("Out") == [held.name]
        assert one.input("X") == copy.output("Out") and two.output("Out") == minus.input("Y")
        kept = program.global_block().var(copy.output("Out")[0])
        assert kept.shape == (held.end - held.begin, WIDE)
    assert "sgd" not in [op.type for op in made.get_trainer_program().global_block().ops]


def another(before, rate):
    return before * layers.reduce_sum(fluid.default_main_program().global_block().var("w"))


def whole(before, rate):
    return before / layers.reduce_sum(before)


def full(before, rate):
    return before * layers.fill_constant(list(before.shape), "float32", 0.1)


def fed():
    return layers.data("rate", [1], append_batch_size=False)


def computed():
    return layers.reduce_mean(layers.data("rate", [1]))


REFUSED = {
    "reads 'w', which is another parameter": {"term": another},
    "servers hold parts of '(wide_)?w', but this computes with all of it": {"term": whole},
    "parts of '(wide_)?w', but this fills as many rows as the parameter has": {"term": full},
    "reads 'rate', which is fed": {"schedule": fed},
    "'reduce_mean_0.tmp_0', which trainers compute": {"schedule": computed},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_servers_cannot_compute_is_refused_before_the_first_step(message):
    def make():
        return build(sgd, **{"schedule": lambda: 0.1, **REFUSED[message]})

    rate = np.full(1, 0.1, np.float32)
    with pytest.raises(PlanError, match=message):
        list(jobs([(1, 2)], make, rate=rate))


def held_rate():
    return layers.create_global_var([1], 0.05, "float32", persistable=True, name="learning_rate")


def fed_now_and_then(main, startup, loss):
    """Feed a rate in some steps; the others go on with it. Fetch it, too."""
    exe = fluid.Executor()
    exe.run(startup)
    found = []
    for step in range(len(ROWS)):
        rate = {} if step == 1 else {"learning_rate": np.full(1, 0.02 * (step + 1), np.float32)}
        found.append(exe.run(main, batch(step, **rate), [loss, "wide_w", "learning_rate"]))
    return found


@pytest.mark.parametrize("shape", [(2, 1), (1, 2), (2, 2)])
def test_a_rate_that_servers_hold_may_be_fed(shape):
    def script():
        programs = build(sgd, held_rate)
        return lambda: fed_now_and_then(*programs)

    with scope_guard(Scope()):
        wanted = script()()
    assert len({step[2].item() for step in wanted}) == len(ROWS) - 1
    with ranks_as_threads() as run:
        for got in run(*shape, [script() for _ in range(sum(shape))]):
            for step, expected in zip(got, wanted, strict=True):
                for value, one in zip(step, expected, strict=True):
                    np.testing.assert_allclose(value, one, rtol=2e-5, atol=2e-6)


def test_only_one_number_can_be_fed_to_servers():
    rate = np.full(2, 0.01, np.float32)
    with pytest.raises(FeedError, match="feed 'learning_rate': the parameter servers hold"):
        list(jobs([(2, 1)], lambda: build(sgd, held_rate), learning_rate=rate))


def test_a_parameter_that_servers_hold_is_not_fed_to_a_step():
    w = np.zeros((WIDE, 1), np.float32)
    with pytest.raises(FeedError, match="feed 'w': the parameter servers hold"):
        list(jobs([(2, 1)], lambda: build(sgd, held_rate), w=w))


def test_trainers_do_not_write_what_servers_hold():
    def make():
        main, startup, loss = build(sgd, lambda: 0.1)
        with fluid.program_guard(main, startup):  # weights of a critic, clipped in every step
            w = main.global_block().var("w")
            layers.assign(layers.clip(w, -0.05, 0.05), w)
        return main, startup, loss

    with pytest.raises(PlanError, match="writes parameter 'w', which the parameter servers hold"):
        list(jobs([(1, 1)], make))


def test_a_step_counter_that_servers_move_is_not_read_on_trainers():
    def make():
        main, startup, loss = build(sgd, lambda: layers.exponential_decay(0.1, 2, 0.5))
        with fluid.program_guard(main, startup):
            layers.learning_rate_scheduler._decay_step_counter()
        return main, startup, loss

    with pytest.raises(PlanError, match="reads '@LR_DECAY_COUNTER@', which the learning rate's"):
        list(jobs([(1, 1)], make))
