"""Jobs in which one process is killed at random, and what must come of it.

As a program: ``python -m tests.fault.kills 200`` runs as many and tells of those that went wrong.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tests.jobs import Ended, Job, can_be_tolerant, kills_survivors

STEPS = 300
MODES = ("sync", "sync", "plain", "async", "async", "half_async", "communicator", "geo")
RATE = 6.0  # divided by 1, 2 or 3 contributors it stays a whole number

# Two parameters, each on a server of its own where there are two. Row k of them counts the updates
# of trainer k: each subtracts RATE over the number of contributors. Trainers note every step that
# was acknowledged, servers what they have in the end.
SCRIPT = """
import os, sys, time, signal
import numpy as np
RANK = int(os.environ["HPCDIST_RANK"])
with open(f"new.pid.{RANK}", "w") as f:
    f.write(str(os.getpid()))
os.replace(f.name, f"pid.{RANK}")
import hpcdist as fluid

mode, act, victim, steps, rate = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
trainers = int(os.environ["PADDLE_TRAINERS"])
me = int(os.environ["PADDLE_TRAINER_ID"])
serves = os.environ["PADDLE_TRAINING_ROLE"] == "PSERVER"

def die(at):
    if act == at and RANK == victim:
        os.kill(os.getpid(), signal.SIGKILL)

die("startup")
x = fluid.data(name="x", shape=[None, trainers], dtype="float32")
zero = fluid.ParamAttr(initializer=fluid.initializer.Constant(0.0))
a, b = (fluid.layers.fc(x, 1, param_attr=zero, bias_attr=False) for _ in range(2))
loss = fluid.layers.mean(fluid.layers.elementwise_add(a, b))
exe = fluid.Executor(fluid.CPUPlace())

def note(step):
    os.pwrite(acked, b"%8d" % step, 0)
    time.sleep(0.001)
    while act == "step" and step == steps - 1 and not os.path.exists("killed"):
        time.sleep(0.01)  # however late the kill comes, it comes before the end

acked = os.open(f"step.{RANK}", os.O_CREAT | os.O_WRONLY)
note(0)
if mode == "plain":
    fluid.optimizer.SGD(float(rate)).minimize(loss)
    exe.run(fluid.default_startup_program())
    die("connect")
    batch = np.ones((6, trainers), "float32")
    for step in range(steps):
        (value,) = exe.run(feed={"x": batch}, fetch_list=[loss])
        expected = -2.0 * trainers * rate * step
        assert abs(value[0] - expected) < 1e-3 * rate + 1e-5 * abs(expected), (step, value)
        note(step + 1)
    die("close")
    sys.exit()
config = fluid.DistributeTranspilerConfig()
config.sync_mode = mode == "sync"
if mode in ("half_async", "communicator"):
    config.runtime_split_send_recv = True
    config.half_async = mode == "half_async"
if mode == "geo":
    config.geo_sgd_mode, config.geo_sgd_need_push_nums = True, 5
    t = fluid.transpiler.GeoSgdTranspiler(config)
else:
    t = fluid.DistributeTranspiler(config)
fluid.optimizer.SGD(float(rate)).minimize(loss)
t.transpile(me, pservers=os.environ["PADDLE_PSERVERS_IP_PORT_LIST"], trainers=trainers,
            sync_mode=mode == "sync")
if serves:
    endpoint = os.environ["PADDLE_CURRENT_ENDPOINT"]
    main, startup = t.get_pserver_programs(endpoint)
    exe.run(startup)
    die("connect")
    exe.run(main)
    np.save(f"applied.{RANK}.npy", np.array(fluid.runtime.updates_applied()))
    for name in ("fc_0.w_0", "fc_1.w_0"):
        var = fluid.global_scope().find_var(name)
        if var is not None:
            np.save(f"{name}.npy", np.array(var.get_tensor()).ravel())
else:
    main = t.get_trainer_program()
    exe.run(fluid.default_startup_program())
    die("connect")
    row = np.zeros((1, trainers), "float32")
    row[0, me] = 1
    for step in range(steps):
        exe.run(main, feed={"x": row}, fetch_list=[loss])
        note(step + 1)
    die("close")
    exe.close()
    die("end")
