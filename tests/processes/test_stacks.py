"""Asking another process of this host where it is in its Python code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcdist.launch.stacks import stacks_of, waits
from tests.scripts import read_script

SCRIPT = read_script("sleeps_or_loops")


@pytest.fixture
def start():
    children = []

    def begin(script: str, *args: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen([sys.executable, "-c", script, *args], stdout=subprocess.PIPE)
        children.append(child)
        assert child.stdout.readline() == b"ready\n"
        return child

    yield begin
    for child in children:
        child.kill()
        child.wait()


def until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end, "it has not happened within 60 s"
        time.sleep(0.01)


@pytest.mark.parametrize("function", ["sleeps", "is_in_a_loop_of_c"])
def test_the_stack_of_a_process_that_is_busy_or_asleep(start, function):
    child = start(SCRIPT, function)
    until(lambda: f"in {function}" in stacks_of(child.pid))
    for _ in range(2):  # it lives on, and answers again
        told = stacks_of(child.pid)
        assert f"in {function}" in told
        assert "in main" in told
    assert child.poll() is None


def test_a_stopped_process_is_told_as_such(start):
    child = start(SCRIPT, "sleeps")
    os.kill(child.pid, signal.SIGSTOP)
    until(lambda: "\nState:\tT" in Path(f"/proc/{child.pid}/status").read_text())
    assert stacks_of(child.pid) == "it is stopped (SIGSTOP)"


def test_a_process_that_does_not_listen_is_left_alone(start):
    child = start("import time; print('ready', flush=True); time.sleep(60)")
    assert stacks_of(child.pid) == "it does not answer: no stack"
    assert child.poll() is None


def test_a_process_whose_interpreter_ends_does_not_die_of_being_asked(start):
    ends = "import faulthandler, signal; faulthandler.unregister(signal.SIGUSR2)\n"
    child = start(SCRIPT.replace("def main", f"{ends}\ndef main"), "sleeps")
    assert stacks_of(child.pid).endswith("no stack")
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.5)


def test_a_process_that_is_gone():
    assert "cannot be read" in stacks_of(2**22 + 1)  # above the largest process id of Linux


def test_a_rank_in_the_launcher_only_waits_and_one_without_a_stack_does_not():
    head = "  Current thread 0x00007f1c1802bb80 (most recent call first):"
    assert waits(head)
    assert not waits("  it is stopped (SIGSTOP)")
    assert not waits(f'{head}\n    File "a.py", line 1 in stuck')
