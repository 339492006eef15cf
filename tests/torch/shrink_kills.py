"""Jobs of torch's that go on without ranks that end at random: all others finish, and name them.

As a program: ``python -m tests.torch.shrink_kills 40`` runs as many, and tells how long it took
from a death until the ranks that are left had noticed it, and until they went on.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

from tests.fault.campaign import campaign
from tests.fault.kills import DIES, LATE, Death
from tests.scripts import read_script
from tests.support.jobs import Job

STEPS = 12
MOMENTS = ("step", "forward", "backward", "update")
AFTER_A_DEATH = ("shrink", "shrunk")  # about to go on without another rank, and having done so
WAYS = ("SIGKILL", "SIGKILL", "SIGTERM", "os._exit")
SCRIPT = DIES + read_script("torch_shrinks_while_ranks_die")


@dataclass(frozen=True)
class Shrinking:
    """A job, and which of its ranks end; at least one is left."""

    ranks: int
    deaths: tuple[Death, ...]
    by_messages: bool

    def __str__(self) -> str:
        how = "by messages" if self.by_messages else "in shared memory"
        return f"{self.ranks} ranks {how}: {', '.join(map(str, self.deaths))}"


def draw(seed: int) -> Shrinking:
    """Return the job number ``seed``."""
    rng = random.Random(seed)
    ranks = rng.choice([2, 3, 3, 4])
    victims = rng.sample(range(ranks), rng.choice([1, 1, 2]) if ranks > 2 else 1)
    deaths = []
    for victim in victims:
        moments = AFTER_A_DEATH * 2 + MOMENTS if deaths else (*MOMENTS, *rng.sample(LATE, 1))
        moment, way = rng.choice(moments), rng.choice(WAYS)
        after_s = rng.choice([0.0, rng.random() * 0.03, rng.random() * 0.15])
        deaths.append(Death(victim, moment, way, rng.randrange(STEPS), after_s))
    if deaths[0].moment in LATE:  # nobody goes on without it
        deaths = deaths[:1]
    return Shrinking(ranks, tuple(deaths), rng.random() < 0.5)


def run(job: Shrinking, directory: Path) -> str:
    """Run a job and check what it promises; AssertionError if it breaks that.

    Returns how long the survivors needed.
    """
    args = [str(STEPS), *map(str, job.deaths), *["messages"] * job.by_messages]
    options = ("--as-torchrun", "--quiet", "--on-failure", "continue")
    env = {"OMP_NUM_THREADS": "1"}
    begun = Job(directory, SCRIPT, *options, ranks=job.ranks, args=args, env=env, tolerant=True)
    ended = begun.end_after_death()
    assert ended.code == 0, f"did not go on: {ended}"
    killed = {death.rank for death in job.deaths}
    left = sorted(set(range(job.ranks)) - killed)
    early = {death.rank for death in job.deaths if death.moment not in LATE}
    ends = {k: file.read_text() for k in left if (file := directory / f"ended.{k}").exists()}
    assert sorted(ends) == left, f"unfinished: {ends} {ended}"
    assert len(set(ends.values())) == 1, f"different ends: {ends}"
    told = [int(k) for line in ended.messages for k in re.findall(r"rank (\d+) \(.* died", line)]
    assert len(told) == len(ended.messages) == len(set(told)), f"too many words: {ended}"
    assert early <= set(told) <= killed, f"wrong: {ended}"
    if not early:
        return "us: all its work was done"
    assert f"; the job goes on with {len(left)} rank" in ended.messages[-1], f"wrong: {ended}"
    return f"us: {_times(job, directory, left)}"


def _times(job: Shrinking, directory: Path, left: list[int]) -> str:
    """Return how long after the last death the ranks that are left noticed it, and went on."""
    deaths = [directory / f"died.{death.rank}" for death in job.deaths]
    last = max(file.stat().st_mtime for file in deaths)
    shrunk = [directory / f"shrunk.{rank}.{len(left)}" for rank in left]
    times = [[float(word) - last for word in file.read_text().split()] for file in shrunk]
    noticed, on = (max(column) for column in zip(*times, strict=True))
    return f"noticed after {noticed:.2f} s, went on after {on:.2f} s"


if __name__ == "__main__":
    campaign(draw, run)