"""


@dataclass(frozen=True)
class Kill:
    """A job, and when which of its ranks is killed."""

    mode: str  # sync, plain, async, half_async, communicator, geo
    trainers: int
    servers: int
    victim: int  # its world rank
    act: str  # what it kills itself before; "step": it is killed from outside
    step: int  # when trainers have made so many,
    after_s: float  # and a little later
    asked: str | None  # --on-failure
    tolerant: bool

    @property
    def is_trainer(self) -> bool:
        return self.victim < self.trainers

    @property
    def goes_on(self) -> bool:
        if not self.tolerant or not self.is_trainer:
            return False
        return self.asked == "continue" or (
            self.asked is None and self.mode not in ("sync", "plain")
        )


def draw(seed: int) -> Kill:
    """Return the job number ``seed``."""
    rng = random.Random(seed)
    trainers, servers = rng.choice([(2, 2), (3, 1), (2, 1)])
    mode = rng.choice(
        ["sync", "plain", "sync", "async", "async", "half_async", "communicator", "geo"]
    )
    tolerant = can_be_tolerant() and rng.random() < 0.85
    kind = rng.choice(["trainer", "trainer", "server"])
    victim = rng.randrange(trainers)
    if kind == "server":
        victim = trainers + rng.randrange(servers)
    act = rng.choice(["step"] * 6 + ["startup", "connect"] + ["close"] * (kind == "trainer"))
    if mode == "plain" and kind == "server" and act == "connect":
        act = "step"  # such a script says nothing of servers
    return Kill(
        mode,
        trainers,
        servers,
        victim,
        act,
        step=rng.randrange(STEPS // 2),
        after_s=rng.random() * 0.02,
        asked=rng.choice([None, "continue"]) if tolerant else None,
        tolerant=tolerant,
    )


def run(kill: Kill, directory: Path) -> None:
    """Run a job and check what it promises; AssertionError if it breaks that."""
    ranks = kill.trainers + kill.servers
    options = ["--quiet", "--pservers", str(kill.servers)]
    if kill.asked:
        options += ["--on-failure", kill.asked]
    args = [kill.mode, kill.act, kill.victim, STEPS, int(RATE)]
    job = Job(
        directory, SCRIPT, *options, ranks=ranks, args=list(map(str, args)), tolerant=kill.tolerant
    )
    if kill.act == "step":
        job.await_step(0, kill.step)
        pid = directory / f"pid.{kill.victim}"
        job.wait_until(pid.exists, f"the script of rank {kill.victim}")
        time.sleep(kill.after_s)
        os.kill(job.pid(kill.victim), signal.SIGKILL)
        (directory / "killed").touch()
    check(kill, job.end(), directory)


def check(kill: Kill, ended: Ended, directory: Path) -> None:
    role = f"trainer {kill.victim}"
    if not kill.is_trainer:
        role = f"server {kill.victim - kill.trainers}"
    victim = f"rank {kill.victim} ({role}, pid "
    if not kill.goes_on:
        assert ended.code != 0, ended
        if kills_survivors() and not ended.messages:
            return  # none was fast enough to speak
        assert len(ended.messages) == 1, ended.err
        assert victim in ended.messages[0] and "the job ends" in ended.messages[0], ended.err
        if not kill.is_trainer:
            assert "checkpoint" in ended.err, ended.err
        return
    assert ended.code == 0, ended
    left = kill.trainers - 1
    told = [line for line in ended.messages if victim in line]
    if kill.act != "close":  # the servers may have ended before
        assert len(told) == 1, ended.err
        words = "1 trainer" if left == 1 else f"{left} trainers"
        assert told[0].endswith(f"the job goes on with {words}"), ended.err
    files = [directory / f"step.{k}" for k in range(kill.trainers)]
    acked = [int(file.read_text() or 0) if file.exists() else 0 for file in files]
    assert all(n == STEPS for k, n in enumerate(acked) if k != kill.victim), acked
    if kill.mode in ("plain", "geo"):
        return
    for server in range(kill.trainers, kill.trainers + kill.servers):
        applied = np.load(directory / f"applied.{server}.npy").tolist()
        assert applied[: kill.victim] + applied[kill.victim + 1 :] == [STEPS] * left, applied
        assert acked[kill.victim] <= applied[kill.victim] <= acked[kill.victim] + 1, applied
    for name in ("fc_0.w_0", "fc_1.w_0"):
        counted = -np.load(directory / f"{name}.npy") / RATE
        check_counts(kill, acked, counted.tolist())


def check_counts(kill: Kill, acked: list[int], counted: list[float]) -> None:
    """Compare what a server has counted with what was acknowledged to trainers."""
    dead, last = kill.victim, acked[kill.victim]
    for k, got in enumerate(counted):
        # Of the last step that was not acknowledged the server may have all, or nothing.
        for taken in (last, last + 1):
            steps = taken if k == dead else STEPS
            if kill.mode == "sync":
                alone = 0 if k == dead else STEPS - taken
                steps = (steps - alone) / kill.trainers + alone / (kill.trainers - 1)
            if abs(got - steps) < 0.01:
                break
        else:
            raise AssertionError(f"trainer {k}: {got} updates, {acked} acknowledged, {kill}")


def main() -> None:
    """Run many jobs, from the seed in the second argument on; exit 1 if any went wrong."""
    count, first = int(sys.argv[1]), int((sys.argv[2:] or ["0"])[0])
    wrong = 0
    for seed in range(first, first + count):
        kill, directory = draw(seed), Path(tempfile.mkdtemp(prefix=f"kill-{seed}-"))
        begin = time.monotonic()
        try:
            run(kill, directory)
            words = "ok"
            shutil.rmtree(directory)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            wrong += 1
            words = f"WRONG in {directory}: {type(error).__name__}: {error}"
        facts = re.sub(r"['{}]", "", str(asdict(kill)))
        print(f"{seed} ({time.monotonic() - begin:.1f} s) {facts}: {words}", flush=True)
    print(f"{count - wrong} of {count} as promised")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
