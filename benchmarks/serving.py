"""Look-ups in a published version, beside numpy.take over the same bytes.

python benchmarks/serving.py [--rows 20000000] [--width 16] [--batch 4096] [--repeat 200]

With --switches 1000 as many increments follow, one when the one before is served, and every
look-up until the last is compared with the rows of the version that it was in. 20 minutes.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from hpcdist.serving import Lookup
from hpcdist.serving.files import TableRows, write_member, write_rows
from hpcdist.serving.members import BASE, DELTA, Member, TableKind, link_of
from hpcdist.serving.sorted_rows import ids_of, mixes_of

CHANGED = 500  # rows of an increment


def rows_of(ids: np.ndarray, version: np.ndarray, width: int) -> np.ndarray:
    """Return rows float32 [n, width] that tell their ids, and the version that changed them."""
    columns = ids[:, None] % 4096 + 4096 * version[:, None] + np.arange(width)
    columns[:, 1] = ids >> 12
    return columns.astype(np.float32)


def changed_ids(version: int, rows: int) -> np.ndarray:
    """Return the ids of the rows that a version changes."""
    return np.unique(np.random.default_rng(version).integers(0, rows, CHANGED))


def publish(directory: Path, rows: int, width: int, version: int = 1, previous: str = "") -> str:
    """Publish a base of the ids 0 to ``rows``, or an increment; return its link."""
    kind = DELTA if previous else BASE
    keys = np.sort(mixes_of(changed_ids(version, rows) if previous else np.arange(rows)))

    def rows_at(begin: int, end: int) -> np.ndarray:
        ids = ids_of(keys[begin:end])
        return rows_of(ids, np.full(len(ids), version), width)

    table = TableRows(keys, rows_at, np.empty(0, np.uint64))
    path = directory / f"{version:09d}.0.0-of-1.rows"
    file = write_rows(path, {"t": table}, {"t": 4 * width}, packed=bool(previous))
    tables = {"t": TableKind(width, 0, {"kind": "constant", "a": 0.0, "b": 1.0})}
    member = Member(version, kind, "0" * 32, previous, version, tables, (file,))
    write_member(directory, member)
    return link_of(member)


def switch(directory: Path, rows: int, width: int, previous: str, last: int, batch: int) -> None:
    """Publish increments up to version ``last``; raise AssertionError for a wrong row."""
    draw, known = np.random.default_rng(2), np.ones(rows, np.int64)
    version, pulled, begin, slowest = 1, 0, time.perf_counter(), 0.0
    with Lookup(directory) as lookup:
        while version < last:
            wanted, served = version + 1, 0
            previous = publish(directory, rows, width, wanted, previous)
            written = time.perf_counter()
            while served < 4:
                current = lookup.current
                served += current.number == wanted
                if current.number > version:
                    version = wanted
                    known[changed_ids(version, rows)] = version
                    slowest = max(slowest, time.perf_counter() - written)
                ids = draw.integers(0, rows, batch)
                ids[: CHANGED // 2] = draw.choice(changed_ids(version, rows), CHANGED // 2)
                assert np.array_equal(current.pull("t", ids), rows_of(ids, known[ids], width))
                pulled += 1
            if version % 50 == 0:
                took = time.perf_counter() - begin
                print(
                    f"version {version}: {pulled * batch:,} rows looked up, none wrong, in "
                    f"{took:.0f} s; served after {slowest:.2f} s at most",
                    flush=True,
                )


def seconds(call, batches) -> float:
    """Return the processor time of a call with each of the batches: neighbours count little."""
    begin = time.thread_time()
    for batch in batches:
        call(batch)
    return time.thread_time() - begin


def main() -> None:
    """Measure, and print rows per second of both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--repeat", type=int, default=200)
    parser.add_argument("--switches", type=int, default=0)
    parser.add_argument("--directory", help="on a disk with room for the rows")
    chosen = parser.parse_args()
    draw = np.random.default_rng(1)
    batches = draw.integers(0, chosen.rows, (chosen.repeat, chosen.batch))
    with tempfile.TemporaryDirectory(dir=chosen.directory) as name:
        link = publish(Path(name), chosen.rows, chosen.width)
        begin = time.perf_counter()
        with Lookup(name, watch=False) as lookup:
            print(f"opened and checked in {time.perf_counter() - begin:.2f} s")
            mapped = lookup.current.table("t").base[0].rows
            ways = {
                "pull": lambda ids: lookup.pull("t", ids),
                "numpy.take": lambda ids: np.take(mapped, ids, axis=0),
            }
            for _ in range(2):  # the first time pages are read
                rates = {k: batches.size / seconds(call, batches) for k, call in ways.items()}
            for way, rate in rates.items():
                print(f"{way:<12}{rate / 1e6:8.2f} M rows per second of a core")
            print(f"ratio {rates['pull'] / rates['numpy.take']:.2f}", flush=True)
        last = 1 + chosen.switches
        switch(Path(name), chosen.rows, chosen.width, link, last, chosen.batch)


if __name__ == "__main__":
    main()
