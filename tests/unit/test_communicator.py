"""What the communicator reads from the environment."""

from __future__ import annotations

import pytest

from hpcdist.errors import CommError
from hpcdist.runtime.communicator import PREFIX, Settings, read_settings


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
