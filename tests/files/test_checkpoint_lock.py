"""One job at a time saves into a directory, and a dead one is replaced."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from dataclasses import asdict, replace

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.checkpoint import lock
from hpcdist.errors import CheckpointError
from tests.scripts import read_script

OWN = lock.this_process("0a")  # as another job would be on this machine


def claim(directory, **facts):
    """Let another job have a directory."""
    (directory / lock.NAME).write_text(json.dumps(asdict(replace(OWN, **facts))))


def owner(directory):
    return json.loads((directory / lock.NAME).read_text())["job"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(lock, "DEAD_S", 0.03)
    monkeypatch.setattr(lock, "POLL_S", 0.01)


def test_a_directory_is_this_jobs_until_it_ends(tmp_path):
    command = [sys.executable, "-c", read_script("takes_a_directory"), tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [lock.NAME]
    assert not list(tmp_path.iterdir())


def test_a_living_job_on_this_machine_keeps_it(tmp_path):
    claim(tmp_path)  # by this very process, which lives, under another name
    with pytest.raises(CheckpointError, match=f"the job of process {os.getpid()} on .* saves into"):
        lock.take(tmp_path)
    assert owner(tmp_path) == "0a"


@pytest.mark.parametrize("facts", [{"pid": 2**22 + 5}, {"began": 5}])
def test_a_dead_job_on_this_machine_is_replaced_at_once(tmp_path, facts, monkeypatch):
    monkeypatch.setattr(lock, "DEAD_S", 1e9)
    claim(tmp_path, **facts)
    with lock.locked(tmp_path):
        assert owner(tmp_path) == lock.job_name()
    assert not list(tmp_path.iterdir())


def test_a_silent_job_on_another_machine_is_replaced(tmp_path, caplog):
    claim(tmp_path, machine="elsewhere", host="node7")
    with lock.locked(tmp_path):
        assert owner(tmp_path) == lock.job_name()
    assert "on node7, which has died" in caplog.text


def test_a_job_on_another_machine_that_gives_signs_of_life_keeps_it(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "DEAD_S", 60)
    claim(tmp_path, machine="elsewhere", host="node7")
    ended = threading.Event()

    def live():
        while not ended.wait(0.02):
            os.utime(tmp_path / lock.NAME)

    thread = threading.Thread(target=live)
    thread.start()
    try:
        with pytest.raises(CheckpointError, match="on node7 saves into this directory"):
            lock.take(tmp_path)
    finally:
        ended.set()
        thread.join()


def test_signs_of_life_are_given(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "BEAT_S", 0.01)
    monkeypatch.setattr(lock, "_heart", None)  # private: that of other tests sleeps longer
    with lock.locked(tmp_path):
        os.utime(tmp_path / lock.NAME, (1, 1))
        for _ in range(1000):
            if os.stat(tmp_path / lock.NAME).st_mtime != 1:
                break
            threading.Event().wait(0.01)
        else:
            pytest.fail("no sign of life within 10 s")


def test_slurm_has_ended_the_same_job_before_it_starts_it_again(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "DEAD_S", 1e9)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    claim(tmp_path, machine="elsewhere", slurm=(17, 1))
    with lock.locked(tmp_path):
        assert owner(tmp_path) == lock.job_name()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"job": 3}', "x" * 9999])
def test_a_lock_that_says_nothing_is_waited_for(tmp_path, text):
    (tmp_path / lock.NAME).write_text(text)
    with lock.locked(tmp_path):
        assert owner(tmp_path) == lock.job_name()


def test_who_was_silent_too_long_saves_no_more(tmp_path):
    main, scope = fluid.Program(), fluid.Scope()
    main.global_block().create_var("w", shape=(2,), dtype="float32", persistable=True)
    scope.var("w").get_tensor().set(np.ones(2, np.float32))
    fluid.checkpoint.save(fluid.Executor(), tmp_path, 1, main, scope=scope)
    claim(tmp_path)
    for kind in ("has taken over this directory", "saves into this directory"):
        with pytest.raises(CheckpointError, match=kind):
            lock.check(tmp_path)
            lock.take(tmp_path)
    with pytest.raises(CheckpointError, match="saves into this directory"):
        fluid.checkpoint.save(fluid.Executor(), tmp_path, 2, main, scope=scope)
    assert fluid.checkpoint.latest(tmp_path).name == "step-000001"


def test_a_forked_process_is_of_the_same_job(tmp_path):
    with lock.locked(tmp_path):
        child = os.fork()
        if not child:
            with contextlib.suppress(CheckpointError), lock.locked(tmp_path):
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        lock.check(tmp_path)
    assert not list(tmp_path.iterdir())


def test_many_that_take_over_at_once_are_one_after_the_other(tmp_path):
    """Each of several processes finds a dead owner, and only one of them saves at a time."""
    claim(tmp_path, pid=2**22 + 5)
    code = [sys.executable, "-c", read_script("saves_in_turn"), tmp_path]
    many = [
        subprocess.Popen(code, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)
    ]
    for one in many:
        out, err = one.communicate(timeout=90)
        assert out.split() == [b"8"], err.decode()[-2000:]
