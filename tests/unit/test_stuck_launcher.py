"""A launcher that hangs when its ranks have ended is killed, and no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdist.launch import stuck_launcher
from hpcdist.launch.stuck_launcher import end_launcher, launcher_of


@pytest.fixture
def start():
    started = []

    def start(*command: str) -> subprocess.Popen[str]:
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_launcher_that_outlives_its_ranks_is_killed_and_named(start):
    launcher, rank = start("sleep", "1000"), start("true")
    assert end_launcher(launcher.pid, [rank.pid], 0.05)
    assert launcher.wait(10) == -signal.SIGKILL
    assert f"the launcher (pid {launcher.pid}) has not ended" in launcher.stderr.read()


def test_a_launcher_that_ends_in_time_is_left_alone(start):
    launcher, rank = start("sleep", "0.05"), start("true")
    assert not end_launcher(launcher.pid, [rank.pid], 60)
    assert launcher.wait(10) == 0


def test_nothing_is_done_while_a_rank_lives(start):
    launcher, rank = start("sleep", "1000"), start("sleep", "1000")
    watch = start(sys.executable, stuck_launcher.__file__, "0", str(launcher.pid), str(rank.pid))
    with pytest.raises(subprocess.TimeoutExpired):
        watch.wait(0.3)
    assert launcher.poll() is None


def test_a_process_that_no_launcher_has_started_has_none():
    assert launcher_of(1) is None


def test_the_launcher_is_found_above_a_shell(tmp_path, start):
    (tmp_path / "prterun").symlink_to("/bin/sh")
    launcher = start(str(tmp_path / "prterun"), "-c", "sleep 1000; true")
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
    while not (child := children.read_text().strip()):
        pass
    while Path(f"/proc/{child}/comm").read_text() != "sleep\n":
        pass
    assert launcher_of(int(child)) == launcher.pid
    os.kill(int(child), signal.SIGKILL)
