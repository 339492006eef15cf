"""The same bits from every run, on any number of servers, cut or not, as from one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import initializer, layers
from tests.support.job import alone, begin, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

IN, OUT, STEPS, ROWS = 300, 150, 4, 6  # 45000 weights: cut over 2 and over 3 servers
OPTIMIZERS = {
    "sgd": lambda: fluid.optimizer.SGD(0.1),
    "momentum": lambda: fluid.optimizer.Momentum(0.1, 0.9),
    "adam": lambda: fluid.optimizer.Adam(0.01),
}
INITIALIZERS = {
    "uniform": initializer.Uniform(-0.1, 0.1),
    "normal": initializer.Normal(0.0, 0.1),
    "truncated": initializer.TruncatedNormal(0.0, 0.1),
    "xavier": initializer.Xavier(),
}


def build(optimizer: str, first: Any, seed: int) -> tuple[Any, Any, Any]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = seed
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x, y = layers.data("x", [IN]), layers.data("y", [1])
        w = fluid.ParamAttr(name="w", initializer=first)
        b = fluid.ParamAttr(name="b", initializer=first)
        hidden = layers.fc(x, OUT, act="tanh", param_attr=w, bias_attr=b)
        loss = layers.mean(layers.square_error_cost(layers.fc(hidden, 1, param_attr="v"), y))
        OPTIMIZERS[optimizer]().minimize(loss)
    return main, startup, loss


def batch(step: int, trainer: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([step, trainer])
    shapes = {"x": (ROWS, IN), "y": (ROWS, 1)}
    return {name: rng.uniform(-1, 1, s).astype(np.float32) for name, s in shapes.items()}


def script(trainers: int, servers: int, optimizer: str, first: Any, seed: int, steps: int = STEPS):
    """Return a Fluid script that transpiles itself; a trainer returns losses and parameters."""

    def run(role: Any) -> list[bytes]:
        main, startup, loss = build(optimizer, first, seed)
        exe, program = begin(role, trainers, servers, main, startup)
        return losses_and_parameters(exe, program, loss, role.index, steps)

    return run


def losses_and_parameters(exe, main, loss, trainer, steps) -> list[bytes]:
    told = [parameter_bits()]
    for step in range(steps):
        (value,) = exe.run(main, feed=batch(step, trainer), fetch_list=[loss])
        told.append(value.tobytes())
    told.append(parameter_bits())
    exe.close()
    return told


def parameter_bits() -> bytes:
    scope = fluid.global_scope()
    return b"".join(np.array(scope.find_var(n).get_tensor()).tobytes() for n in ("w", "b", "v"))


def one_process(optimizer: str, first: Any, seed: int, steps: int = STEPS) -> list[bytes]:
    main, startup, loss = build(optimizer, first, seed)
    with alone():
        exe = fluid.Executor()
        exe.run(startup)
        return losses_and_parameters(exe, main, loss, 0, steps)


def job(trainers: int, servers: int, *facts: Any) -> list[list[bytes]]:
    return values(run_job(trainers, servers, script(trainers, servers, *facts)))


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
@pytest.mark.parametrize("servers", [1, 2, 3])
def test_one_trainer_and_any_servers_make_the_bits_of_one_process(servers, optimizer):
    facts = optimizer, INITIALIZERS["uniform"], 5
    (told,) = job(1, servers, *facts)
    assert told == one_process(*facts)


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_a_script_that_does_not_transpile_makes_the_bits_of_one_process(servers):
    facts = "adam", INITIALIZERS["xavier"], 5

    def plain(role: Any) -> list[bytes]:
        main, startup, loss = build(*facts)
        exe = fluid.Executor()
        exe.run(startup)
        return losses_and_parameters(exe, main, loss, 0, STEPS)

    assert values(run_job(1, servers, plain)) == [one_process(*facts)]


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_two_trainers_make_the_same_bits_in_every_run_on_one_and_two_servers(optimizer):
    facts = optimizer, INITIALIZERS["normal"], 5
    first, again = job(2, 1, *facts), job(2, 1, *facts)
    assert first == again
    assert first[0][-1] == first[1][-1], "both trainers end with the same parameters"
    assert first[0][1] != first[1][1], "each has its own batches"
    assert job(2, 2, *facts) == first


@pytest.mark.parametrize("seed", [0, 9])
@pytest.mark.parametrize("name", sorted(INITIALIZERS))
@pytest.mark.parametrize("servers", [1, 2, 3])
def test_first_values_do_not_depend_on_slices(servers, name, seed):
    facts = "sgd", INITIALIZERS[name], seed, 0
    (told,) = job(1, servers, *facts)
    assert told == one_process(*facts)
    assert len(set(np.frombuffer(told[0], np.float32)[: IN * OUT])) > IN * OUT // 2, "drawn values"


def test_the_weights_are_cut():
    main, startup, _ = build("sgd", INITIALIZERS["uniform"], 1)
    transpiler = fluid.DistributeTranspiler()
    transpiler.transpile(0, main, "a:1,b:1,c:1", 2, startup_program=startup)
    for endpoint in ("a:1", "b:1", "c:1"):
        names = transpiler.get_pserver_program(endpoint).global_block().vars
        assert any(name.startswith("w.block") for name in names)
