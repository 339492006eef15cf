"""Several minimize, and operators behind updates: what one process computes, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.errors import PlanError
from hpcdist.executor.scope import Scope, scope_guard
from hpcdist.graph.pipeline import PipelineCut
from hpcdist.transpiler import DistributeTranspiler, DistributeTranspilerConfig
from hpcdist.transpiler.geo_sgd_transpiler import GeoSgdTranspiler
from tests.support import step_orders as orders
from tests.support.step_orders import build, steps, train
from tests.support.thread_jobs import ranks_as_threads

EQUAL = [
    orders.the_lower_layer_first,
    orders.two_losses,
    orders.both_backward_first,
    orders.two_clips_and_schedules,
    orders.within_a_branch,
    orders.sparse_rows_first,
    orders.distributed_rows_first,
    orders.a_norm_behind,
    orders.a_network_behind,
    orders.a_branch_behind,
    orders.gradients_behind,
    orders.rows_behind,
    orders.a_constant_times_gradients,
]
REFUSED = {  # with servers
    orders.the_upper_layer_first: "the gradient of 'lower' depends on 'upper' as an update of the",
    orders.a_generator_and_its_critic: "the gradient of 'lower' depends on 'critic' as an update",
    orders.through_a_branch: "the gradient of 'lower' depends on 'upper' as an update of the same",
    orders.sparse_rows_last: "the gradient of 'table' depends on '(lower|upper)' as an update of",
    orders.distributed_rows_last: "the gradient of 'table' depends on '(lower|upper)' as an",
    orders.training_by_what_stands_behind: "the gradient of 'third' depends on 'table' as an",
    orders.a_rate_that_moves_behind: "comes after .*, which reads 'rate'; with servers it would",
    orders.a_counter_of_all_updates: "uses 'count', which the update of 'upper' moves",
    orders.a_velocity_read: "reads 'upper_velocity_0', which updates move",
    orders.a_penalized_gradient_read: "reads '.*@GRAD', which updates move",
    orders.an_average_between: "comes after .*, which reads 'upper'; with servers",
}
FETCHED_GRADIENT = [orders.a_penalized_gradient_read]  # which trainers that share batches refuse
MODES: dict[str, dict[str, Any]] = {
    "synchronous": {},
    "asynchronous": {},
    "half-asynchronous": {"runtime_split_send_recv": True, "half_async": True},
    "communicator": {"runtime_split_send_recv": True},
    "geo": {"runtime_split_send_recv": True, "geo_sgd_mode": True, "geo_sgd_need_push_nums": 1},
}


def alone(make: Any) -> list[list[np.ndarray]]:
    with scope_guard(Scope()):
        return train(*build(make))


def jobs(trainers: int, servers: int, make: Any) -> list[Any]:
    built = [build(make) for _ in range(trainers + servers)]
    with ranks_as_threads() as run:
        return run(trainers, servers, [lambda p=p: train(*p) for p in built])


def assert_same(found: list[list[np.ndarray]], wanted: list[list[np.ndarray]]) -> None:
    for step, (got, expected) in enumerate(zip(found, wanted, strict=True)):
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-5, err_msg=f"step {step}")


def test_every_order_is_tried():
    made = {f for n, f in vars(orders).items() if getattr(f, "__module__", "") == orders.__name__}
    builders = {f for f in made if callable(f) and not f.__name__.startswith("_")}
    assert builders - {build, steps, train, orders.batch} == {*EQUAL, *REFUSED}


@pytest.mark.parametrize("shape", [(1, 1), (2, 2)])
@pytest.mark.parametrize("make", EQUAL)
def test_servers_compute_what_one_process_computes(make, shape):
    wanted = alone(make)
    for found in jobs(*shape, make):
        assert_same(found, wanted)


@pytest.mark.parametrize("make", REFUSED)
def test_servers_refuse_what_they_would_compute_in_another_order(make):
    with pytest.raises(PlanError, match=REFUSED[make]):
        jobs(2, 2, make)


@pytest.mark.parametrize("make", [m for m in (*EQUAL, *REFUSED) if m not in FETCHED_GRADIENT])
def test_trainers_without_servers_compute_what_one_process_computes(make):
    wanted = alone(make)
    for found in jobs(2, 0, make):
        assert_same(found, wanted)


# -- scripts that transpile ------------------------------------------------------------------------
def transpiled(mode: str, make: Any, server: int | None = None) -> Any:
    main, startup, fetch = build(make)

    def script() -> Any:
        config = DistributeTranspilerConfig()
        synchronous = config.sync_mode = mode == "synchronous"
        for name, value in MODES[mode].items():
            setattr(config, name, value)
        made = (GeoSgdTranspiler if mode == "geo" else DistributeTranspiler)(config)
        endpoints = "ps0:6174,ps1:6174"
        made.transpile(0, main, endpoints, 1, sync_mode=synchronous, startup_program=startup)
        exe = fluid.Executor()
        if server is not None:
            program, begin = made.get_pserver_programs(endpoints.split(",")[server])
            exe.run(begin)
            exe.run(program)
            return None
        exe.run(startup if mode == "geo" else made.get_trainer_startup_program())
        found = steps(exe, made.get_trainer_program(), main, [var.name for var in fetch])
        exe.close()
        return found

    return script


def job_of_script(mode: str, make: Any) -> Any:
    scripts = [transpiled(mode, make), *(transpiled(mode, make, server) for server in range(2))]
    with ranks_as_threads() as run:
        (found,) = run(1, 2, scripts)
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", EQUAL)
def test_one_trainer_of_any_mode_computes_what_one_process_computes(make, mode):
    if mode == "geo" and make is orders.distributed_rows_first:
        with pytest.raises(PlanError, match="not in GEO mode"):
            job_of_script(mode, make)
        return
    assert_same(job_of_script(mode, make), alone(make))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", REFUSED)
def test_every_mode_whose_servers_update_refuses_the_same(make, mode):
    if mode == "geo" and make not in (orders.distributed_rows_last, orders.an_average_between):
        assert_same(job_of_script(mode, make), alone(make))
        return
    with pytest.raises(PlanError):
        job_of_script(mode, make)


# -- without servers, in other orders --------------------------------------------------------------
@pytest.mark.parametrize("make", [*EQUAL, *REFUSED])
def test_stages_refuse_what_they_would_compute_in_another_order(make):
    def stage() -> Any:
        main, startup, fetch = build(make)
        main.pipeline = PipelineCut(((orders.HIDDEN,),), 2)
        return lambda: train(main, startup, fetch)

    wanted = alone(make)
    scripts = [stage(), stage()]
    with ranks_as_threads() as run:
        try:
            for found in run(2, 0, scripts):
                assert_same(found, wanted)
        except PlanError as error:
            assert "pipeline: " in str(error)


@pytest.mark.parametrize("make", [*EQUAL, *REFUSED])
def test_devices_of_a_process_compute_the_same_or_refuse(make, monkeypatch):
    def mean(found: Any) -> Any:
        return [[v.mean(keepdims=True) for v in step] for step in found]

    wanted = alone(make)
    monkeypatch.setenv("CPU_NUM", "2")
    main, startup, fetch = build(make)
    with scope_guard(Scope()):
        exe = fluid.Executor()
        exe.run(startup)
        program = fluid.CompiledProgram(main).with_data_parallel(loss_name=fetch[0].name)
        try:
            found = steps(exe, program, main, fetch)
        except PlanError as error:
            assert "CPU_NUM=1" in str(error)
            return
    assert_same(mean(found), mean(wanted))


@pytest.mark.parametrize("make", [m for m in (*EQUAL, *REFUSED) if "distrib" not in m.__name__])
def test_trainers_of_equal_batches_average_what_one_process_computes(make):
    """Local SGD: trainers that are fed the same move alike, so the average changes nothing."""

    def script(trainer: int) -> Any:
        main, startup, fetch = build(make)

        def run() -> Any:
            config = DistributeTranspilerConfig()
            config.mode, config.collective_mode = "collective", "local_sgd"
            names = [f"trainer{k}:6174" for k in range(2)]
            DistributeTranspiler(config).transpile(
                trainer, main, trainers=",".join(names), startup_program=startup,
                current_endpoint=names[trainer],
            )  # fmt: skip
            return train(main, startup, fetch)

        return run

    wanted, scripts = alone(make), [script(0), script(1)]
    with ranks_as_threads() as run:
        for found in run(2, 0, scripts):
            assert_same(found, wanted)
