"""Fleet as scripts of Paddle 2 call it, in a process that is alone."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import fleet as module
from hpcdist.errors import FleetError, HpcdistError
from hpcdist.fleet import DistributedStrategy
from hpcdist.fluid.compat import aspaddle
from hpcdist.fluid.fleet import Fleet
from hpcdist.fluid.fleet.role_maker import PaddleCloudRoleMaker, Role, UserDefinedRoleMaker
from hpcdist.fluid.fleet.strategy import GeoStrategy
from hpcdist.fluid.fleet.table_settings import choices_of


@pytest.fixture
def paddle(monkeypatch):
    for name in ("TRAINING_ROLE", "PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_TRAINER_ENDPOINTS"):
        monkeypatch.delenv(name, raising=False)
    aspaddle.install()
    import paddle

    names = fluid.program_guard(fluid.Program(), fluid.Program())
    with names, fluid.unique_name.guard(), fluid.scope_guard(fluid.Scope()):
        yield paddle
    aspaddle.uninstall()


# -- strategies ----------------------------------------------------------------------------------
def test_settings_are_read_changed_and_written_back():
    strategy = DistributedStrategy()
    strategy.a_sync = True
    configs = strategy.a_sync_configs
    assert configs["send_queue_size"] == 16 and configs["launch_barrier"] is True
    configs["k_steps"] = 7
    strategy.a_sync_configs = configs
    made = strategy.parameter_server()
    assert isinstance(made, GeoStrategy)
    assert made.get_program_config().geo_sgd_need_push_nums == 7
    strategy.trainer_desc_configs = {"dump_fields_path": "/tmp/x", "stat_var_names": ["a"]}
    strategy.trainer_desc_configs["stat_var_names"].append("b")  # of a copy
    assert strategy.trainer_desc_configs["stat_var_names"] == ["a"]
    assert strategy.trainer_desc_configs["dump_fields_path"] == "/tmp/x"
    strategy.fs_client_param = {"user": "me"}
    strategy.fs_client_param = {"passwd": "secret"}
    assert strategy.fs_client_param["user"] == "me"
    strategy.adam_d2sum = True
    strategy.is_with_coordinator = False


def test_what_is_shown_but_not_set_leaves_the_environments_flags(monkeypatch):
    monkeypatch.setenv("FLAGS_communicator_send_wait_times", "5")
    strategy = DistributedStrategy()
    strategy.a_sync_configs = {**strategy.a_sync_configs, "thread_pool_size": 3}
    flags = strategy.parameter_server().get_trainer_runtime_config().get_communicator_flags()
    assert flags["communicator_send_wait_times"] == "5"
    assert flags["communicator_thread_pool_size"] == "3"


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("a_sync_configs", {"k_step": 1}, "has no key 'k_step'; did you mean 'k_steps'"),
        ("a_sync_configs", {"k_steps": "10"}, r"\['k_steps'\]: expected 0 or more, got '10'"),
        ("a_sync_configs", {"use_ps_gpu": 1}, "use_ps_gpu.*not supported: servers keep tables in"),
        ("a_sync_configs", {"heter_worker_device_guard": "gpu"}, "devices of one kind, got 'gpu'"),
        ("a_sync_configs", {"lr_decay_steps": 3}, "schedule is that of the program, got 3"),
        ("a_sync_configs", 3, "a_sync_configs: expected a dict, got 3"),
        ("trainer_desc_configs", {"dump_field": []}, "did you mean 'dump_fields'"),
        ("trainer_desc_configs", {"dump_fields": ["x"]}, "not supported: fetch them"),
        ("trainer_desc_configs", {"local_sparse": ["x"]}, r"embedding\(is_distributed=True\) says"),
        ("fs_client_param", {"uri": "hdfs://a"}, "a file system that is mounted"),
        ("is_with_coordinator", True, "there is no coordinator"),
        ("tensor_parallel", True, "pipeline puts stages"),
        ("adam_d2sum", 1, "adam_d2sum: expected True or False, got 1"),
        ("a_syn", True, "has no field 'a_syn'; did you mean 'a_sync'"),
        ("sparse_table_config", {}, "did you mean 'sparse_table_configs'"),
    ],
)
def test_a_setting_that_is_not_there_is_refused(field, value, told):
    with pytest.raises(HpcdistError, match=told):
        setattr(DistributedStrategy(), field, value)


def test_settings_of_tables_that_change_nothing_are_kept():
    strategy = DistributedStrategy()
    configs = {
        "embedding": {
            "table_parameters.embedding.table_class": "MemorySparseTable",
            "table_parameters.embedding.shard_num": 10,
            "table_parameters.embedding.accessor.accessor_class": "SparseAccessor",
            "table_parameters.embedding.accessor.embedx_dim": 9,
        }
    }
    strategy.sparse_table_configs = configs
    assert strategy.sparse_table_configs == configs
    strategy.fleet_desc_configs = {
        "embedding": {"sparse_table_class": "DownpourSparseTable", "sparse_shard_num": 3},
        "use_cvm": True,
        "dense_table": {"x": 1},
    }


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("t.table_clas", "x", "has no field 'table_clas'; did you mean 'table_class'"),
        ("t.table_class", "SSDSparseTable", "servers' memory: MemorySparseTable, got 'SSDSparseT"),
        ("t.accessor.accessor_class", "CtrCommonAccessor", "without shows and clicks: SparseAcc"),
        ("t.accessor.embedx_threshold", "10", "widen_at: expected a number, 0 or more, got '10'"),
        ("t.accessor.ctr_accessor_param.show_scale", True, "not divided by shows: False, got True"),
        ("t.accessor.ctr_accessor_param.click_coeff", "1", "click_coeff: expected a finite number"),
        ("t.accessor.embed_sgd_param.name", "StdAdaGradSGDRule", "by the optimizer that minimizes"),
        ("u.shard_num", 1, "names begin with 'table_parameters.t.', got 'table_parameters.u.sha"),
    ],
)
def test_settings_that_would_change_a_table_are_refused(name, value, told):
    with pytest.raises(FleetError, match=told):
        DistributedStrategy().sparse_table_configs = {"t": {f"table_parameters.{name}": value}}


def made_table(paddle, field, settings, *, collective, entry=True):
    """Return the table ``t`` that a strategy with these settings makes, in a process alone."""
    for name in ("show", "click"):
        paddle.static.data(name, [None, 1])
    ids = paddle.static.data("ids", [None, 1], "int64")
    entry = paddle.distributed.ShowClickEntry("show", "click") if entry else None
    attr = paddle.ParamAttr(name="t")
    rows = paddle.static.nn.sparse_embedding(ids, [9, 3], entry=entry, param_attr=attr)
    strategy = DistributedStrategy()
    setattr(strategy, field, {"t": settings})
    fleet = Fleet()
    fleet.init(is_collective=collective)
    optimizer = fleet.distributed_optimizer(fluid.optimizer.SGD(1.0), strategy)
    optimizer.minimize(fluid.layers.mean(rows))
    fluid.Executor().run(fluid.default_startup_program())
    return fluid.global_scope().find_var("t").value


ACCESSOR = "table_parameters.t.accessor."
COUNTS = ACCESSOR + "ctr_accessor_param."


@pytest.mark.parametrize("collective", [False, True])
@pytest.mark.parametrize(
    ("field", "settings"),
    [
        (
            "sparse_table_configs",
            {
                COUNTS + "click_coeff": 3.0,
                COUNTS + "delete_threshold": 0.5,
                COUNTS + "show_scale": False,
                ACCESSOR + "embedx_threshold": 4,
            },
        ),
        ("fleet_desc_configs", {"sparse_click_coeff": 3.0, "sparse_delete_threshold": 0.5}),
    ],
)
def test_coefficients_of_scores_are_those_of_a_tables_policy(paddle, field, settings, collective):
    table = made_table(paddle, field, settings, collective=collective)
    decay = 0.98 if field == "fleet_desc_configs" else 1.0  # what 2.6.2 has where none is said
    assert table.policy.score == fluid.ClickScore(0.1, 3.0, decay, 0.5)
    assert table.policy.shows == ("show", "click")
    assert table.policy.widen_at == (10.0 if field == "fleet_desc_configs" else 4)


@pytest.mark.parametrize(
    ("field", "thresholds"),
    [("sparse_table_configs", (0.0, 0.0)), ("fleet_desc_configs", (1.5, 0.25))],
)
def test_models_hold_the_rows_that_they_hold_in_paddle_if_nothing_is_said(field, thresholds):
    strategy = DistributedStrategy()
    setattr(strategy, field, {"t": {}})
    base, delta = (choices_of(strategy, delta=delta)["t"] for delta in (False, True))
    assert (base.least_score, delta.least_delta) == thresholds
    assert (delta.least_score, base.least_delta) == (thresholds[0], 0.0)


@pytest.mark.parametrize("setting", [COUNTS + "click_coeff", ACCESSOR + "embedx_threshold"])
def test_numbers_of_scores_need_a_table_that_has_one(paddle, setting):
    settings = {setting: 3.0}
    with pytest.raises(FleetError, match="make 't' with entry=ShowClickEntry"):
        made_table(paddle, "sparse_table_configs", settings, collective=False, entry=False)


def test_a_tables_description_is_checked_too():
    strategy = DistributedStrategy()
    with pytest.raises(FleetError, match="'sparse_learning_rate'.*not supported"):
        strategy.fleet_desc_configs = {"t": {"sparse_learning_rate": 0.1}}
    with pytest.raises(FleetError, match="did you mean 'sparse_shard_num'"):
        strategy.fleet_desc_configs = {"t": {"sparse_shard_nums": 1}}
    for wrong in (3, {"t": 3}):
        with pytest.raises(TypeError, match="expected a dict"):
            strategy.sparse_table_configs = wrong


# -- roles ---------------------------------------------------------------------------------------
def asked(role, question):
    """Return what a role maker answers to Paddle 2's private name of a question."""
    return getattr(role, f"_{question}")()


