"""A launcher that hangs when its ranks have ended, or whose ranks all were killed, is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdist.launch import stuck_launcher
from hpcdist.launch.host_board import LAST_WORDS, Fact
from hpcdist.launch.stuck_launcher import RECORD, end_launcher, launcher_of


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
    assert end_launcher(launcher.pid, [rank.pid], 0.05, -1, [])
    assert launcher.wait(10) == -signal.SIGKILL
    assert f"the launcher (pid {launcher.pid}) has not ended" in launcher.stderr.read()


def test_a_launcher_that_ends_in_time_is_left_alone(start):
    launcher, rank = start("sleep", "0.05"), start("true")
    assert not end_launcher(launcher.pid, [rank.pid], 60, -1, [])
    assert launcher.wait(10) == 0


@pytest.mark.parametrize("noted", [None, Fact.DONE, Fact.TERMINATED])
def test_a_launcher_whose_ranks_died_without_a_word_is_killed(tmp_path, start, noted):
    launcher = start("sleep", "1000" if noted != Fact.DONE else "0.05")
    ranks = [start("true").pid, start("true").pid]
    notes = RECORD.pack(launcher.pid, Fact.DONE, -1)  # of no rank
    if noted is not None:
        notes += RECORD.pack(ranks[1], noted, -1)
    file = tmp_path / "board"
    file.write_bytes(notes + b"torn")
    with file.open("rb") as board:
        killed = end_launcher(launcher.pid, ranks, 60, board.fileno(), LAST_WORDS)
    assert killed == (noted != Fact.DONE)
    assert (launcher.wait(10) == 0) != killed
    assert ("all ranks died" in launcher.stderr.read()) == killed


def test_nothing_is_done_while_a_rank_lives(start):
    launcher, rank = start("sleep", "1000"), start("sleep", "1000")
    program = [sys.executable, stuck_launcher.__file__, "0", ""]
    watch = start(*program, str(launcher.pid), str(rank.pid))
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
