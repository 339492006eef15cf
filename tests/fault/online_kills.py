"""The daily loop in jobs of which a rank is killed, again and again: the bits of one without kills.

The ranks that die are trainers or servers, in any part of a pass, also while they save or publish.
"""

from __future__ import annotations

import functools
import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hpcdist.serving import Lookup
from tests.scripts import read_script
from tests.support.jobs import START_S, Ended, Job
from tests.support.online_days import bits_of, write_days

SCRIPT = read_script("trains_days")
PARTS = ("load", "score", "train", "save", "publish", "shrink", "report")
RANKS = ((2, ("--pservers", "1")), (1, ()), (2, ()))
DEATHS = 3
IDS = list(range(1, 40))


@dataclass(frozen=True)
class Chain:
    """Jobs on the same days: each is killed at a moment, the last one is not."""

    ranks: int
    options: tuple[str, ...]
    moments: tuple[str, ...]  # as the script takes them
    deaths: list[str] = field(default_factory=list)  # of those moments that came


def draw(seed: int) -> Chain:
    """Return the chain number ``seed``."""
    rng = random.Random(seed)
    ranks, options = RANKS[seed % len(RANKS)]
    moments = []
    for _ in range(DEATHS):
        part, call = rng.choice(PARTS), rng.choice((1, 1, 2))
        delay_s = rng.random() * rng.choice((0, 0.05, 0.3))
        moments.append(f"{part}:{call}:{delay_s:.4f}:{rng.randrange(ranks)}")
    return Chain(ranks, options, tuple(moments))


def run(chain: Chain, directory: Path) -> str:
    """Run the jobs in a directory; compare what is left with that of one job that nobody killed."""
    write_days(directory / "data")
    for moment in chain.moments:
        if _job(chain.ranks, chain.options, directory, moment).code:
            chain.deaths.append(moment)
    ended = _job(chain.ranks, chain.options, directory)
    assert ended.code == 0, f"did not go on: {ended}"
    bits, passes, rows = _left(directory)
    of_whole = _whole(chain.ranks, chain.options)
    assert bits == of_whole[0], "other bits"
    assert passes == of_whole[1], "other passes"
    assert (rows == of_whole[2]).all(), "other rows are published"
    return f"us, after {len(chain.deaths)} deaths"


@functools.cache
def _whole(ranks: int, options: tuple[str, ...]) -> tuple[dict[str, bytes], str, np.ndarray]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_days(directory / "data")
        ended = _job(ranks, options, directory)
        assert ended.code == 0, ended
        return _left(directory)


def _job(ranks: int, options: tuple[str, ...], directory: Path, *moment: str) -> Ended:
    for note in directory.glob("pid.*"):
        note.unlink()
    return Job(directory, SCRIPT, "--quiet", *options, ranks=ranks, args=moment).end(START_S)


def _left(directory: Path) -> tuple[dict[str, bytes], str, np.ndarray]:
    """Return the bits of the model, the lines of its passes, and published rows."""
    saved = directory / "saved"
    with Lookup(directory / "published", watch=False) as lookup:
        rows = lookup.pull("users", IDS)
    return bits_of(saved), (saved / "passes.jsonl").read_text(), rows