def test_role_makers_are_made_as_in_paddle_2():
    role = UserDefinedRoleMaker(
        is_collective=False,
        init_gloo=False,
        current_id=1,
        role=Role.SERVER,
        worker_endpoints=["a:1", "a:2", "a:3"],
        server_endpoints=["b:1", "b:2"],
    )
    assert (
        asked(role, "is_server")
        and not asked(role, "is_first_worker")
        and asked(role, "server_index") == 1
    )
    assert (asked(role, "worker_num"), asked(role, "server_num")) == (3, 2)
    assert asked(role, "get_trainer_endpoints") == ["a:1", "a:2", "a:3"]
    alone = UserDefinedRoleMaker(is_collective=True, current_id=1, worker_endpoints=["a:1", "a:2"])
    assert (
        alone.is_collective
        and asked(alone, "worker_index") == 1
        and asked(alone, "server_num") == 0
    )
    assert PaddleCloudRoleMaker(is_collective=False, init_gloo=True, path="./gloo").is_worker()
    with pytest.raises(FleetError, match="worker_num: expected at least 1, got 0"):
        UserDefinedRoleMaker(current_id=0, role=Role.WORKER, server_endpoints=["b:1"])


def test_a_lone_worker_reduces_gathers_and_shares_files(paddle, capsys):
    fleet = paddle.distributed.fleet
    fleet.init(log_level="WARNING")
    logging.getLogger("hpcdist.fleet").setLevel(logging.NOTSET)
    fleet.init_worker()  # nothing was minimized by fleet: nobody is to be connected to
    util = fleet.util
    assert util.all_reduce([3, 4]).tolist() == [3, 4] and util.all_reduce((1.5,), "max") == [1.5]
    assert util.all_gather(2) == [2] and util.all_gather([2]) == [[2]]
    assert fleet.all_reduce(np.array([5]), "min").tolist() == [5]
    util.barrier()
    assert util.get_file_shard(["a", "b"]) == ["a", "b"]
    util.print_on_rank("here", 0)
    util.print_on_rank("not here", 1)
    assert capsys.readouterr().out == "here\n"
    assert (fleet.rank(), fleet.nranks(), fleet.world_size()) == (0, 1, 1)
    assert fleet.is_coordinator() is False
    for wrong, told in (
        (lambda: util.all_reduce([1], "mean"), "sum, max or min, got 'mean'"),
        (lambda: util.barrier("workers"), "expected one of .'worker', 'server', 'all'.*'workers'"),
        (lambda: util.get_file_shard("a"), "expected a list of files, got 'a'"),
        (lambda: util.print_on_rank("x", "0"), "rank_id: expected an integer, got '0'"),
        (lambda: fleet.init_worker(scopes=[1]), "scope of scope_guard"),
    ):
        with pytest.raises(HpcdistError, match=told):
            wrong()


