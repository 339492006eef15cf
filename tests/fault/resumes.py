"""Jobs that are killed at random and started again: they go on with the checkpoint, or anew."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from tests.fault import kills
from tests.fault.kills import RATE, SCRIPT, STEPS, Kill
from tests.support.jobs import START_S, Job

MODES = ("sync", "plain", "collective")  # the step tells what parameters must be


def draw(seed: int) -> Kill:
    """Return the job number ``seed``: it saves, and ends with the rank that dies."""
    rng = random.Random(seed)
    kill = kills.draw(seed, MODES)
    death = kill.deaths[0]
    if death.moment not in kills.LATE and rng.random() < 0.7:
        death = replace(death, moment="save", after_s=rng.choice([0.0, rng.random() * 0.3]))
    return replace(kill, deaths=(death,), asked=None)


def run(kill: Kill, directory: Path) -> str:
    """Run a job until it dies, and again; each step checks the parameters that it starts from."""
    options = ["--quiet", *(["--pservers", str(kill.servers)] if kill.servers else [])]
    ranks, args = kill.trainers + kill.servers, [kill.mode, str(STEPS), str(int(RATE)), "saves"]
    first = Job(
        directory, SCRIPT, *options, ranks=ranks, args=[*args, str(kill.deaths[0])],
        tolerant=kill.tolerant,
    ).end_after_death()  # fmt: skip
    assert "AssertionError" not in first.err, f"wrong values: {first}"
    complete = any((directory / "saved").glob("step-*/manifest.h5"))
    for note in (*directory.glob("pid.*"), *directory.glob("step.*"), *directory.glob("over.*")):
        note.unlink()
    again = Job(directory, SCRIPT, *options, ranks=ranks, args=[*args, "resumes"])
    second = again.end(START_S)
    assert second.code == 0, f"did not resume: {second}"
    acked = [int((directory / f"step.{k}").read_text()) for k in range(kill.trainers)]
    assert acked == [STEPS] * kill.trainers, f"unfinished: {acked} {second}"
    begun = {int((directory / f"resumed.{k}").read_text()) for k in range(kill.trainers)}
    assert begun == {STEPS // 2 if complete else 0}, f"resumed from {begun}, {complete}: {second}"
    return f"us, resumed from {begun.pop()}"
