"""A script that computes a loss again and again and trains nothing is told once."""

import logging

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.executor.untrained import NOTICED_AT, moves_nothing

FED = {"x": np.ones((2, 3), np.float32)}


def notices(caplog, minimize=False, for_test=False, fetches_loss=True):
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        out = fluid.layers.fc(fluid.data("x", [None, 3]), 1)
        loss = fluid.layers.mean(out)
        if minimize:
            fluid.optimizer.SGD(0.1).minimize(loss)
    caplog.clear()
    program = main.clone(for_test=True) if for_test else main
    with fluid.scope_guard(fluid.Scope()), caplog.at_level(logging.WARNING, "hpcdist"):
        exe = fluid.Executor()
        exe.run(startup)
        for _ in range(2 * NOTICED_AT):
            exe.run(program, feed=FED, fetch_list=[loss if fetches_loss else out])
    return [record.getMessage() for record in caplog.records]


def test_a_missing_minimize_is_told_once(caplog):
    (notice,) = notices(caplog)
    assert "minimize(mean_0.tmp_0)" in notice and "no parameter was updated" in notice


@pytest.mark.parametrize(
    ("role", "trainer", "told"), [("TRAINER", 0, 1), ("TRAINER", 1, 0), ("PSERVER", 0, 0)]
)
def test_one_rank_tells_it_for_all(caplog, monkeypatch, role, trainer, told):
    monkeypatch.setenv("PADDLE_TRAINING_ROLE", role)
    monkeypatch.setenv("PADDLE_TRAINER_ID", str(trainer))
    assert len(notices(caplog)) == told


@pytest.mark.parametrize(
    "meant", [{"minimize": True}, {"for_test": True}, {"fetches_loss": False}], ids=str
)
def test_what_is_meant_is_not_told(caplog, meant):
    assert notices(caplog, **meant) == []


def test_a_trainer_has_servers_update_what_it_trains():
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 3]), 1))
        assert moves_nothing(main)
        fluid.optimizer.SGD(0.1).minimize(loss)
    transpiler = fluid.DistributeTranspiler()
    transpiler.transpile(0, program=main, startup_program=startup, pservers="127.0.0.1:6174")
    assert not moves_nothing(transpiler.get_trainer_program())