@pytest.mark.parametrize(
    "name",
    [
        "save_cache_table",
        "save_one_table",
        "load_one_table",
        "save_dense_params",
        "check_save_pre_patch_done",
        "init_coordinator",
        "make_fl_strategy",
        "get_fl_client",
        "distributed_model",
        "distributed_scaler",
        "collective_perf",
        "get_hybrid_communicate_group",
    ],
)
def test_what_tables_cannot_do_is_refused_by_name(name):
    with pytest.raises(AttributeError, match=f"Fleet.{name} of Paddle 2 is not in hpcdist: "):
        getattr(module, name)


def test_modules_are_found_by_paddles_names(paddle):
    from paddle.distributed.fleet.base.distributed_strategy import DistributedStrategy as Strategy
    from paddle.distributed.fleet.base.util_factory import UtilBase
    from paddle.distributed.fleet.data_generator import MultiSlotDataGenerator
    from paddle.distributed.fleet.dataset import InMemoryDataset as Dataset
    from paddle.distributed.fleet.metrics.metric import auc
    from paddle.distributed.fleet.utils import HDFSClient, LocalFS
    from paddle.distributed.fleet.utils.fs import LocalFS as SameFS
    from paddle.incubate.distributed.fleet.fleet_util import FleetUtil

    fleet = paddle.distributed.fleet
    assert Strategy is fleet.DistributedStrategy and UtilBase is fleet.UtilBase
    assert MultiSlotDataGenerator is fleet.MultiSlotDataGenerator
    assert Dataset is paddle.distributed.InMemoryDataset is fleet.InMemoryDataset
    assert auc is fleet.metrics.auc and LocalFS is SameFS is fleet.utils.LocalFS
    assert HDFSClient and FleetUtil


