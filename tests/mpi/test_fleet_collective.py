"""Fleet without servers: scripts of both generations, against one process on all batches."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.fleet import DistributedStrategy, Fleet, PaddleCloudRoleMaker
from hpcdist.fleet import collective as older
from tests.mpi.collective_jobs import (
    ROWS,
    STEPS,
    as_launched,
    batch,
    check,
    momentum_clipped_with_decay,
    network,
    parameters,
    refused,
)
from tests.support.job import alone, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.mark.parametrize("trainers", [2, 3, 4])
def test_a_script_of_fleet_2(trainers, monkeypatch):
    def script(role: Any) -> Any:
        as_launched(role, trainers, monkeypatch)
        fleet = Fleet()
        fleet.init(is_collective=True)
        assert (fleet.worker_index(), fleet.worker_num()) == (role.index, trainers)
        assert len(fleet.worker_endpoints()) == trainers
        strategy = DistributedStrategy()
        strategy.use_hierarchical_allreduce = True
        strategy.hierarchical_allreduce_inter_nranks = 8  # one node: it runs flat, as in Fluid
        optimizer = lambda loss: fleet.distributed_optimizer(  # noqa: E731
            fluid.optimizer.SGD(0.1), strategy
        ).minimize(loss)
        main, startup, loss = network(optimizer)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        fleet.barrier_worker()
        everyones = np.zeros(2)
        fleet.all_reduce_worker(np.array([role.index, 1.0]), everyones)
        assert everyones.tolist() == [sum(range(trainers)), trainers]
        losses = [
            float(exe.run(main, feed=batch(step, role.index), fetch_list=[loss])[0][0])
            for step in range(STEPS)
        ]
        return losses, parameters(main)

    check(trainers, lambda loss: fluid.optimizer.SGD(0.1).minimize(loss), script)


@pytest.mark.parametrize("comm_num", [1, 3])
def test_a_script_of_fleet_1_8(comm_num, monkeypatch):
    def script(role: Any) -> Any:
        as_launched(role, 2, monkeypatch)
        fleet = older.Collective()
        fleet.init(PaddleCloudRoleMaker(is_collective=True))
        strategy = older.DistributedStrategy()
        strategy.nccl_comm_num = comm_num

        def minimize(loss: Any) -> None:
            fleet.distributed_optimizer(fluid.optimizer.SGD(0.1), strategy).minimize(loss)

        main, _, loss = network(minimize)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fleet.startup_program)
        losses = [
            float(
                exe.run(fleet.main_program, feed=batch(step, role.index), fetch_list=[loss])[0][0]
            )
            for step in range(STEPS)
        ]
        return losses, parameters(main)

    check(2, lambda loss: fluid.optimizer.SGD(0.1).minimize(loss), script)


@pytest.mark.parametrize("fused", [True, False])
def test_worker_0_says_once_how_far_gradients_are_fused(fused, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "hpcdist")

    def script(role: Any) -> Any:
        as_launched(role, 2, monkeypatch)
        fleet = Fleet()
        fleet.init(is_collective=True)
        strategy = DistributedStrategy()
        strategy.fuse_all_reduce_ops = fused
        sgd = fluid.optimizer.SGD(0.1)
        main, startup, loss = network(fleet.distributed_optimizer(sgd, strategy).minimize)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        for rows in (ROWS, 1, ROWS):
            feed = {name: array[:rows] for name, array in batch(0, role.index).items()}
            exe.run(main, feed=feed, fetch_list=[loss])
        return caplog.messages

    line = (
        "Find all_reduce operators: 4. To make the speed faster, some all_reduce ops are fused "
        "during training, after fusion, the number of all_reduce ops is 1."
    )
    assert values(run_job(2, 0, script)) == [[line] if fused else [], []]


def test_local_sgd_averages_every_k_steps(monkeypatch):
    averaged = (1, 2, 5, 8)  # of 9 steps, by k_steps 3 and begin_step 2

    def script(role: Any) -> Any:
        as_launched(role, 2, monkeypatch)
        fleet = Fleet()
        fleet.init(is_collective=True)
        strategy = DistributedStrategy()
        strategy.localsgd = True
        strategy.localsgd_configs = {"k_steps": 3, "begin_step": 2}
        optimizer = fluid.optimizer.Momentum(0.1, 0.9)
        main, startup, loss = network(fleet.distributed_optimizer(optimizer, strategy).minimize)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        seen = []
        for step in range(1, 10):
            exe.run(main, feed=batch(step, role.index), fetch_list=[loss])
            seen.append(parameters(main))
        return seen

    found = values(run_job(2, 0, script))
    with alone():
        main, startup, _ = network(fluid.optimizer.Momentum(0.1, 0.9).minimize)
        scopes = [fluid.Scope(), fluid.Scope()]
        exe = fluid.Executor(fluid.CPUPlace())
        for scope in scopes:
            exe.run(startup, scope=scope)
        for step in range(1, 10):
            for trainer, scope in enumerate(scopes):
                exe.run(main, feed=batch(step, trainer), scope=scope)
            for p in main.all_parameters():
                held = [scope.find_var(p.name).get_tensor() for scope in scopes]
                if step in averaged:
                    mean = (np.array(held[0]) + np.array(held[1])) / 2
                    for tensor in held:
                        tensor.set(mean, fluid.CPUPlace())
                for trainer, tensor in enumerate(held):
                    got = found[trainer][step - 1][p.name]
                    np.testing.assert_allclose(got, np.array(tensor), rtol=1e-5, atol=1e-6)
                same = found[0][step - 1][p.name] == found[1][step - 1][p.name]
                assert same.all() == (step in averaged)


def distances(losses: np.ndarray, rates: list[float], k_steps: int, begin: int) -> list[int]:
    """Return the steps, from 1, in which adaptive local SGD averages: Wang and Joshi's rule."""
    found, distance = list(range(1, begin + 1)), k_steps
    loss_0, rate_0 = losses[begin - 1], rates[begin - 1]
    for step in range(begin + 1, len(losses) + 1):
        if step - found[-1] >= distance:
            found.append(step)
            ratio = rate_0 * losses[step - 1] / (rates[step - 1] * loss_0)
            distance = int(np.clip(np.ceil(np.sqrt(ratio * k_steps)), 1, 16))
    return found


