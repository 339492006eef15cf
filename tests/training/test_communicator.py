"""What the communicator reads from the environment, and what its thread does meanwhile."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from hpcdist.base.trace.events import Count
from hpcdist.base.trace.recorder import recorder
from hpcdist.errors import CommError, SettingError
from hpcdist.ps.plan import Route, UpdateMode
from hpcdist.runtime.pserver.communicator import (
    Communicator,
    Settings,
    check_answered,
    read_settings,
)
from hpcdist.runtime.pserver.exchange_plan import refuse_unpushed
from hpcdist.runtime.pserver.row_partition import RowCut
from hpcdist.transpiler.plan import ProgramPlan

PREFIX = "FLAGS_communicator_"
LIMIT_S = 60  # for what a thread does at once, unless the machine is busy


NAMES = ("max_merge_var_num", "send_queue_size", "min_send_grad_num_before_recv")


@pytest.fixture
def flags(monkeypatch):
    """A function that sets FLAGS_communicator_* for the rest of the test."""
    for name in NAMES:
        monkeypatch.delenv(PREFIX + name, raising=False)

    def put(**values):
        for name, value in values.items():
            monkeypatch.setenv(name if name == "CPU_NUM" else PREFIX + name, value)

    return put


def test_by_default_every_gradient_is_exchanged_at_once(flags):
    assert read_settings(joint=False) == Settings(1, 1, 1, True, 0.05, False)


def test_cpu_num_is_the_default_of_the_queue(flags):
    flags(CPU_NUM="4")
    assert read_settings(joint=False) == Settings(4, 4, 4, True, 0.05, False)


def test_a_joint_trainer_averages_and_never_runs_ahead(flags):
    flags(CPU_NUM="4", max_merge_var_num="3", send_queue_size="8")
    assert read_settings(joint=True) == Settings(mean=True)


def test_flags_are_honoured(flags):
    flags(
        max_merge_var_num="3",
        send_queue_size="8",
        min_send_grad_num_before_recv="5",
        independent_recv_thread="False",
        send_wait_times="20",
        is_sgd_optimizer="0",
        thread_pool_size="2",
    )
    assert read_settings(joint=False) == Settings(3, 8, 5, False, 0.2, True)


def test_no_more_are_merged_than_the_queue_holds(flags):
    flags(max_merge_var_num="8", send_queue_size="2")
    assert read_settings(joint=False).merge == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_merge_var_num", "0"), ("send_queue_size", "many"), ("thread_pool_size", "-1")],
)
def test_what_is_no_number_is_refused(flags, name, value):
    flags(**{name: value})
    with pytest.raises(SettingError, match=f"FLAGS_communicator_{name}: expected an integer"):
        read_settings(joint=False)


def test_delay_compensation_needs_every_answer_at_once():
    check_answered(Settings())
    for settings in (Settings(queue=2), Settings(receive_after=2)):
        with pytest.raises(CommError, match="FLAGS_communicator_send_queue_size"):
            check_answered(settings)


def test_a_sparse_gradient_whose_table_comes_back_whole_is_refused():
    route = Route("t", "t@GRAD", (4, 3), "float32", (), (), sparse=True)
    plan = ProgramPlan(("ps0:1",), 1, 0, (route,), (0,), UpdateMode())
    with pytest.raises(CommError, match="table 't' has is_sparse=True"):
        refuse_unpushed(plan)
    refuse_unpushed(replace(plan, routes=(replace(route, remote=True),)))


class Servers:
    """Stands for a PsClient: adds what is sent to the parameter, and answers when it is let."""

    packets = ("g",)

    def __init__(self):
        self.turn = threading.RLock()
        self.open = threading.Event()
        self.open.set()
        self.pieces = {}
        self.value = 0.0
        self.sent = []
        self.error = None

    def post_receives(self):
        pass

    def send_packet(self, index):
        self.sent.append(float(self.pieces["g"][0]))

    def answered(self):
        if self.error is not None:
            raise self.error
        return self.open.is_set()

    def wait_receives(self):
        self.open.wait()
        self.value += self.sent[-1]
        self.pieces["w"][0] = self.value

    def awaited(self):
        return "waiting for w"


def communicator(servers, **settings):
    cut = RowCut("w@GRAD", "w", (0, 1), ("g",), ("w",), ("ps0:1",))
    parameter = np.zeros(1, np.float32)
    made = Communicator(
        [cut],
        {"w": parameter},
        Settings(**settings),
        np.zeros(2, np.int64),
    )
    servers.pieces = made.pieces
    made.attach(servers, None)
    return made, parameter


def end_step(made, value):
    made.end_step({"w@GRAD": np.full(1, value, np.float32)}, {})


def until(condition):
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, f"it did not happen within {LIMIT_S} s"
        time.sleep(0.001)


def test_the_thread_sends_and_receives_while_the_trainer_computes():
    servers = Servers()
    made, parameter = communicator(servers, merge=4, queue=8, wait_s=0.01)
    end_step(made, 3.0)
    until(lambda: made.exchanged[0] == 1)  # late, and nothing else was called
    assert servers.sent == [3.0]
    assert parameter[0] == 0.0, "taken over in the middle of a step"
    end_step(made, 4.0)
    assert parameter[0] == 3.0
    made.flush()
    assert servers.sent == [3.0, 4.0]
    assert parameter[0] == 7.0


def test_what_waits_for_an_answer_is_merged():
    servers = Servers()
    servers.open.clear()
    made, parameter = communicator(servers, merge=2, queue=8, wait_s=0.0)
    end_step(made, 1.0)
    until(lambda: servers.sent == [1.0])
    for value in (10.0, 100.0, 1000.0):
        end_step(made, value)
    assert servers.sent == [1.0], "sent before the answer"
    servers.open.set()
    until(lambda: made.exchanged[0] == 3)
    assert servers.sent == [1.0, 110.0, 1000.0], "two are merged, never more"
    made.flush()
    assert parameter[0] == 1111.0


def test_a_full_queue_makes_the_step_wait(monkeypatch):
    noted = []
    monkeypatch.setattr(recorder, "count", lambda what, number: noted.append((what, number)))
    servers = Servers()
    servers.open.clear()
    made, _ = communicator(servers, queue=2)
    end_step(made, 1.0)
    threading.Timer(0.05, servers.open.set).start()
    end_step(made, 2.0)
    assert servers.open.is_set()
    assert noted[0] == (Count.UNANSWERED, 1) and 0 <= noted[1][1] <= 1
    made.flush()
    assert servers.sent == [1.0, 2.0]


def test_a_failure_of_the_thread_reaches_the_trainer():
    servers = Servers()
    servers.error = CommError("trainer 0: server ps0:1 is gone")
    made, _ = communicator(servers, queue=2)
    end_step(made, 1.0)
    with pytest.raises(CommError, match="ps0:1 is gone"):
        until(lambda: end_step(made, 2.0))
    with pytest.raises(CommError, match="ps0:1 is gone"):
        made.flush()


@pytest.mark.parametrize(
    "settings", [{}, {"queue": 4, "eager": False}], ids=["queue 1", "no thread"]
)
def test_there_is_no_thread_when_none_is_needed(settings):
    before = set(threading.enumerate())  # of other tests, some may be about to end
    servers = Servers()
    made, parameter = communicator(servers, **settings)
    for _ in range(6):
        end_step(made, 1.0)
        assert set(threading.enumerate()) <= before
    made.flush()
    assert parameter[0] == 6.0
