"""The process that watches the ranks of a host: whom it names, whom it ends, and when it ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile

import pytest

from hpcdist.launch import facts, held_outputs, host_watcher
from hpcdist.launch.facts import Fact

SHORT_S = 0.5
LOOP = "while True: pass"
SLEEP = "import time; time.sleep(1000)"
NAPS = "import time\nwhile True: time.sleep(0.01)"


@pytest.fixture
def board():
    with tempfile.TemporaryFile() as file:
        yield file.fileno()


@pytest.fixture
def start():
    started = []

    def start(code):
        started.append(subprocess.Popen([sys.executable, "-I", "-S", "-c", code]))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def watch(board, monkeypatch, tmp_path):
    """Watch some processes by the program itself; give what it is, and what it has written."""
    monkeypatch.setattr(host_watcher, "START", host_watcher.START.replace(
        "\nmain(", "\nfrom hpcdist.launch import host_watcher, stuck_ranks"
        f"\nhost_watcher.LEAST_S, stuck_ranks.WAITS_FIRST_S = {SHORT_S}, 0\nmain("
    ))  # fmt: skip
    stderr, watchers = os.dup(2), []
    file = os.open(tmp_path / "stderr", os.O_CREAT | os.O_RDWR | os.O_APPEND)

    def watch(*processes, tolerant=False, held=()):
        names = {process.pid: f"rank {k}" for k, process in enumerate(processes)}
        os.dup2(file, 2)
        try:
            watchers.append(host_watcher.start(names, board, SHORT_S, (), tolerant, held))
        finally:
            os.dup2(stderr, 2)
        return watchers[-1], (tmp_path / "stderr").read_text

    yield watch
    for watcher in watchers:
        watcher.kill()
        watcher.wait()
    os.close(file)
    os.close(stderr)


@pytest.mark.parametrize("fact", [Fact.LEAVES, Fact.GONE])
def test_a_rank_that_does_not_end_after_its_script_is_named_and_ended(start, board, watch, fact):
    rank = start(SLEEP)
    facts.note(board, rank.pid, fact)
    watcher, said = watch(rank)
    assert rank.wait(20) == -signal.SIGKILL
    assert watcher.wait(20) == 0
    assert said().startswith("hpcdist: rank 0 is stuck ") and "FLAGS_rpc_deadline" in said()
    reports = [pid for pid, noted, _ in facts.records(board) if noted == Fact.REPORTS]
    assert reports == ([watcher.pid] if fact == Fact.LEAVES else [])


@pytest.mark.parametrize("code", [LOOP, NAPS])
def test_a_rank_that_still_runs_is_named_once_and_left_alone(start, board, watch, code):
    ends, runs = start(SLEEP), start(code)
    facts.note(board, ends.pid, Fact.AWAITS)
    watcher, said = watch(ends, runs)
    with pytest.raises(subprocess.TimeoutExpired):
        runs.wait(5 * SHORT_S)
    assert ends.poll() is None and watcher.poll() is None
    assert said().count("hpcdist: ") == 1
    assert said().startswith("hpcdist: rank 1 has not ended")


def test_a_rank_that_sleeps_while_nobody_waits_for_it_is_left_alone(start, board, watch):
    ranks = [start(SLEEP), start(SLEEP)]
    watcher, said = watch(*ranks)
    with pytest.raises(subprocess.TimeoutExpired):
        watcher.wait(5 * SHORT_S)
    assert [rank.poll() for rank in ranks] == [None, None]
    assert said() == ""


def test_a_rank_is_stopped_for_too_long_but_not_all(start, board, watch):
    ranks = [start(LOOP), start(SLEEP)]
    for rank in ranks:
        os.kill(rank.pid, signal.SIGSTOP)
    watcher, said = watch(*ranks)
    with pytest.raises(subprocess.TimeoutExpired):
        watcher.wait(5 * SHORT_S)
    assert said() == ""
    os.kill(ranks[1].pid, signal.SIGCONT)
    assert ranks[0].wait(20) == -signal.SIGKILL
    assert said().startswith("hpcdist: rank 0 has been stopped (SIGSTOP)")
    ranks[1].kill()
    assert watcher.wait(20) == 0


def test_processes_that_a_rank_has_started_count_as_its_work(start, board, watch):
    rank = start(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {LOOP!r}])")
    facts.note(board, rank.pid, Fact.LEAVES)
    _, said = watch(rank)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            rank.wait(5 * SHORT_S)
        assert said().startswith("hpcdist: rank 0 has not ended")
    finally:
        children = f"/proc/{rank.pid}/task/{rank.pid}/children"
        with open(children) as file:
            for child in file.read().split():
                os.kill(int(child), signal.SIGKILL)


def test_nothing_is_done_while_a_rank_lives_that_owes_nothing(start, board, watch):
    rank = start(SLEEP)
    facts.note(board, rank.pid, Fact.FINALIZES)
    watcher, said = watch(rank, tolerant=True)
    with pytest.raises(subprocess.TimeoutExpired):
        watcher.wait(5 * SHORT_S)
    assert rank.poll() is None and said() == ""


def test_a_launcher_sees_the_end_of_a_rank_when_another_has_told_of_it(board, watch):
    program = [sys.executable, "-I", "-S", "-c", SLEEP]
    ranks = [subprocess.Popen(program, stderr=subprocess.PIPE) for _ in range(2)]
    try:
        held = held_outputs.pipes_of([rank.pid for rank in ranks])
        watch(*ranks, held=held)
        for file in held:
            os.close(file)
        dies, speaks = ranks
        dies.kill()
        dies.wait()
        assert not select.select([dies.stderr], [], [], held_outputs.SPEAKS_S / 4)[0]
        facts.note(board, speaks.pid, Fact.REPORTS)
        assert select.select([dies.stderr], [], [], held_outputs.SPEAKS_S / 2)[0]
        assert dies.stderr.read() == b"" and speaks.poll() is None
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
            rank.stderr.close()