# -- tables that grow ------------------------------------------------------------------------------
def test_a_sparse_embedding_takes_any_id(paddle):
    ids = paddle.static.data("ids", [None, 1], "int64")
    found = paddle.static.nn.sparse_embedding(ids, [4, 3], param_attr=paddle.ParamAttr(name="rows"))
    assert found.shape == (-1, 3)
    loss = fluid.layers.mean(found)
    fluid.optimizer.SGD(1.0).minimize(loss)
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    fed = {"ids": np.array([[2**62], [-5], [7], [8], [9]], "int64")}
    for _ in range(2):
        (rows,) = exe.run(feed=fed, fetch_list=[found])
    # Xavier of a table of 4 rows of 3, not of the rows that came.
    limit = np.sqrt(6 / 7)
    assert len(np.unique(rows)) == 15 and limit / 2 < np.abs(rows).max() <= limit + 1 / 15


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"entry": lambda p: "count"}, "expected paddle.distributed.CountFilterEntry.*got 'count'"),
        ({"is_test": lambda p: True}, r"clone\(for_test=True\) makes one"),
        ({"table_class": lambda p: "SSDSparseTable"}, "tables lie in the servers' memory"),
        ({"table_class": lambda p: "Sparse"}, "table_class: expected one of .*got 'Sparse'"),
        ({"size": lambda p: [3]}, r"size must be \[rows, width\], got \[3\]"),
        ({"padding_idx": lambda p: -5}, "padding_idx -5 counts from the end of 4 rows"),
    ],
)
def test_what_a_table_cannot_do_yet_is_refused(paddle, arguments, told):
    ids = paddle.static.data("ids", [None, 1], "int64")
    given = {name: value(paddle) for name, value in arguments.items()}
    with pytest.raises(HpcdistError, match=told):
        paddle.static.nn.sparse_embedding(ids, **{"size": [4, 3], **given})


@pytest.mark.parametrize(
    ("make", "policy"),
    [
        (lambda d: d.CountFilterEntry(10), fluid.RowPolicy(admit_after=10)),
        (lambda d: d.CountFilterEntry(0), fluid.RowPolicy()),
        (lambda d: d.ProbabilityEntry(0.1), fluid.RowPolicy(admit_probability=0.1)),
        (
            lambda d: d.ShowClickEntry("s", "c"),
            fluid.RowPolicy(score=fluid.ClickScore(0.1, 1.0, 1.0, 0.0), shows=("s", "c")),
        ),
    ],
)
def test_an_entry_is_a_policy_of_rows(paddle, make, policy):
    ids = paddle.static.data("ids", [None, 1], "int64")
    paddle.static.nn.sparse_embedding(ids, [4, 3], entry=make(paddle.distributed))
    (table,) = paddle.static.default_main_program().all_parameters()
    assert table.row_policy == policy
    with pytest.raises(HpcdistError, match="leave one of them out"):
        paddle.static.nn.sparse_embedding(
            ids,
            [4, 3],
            entry=make(paddle.distributed),
            param_attr=fluid.ParamAttr(row_policy=fluid.RowPolicy(expire_days=3)),
        )


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda d: d.CountFilterEntry(-1), "count_filter: expected an integer, 0 or more, got -1"),
        (lambda d: d.CountFilterEntry(True), "count_filter: expected an integer"),
        (lambda d: d.ProbabilityEntry(1), r"probability: expected a float in \(0, 1\), got 1"),
        (lambda d: d.ProbabilityEntry(1.5), "got 1.5"),
        (lambda d: d.ShowClickEntry("s", 3), "names of two variables, got 's' and 3"),
    ],
)
def test_entries_check_their_arguments(paddle, make, told):
    with pytest.raises(ValueError, match=told):
        make(paddle.distributed)
