"""Fleet as scripts of Paddle 2 call it, over MPI: default programs, and init_worker after them."""

from __future__ import annotations

import os

import h5py
import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.comm.cluster import PSERVER
from hpcdist.fleet import DistributedStrategy, Fleet
from hpcdist.fluid.fleet.role_maker import Role, UserDefinedRoleMaker
from hpcdist.fluid.io import selection
from hpcdist.graph import names
from tests.support.fleet_net import in_one_process, net, own_programs, results, trained
from tests.support.job import run_job


def begun(role, trainers, servers):
    fleet = Fleet()
    fleet.init(
        UserDefinedRoleMaker(
            is_collective=False,
            current_id=role.index,
            role=Role.SERVER if role.kind == PSERVER else Role.WORKER,
            worker_endpoints=[f"10.0.1.{k}:7000" for k in range(trainers)],
            server_endpoints=[f"10.0.0.{k}:7000" for k in range(servers)],
        )
    )
    return fleet


def by_fleet_2(trainers, servers, settings, work, model=None, begin=lambda fleet: None):
    """Return a script that trains with fleet 2; ``work(fleet, exe, loss)`` is what workers do.

    ``begin(fleet)`` is what they do between the startup program and ``init_worker``.
    """

    def script(role):
        fleet = begun(role, trainers, servers)
        with own_programs(), names.guard():
            loss = net()
            strategy = DistributedStrategy()
            for name, value in settings.items():
                setattr(strategy, name, value)
            optimizer = fluid.optimizer.Momentum(0.1, 0.9)
            fleet.distributed_optimizer(optimizer, strategy).minimize(loss)
            if fleet.is_server():
                fleet.init_server(model)
                fleet.run_server()
                return "served"
            exe = fluid.Executor()
            exe.run(fluid.default_startup_program())
            begin(fleet)
            fleet.init_worker()
            found = work(fleet, exe, loss)
            fleet.stop_worker()
            return found

    return script


def training(fleet, exe, loss):
    main, startup = fluid.default_main_program(), fluid.Program()
    return trained(main, startup, loss, fleet.worker_index(), fleet.worker_num(), exe)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("trainers", "servers"), [(1, 1), (2, 1), (2, 2)])
def test_a_synchronous_job_of_fleet_2_trains_as_one_process(trainers, servers):
    script = by_fleet_2(trainers, servers, {"a_sync": False}, training)
    found = results(run_job(trainers, servers, script))
    mean = np.mean(found[:trainers], axis=0)
    np.testing.assert_allclose(mean, in_one_process(), rtol=2e-6)


def set_by_hand(value=0.25):
    scope = fluid.global_scope()
    tensors = [scope.find_var(name).get_tensor() for name in ("fc_0.w_0", "fc_1.b_0")]
    for tensor in tensors:
        tensor.set(np.full_like(np.array(tensor), value), fluid.CPUPlace())


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("mode", ["sync", "async", "geo"])
def test_all_begin_with_what_worker_0_has_set(mode):
    settings = {"a_sync": mode != "sync"}
    if mode == "geo":
        settings["a_sync_configs"] = {"k_steps": 1}

    def begin(fleet):
        set_by_hand(0.25 if fleet.worker_index() == 0 else 9.0)

    found = results(run_job(2, 2, by_fleet_2(2, 2, settings, training, begin=begin)))[:2]
    mean, expected = np.mean(found, axis=0), in_one_process(set_by_hand)
    if mode == "sync":
        np.testing.assert_allclose(mean, expected, rtol=2e-6)
    else:  # who comes first is open: with 9.0 the loss is 20 times as large
        assert mean[0] < 2 * expected[0]


@pytest.mark.mpi(min_size=4)
def test_a_strategys_settings_hold_though_init_worker_comes_after_the_startup_program(monkeypatch):
    monkeypatch.setattr(os, "environ", os.environ.copy())
    settings = {"a_sync": True, "a_sync_configs": {"k_steps": 2, "send_wait_times": 7}}

    def work(fleet, exe, loss):
        losses = training(fleet, exe, loss)
        return losses, os.environ["FLAGS_communicator_send_wait_times"]

    for losses, flag in results(run_job(2, 2, by_fleet_2(2, 2, settings, work)))[:2]:
        assert flag == "7" and np.isfinite(losses).all()


