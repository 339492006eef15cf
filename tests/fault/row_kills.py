"""Jobs that read columnar files and are killed again and again: no row may be lost or repeated.

As a program: ``python -m tests.fault.row_kills 20 0 6`` draws 20 chains of jobs, from number 0 on,
each of up to 6 trainers.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hpcdist.data.columnar.verify import verify
from tests.scripts import read_script
from tests.support.jobs import Job

EPOCHS = 2
# Plain scripts, also with rows of each trainer's own; others with servers; without servers.
MODES = ("plain", "local", "sync", "async", "half_async", "communicator", "geo", "nccl2")
SCRIPT = read_script("rows_while_ranks_die")


def run(number: int, directory: Path, jobs: int = 4, most: int = 6) -> Counter[str]:
    """Run a chain of jobs of up to ``most`` trainers; only the last ends by itself; check all rows.

    Returns what was drawn.
    """
    draw = random.Random(number)
    first = 0
    for file in range(draw.randint(1, 4)):
        rows = draw.randint(1, 200) + (300 if not file else 0)
        columns = {"x": np.ones(rows, np.float32), "id": np.arange(first, first + rows)}
        path = directory / f"p{file}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=draw.randint(5, 150))
        first += rows
    due = first - first % 24
    mode = draw.choice(MODES)
    how = (draw.choice([None, number]), draw.choice([1, 60, 1000]), draw.choice([1, 4, 12]))
    drawn: Counter[str] = Counter({mode: 1})
    for job in range(jobs):
        trainers = draw.randint(1, most)
        servers = 0 if mode == "nccl2" else draw.randint(mode not in ("plain", "local"), 2)
        last = draw.randint(0, 12) if job < jobs - 1 else -1
        victim = draw.randrange(trainers)
        args = [mode, repr(how), EPOCHS, job, victim, last]
        options = ["--pservers", str(servers), "--quiet"] if servers else ["--quiet"]
        options += ["--feed", "local"] if mode == "local" else []
        ranks = trainers + servers
        started = Job(directory, SCRIPT, *options, ranks=ranks, args=list(map(str, args)))
        ended = started.end(within_s=300)
        drawn[f"{trainers} trainers"] += 1
        if ended.code == 0:  # the epochs were over before the kill came
            break
        assert last >= 0 and "the script failed" not in ended.err, (args, ranks, ended)
        _expect_in_flight(directory, job, victim)
    used = _used(directory, due)
    for epoch in range(EPOCHS):
        counts = Counter(used[epoch])
        assert len(counts) == due and set(counts.values()) == {1}, (number, epoch, counts)
    (verdict,) = verify(directory / "rows")
    assert verdict.exact, (number, verdict)
    used = [(epoch.used, epoch.complete) for epoch in verdict.epochs]
    assert used == [(due, True)] * EPOCHS, (number, verdict)
    return drawn


def _expect_in_flight(directory: Path, job: int, victim: int) -> None:
    """Compare what a certificate says is in flight with the last batch of who was killed."""
    notes = directory / f"used.{job}.{victim}"
    line = notes.read_text().splitlines()[-1] if notes.exists() else "from"
    if line.startswith("from"):
        return  # another rank failed first, or this one before its first batch
    epoch, _, *ids = map(int, line.split(" "))
    (verdict,) = verify(directory / "rows")
    flying = {e.number: e.in_flight for e in verdict.epochs}
    assert set(ids) <= set(flying[epoch]), (line, flying)
    assert sum(map(len, flying.values())) <= 2 * 24, (line, flying)  # of all: a batch, or its next


def _used(directory: Path, due: int) -> dict[int, list[int]]:
    """Return the rows that count by epoch, from the notes of the scripts alone."""
    used: dict[int, list[int]] = {epoch: [] for epoch in range(EPOCHS)}
    jobs: dict[int, list[Path]] = {}
    for path in directory.glob("used.*"):
        jobs.setdefault(int(path.name.split(".")[1]), []).append(path)
    until = (EPOCHS, 0)
    for job in sorted(jobs, reverse=True):
        start = until
        for number, path in enumerate(sorted(jobs[job])):
            head, *lines = path.read_text().splitlines()
            _, epoch, position = head.split(" ")
            start = int(epoch), int(position)
            whole = [line for line in lines if len(line.split(" ")) == 26]
            if number and len(whole) == len(lines):
                continue  # of a plain job: all trainers have noted the whole batches
            for line in lines:
                at_epoch, before, *ids = map(int, line.split(" "))
                if (at_epoch, before) < until:
                    used[at_epoch] += ids
        until = min(until, start)
    return used


def main() -> None:
    """Run chains of jobs; exit 1 if any went wrong."""
    given = sys.argv[1:]
    count, first, most = map(int, [*given, *("20", "0", "6")[len(given) :]])
    total: Counter[str] = Counter()
    wrong = 0
    for number in range(first, first + count):
        begin, directory = time.monotonic(), Path(tempfile.mkdtemp(prefix=f"rows-{number}-"))
        try:
            drawn = run(number, directory, most=most)
            shutil.rmtree(directory)
            words, total = f"ok {dict(drawn)}", total + drawn
        except (Exception, pytest.fail.Exception) as error:
            wrong += 1
            words = f"WRONG in {directory}: {type(error).__name__}: {error}"
        print(f"{number} ({time.monotonic() - begin:.1f} s): {words}", flush=True)
    print(f"{count - wrong} of {count} chains exact: {dict(sorted(total.items()))}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
