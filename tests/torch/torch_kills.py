"""Jobs of torch's in which a process ends at random, or stops calling anything.

As a program: ``python -m tests.torch.torch_kills 150`` runs as many, also timed: each ends, and
names who it was, within the deadline and 2 s.
"""

from __future__ import annotations

import random
import re
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.fault.campaign import campaign
from tests.fault.kills import DIES, LATE, Death, survived, told_by_mpirun
from tests.scripts import read_script
from tests.support.jobs import Job, can_be_tolerant

STEPS = 12
MODES = ("ddp", "fsdp2", "hybrid", "served")
MOMENTS = ("startup", "connect", "step", "forward", "backward", "update", "save", "close", "end")
HANGS = ("sleep", "SIGSTOP")
WAYS = ("SIGKILL", "SIGKILL", "SIGTERM", "os._exit", "sys.exit", "raise")
HANG_DEADLINE_S, KILL_DEADLINE_S = 10, 60  # the first is met, and bounds the start, too
MORE_S = 2.0

# Trainers note every step; "hybrid" keeps a table on servers, or shares it out over the trainers.
SCRIPT = DIES + read_script("torch_while_ranks_die")


@dataclass(frozen=True)
class Fault:
    """A job of torch's, and which of its ranks ends, or hangs."""

    mode: str  # one of MODES
    trainers: int
    servers: int
    deaths: tuple[Death]
    tolerant: bool  # mpirun --with-ft ulfm: it ends no rank by itself

    @property
    def death(self) -> Death:
        return self.deaths[0]

    @property
    def hangs(self) -> bool:
        """Whether it only stops calling anything, and others must notice."""
        return self.death.way in HANGS

    def __str__(self) -> str:
        under = "ulfm" if self.tolerant else "plain mpirun"
        return f"{self.mode} {self.trainers}+{self.servers} under {under}: {self.death}"


def draw(seed: int) -> Fault:
    """Return the job number ``seed``; a third of them hang."""
    rng = random.Random(seed)
    mode = rng.choice(MODES)
    trainers, servers = rng.choice([(2, 0), (3, 0)])
    if mode == "served" or (mode == "hybrid" and rng.random() < 0.6):
        trainers, servers = rng.choice([(2, 1), (2, 2)])
    moment, way = rng.choice(MOMENTS), rng.choice(WAYS)
    if seed % 3 == 0:
        moment, way = rng.choice([m for m in MOMENTS if m not in LATE]), rng.choice(HANGS)
    rank = rng.randrange(trainers)
    if servers and rng.random() < 0.25:
        rank = trainers + rng.randrange(servers)
        if moment not in ("startup", "connect"):  # it serves, and runs no line of the script
            moment = "step"
            way = (
                "SIGSTOP" if way == "sleep" else "os._exit" if way in ("sys.exit", "raise") else way
            )
    after_s = rng.choice([0.0, rng.random() * 0.03, rng.random() * 0.15])
    death = Death(rank, moment, way, rng.randrange(STEPS), after_s)
    return Fault(mode, trainers, servers, (death,), seed % 4 == 1 and can_be_tolerant())


def run(fault: Fault, directory: Path, *, timed: bool = False) -> str:
    """Run a job and check what it promises; AssertionError if it breaks that.

    Returns who has named the rank: "us", or "mpirun", which ends the others within a second.
    """
    deadline_s = HANG_DEADLINE_S if fault.hangs else KILL_DEADLINE_S
    options = ["--quiet", "--deadline", str(1000 * deadline_s)]
    if fault.servers:
        options += ["--pservers", str(fault.servers)]
    args = [fault.mode, str(STEPS), str(fault.death)]
    ranks = fault.trainers + fault.servers
    env = {"OMP_NUM_THREADS": "1"}
    job = Job(directory, SCRIPT, *options, ranks=ranks, args=args, env=env, tolerant=fault.tolerant)
    ended = job.end_after_death()
    over, death = time.time(), fault.death
    if death.moment in LATE and (ended.code == 0 or survived(death, directory)):
        return "nobody: all its work was done"
    assert ended.code != 0, f"wrongly zero: {ended}"
    died = directory / f"died.{death.rank}"
    assert died.exists(), f"failed before: {ended}"
    if timed:
        begun = died.stat().st_mtime
        if fault.hangs:  # nobody can miss a rank before one of the others has imported torch
            others = (directory / f"waits.{rank}" for rank in range(ranks) if rank != death.rank)
            begun = max(begun, min(waits.stat().st_mtime for waits in others if waits.exists()))
        took_s = over - begun
        limit_s = MORE_S + (deadline_s if fault.hangs else 0)
        assert took_s <= limit_s, f"late: {took_s:.1f} s, expected {limit_s}: {ended}"
    if not fault.hangs and told_by_mpirun(list(fault.deaths), ended):
        return "mpirun"
    named = [line for line in ended.err.splitlines() if re.search(rf"rank {death.rank} \(", line)]
    assert named, f"silent: {ended}"
    if death.way == "sleep":
        assert re.search(r"line \d+,? in die", ended.err), f"no stack: {ended}"
    if death.way == "raise":
        assert "RuntimeError: on purpose" in ended.err, ended
    return "us"


if __name__ == "__main__":
    campaign(draw, partial(run, timed=True))