@pytest.mark.mpi(min_size=4)
def test_workers_servers_and_all_ranks_tell_each_other():
    def script(role):
        util = begun(role, 2, 2).util
        own = "server" if role.kind == PSERVER else "worker"
        number = role.index + (10 if own == "server" else 0)
        found = [util.all_gather(number, own), util.all_reduce([number, 1], "sum", own).tolist()]
        util.barrier(own)
        util.barrier("all")
        found += [util.all_gather(number, "all"), int(util.all_reduce(number, "max", "all"))]
        return found, util.get_file_shard(["a", "b", "c"])

    found = results(run_job(2, 2, script))
    of_all = [[0, 1, 10, 11], 11]
    for index, (values, files) in enumerate(found):
        own = [[[0, 1], [1, 2]], [[10, 11], [21, 2]]][index // 2]
        assert values == own + of_all
        assert files == [["a", "b"], ["c"]][index % 2]


@pytest.mark.mpi(min_size=2)
def test_a_worker_cannot_reduce_among_servers():
    def script(role):
        util = begun(role, 1, 1).util
        if role.kind == PSERVER:
            return "served"
        with pytest.raises(fluid.errors.HpcdistError, match="rank 0 is trainer 0: it has no"):
            util.barrier("server")
        return "refused"

    assert results(run_job(1, 1, script)) == ["refused", "served"]


@pytest.mark.mpi(min_size=4)
def test_servers_begin_with_a_model_that_was_saved_and_workers_load_one(mpi_tmp_path):
    model, all_of_it = str(mpi_tmp_path / "model"), str(mpi_tmp_path / "persistables")

    def save(fleet, exe, loss):
        training(fleet, exe, loss)
        fleet.barrier_worker()
        fleet.save_inference_model(exe, model, ["x", "y"], loss)
        fleet.save_persistables(exe, all_of_it, fluid.default_main_program(), mode=0)
        return training(fleet, exe, loss)

    synchronous = {"a_sync": False}
    then = results(run_job(2, 2, by_fleet_2(2, 2, synchronous, save)))[:2]

    def go_on(fleet, exe, loss):
        fleet.load_model(all_of_it)
        return training(fleet, exe, loss)

    assert results(run_job(2, 2, by_fleet_2(2, 2, synchronous, go_on)))[:2] == then
    begin = by_fleet_2(2, 2, synchronous, training, model=all_of_it)
    assert results(run_job(2, 2, begin))[:2] == then

    # A model to infer with has no state of the optimizer: the first loss is the same.
    begin = by_fleet_2(2, 2, synchronous, training, model=model)
    assert [found[0] for found in results(run_job(2, 2, begin))[:2]] == [t[0] for t in then]

    def load(fleet, exe, loss):
        fleet.load_inference_model(model)
        return training(fleet, exe, loss)

    found = results(run_job(2, 2, by_fleet_2(2, 2, synchronous, load)))[:2]
    assert [losses[0] for losses in found] == [t[0] for t in then]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("format", ["hdf5", "fluid"])
def test_models_hold_all_rows_or_those_that_are_shown_often(mpi_tmp_path, monkeypatch, format):
    """``format``: what is saved in by default, "fluid" under --as-paddle, which holds no rows."""
    monkeypatch.setattr(selection, "_default", format)  # private: as `save_as` sets it

    def script(role, load=False):
        fleet = begun(role, 1, 1)
        with own_programs(), names.guard():
            ids = fluid.data("ids", [None, 1], "int64")
            attr = fluid.ParamAttr("t", row_policy=fluid.RowPolicy(score=fluid.ClickScore()))
            rows = fluid.layers.embedding(ids, [-1, 2], True, True, param_attr=attr)
            strategy = DistributedStrategy()
            strategy.a_sync = False
            accessor = "table_parameters.t.accessor.ctr_accessor_param."
            settings = {accessor + "base_threshold": 0.15, accessor + "delta_threshold": 0.25}
            settings["table_parameters.t.sparse_table_cache_rate"] = 0.5  # of 2 rows
            strategy.sparse_table_configs = {"t": settings}
            optimizer = fluid.optimizer.SGD(1.0)
            fleet.distributed_optimizer(optimizer, strategy).minimize(fluid.layers.mean(rows))
            if fleet.is_server():
                fleet.init_server()
                fleet.run_server()
                return "served"
            exe, test = fluid.Executor(), fluid.default_main_program().clone(for_test=True)
            exe.run(fluid.default_startup_program())
            fleet.init_worker()
            if load:
                fleet.load_model(str(mpi_tmp_path / "all"))
            else:
                for fed in ([1, 1, 2], [1, 3, 4], [1, 4, 1]):
                    exe.run(feed={"ids": np.array(fed)[:, None]})
                fleet.save_persistables(exe, str(mpi_tmp_path / "all"), mode=3)
                for mode in (0, 1, 2):
                    where = str(mpi_tmp_path / f"mode-{mode}")
                    fleet.save_inference_model(exe, where, ["ids"], [rows], mode=mode)
                assert fleet.save_cache_model(str(mpi_tmp_path)) == 1
                with pytest.raises(fluid.errors.HpcdistError, match="table_id 1: the tables are"):
                    fleet.save_cache_model(str(mpi_tmp_path), table_id=1)
            (found,) = exe.run(
                test, feed={"ids": np.array([[1], [2], [3], [4]])}, fetch_list=[rows]
            )
            fleet.stop_worker()
            return found.tolist()

    trained_rows = results(run_job(1, 1, script))[0]
    saved = {}
    for name in ("all", "mode-0", "mode-1", "mode-2", "000_cache"):
        with h5py.File(mpi_tmp_path / name / "manifest.h5") as file:
            saved[name] = sorted(file["t/ids"][:].tolist())
    assert saved.pop("000_cache") == [1]  # of those in mode 2 the half that is shown most
    every, often, more_often = [1, 2, 3, 4], [1, 4], [1]
    assert saved == {"all": every, "mode-0": every, "mode-1": more_often, "mode-2": often}
    assert results(run_job(1, 1, lambda role: script(role, load=True)))[0] == trained_rows


@pytest.mark.mpi(min_size=2)
def test_an_asynchronous_model_of_tables_alone_is_saved_after_stop_worker(mpi_tmp_path):
    def script(role):
        fleet = begun(role, 1, 1)
        with own_programs(), names.guard():
            ids = fluid.data("ids", [None, 1], "int64")
            attr = fluid.ParamAttr("t", fluid.initializer.Constant(0.0))
            rows = fluid.layers.embedding(ids, [-1, 2], True, True, param_attr=attr)
            strategy = DistributedStrategy()
            strategy.a_sync = True
            optimizer = fleet.distributed_optimizer(fluid.optimizer.SGD(1.0), strategy)
            optimizer.minimize(fluid.layers.mean(rows))
            if fleet.is_server():
                fleet.init_server()
                fleet.run_server()
                return "served"
            exe, test = fluid.Executor(), fluid.default_main_program().clone(for_test=True)
            exe.run(fluid.default_startup_program())
            fleet.init_worker()
            for fed in (1, 1, 2):
                exe.run(feed={"ids": np.array([[fed]])})
            (found,) = exe.run(test, feed={"ids": np.array([[1], [2]])}, fetch_list=[rows])
            fleet.stop_worker()
            fleet.save_persistables(exe, str(mpi_tmp_path / "saved"))
            return found.tolist()

    assert results(run_job(1, 1, script))[0] == [[-1.0, -1.0], [-0.5, -0.5]]
    with h5py.File(mpi_tmp_path / "saved" / "manifest.h5") as file:
        assert sorted(file["t/ids"][:].tolist()) == [1, 2]


@pytest.mark.mpi(min_size=2)
def test_a_synchronous_worker_that_has_stopped_is_refused_at_once(mpi_tmp_path):
    def work(fleet, exe, loss):
        training(fleet, exe, loss)
        fleet.stop_worker()
        with pytest.raises(fluid.errors.HpcdistError, match="it has left the servers"):
            fleet.save_persistables(exe, str(mpi_tmp_path / "saved"))
        return "refused"

    assert results(run_job(1, 1, by_fleet_2(1, 1, {"a_sync": False}, work)))[0] == "refused"
