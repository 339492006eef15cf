"""Jobs of which a rank is stopped, or stops calling anything, at a random moment.

Each is named, with its stack, and ends within the deadline. In asynchronous modes nobody waits for
such a trainer before the others have ended: then within another deadline. One that saves a
checkpoint may take ten, unless it is stopped. Under ULFM others may go on without it.
"""

from __future__ import annotations

import random
import re
import time
from dataclasses import dataclass
from pathlib import Path

from tests.fault.kills import (
    ASYNCHRONOUS,
    HYBRID,
    LATE,
    MODES,
    MOMENTS,
    RATE,
    SCRIPT,
    STEPS,
    Death,
    survived,
)
from tests.support.jobs import Job, can_be_tolerant

DEADLINE_S = 20
SAVING = 10  # deadlines
MORE_S = 20  # to end the job, and for the steps that others still have, on a busy machine


@dataclass(frozen=True)
class Hang:
    """A job, and which of its ranks hangs."""

    mode: str
    trainers: int
    servers: int
    death: Death
    tolerant: bool

    @property
    def deaths(self) -> tuple[Death]:
        return (self.death,)

    def __str__(self) -> str:
        under = "ulfm" if self.tolerant else "plain mpirun"
        return f"{self.mode} {self.trainers}+{self.servers} under {under}: {self.death}"


def draw(seed: int) -> Hang:
    """Return the job number ``seed``."""
    rng = random.Random(seed)
    mode = rng.choice((*MODES, HYBRID))
    trainers, servers = rng.choice([(2, 2), (3, 1), (2, 1)])
    if mode == "collective":
        trainers, servers = rng.choice([(2, 0), (3, 0)])
    moment, way = rng.choice((*MOMENTS, "atexit")), rng.choice(("SIGSTOP", "sleep"))
    rank = rng.randrange(trainers)
    if servers and rng.random() < 0.25:  # a server runs no line of the script while it serves
        rank = trainers + rng.randrange(servers)
        moment, way = rng.choice(("startup", "step", "save")), "SIGSTOP"
    step = rng.randrange(STEPS // 4, STEPS // 2 - 10)
    tolerant = rng.random() < 0.4 and can_be_tolerant()
    return Hang(mode, trainers, servers, Death(rank, moment, way, step, 0.0), tolerant)


def run(hang: Hang, directory: Path) -> str:
    """Run a job and check what it promises; AssertionError if it breaks that."""
    death, ranks = hang.death, hang.trainers + hang.servers
    options = ["--quiet", "--deadline", str(1000 * DEADLINE_S)]
    options += ["--pservers", str(hang.servers)] if hang.servers else []
    options += ["--dense", "collective"] if hang.mode == HYBRID else []
    args = [hang.mode, str(STEPS), str(int(RATE)), str(death)]
    job = Job(directory, SCRIPT, *options, ranks=ranks, args=args, tolerant=hang.tolerant)
    deadlines = 2 if hang.mode in ASYNCHRONOUS else 1
    if death.moment == "save" and death.way != "SIGSTOP":
        deadlines = SAVING
    limit_s = deadlines * DEADLINE_S + MORE_S
    ended = job.end_after_death(limit_s + MORE_S)
    over = time.time()
    if death.moment in LATE and survived(death, directory):
        return "nobody: it had ended"
    died = directory / f"died.{death.rank}"
    if not died.exists() and "DeadlineError" in ended.err and ended.code:
        return "us: another rank was slower than the deadline before"
    assert died.exists(), f"failed before: {ended}"
    assert ended.code != 0 or hang.tolerant, f"wrongly zero: {ended}"
    named = re.search(rf"^(hpcdist: )?rank {death.rank} \(", ended.err, re.M)
    assert named, f"silent: {ended}"
    if death.way == "sleep":
        assert re.search(r"line \d+,? in die", ended.err), f"no stack: {ended}"
    else:
        assert "(SIGSTOP)" in ended.err, f"not told that it is stopped: {ended}"
    took_s = over - died.stat().st_mtime
    assert took_s <= limit_s, f"late: {took_s:.1f} s, expected {limit_s}: {ended}"
    return f"us, over after {took_s:.0f} s"
