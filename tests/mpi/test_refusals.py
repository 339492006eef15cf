"""Jobs that cannot go on: every rank ends, soon, and what it says tells what to change."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.comm.cluster import PSERVER
from hpcdist.errors import HpcdistError
from hpcdist.graph.distribution import NOT_DISTRIBUTED
from tests.support.job import Outcome, alone, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

DEADLINE_S = 60.0
SHORT_S = 4.0  # where the deadline will pass
FEATURES = 4


def build(width: int = 3, optimizer: Any = None) -> tuple[Any, Any, Any]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 1
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        hidden = layers.fc(layers.data("x", [FEATURES]), width, act="tanh")
        guess = layers.fc(hidden, 1, param_attr="w", bias_attr=False)
        loss = layers.mean(layers.square_error_cost(guess, layers.data("y", [1])))
        (optimizer or fluid.optimizer.SGD(0.1)).minimize(loss)
    return main, startup, loss


def batch(seed: Any) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (5, FEATURES)).astype(np.float32)
    return {"x": x, "y": x.sum(1, keepdims=True)}


class Script:
    """A Fluid script over parameter servers, with the places where a user may go wrong."""

    deadline_s = DEADLINE_S

    def __init__(self, trainers: int, servers: int) -> None:
        self.trainers, self.servers = trainers, servers

    def __call__(self, role: Any) -> Any:
        self.role = role
        main, startup, self.loss = self.build()
        self.startup = startup
        transpiler = fluid.DistributeTranspiler()
        pservers = ",".join(self.endpoints())
        trainer = 0 if role.kind == PSERVER else role.index
        transpiler.transpile(trainer, main, pservers, self.told(), startup_program=startup)
        self.exe = fluid.Executor(fluid.CPUPlace())
        if role.kind == PSERVER:
            self.serve(transpiler)
            raise SystemExit(0)
        self.exe.run(startup)
        return self.train(transpiler.get_trainer_program())

    def endpoints(self) -> list[str]:
        return [f"ps{k}:6174" for k in range(self.servers)]

    def build(self) -> tuple[Any, Any, Any]:
        return build()

    def told(self) -> int:
        """Return the number of trainers that the script tells the transpiler."""
        return self.trainers

    def serve(self, transpiler: Any) -> None:
        program, startup = transpiler.get_pserver_programs(self.endpoints()[self.role.index])
        self.exe.run(startup)
        self.exe.run(program)

    def steps(self) -> int:
        return 2

    def train(self, program: Any) -> Any:
        losses = [self.step(program, step) for step in range(self.steps())]
        w = np.array(fluid.global_scope().find_var("w").get_tensor())
        self.exe.close()
        return losses, w

    def step(self, program: Any, step: int) -> float:
        feed = batch([step, self.role.index])
        return float(self.exe.run(program, feed=feed, fetch_list=[self.loss])[0][0])

    def run(self, aborts: bool = False) -> list[Outcome]:
        """Run it as a job; return how every rank has ended."""
        return run_job(self.trainers, self.servers, self, self.deadline_s, aborts)


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """Import and compile what a first step needs: that may take longer than the deadline."""
    main, startup, loss = build()
    with alone():
        exe = fluid.Executor()
        exe.run(startup)
        exe.run(main, feed=batch(0), fetch_list=[loss])


def refused(script: Script, *said: str) -> list[Outcome]:
    """Check that ranks end the job with an error that says this, not because time is up."""
    outcomes = script.run(aborts=True)
    assert not any("DeadlineError" in o.error_types for o in outcomes), outcomes
    errors = [o for o in outcomes if "HpcdistError" in o.error_types]
    assert errors, outcomes
    assert len(errors) + sum("Aborted" in o.error_types for o in outcomes) == len(outcomes)
    for outcome in errors:
        for words in said:
            assert words in outcome.error, f"{outcome.role}: {outcome.trace}"
    return errors


def on_servers(outcome: Outcome) -> bool:
    return outcome.role.kind == PSERVER


SHAPES = [(2, 1), (2, 2), (3, 1)]


# -- ranks that disagree ---------------------------------------------------------------------------
@pytest.mark.parametrize("shape", SHAPES)
def test_trainers_with_layers_of_different_sizes(shape):
    class Wider(Script):
        def build(self):
            return build(4 if (self.role.kind, self.role.index) == ("TRAINER", 1) else 3)

    refused(Wider(*shape), "trainer 1 (rank 1)", "fc_0.", "[3]", "[4]", "different programs")


@pytest.mark.parametrize("shape", SHAPES)
def test_trainers_with_different_optimizers_all_hear_of_it(shape):
    class Other(Script):
        def build(self):
            odd = (self.role.kind, self.role.index) == ("TRAINER", 1)
            return build(optimizer=fluid.optimizer.Momentum(0.1, 0.9) if odd else None)

    for outcome in Other(*shape).run():
        assert "CommError" in outcome.error_types, outcome
        assert "trainer 1 (rank 1)" in outcome.error, outcome.trace
        assert "disagree on program fingerprint" in outcome.error, outcome.trace
        assert "optimizer" in outcome.error and "must be the same on all ranks" in outcome.error


@pytest.mark.parametrize("shape", SHAPES)
def test_transpile_is_told_another_number_of_trainers(shape):
    class One(Script):
        def told(self):
            return 1

    for error in refused(One(*shape)):
        if error.role.kind == PSERVER:
            said = f"is for 1 trainers, but the job has {shape[0]}: transpile(trainers=...) must"
            assert said in error.error, error.trace
        else:
            said = f"for 1 trainers: expected 0..0, got {error.role.index}"
            assert said in error.error, error.trace


@pytest.mark.parametrize("shape", [(1, 2), (2, 2)])
def test_a_server_asks_for_the_program_of_another(shape):
    class Swapped(Script):
        def serve(self, transpiler):
            program, startup = transpiler.get_pserver_programs("ps0:6174")
            self.exe.run(startup)
            self.exe.run(program)

    refused(Swapped(*shape), "server 1 is 'ps1:6174', but its program is for 'ps0:6174'")


@pytest.mark.parametrize("shape", [(1, 1), (2, 1)])
def test_a_server_runs_the_trainers_program(shape):
    class Confused(Script):
        def serve(self, transpiler):
            self.exe.run(self.startup)
            self.exe.run(transpiler.get_trainer_program(), feed=batch(0))

    refused(Confused(*shape), "is server 0: it cannot run operator", "PADDLE_TRAINING_ROLE")


def without_plan(program):
    """Return a copy that says nothing of its distribution, like one put together by hand."""
    copy = program.clone()
    copy.distribution = NOT_DISTRIBUTED
    return copy


@pytest.mark.parametrize("shape", [(1, 1), (2, 1)])
def test_a_trainers_program_that_the_transpiler_did_not_make(shape):
    class ByHand(Script):
        def train(self, program):
            return super().train(without_plan(program))

    refused(ByHand(*shape), "operator 'send'", "was not made by DistributeTranspiler")


@pytest.mark.parametrize("shape", [(1, 1), (2, 1)])
def test_a_servers_program_that_the_transpiler_did_not_make(shape):
    class ByHand(Script):
        def serve(self, transpiler):
            program, startup = transpiler.get_pserver_programs(self.endpoints()[0])
            self.exe.run(startup)
            self.exe.run(without_plan(program))

    refused(ByHand(*shape), "the program of 'ps0:6174' was not made by DistributeTranspiler")


@pytest.mark.parametrize("shape", [(1, 1), (2, 1)])
def test_a_trainer_runs_the_servers_program(shape):
    class Confused(Script):
        def train(self, program):
            transpiler = fluid.DistributeTranspiler()
            main, startup, _ = build()
            transpiler.transpile(0, main, "ps0:6174", self.trainers, startup_program=startup)
            self.exe.run(transpiler.get_pserver_program("ps0:6174"))

    refused(Confused(*shape), "it cannot run operator 'listen_and_serv'", "PADDLE_TRAINING_ROLE")


# -- ranks that do not come ------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(2, 1)])
def test_a_trainer_that_never_comes_is_named(shape):
    class Absent(Script):
        deadline_s = SHORT_S

        def train(self, program):
            if self.role.index == 1:
                time.sleep(1.2 * SHORT_S)
                raise fluid.HpcdistError("this test's trainer never came")
            return super().train(program)

    for outcome in Absent(*shape).run():
        if (outcome.role.kind, outcome.role.index) != ("TRAINER", 1):
            assert "DeadlineError" in outcome.error_types, f"{outcome.role}: {outcome}"
        if on_servers(outcome):
            assert "HELLO" in outcome.error and "trainer 1 (rank 1)" in outcome.error


@pytest.mark.parametrize("shape", [(2, 2)])
def test_a_trainer_that_stops_is_named_with_step_and_variable(shape):
    class Stuck(Script):
        deadline_s = SHORT_S

        def step(self, program, step):
            if (self.role.index, step) == (1, 1):
                time.sleep(1.2 * SHORT_S)
                raise fluid.HpcdistError("this test's trainer was stuck")
            return super().step(program, step)

    for outcome in Stuck(*shape).run():
        if on_servers(outcome):
            assert "DeadlineError" in outcome.error_types, f"{outcome.role}: {outcome}"
            assert "after step 1" in outcome.error and "trainer 1 (rank 1)" in outcome.error
            assert "@GRAD" in outcome.error
        elif outcome.role.index != 1:
            assert "DeadlineError" in outcome.error_types, f"{outcome.role}: {outcome}"
            assert "step 2" in outcome.error and "from server ps" in outcome.error


# -- what is no error ------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(1, 1), (2, 2)])
def test_nan_is_no_error(shape):
    class Poisoned(Script):
        def step(self, program, step):
            feed = batch(step)
            feed["x"][0, 0] = np.nan
            return float(self.exe.run(program, feed=feed, fetch_list=[self.loss])[0][0])

    for losses, w in values(Poisoned(*shape).run()):
        assert np.isnan(losses).all() and np.isnan(w).all()


@pytest.mark.parametrize("shape", [(2, 1), (2, 2), (3, 1)])
def test_trainers_that_leave_early_no_longer_count(shape):
    """Trainer k makes k + 1 steps; each step's gradient is the mean over those still here."""

    class Leaving(Script):
        def steps(self):
            return self.role.index + 1

    told = values(Leaving(*shape).run())
    main, startup, loss = build()
    exe, scope = fluid.Executor(), fluid.Scope()
    with fluid.scope_guard(scope):
        exe.run(startup)
        losses = {k: [] for k in range(shape[0])}
        for step in range(shape[0]):
            here = range(step, shape[0])
            parts = [batch([step, k]) for k in here]
            for k, part in zip(here, parts):
                forward = main.clone(for_test=True)
                losses[k].append(float(exe.run(forward, feed=part, fetch_list=[loss])[0][0]))
            joined = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
            exe.run(main, feed=joined)
            w = np.array(scope.find_var("w").get_tensor())
            np.testing.assert_allclose(told[step][1], w, rtol=1e-5, atol=1e-6)
    for k, (own, _) in enumerate(told):
        np.testing.assert_allclose(own, losses[k], rtol=1e-5, atol=1e-6)


