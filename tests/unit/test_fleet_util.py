"""What Fluid's scripts of fleet call beside training, in a process that is alone."""

from __future__ import annotations

import logging

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