@pytest.mark.parametrize("trainers", [2, 3])
def test_adaptive_local_sgd_averages_where_loss_and_rate_say(trainers, monkeypatch):
    steps = 24

    def script(role: Any) -> Any:
        as_launched(role, trainers, monkeypatch)
        fleet, strategy = Fleet(), DistributedStrategy()
        fleet.init(is_collective=True)
        strategy.adaptive_localsgd = True
        strategy.adaptive_localsgd_configs = {"init_k_steps": 2, "begin_step": 3}
        main, startup, loss = network(
            lambda loss: fleet.distributed_optimizer(rated(), strategy).minimize(loss)
        )
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        seen = []
        for step in range(steps):
            (got,) = exe.run(main, feed=batch(step, role.index), fetch_list=[loss])
            seen.append((float(got[0]), {n: v.tobytes() for n, v in parameters(main).items()}))
        return seen

    found = values(run_job(trainers, 0, script))
    losses = np.mean([[loss for loss, _ in seen] for seen in found], axis=0)
    rates = [0.1 * 0.5 ** (step / 4) for step in range(steps)]
    averaged = distances(losses, rates, 2, 3)
    equal = [step + 1 for step in range(steps) if len({str(seen[step][1]) for seen in found}) == 1]
    assert equal == averaged
    assert len({b - a for a, b in itertools.pairwise(averaged)}) > 2


def rated() -> Any:
    return fluid.optimizer.SGD(fluid.layers.exponential_decay(0.1, 4, 0.5))


@pytest.mark.parametrize(
    ("switch", "configs", "words"),
    [
        ("localsgd", {"k_steps": 3}, "averaged once in 3 steps"),
        ("adaptive_localsgd", {}, "averaged once in steps that the loss decides"),
    ],
)
def test_local_sgd_cannot_count_rows_between_averages(monkeypatch, switch, configs, words):
    def script(role: Any) -> None:
        as_launched(role, 2, monkeypatch)
        fleet = Fleet()
        fleet.init(is_collective=True)
        strategy = DistributedStrategy()
        setattr(strategy, switch, True)
        setattr(strategy, f"{switch}_configs", configs)
        optimizer = fluid.optimizer.SGD(0.1)
        main, startup, _ = network(fleet.distributed_optimizer(optimizer, strategy).minimize)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        for fed in fluid.even_batches(lambda: iter([batch(0, role.index)]), how="join")():
            exe.run(main, feed=fed)

    refused(script, words)


def test_fleet_with_servers_is_refused_where_there_are_none(monkeypatch):
    def script(role: Any) -> None:
        as_launched(role, 2, monkeypatch)
        Fleet().init(PaddleCloudRoleMaker())

    refused(script, "without servers: fleet.init(is_collective=True)")


def test_files_are_split_among_workers(monkeypatch):
    def script(role: Any) -> Any:
        as_launched(role, 2, monkeypatch)
        fleet = Fleet()
        fleet.init(is_collective=True)
        return fleet.split_files(["a", "b", "c"])

    assert values(run_job(2, 0, script)) == [["a", "b"], ["c"]]


def test_every_flag_of_hierarchical_sums_gives_the_same(monkeypatch):
    """Two nodes of two, by number: the losses of one process."""

    def script(role: Any) -> Any:
        as_launched(role, 4, monkeypatch)
        config = fluid.DistributeTranspilerConfig(
            mode="nccl2", use_hierarchical_allreduce=True, hierarchical_allreduce_inter_nranks=2
        )
        main, startup, loss = network(momentum_clipped_with_decay)
        names = [f"h{k}:1" for k in range(4)]
        fluid.DistributeTranspiler(config).transpile(
            role.index,
            main,
            trainers=",".join(names),
            startup_program=startup,
            current_endpoint=names[role.index],
        )
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        losses = [
            float(exe.run(main, feed=batch(step, role.index), fetch_list=[loss])[0][0])
            for step in range(STEPS)
        ]
        return losses, parameters(main)

    check(4, momentum_clipped_with_decay, script)


def test_nodes_are_found_in_a_job(monkeypatch):
    monkeypatch.setenv("HPCDIST_RANK", "0")  # as the launcher sets it

    def script(role: Any) -> Any:
        main, startup, _ = network(momentum_clipped_with_decay)
        config = fluid.DistributeTranspilerConfig(mode="nccl2", use_hierarchical_allreduce=True)
        fluid.DistributeTranspiler(config).transpile(
            role.index,
            main,
            trainers="a:1,b:1",
            startup_program=startup,
            current_endpoint=["a:1", "b:1"][role.index],
        )
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        for step in range(STEPS):
            exe.run(main, feed=batch(step, role.index))
        return parameters(main)

    first, second = values(run_job(2, 0, script))
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name])
