"""What happens when ranks die, hang or fall silent, beside the random kills."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from hpcdist.launch.processes import lives
from tests.fault.kills import Death, Kill, run
from tests.scripts import read_script
from tests.support.jobs import (
    LIMIT_S,
    TRAIN,
    Job,
    can_be_tolerant,
    kills_survivors,
    needs_mpirun,
)

pytestmark = needs_mpirun

PSERVERS = ("--quiet", "--pservers", "2")
CONTINUE = (*PSERVERS, "--on-failure", "continue")
needs_tolerance = pytest.mark.skipif(
    needs_mpirun.args[0] or not can_be_tolerant(), reason="needs Open MPI 5"
)

# As in TRAIN, but transpiled by the script: each trainer feeds its own batches.
OWN_BATCHES = TRAIN.replace(
    "exe = fluid",
    read_script("transpiles") + "exe = fluid",
    1,
).replace(
    "exe.run(fluid.default_startup_program())",
    read_script("serves_if_it_must") + "exe.run(fluid.default_startup_program())",
)


def test_to_continue_needs_a_tolerant_mpirun(tmp_path):
    ended = Job(tmp_path, "print('ran')", *CONTINUE).end()
    # MPICH's launcher may tell the signal by which it ends the others, and says so on stdout.
    assert ended.code == 1 or (kills_survivors() and ended.code != 0)
    assert "ran" not in ended.out.splitlines()
    assert len(ended.messages) == 1
    assert "mpirun --with-ft ulfm" in ended.messages[0]


def test_an_unknown_wish_is_refused(tmp_path):
    ended = Job(tmp_path, "print('ran')", *PSERVERS, env={"HPCDIST_ON_FAILURE": "hope"}).end()
    assert ended.code == 1
    assert "HPCDIST_ON_FAILURE: expected end or continue, got 'hope'" in ended.messages[0]


@needs_tolerance
@pytest.mark.parametrize("loaded", ["", "numpy", "libmpi"])
def test_a_rank_that_dies_while_the_job_starts_ends_it(tmp_path, loaded):
    job = Job(tmp_path, TRAIN + "train(100_000)", *CONTINUE, tolerant=True)
    job.wait_until(lambda: len(started(job.pid_of_mpirun)) == 4, "the start of 4 processes")
    pids = started(job.pid_of_mpirun)
    os.kill(pids[3], signal.SIGSTOP)  # nobody comes further than the start of MPI
    maps = Path(f"/proc/{pids[1]}/maps")
    job.wait_until(lambda: loaded in maps.read_text(), f"{loaded} in rank 1")
    os.kill(pids[1], signal.SIGKILL)
    os.kill(pids[3], signal.SIGCONT)
    ended = job.end()
    assert ended.code != 0
    assert "rank 1" in ended.err
    await_end(pids.values())


@needs_tolerance
def test_a_job_goes_on_until_no_trainer_is_left(tmp_path):
    job = Job(
        tmp_path,
        TRAIN + "train(100_000, 0.001)",
        "--quiet",
        "--pservers",
        "1",
        "--on-failure",
        "continue",
        tolerant=True,
    )
    for rank in (1, 0, 2):
        job.await_step(2, job.step(2) + 20)
        os.kill(job.pid(rank), signal.SIGKILL)
    ended = job.end()
    assert ended.code != 0
    went_on = [line for line in ended.messages if "goes on" in line]
    assert [line[9:15] for line in went_on] == ["rank 1", "rank 0"]
    assert went_on[1].endswith("the job goes on with 1 trainer")
    assert "rank 2 (trainer 2" in ended.messages[-1] and "the job ends" in ended.messages[-1]


@needs_tolerance
def test_a_job_whose_ranks_all_exit_does_not_end_with_0(tmp_path):
    ended = Job(tmp_path, "import os\nos._exit(3)", "--quiet", ranks=2, tolerant=True).end()
    assert ended.code != 0


@needs_tolerance
@pytest.mark.parametrize("rank", [0, 2])
def test_the_code_of_a_script_is_that_of_its_job(tmp_path, rank):
    script = TRAIN + f"train(3)\nif RANK == {rank}:\n    sys.exit(3)\ntrain(100_000)"
    ended = Job(tmp_path, script, "--quiet", ranks=3, tolerant=True).end()
    assert ended.code == 3


@needs_tolerance
def test_a_job_whose_ranks_are_all_killed_does_not_end_with_0(tmp_path):
    # As one that another had killed: MPI has not begun to look after the dead.
    killed = "import os\nprint('the last words', flush=True)\nos.kill(os.getpid(), 9)"
    ended = Job(tmp_path, killed, "--quiet", ranks=2, tolerant=True).end()
    assert ended.code != 0
    assert "hpcdist: all ranks died" in ended.err
    assert "the last words" in ended.out


@needs_tolerance
def test_a_job_whose_ranks_all_exit_with_0_ends_with_0(tmp_path):
    ended = Job(tmp_path, "import os\nos._exit(0)", "--quiet", ranks=2, tolerant=True).end()
    assert (ended.code, ended.messages) == (0, [])


@needs_tolerance
def test_a_job_whose_last_trainer_exits_behind_its_last_step_does_not_end_with_0(tmp_path):
    deaths = Death(0, "connect", "SIGKILL", 1, 0.0), Death(1, "end", "os._exit", 1, 0.0)
    run(Kill("geo", 2, 1, deaths, "continue", tolerant=True), tmp_path)


@needs_tolerance
def test_what_fails_before_the_script_ends_the_job(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "def fails(*_): raise FileNotFoundError('no file without a name')\n"
        "if os.environ.get('OMPI_COMM_WORLD_RANK') == '1': os.memfd_create = fails\n"
    )
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    ended = Job(tmp_path, "", "--quiet", ranks=2, tolerant=True, env={"PYTHONPATH": path}).end()
    assert ended.code != 0
    # A watcher beside rank 0 may see it end, too.
    assert all("rank 1" in message for message in ended.messages)
    assert any("failed before its script" in message for message in ended.messages)
    assert "FileNotFoundError: no file without a name" in ended.err


@needs_tolerance
@pytest.mark.parametrize("how", ["exits", "is_terminated"])
def test_a_job_goes_on_without_a_trainer_that_exits_or_is_terminated(tmp_path, how):
    script = TRAIN + read_script("ends_after_ten_steps")
    ended = Job(tmp_path, script, *CONTINUE, tolerant=True, args=(how,)).end()
    assert (ended.code, ended.out, len(ended.messages)) == (0, "done\n", 1)
    assert "rank 1 (trainer 1" in ended.messages[0]
    assert ended.messages[0].endswith("the job goes on with 1 trainer")


NORMALIZED = TRAIN.replace(
    "fluid.layers.fc(x, size=1)", "fluid.layers.fc(normalized, size=1)"
).replace("loss =", "normalized = fluid.layers.batch_norm(fluid.layers.fc(x, size=4))\nloss =", 1)
KILLED_IN_MOMENTS = read_script("dies_in_moments")


@needs_tolerance
@pytest.mark.parametrize(
    ("at", "after", "goes_on"),
    [(21, False, True), (22, True, True), (22, False, False)],
    ids=["before_the_forward_sum", "after_the_backward_sum", "to_end"],
)
def test_a_trainer_that_dies_while_moments_of_a_batch_are_summed(tmp_path, at, after, goes_on):
    script = NORMALIZED + f"AT, AFTER = {at}, {after}\n{KILLED_IN_MOMENTS}"
    ended = Job(tmp_path, script, *(CONTINUE if goes_on else PSERVERS), tolerant=True).end()
    (message,) = ended.messages
    assert "rank 1 (trainer 1" in message
    if goes_on:
        assert message.endswith("the job goes on with 1 trainer")
        assert (ended.code, ended.out) == (0, "done\n")
    else:
        assert ended.code != 0 and not ended.out


CLOSED = TRAIN + "train(20)\nexe.close()\n"
KILLED = CLOSED + "if RANK == 1: os.kill(os.getpid(), 9)\ntime.sleep(0.5)\nprint('done')\n"


@needs_tolerance
def test_a_trainer_that_dies_while_others_close_is_named_and_no_failure(tmp_path):
    ended = Job(tmp_path, KILLED, *CONTINUE, tolerant=True).end()
    assert (ended.code, ended.out, len(ended.messages)) == (0, "done\n", 1)
    assert "rank 1 (trainer 1" in ended.messages[0]


def test_a_trainer_that_dies_when_it_has_closed_is_named(tmp_path):
    ended = Job(tmp_path, KILLED, *PSERVERS).end()
    assert ended.code != 0
    if kills_survivors() and not ended.messages:
        return  # none was fast enough to speak
    assert len(ended.messages) == 1
    assert "rank 1 (trainer 1" in ended.messages[0]


@needs_tolerance
@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_that_dies_in_the_end_of_mpi_is_named_and_no_failure(tmp_path, rank):
    script = f"import atexit, os\nif os.environ['HPCDIST_RANK'] == '{rank}':\n" + (
        "    atexit.register(os.kill, os.getpid(), 9)\n" + CLOSED
    )
    ended = Job(tmp_path, script, *PSERVERS, tolerant=True).end()
    assert (ended.code, len(ended.messages)) == (0, 1)
    assert f"rank {rank} (" in ended.messages[0]
    assert "died after its script had ended" in ended.messages[0]


@pytest.mark.parametrize("tolerant", [False, pytest.param(True, marks=needs_tolerance)])
def test_sigterm_to_a_server_alone_is_told(tmp_path, tolerant):
    job = Job(tmp_path, TRAIN + "train(100_000, 0.01)", *PSERVERS, tolerant=tolerant)
    job.await_step(0, 5)
    os.kill(job.pid(3), signal.SIGTERM)
    ended = job.end()
    assert ended.code != 0
    assert len(ended.messages) == 1
    assert "rank 3 (server 1" in ended.messages[0] and "SIGTERM" in ended.messages[0]
    assert "there is no checkpoint to resume from" in ended.err


@needs_tolerance
def test_checkpoints_are_saved_without_the_dead_and_named_when_a_server_dies(tmp_path):
    script = TRAIN + read_script("saves_every_epoch")
    job = Job(tmp_path, script, *CONTINUE, ranks=5, tolerant=True)
    job.wait_until((tmp_path / "saved.all").exists, "the last save")
    os.kill(job.pid(4), signal.SIGKILL)
    ended = job.end()
    assert ended.code != 0
    # Whoever takes the directory over may say so before another rank names the dead.
    deaths = [said for said in ended.messages if "taking over" not in said]
    assert "rank 0 (trainer 0" in deaths[0]
    assert "rank 4 (server 1" in deaths[-1]
    assert f"resume from the checkpoint {tmp_path}/saved/step-000030" in ended.err


def test_a_server_that_dies_without_a_checkpoint_says_how_to_save_one(tmp_path):
    job = Job(tmp_path, TRAIN + "train(100_000, 0.01)", *PSERVERS)
    job.await_step(0, 5)
    os.kill(job.pid(2), signal.SIGKILL)
    ended = job.end()
    assert ended.code != 0
    if kills_survivors() and not ended.messages:
        return  # none was fast enough to speak
    assert "hpcdist.checkpoint.save(exe, directory, step)" in ended.err


@pytest.mark.parametrize("sync", [True, False])
def test_uneven_batches_lose_no_update(tmp_path, sync):
    script = OWN_BATCHES.replace("SYNC", str(sync)) + "train([30, 50][RANK])\nexe.close()"
    ended = Job(tmp_path, script, *PSERVERS).end()
    assert (ended.code, ended.messages) == (0, [])
    assert [(tmp_path / f"applied.{k}").read_text() for k in (2, 3)] == ["(30, 50)"] * 2


@pytest.mark.parametrize(
    ("act", "told"),
    [
        ("time.sleep(1000)", "in stuck"),
        ("os.kill(os.getpid(), 19)", "it is stopped (SIGSTOP)"),
        ("np.sort(np.zeros(10**8, 'int8'))\n    while True: np.sort(np.zeros(10**7))", "in stuck"),
    ],
)
def test_a_stuck_rank_is_named_with_its_stack(tmp_path, act, told):
    script = TRAIN + f"def stuck():\n    {act}\ntrain(3)\nif RANK == 1: stuck()\ntrain(100_000)"
    job = Job(tmp_path, script, *PSERVERS, "--deadline", "6000")
    job.await_step(0, 2)
    ended = job.end()
    assert ended.code != 0
    assert len(ended.messages) == 1
    for what in ("listen_and_serv", "after step 3", "fc_0.", "from trainer 1 (rank 1)"):
        assert what in ended.err
    missing = ended.err.split("rank 1 (trainer 1, pid ")[1]
    assert "is missing:" in missing
    assert told in missing


def test_a_stopped_server_is_named_by_a_trainer(tmp_path):
    job = Job(tmp_path, TRAIN + "train(100_000, 0.01)", *PSERVERS, "--deadline", "6000")
    job.await_step(0, 5)
    os.kill(job.pid(3), signal.SIGSTOP)
    ended = job.end()
    assert ended.code != 0
    assert "rank 3 (server 1, pid " in ended.err
    assert "it is stopped (SIGSTOP)" in ended.err


@pytest.mark.parametrize("sync", [True, False])
def test_a_silent_trainer_is_reported_once_and_may_come_back(tmp_path, sync):
    script = OWN_BATCHES.replace("SYNC", str(sync)) + (
        "train(10, 0.01)\n"
        "def thinks():\n    time.sleep(8)\n"
        "if RANK == 1: thinks()\n"
        "train(10, 0.01)\nexe.close()"
    )
    env = {"FLAGS_worker_update_interval_secs": "2"}
    ended = Job(tmp_path, script, *PSERVERS, env=env).end()
    assert ended.code == 0
    # On a busy machine there may be silences after other steps too.
    silent = [line for line in ended.messages if "after step 10:" in line and "rank 1 (" in line]
    assert len(silent) == 1
    assert re.search(r"rank 1 \(trainer 1, .* has sent nothing for \d+ s, after", silent[0])
    assert "in thinks" in ended.err


def started(launcher: int) -> dict[int, int]:
    """Return the processes of a launcher's ranks that are there, by rank."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone meanwhile
            parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
            rank = re.search(r"\0PMIX_RANK=(\d+)", (process / "environ").read_text())
            if rank and int(parent) == launcher:
                found[int(rank[1])] = int(process.name)
    return found


def await_end(pids: Iterable[int]) -> None:
    end = time.monotonic() + LIMIT_S
    while any(map(lives, pids)):
        assert time.monotonic() < end, f"of {pids} some are left"
        time.sleep(0.05)
