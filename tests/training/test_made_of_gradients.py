"""What scripts make of gradients between `backward` and `apply_gradients`: that of one process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import PlanError
from hpcdist.executor import executor
from hpcdist.executor.scope import Scope, scope_guard
from hpcdist.graph import Program, Variable
from hpcdist.transpiler import DistributeTranspiler, DistributeTranspilerConfig
from tests.support.thread_jobs import ranks_as_threads

Pairs = list[tuple[Any, Variable]]
ENDPOINTS = "127.0.0.1:6170,127.0.0.1:6171"


def twice(pairs: Pairs) -> Pairs:
    return [(parameter, gradient * 2.0) for parameter, gradient in pairs]


def cut(pairs: Pairs) -> Pairs:
    return [(parameter, layers.clip(gradient, -0.05, 0.05)) for parameter, gradient in pairs]


def cut_in_place(pairs: Pairs) -> Pairs:
    for _, gradient in pairs:
        layers.assign(layers.clip(gradient, -0.05, 0.05), gradient)
    return pairs


def _norm(pairs: Pairs) -> Variable:
    return layers.sqrt(layers.sums([layers.reduce_sum(layers.square(g)) for _, g in pairs]))


def norm_in_a_branch(pairs: Pairs) -> Pairs:
    norm = _norm(pairs)
    large = norm > layers.fill_constant([1], "float32", 0.3)

    def of(gradient: Variable) -> Variable:
        return layers.cond(large, lambda: gradient * 0.3 / norm, lambda: gradient * 1.0)

    return [(parameter, of(gradient)) for parameter, gradient in pairs]


def mean_norm_kept(pairs: Pairs) -> Pairs:
    mean = layers.create_global_var([1], 1.0, "float32", persistable=True)
    layers.assign(mean * 0.9 + _norm(pairs) * 0.1, mean)
    return [(parameter, gradient / mean) for parameter, gradient in pairs]


EACH = [twice, cut, cut_in_place, norm_in_a_branch, mean_norm_kept]


def dense(x: Variable, word: Variable) -> Variable:
    return layers.fc(x, 3, act="tanh")


def sparse(x: Variable, word: Variable) -> Variable:
    return x + layers.embedding(word, [5, 3], is_sparse=True)


def of_all_rows(x: Variable, word: Variable) -> Variable:
    return layers.matmul(layers.softmax(layers.matmul(x, x, transpose_y=True)), layers.fc(x, 3))


def build(
    make: Callable[[Pairs], Pairs], net: Any = dense, momentum: Any = fluid.optimizer.Momentum
) -> Any:
    main, startup = Program(), Program()
    startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x, y = fluid.data("x", [None, 3]), fluid.data("y", [None, 1])
        hidden = net(x, fluid.data("word", [None, 1], dtype="int64"))
        loss = layers.mean(layers.square_error_cost(layers.fc(hidden, 1), y))
        optimizer = momentum(0.1, 0.9)
        optimizer.apply_gradients(make(optimizer.backward(loss)))
    return main, startup, loss


def batches() -> Iterator[dict[str, np.ndarray]]:
    numbers = np.random.RandomState(1)
    for _ in range(4):
        x = numbers.uniform(-1, 1, (4, 3)).astype("float32")
        yield {"x": x, "y": x.sum(1, keepdims=True), "word": numbers.randint(0, 5, (4, 1))}


def train(main: Any, startup: Program, part: slice = slice(None)) -> dict[str, np.ndarray]:
    """Return the arrays that outlive steps, as they are in the end."""
    exe = fluid.Executor()
    exe.run(startup)
    for feed in batches():
        exe.run(main, feed={name: value[part] for name, value in feed.items()})
    scope = executor.global_scope()
    variables = {v.name: scope.find_var(v.name) for v in startup.list_vars() if v.persistable}
    return {name: np.array(var.value) for name, var in variables.items() if var is not None}


def alone(*of: Any) -> dict[str, np.ndarray]:
    main, startup, _ = build(*of)
    with scope_guard(Scope()):
        return train(main, startup)


def in_turn(ranks: int, *of: Any) -> list[Callable[[], dict[str, np.ndarray]]]:
    """Return a plain script for each rank, of Programs that are built one after another."""
    return [functools.partial(train, *build(*of)[:2]) for _ in range(ranks)]


def by_scripts(mode: str, *of: Any) -> list[dict[str, np.ndarray]]:
    """Return what two trainers have that transpile, and feed their own rows."""
    scripts = []
    for k, endpoint in enumerate(ENDPOINTS.split(",")):
        main, startup, _ = build(*of)
        config = DistributeTranspilerConfig()
        config.mode, config.collective_mode = mode, "grad_allreduce"
        DistributeTranspiler(config).transpile(
            k, main, trainers=ENDPOINTS, startup_program=startup, current_endpoint=endpoint
        )
        scripts.append((main, startup, slice(2 * k, 2 * k + 2)))
    with ranks_as_threads() as run:
        return run(2, 0, [functools.partial(train, *of) for of in scripts])


def check(wanted: dict[str, np.ndarray], found: list[dict[str, np.ndarray]]) -> None:
    assert len(wanted) > 5
    for values in found:
        for name, value in wanted.items():
            np.testing.assert_allclose(values[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


NETS = [(make, dense) for make in EACH] + [(cut, sparse), (cut, of_all_rows)]


@pytest.mark.parametrize(("make", "net"), NETS)
def test_trainers_make_it_of_the_sums(make, net):
    with ranks_as_threads() as run:
        found = run(2, 0, in_turn(2, make, net))
    check(alone(make, net), found)


@pytest.mark.parametrize("mode", ["nccl2", "collective"])
@pytest.mark.parametrize(("make", "net"), NETS[:-1])
def test_trainers_of_scripts_that_transpile_make_it_of_the_sums(make, net, mode):
    check(alone(make, net), by_scripts(mode, make, net))


@pytest.mark.parametrize("make", [twice, cut, cut_in_place])
def test_devices_of_a_process_make_it_of_the_sums(make):
    main, startup, loss = build(make)
    compiled = fluid.CompiledProgram(main).with_data_parallel(loss.name, places=fluid.cpu_places(2))
    with scope_guard(Scope()):
        found = train(compiled, startup)
    check(alone(make), [found, found])


def test_servers_refuse_it():
    with ranks_as_threads() as run, pytest.raises(PlanError, match="reads a gradient of its own"):
        run(2, 1, in_turn(3, cut))


def inner_gradients(pairs: Pairs) -> Pairs:
    inner = fluid.default_main_program().global_block().var("fc_1.tmp_1@GRAD")
    shortened = layers.reshape(layers.slice(inner, [0], [0], [1]), [1])
    return [(p, g * shortened if p.shape == (1,) else g) for p, g in pairs]


def summed_with_inner_gradients(pairs: Pairs) -> Pairs:
    block = fluid.default_main_program().global_block()
    columns = layers.expand(pairs[-1][1], [4])  # as many rows as a batch has
    mixed = layers.elementwise_mul(block.var("fc_1.tmp_1@GRAD"), columns, axis=0)
    return [(p, g * layers.reduce_sum(mixed)) for p, g in pairs]


def losses(pairs: Pairs) -> Pairs:
    loss = fluid.default_main_program().global_block().var("mean_0.tmp_0")
    return [(parameter, gradient * loss) for parameter, gradient in pairs]


@pytest.mark.parametrize("make", [inner_gradients, summed_with_inner_gradients, losses])
def test_values_of_a_trainers_own_rows_beside_it_are_refused(make):
    refused = pytest.raises(PlanError, match="reads a gradient of its own rows|updates by '")
    with ranks_as_threads() as run, refused:
        run(2, 0, in_turn(2, make))


def test_a_gradient_that_is_sent_in_part_is_not_read():
    def wide(x: Variable, word: Variable) -> Variable:
        return layers.fc(x, 6000)

    def compressing(rate: float, momentum: float) -> Any:
        return fluid.optimizer.DGCMomentumOptimizer(rate, momentum, rampup_begin_step=0)

    def job(make: Callable[[Pairs], Pairs]) -> None:
        with ranks_as_threads() as run:
            run(2, 0, in_turn(2, make, wide, compressing))

    def norm_kept(pairs: Pairs) -> Pairs:
        mean_norm_kept(pairs)
        return pairs

    with pytest.raises(PlanError, match="of which DGCMomentum sends a part only"):
        job(norm_kept)
    with pytest.raises(PlanError, match="between backward and apply_gradients read no gradients"):
        job(cut)


def penalize(pairs: Pairs) -> Pairs:
    """Minimize the gradients, too."""
    penalty = layers.reduce_sum(layers.square(pairs[0][1]))
    return fluid.optimizer.SGD(0.1).backward(penalty)


def test_losses_of_gradients_count_once():
    """In a plain script every trainer takes all rows; a script of its own learns of it."""
    with ranks_as_threads() as run:
        found = run(2, 0, in_turn(2, penalize))
    check(alone(penalize), found)
    for mode in ("nccl2", "collective"):
        with pytest.raises(PlanError, match="made of a parameter's gradient that trainers sum"):
            by_scripts(mode, penalize)
