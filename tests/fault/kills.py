"""Jobs in which one or two processes end at random, and what must come of it.

As a program: ``python -m tests.fault.kills 200`` runs as many and tells of those that went wrong.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hpcdist.launch.abort import ALONE_S
from tests.fault.campaign import campaign
from tests.scripts import read_script
from tests.support.jobs import Ended, Job, can_be_tolerant, kills_survivors

STEPS = 300
MODES = ("sync", "plain", "async", "half_async", "communicator", "geo", "collective")
HYBRID = "hybrid"  # a plain script, with a table on servers
ASYNCHRONOUS = ("async", "half_async", "communicator", "geo")
# What a process is about to do when it ends, or a little later.
MOMENTS = ("startup", "connect", "compile", "step", "save", "close", "end")
WAYS = ("SIGKILL", "SIGTERM", "os._exit", "sys.exit", "raise")
OWN_WORDS = ("sys.exit", "raise")  # these end the job in all modes
LATE = ("close", "end")  # it may have left the servers, or even MPI, before it is killed
RATE = 6.0  # divided by 1, 2 or 3 contributors it stays a whole number

# The beginning of a script whose ranks end as its arguments say, each a `Death`.
DIES = read_script("dies")

# Two parameters, each on a server of its own where there are two. Row k of them counts the updates
# of trainer k: each subtracts RATE over the number of contributors. Trainers note every step that
# was acknowledged, servers what they have in the end.
SCRIPT = DIES + read_script("sums_while_ranks_die")


@dataclass(frozen=True)
class Death:
    """When and how a rank ends."""

    rank: int
    moment: str  # one of MOMENTS
    way: str  # one of WAYS
    step: int  # of moments within steps
    after_s: float  # how long after the moment, if it is killed

    def __str__(self) -> str:
        return f"{self.rank}:{self.moment}:{self.way}:{self.step}:{self.after_s:.3f}"


@dataclass(frozen=True)
class Kill:
    """A job, and which of its ranks end."""

    mode: str  # one of MODES, or HYBRID
    trainers: int
    servers: int
    deaths: tuple[Death, ...]
    asked: str | None  # --on-failure
    tolerant: bool

    def __str__(self) -> str:
        under = "ulfm" if self.tolerant else "plain mpirun"
        who = ", ".join(map(str, self.deaths))
        return f"{self.mode} {self.trainers}+{self.servers} {self.asked} {under}: {who}"

    @property
    def goes_on(self) -> bool:
        """Whether the others must finish."""
        if not self.tolerant or not self.servers:
            return False
        if any(d.rank >= self.trainers or d.way in OWN_WORDS for d in self.deaths):
            return False
        if len(self.deaths) == self.trainers:
            return False
        return self.asked == "continue" or (self.asked is None and self.mode in ASYNCHRONOUS)


def draw(seed: int, modes: Sequence[str] = MODES) -> Kill:
    """Return the job number ``seed``."""
    rng = random.Random(seed)
    mode = rng.choice(modes)
    trainers, servers = rng.choice([(2, 2), (3, 1), (2, 1)])
    if mode == "collective":
        trainers, servers = rng.choice([(2, 0), (3, 0)])
    tolerant = rng.random() < 0.75 and can_be_tolerant()
    first = rng.choice(MOMENTS)
    deaths = []
    victims = 2 if rng.random() < 0.25 else 1
    kinds = [rng.random() < 0.3 and servers > 0 for _ in range(victims)]
    ranks = [trainers + rng.randrange(servers) if k else rng.randrange(trainers) for k in kinds]
    for rank in dict.fromkeys(ranks):
        moment = first if not deaths or rng.random() < 0.6 else rng.choice(MOMENTS)
        way = rng.choice(["SIGKILL", "SIGKILL", "SIGTERM", "SIGTERM", "os._exit", *OWN_WORDS])
        if rank >= trainers:
            # A plain script says nothing of servers; one that serves raises nothing meanwhile.
            if mode in ("plain", HYBRID) and moment in ("connect", "compile", "end"):
                moment = "step"
            if moment in ("step", "save", "close") and way in OWN_WORDS:
                way = "os._exit"
        step = rng.randrange(STEPS // 4, STEPS // 2 - 10)
        after_s = rng.choice([0.0, rng.random() * 0.03, rng.random() * 0.15])
        deaths.append(Death(rank, moment, way, step, after_s))
    may_go_on = tolerant and servers and mode != HYBRID
    asked = rng.choice([None, "continue"]) if may_go_on else None
    return Kill(mode, trainers, servers, tuple(deaths), asked, tolerant)


def run(kill: Kill, directory: Path) -> str:
    """Run a job and check what it promises; AssertionError if it breaks that.

    Returns who has named the dead: "us"; "mpirun", which ends the others within a second; "nobody".
    """
    options = ["--quiet", "--pservers", str(kill.servers)] if kill.servers else ["--quiet"]
    if kill.mode == HYBRID:
        options += ["--dense", "collective"]
    if kill.asked:
        options += ["--on-failure", kill.asked]
    args = [kill.mode, str(STEPS), str(int(RATE)), *map(str, kill.deaths)]
    job = Job(directory, SCRIPT, *options, ranks=ranks_of(kill), args=args, tolerant=kill.tolerant)
    return check(kill, job.end_after_death(), directory)


def check(kill: Kill, ended: Ended, directory: Path) -> str:
    """Compare how a job ended with what was promised."""
    all_deaths = kill.deaths
    # Who has been killed, and not after all its work was done.
    early = [d for d in kill.deaths if not (directory / f"late.{d.rank}").exists()]
    early = [d for d in early if d.moment not in LATE or not survived(d, directory)]
    early = [d for d in early if (directory / f"died.{d.rank}").exists()]
    files = [directory / f"step.{k}" for k in range(kill.trainers)]
    acked = [int(file.read_text() or 0) if file.exists() else 0 for file in files]
    dead = [d.rank for d in kill.deaths]
    if ended.code == 0:
        left = [n for k, n in enumerate(acked) if k not in dead]
        assert left == [STEPS] * len(left), f"wrongly zero: {acked} {ended}"
        kill = replace(kill, deaths=without_finished(kill, files, directory))
        early, dead = [d for d in early if d in kill.deaths], [d.rank for d in kill.deaths]
        if not dead:
            return "too late"
        if acked == [STEPS] * kill.trainers and not any(d.moment in LATE for d in kill.deaths):
            return "too late"  # the job was quicker: all steps were made before the first death
    assert all(re.search(r"rank \d", line) for line in ended.messages), f"no rank: {ended}"
    named = [d for d in early if any(f"rank {d.rank} (" in line for line in ended.messages)]
    # Who has said goodbye and dies before its interpreter's end need not be named: nobody waits
    # for it. Who had not would be waited for for ever, so the job could not end well in silence.
    silent = [d for d in early if d not in named and not (d.moment in LATE and ended.code == 0)]
    if early and not named and not kill.tolerant and told_by_mpirun(early, ended):
        return "mpirun"
    if not kill.goes_on:
        # A server, and a trainer under --on-failure continue, may die when its work is done.
        if early and not (kill.tolerant and all(d.moment in LATE for d in early)):
            assert ended.code != 0, f"wrongly zero: {ended}"
        if kills_survivors() and not ended.messages:
            return "mpirun"  # none was fast enough to speak
        if len(dead) == ranks_of(kill) and all(d.way == "SIGTERM" for d in kill.deaths):
            return "nobody"  # the launcher may have stopped the job
        assert named or not silent, f"silent: {ended}"
        return "us"
    assert ended.code == 0, f"did not go on: {ended}"
    assert not silent, f"silent: {ended}"
    told = {int(rank) for line in ended.messages for rank in re.findall(r"rank (\d+) \(", line)}
    late = {d.rank for d in all_deaths} - {d.rank for d in early}  # who died at the end may be told
    assert len(ended.messages) == len(told), f"too many words: {ended}"
    assert {d.rank for d in named} <= told <= {d.rank for d in named} | late, f"wrong: {ended}"
    killed = {d.rank for d in all_deaths}
    if any(d.moment not in LATE for d in early) and len(killed) == 1:
        left = kill.trainers - 1
        words = "1 trainer" if left == 1 else f"{left} trainers"
        assert ended.messages[0].endswith(f"the job goes on with {words}"), ended.err
    assert all(n == STEPS for k, n in enumerate(acked) if k not in killed), f"unfinished: {acked}"
    if kill.mode in ("plain", "geo") or len(killed) > 1:
        return "us"
    (victim,) = killed
    for server in range(kill.trainers, kill.trainers + kill.servers):
        applied = np.load(directory / f"applied.{server}.npy").tolist()
        assert applied[:victim] + applied[victim + 1 :] == [STEPS] * (kill.trainers - 1), applied
        assert acked[victim] <= applied[victim] <= acked[victim] + 1, applied
    for name in ("fc_0.w_0", "fc_1.w_0"):
        counted = -np.load(directory / f"{name}.npy") / RATE
        check_counts(kill, acked, counted.tolist())
    return "us"


def ranks_of(kill: Kill) -> int:
    return kill.trainers + kill.servers


def told_by_mpirun(early: list[Death], ended: Ended) -> bool:
    """Tell whether Open MPI's own message names one of the dead, and the job has failed."""
    told = re.findall(r"process rank (\d+) .*exited on|Process name: \[.*,(\d+)\]", ended.err)
    ranks = {int(signalled or exited) for signalled, exited in told}
    return ended.code != 0 and any(d.rank in ranks for d in early)


def survived(death: Death, directory: Path) -> bool:
    """Tell whether a rank had ended by itself before its time to die came."""
    return death.way not in OWN_WORDS and (directory / f"over.{death.rank}").exists()


def without_finished(kill: Kill, files: list[Path], directory: Path) -> tuple[Death, ...]:
    """Return the deaths but for those that never came, or by SIGTERM just before the end."""
    last = max((file.stat().st_mtime for file in files if file.exists()), default=0.0)
    told = {d: directory / f"died.{d.rank}" for d in kill.deaths}
    return tuple(
        death
        for death, file in told.items()
        if file.exists()
        and not (death.way == "SIGTERM" and last < file.stat().st_mtime + 4 * ALONE_S)
    )


def check_counts(kill: Kill, acked: list[int], counted: list[float]) -> None:
    """Compare what a server has counted with what was acknowledged to trainers."""
    dead = kill.deaths[0].rank
    last = acked[dead]
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


if __name__ == "__main__":
    campaign(draw, run)
