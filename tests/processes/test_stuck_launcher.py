"""A launcher that hangs when its ranks have ended, or whose ranks all were killed, is killed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcdist.launch import facts
from hpcdist.launch.facts import LAST_WORDS, Fact
from hpcdist.launch.stuck_launcher import end_launcher, launcher_of


@pytest.fixture
def start():
    started = []

    def start(*command: str, **streams: Any) -> subprocess.Popen[str]:
        streams = {"stderr": subprocess.PIPE} | streams
        started.append(subprocess.Popen(command, text=True, **streams))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_launcher_that_outlives_its_ranks_is_killed_and_named(start):
    launcher, rank = start("sleep", "1000"), start("true")
    assert end_launcher(launcher.pid, [rank.pid], 0.05, -1, [], [])
    assert launcher.wait(10) == -signal.SIGKILL
    assert f"the launcher (pid {launcher.pid}) has not ended" in launcher.stderr.read()


def test_what_a_launcher_has_written_to_a_file_stays_there(tmp_path, start):
    log = tmp_path / "log"
    with log.open("w") as stderr:
        stderr.write("step 1\n")
        stderr.flush()
        launcher, rank = start("sleep", "1000", stderr=stderr), start("true")
        assert end_launcher(launcher.pid, [rank.pid], 0.05, -1, [], [])
    assert log.read_text().startswith("step 1\nhpcdist: the launcher")


def test_a_launcher_that_ends_in_time_is_left_alone(start):
    launcher, rank = start("sleep", "0.05"), start("true")
    assert not end_launcher(launcher.pid, [rank.pid], 60, -1, [], [])
    assert launcher.wait(10) == 0


@pytest.mark.parametrize("spoke", [True, False])
def test_a_launcher_waits_for_its_judgement_by_waiting_for_the_ends_of_outputs(
    tmp_path, start, spoke
):
    launcher = start("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # ends with its input
    rank = start("true").pid
    output = os.dup(launcher.stdin.fileno())
    os.write(output, b"the last words\n")
    launcher.stdin.close()
    launcher.stdin = None
    file = tmp_path / "board"
    with file.open("w+b") as board:
        if spoke:
            facts.note(board.fileno(), rank, Fact.EXITS)
        grace_s = 60 if spoke else 1
        killed = end_launcher(launcher.pid, [rank], grace_s, board.fileno(), LAST_WORDS, [output])
    if killed:
        os.close(output)
    assert killed != spoke
    passed_on, *died = launcher.stdout.read().splitlines()
    assert (passed_on, bool(died)) == ("the last words", killed)


@pytest.mark.parametrize("noted", [None, Fact.DONE, Fact.TERMINATED])
def test_a_launcher_whose_ranks_died_without_a_word_is_killed(tmp_path, start, noted):
    launcher = start("sleep", "1000" if noted != Fact.DONE else "0.05")
    ranks = [start("true").pid, start("true").pid]
    file = tmp_path / "board"
    with file.open("w+b") as board, (tmp_path / "stderr").open("w") as stderr:
        facts.note(board.fileno(), launcher.pid, Fact.DONE)  # of no rank
        if noted is not None:
            facts.note(board.fileno(), ranks[1], noted)
        os.write(board.fileno(), b"torn")
        grace_s = 60 if noted == Fact.DONE else 0.05
        outputs = [os.dup(stderr.fileno())]
        killed = end_launcher(launcher.pid, ranks, grace_s, board.fileno(), LAST_WORDS, outputs)
    assert killed == (noted != Fact.DONE)
    assert (launcher.wait(10) == 0) != killed
    assert ("all ranks died" in (tmp_path / "stderr").read_text()) == killed


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
