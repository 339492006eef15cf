"""What the communicator reads from the environment."""

from __future__ import annotations

import numpy as np
import pytest

from hpcdist.errors import CommError
from hpcdist.ops.selected_rows import SelectedRows
from hpcdist.runtime.communicator import PREFIX, Cut, Settings, check_runnable, read_settings


def flags(**values):
    return {PREFIX + name: value for name, value in values.items()}


def test_by_default_every_gradient_is_exchanged_at_once():
    assert read_settings({}, joint=False) == Settings(1, 1, 1, True, 0.05, False)


def test_cpu_num_is_the_default_of_the_queue():
    assert read_settings({"CPU_NUM": "4"}, joint=False) == Settings(4, 4, 4, True, 0.05, False)


def test_a_joint_trainer_averages_and_never_runs_ahead():
    environ = {"CPU_NUM": "4", **flags(max_merge_var_num="3", send_queue_size="8")}
    assert read_settings(environ, joint=True) == Settings(mean=True)


def test_flags_are_honoured():
    environ = flags(
        max_merge_var_num="3",
        send_queue_size="8",
        min_send_grad_num_before_recv="5",
        independent_recv_thread="False",
        send_wait_times="20",
        is_sgd_optimizer="0",
        thread_pool_size="2",
    )
    assert read_settings(environ, joint=False) == Settings(3, 8, 5, False, 0.2, True)


def test_no_more_are_merged_than_the_queue_holds():
    environ = flags(max_merge_var_num="8", send_queue_size="2")
    assert read_settings(environ, joint=False).merge == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_merge_var_num", "0"), ("send_queue_size", "many"), ("thread_pool_size", "-1")],
)
def test_what_is_no_number_is_refused(name, value):
    with pytest.raises(CommError, match=f"FLAGS_communicator_{name}: expected a number"):
        read_settings(flags(**{name: value}), joint=False)


def test_delay_compensation_needs_every_answer_at_once():
    check_runnable([], Settings(), {}, dc_asgd=True)
    for settings in (Settings(queue=2), Settings(receive_after=2)):
        check_runnable([], settings, {}, dc_asgd=False)
        with pytest.raises(CommError, match="FLAGS_communicator_send_queue_size"):
            check_runnable([], settings, {}, dc_asgd=True)


def test_a_sparse_gradient_whose_table_comes_back_whole_is_refused():
    cut = Cut("t@GRAD", "t", (0, 4), ("t@GRAD",), ("t",), ("ps0:1",))
    gradient = SelectedRows(np.zeros(2, np.int64), np.zeros((2, 3), np.float32), 4)
    with pytest.raises(CommError, match="table 't' has is_sparse=True"):
        check_runnable([cut], Settings(), {"t@GRAD": gradient}, dc_asgd=False)