def test_minimize_behind_the_startup_programs_run_is_refused_as_in_one_process():
    def script(role: Any = None) -> None:
        main, startup = fluid.Program(), fluid.Program()
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            loss = layers.mean(layers.fc(layers.data("x", [FEATURES]), 1))
            exe = fluid.Executor(fluid.CPUPlace())
            exe.run(startup)
            fluid.optimizer.SGD(0.1).minimize(loss)
        exe.run(main, feed={"x": batch(0)["x"]})

    said = "'learning_rate_0' is not initialized: run the startup program first, which minimize"
    with pytest.raises(HpcdistError, match=said), fluid.scope_guard(fluid.Scope()):
        script()
    outcomes = run_job(1, 1, script, deadline_s=DEADLINE_S)
    assert any(said in str(outcome.error) for outcome in outcomes)


def test_layers_added_behind_the_startup_programs_run_are_named_as_that():
    def script(role: Any = None) -> None:
        main, startup = fluid.Program(), fluid.Program()
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            loss = layers.mean(layers.fc(layers.data("x", [FEATURES]), 1))
            fluid.optimizer.SGD(0.1).minimize(loss)
            exe = fluid.Executor(fluid.CPUPlace())
            exe.run(startup)
            layers.exp(loss)
        exe.run(main, feed={"x": batch(0)["x"]})

    with fluid.scope_guard(fluid.Scope()):
        script()  # in one process it works, as in Fluid
    outcomes = run_job(1, 1, script, deadline_s=DEADLINE_S)
    said = "servers take over what there is then"
    assert any(said in str(outcome.error) for outcome in outcomes)
