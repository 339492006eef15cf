"""Ranks that are stopped, stuck where no wait has a deadline, or end by themselves: all named."""

from __future__ import annotations

import signal

import pytest

from tests.support.jobs import TRAIN, Job, can_be_tolerant, needs_mpirun

pytestmark = needs_mpirun

DEADLINE = ("--quiet", "--deadline", "5000")
STUCK = "def hangs():\n    time.sleep(1000)\n"
ENDS = {
    "after close": "train(3)\nexe.close()\nif RANK == 1: hangs()",
    "before close": "train(3)\nif RANK == 1: hangs()\nexe.close()",
    "in atexit": "import atexit\nif RANK == 1: atexit.register(hangs)\ntrain(3)",
}
ASYNCHRONOUS = """
t = fluid.DistributeTranspiler()
role, me = os.environ["PADDLE_TRAINING_ROLE"], int(os.environ.get("PADDLE_TRAINER_ID", 0))
t.transpile(me, pservers=os.environ["PADDLE_PSERVERS_IP_PORT_LIST"],
            trainers=int(os.environ["PADDLE_TRAINERS"]), sync_mode=False)
if role == "PSERVER":
    main, startup = t.get_pserver_programs(os.environ["PADDLE_CURRENT_ENDPOINT"])
    exe.run(startup)
    if "serves" in sys.argv:
        exe.run(main)
    sys.exit()
"""
OWN = TRAIN.replace("exe.run(fluid.default_startup_program())", "") + ASYNCHRONOUS
OWN += "exe.run(fluid.default_startup_program())\n"


@pytest.mark.parametrize("where", ENDS)
def test_a_rank_that_is_stuck_at_its_end_is_named_with_its_stack(tmp_path, where):
    ended = Job(tmp_path, TRAIN + STUCK + ENDS[where], *DEADLINE, ranks=2).end()
    assert ended.code != 0
    (message,) = ended.messages
    assert message.startswith("hpcdist: rank 1 (trainer 1, pid ") and "is stuck" in message
    assert ("atexit" in message) == (where == "in atexit")
    assert "in hangs" in ended.err


def test_a_rank_that_still_computes_is_named_once_and_waited_for(tmp_path):
    loop = "late = time.monotonic() + 25\nif RANK == 1:\n    while time.monotonic() < late: pass"
    ended = Job(tmp_path, f"{TRAIN}train(3)\n{loop}", *DEADLINE, ranks=2).end()
    assert ended.code == 0, ended
    (message,) = ended.messages
    assert message.startswith("hpcdist: rank 1 (") and "the job waits for it" in message


@pytest.mark.parametrize("tolerant", [False, True])
def test_a_stopped_trainer_of_an_asynchronous_job_is_named_and_ended(tmp_path, tolerant):
    if tolerant and not can_be_tolerant():
        pytest.skip("needs mpirun --with-ft")
    script = OWN + f"train(5)\nif RANK == 1: os.kill(os.getpid(), {int(signal.SIGSTOP)})\ntrain(5)"
    options = [*DEADLINE, "--pservers", "1"]
    job = Job(tmp_path, script, *options, ranks=3, args=["serves"], tolerant=tolerant)
    ended = job.end()
    assert (ended.code == 0) == tolerant
    killed = [m for m in ended.messages if "rank 1 (trainer 1" in m and "it is killed" in m]
    assert len(killed) == 1 and "it is stopped (SIGSTOP)" in ended.err, ended
    assert ("the job goes on with 1 trainer" in ended.err) == tolerant


def test_a_server_that_ends_without_serving_is_named_when_it_is_asked(tmp_path):
    ended = Job(tmp_path, OWN + "train(5)", "--quiet", "--pservers", "1", ranks=3).end(60)
    assert ended.code != 0
    assert ended.messages[0].startswith("hpcdist: rank 2 (server 0, pid ")
    assert "asks server 0 for its parameters, but the server's script has ended" in ended.err
    assert "get_pserver_program('ps0:6174')" in ended.err


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("how", "code"), [("os._exit(255)", 255), ("import ctypes; ctypes.CDLL(None).exit(4)", 4)]
)
def test_a_rank_that_ends_by_itself_is_named_by_the_other(tmp_path, how, code, rank):
    script = f"{TRAIN}train(5)\nif RANK == {rank}: {how}\ntrain(5)"
    ended = Job(tmp_path, script, "--quiet", ranks=2).end()
    assert ended.code in (code, 1)
    (message,) = ended.messages
    assert message.startswith(f"hpcdist: rank {rank} (trainer {rank}, pid ")
    assert "died" in message
