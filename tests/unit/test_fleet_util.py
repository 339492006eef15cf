"""What Fluid's scripts of fleet call beside training, in a process that is alone."""

from __future__ import annotations

import logging
import re

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.errors import HpcdistError
from hpcdist.fleet import fleet
from hpcdist.fluid.fleet.fleet_util import FleetUtil
from hpcdist.fluid.fleet.role_maker import GeneralRoleMaker, MPISymetricRoleMaker


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in ("TRAINING_ROLE", "PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_TRAINER_ENDPOINTS"):
        monkeypatch.delenv(name, raising=False)
    fleet.init(GeneralRoleMaker(path="./gloo", init_timeout_seconds=60))
    with fluid.scope_guard(fluid.Scope()):
        yield


@pytest.mark.parametrize("mode", ["sum", "max", "min"])
def test_a_lone_workers_values_are_everyones(mode):
    role = MPISymetricRoleMaker()
    found = np.zeros(3)
    role._all_reduce(np.array([1.0, 2.0, 3.0]), found, mode=mode)
    assert found.tolist() == [1.0, 2.0, 3.0]
    role._barrier_worker()
    as_list = [0, 0]
    fleet.all_reduce_worker([4, 5], as_list)
    assert as_list == [4, 5]


def test_a_wrong_mode_is_refused():
    with pytest.raises(HpcdistError, match="sum, max or min, got 'mean'"):
        fleet._role_maker._all_reduce([1], [0], mode="mean")
    with pytest.raises(HpcdistError, match="got 'slim'"):
        FleetUtil("slim")


def test_the_area_of_all_workers(capsys):
    util = FleetUtil("transpiler")
    scope = fluid.global_scope()
    assert util.get_global_auc(scope) is None
    scope.var("pos").get_tensor().set(np.array([[0, 1, 3]], "int64"), fluid.CPUPlace())
    scope.var("neg").get_tensor().set(np.array([[2, 2, 0]], "int64"), fluid.CPUPlace())
    util.print_global_auc(scope, "pos", "neg", print_prefix="day 1")
    # 16 pairs of a positive and a negative row: 14 in order, 2 in the same bucket.
    assert capsys.readouterr().out == "not found auc bucket\nday 1 global auc = 0.9375\n"
    util.set_zero("pos", scope)
    assert np.array(scope.find_var("pos").get_tensor()).tolist() == [[0, 0, 0]]
    with pytest.raises(HpcdistError, match="no variable 'lost'"):
        util.set_zero("lost", scope)


def test_worker_0_speaks(capsys, caplog):
    util = FleetUtil()
    util.rank0_print("begun")
    with caplog.at_level(logging.INFO, "hpcdist.fleet"):
        util.rank0_info("half")
        util.rank0_error("lost")
    assert capsys.readouterr().out == "begun\n"
    assert [r.levelname for r in caplog.records] == ["INFO", "ERROR"]


HADOOP = ("hdfs://x", "u,p")


def test_done_files_are_those_of_paddle(tmp_path, monkeypatch):
    """As FleetUtil of 2.6.2 wrote them, with a hadoop of local files; times are others."""
    monkeypatch.setenv("JOB_ID", "job-7")
    monkeypatch.setenv("INSTANCE_ID", "app-job-7-x--0")
    monkeypatch.setattr(fleet, "worker_num", lambda: 4)
    util, out = FleetUtil(), str(tmp_path / "out")
    assert util.get_last_save_model(out, *HADOOP)[:3] == [-1, -1, ""]
    assert util.get_last_save_xbox(out, *HADOOP)[:3] == [-1, -1, ""]
    assert util.get_last_save_xbox_base(out, *HADOOP)[:2] == [-1, -1]
    for day, number, key in ((20190723, 6, 111), (20190723, 7, 111), (20190723, "6", 112)):
        util.write_model_donefile(out, day, number, key, *HADOOP)
    util.write_model_donefile(out, 20190724, -1, 113, *HADOOP)
    assert (tmp_path / "out/donefile.txt").read_text() == (
        f"20190723\t111\t{out}/20190723/6/\t6\t0\n"
        f"20190723\t111\t{out}/20190723/7/\t7\t0\n"
        f"20190724\t113\t{out}/20190724/0/\t-1\t0\n"
    )
    util.write_xbox_donefile(out, 20190723, 6, 111, "hdfs:/data", *HADOOP)
    util.write_xbox_donefile(out, 20190723, 6, 111, ["a", "b"], *HADOOP)
    util.write_xbox_donefile(out, 20190723, 7, 111, ["a", "b"], *HADOOP)
    for _ in range(2):  # Paddle ends with an error the second time
        util.write_xbox_donefile(out, 20190724, -1, 113, "d", *HADOOP)
    patches = (tmp_path / "out/xbox_patch_done.txt").read_text()
    line = (
        '"key": "111", "input": "hdfs://x%s/20190723/delta-%d/000", "record_count": "111111", '
        '"partition_type": "2", "job_name": "default_job_name", "ins_tag": "feasign", '
        '"ins_path": "%s", "job_id": "job-7-x", "monitor_data": "", '
        '"monitor_path": "%s/monitor/20190723.txt", "mpi_size": "4"}\n'
    )
    expected = line % (out, 6, "hdfs:/data", out) + line % (out, 7, "a,b", out)
    assert re.sub(r'\{"id": "\d{10}", ', "", patches) == expected
    (base,) = (tmp_path / "out/xbox_base_done.txt").read_text().splitlines()
    assert base.startswith(
        f'{{"id": "113", "key": "113", "input": "hdfs://x{out}/20190724/base/000"'
    )
    util.write_cache_donefile(out, 20190723, 6, 77, *HADOOP, file_num=3, table_id=2)
    meta = tmp_path / "out/20190723/delta-6/002_cache/sparse_cache.meta"
    assert meta.read_text() == "file_prefix:part\npart_num:3\nkey_num:77\n"
    util.write_cache_donefile(out, 20190723, 6, 78, *HADOOP, table_id=2)
    assert "key_num:77" in meta.read_text()
    assert util.get_last_save_model(out, *HADOOP) == [20190724, -1, f"{out}/20190724/0/", 113]
    last = [20190723, 7, f"hdfs://x{out}/20190723/delta-7", 111]
    assert util.get_last_save_xbox(out, *HADOOP) == last
    last_base = [20190724, f"hdfs://x{out}/20190724/base", 113]
    assert util.get_last_save_xbox_base(out, *HADOOP) == last_base


def test_passes_of_a_day():
    util = FleetUtil()
    passes = util.get_online_pass_interval("{20190720..20190729}", "{0..23}", "360", 2, False)
    assert passes == [["0000", "0600"], ["1200", "1800"]]
    assert util.get_online_pass_interval("20190720", "{0..1}", 60, 1, True) == [["00"], ["01"]]
    for hours in ("{2..3}", "all"):
        with pytest.raises(HpcdistError, match="expected hours"):
            util.get_online_pass_interval("20190720", hours, 30, 1, False)


def test_rows_that_are_shown_most_are_saved_where_paddle_saves_them(monkeypatch):
    calls = []
    monkeypatch.setattr(fleet, "save_cache_model", lambda *a, **k: calls.append((*a, *k.values())))
    util = FleetUtil()
    util.save_cache_model("out/", 20190723, 6, table_id=2)
    util.save_cache_base_model("out", "20190724")
    assert calls == [("out/20190723/delta-6", 1, 2), ("out/20190724/base", 2, 0)]
