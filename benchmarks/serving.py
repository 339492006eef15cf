"""Look-ups in a published version, beside numpy.take over the same bytes.

python benchmarks/serving.py [--rows 20000000] [--width 16] [--batch 4096] [--repeat 200]
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from hpcdist.serving import Lookup
from hpcdist.serving.files import TableRows, write_member, write_rows
from hpcdist.serving.members import BASE, Member, TableKind
from hpcdist.serving.sorted_rows import mixes_of


def publish(directory: Path, rows: int, width: int) -> None:
    """Publish one base of random rows, under the ids 0 to ``rows``."""
    keys = np.sort(mixes_of(np.arange(rows)))
    draw = np.random.default_rng(0)

    def rows_at(begin: int, end: int) -> np.ndarray:
        return draw.random((end - begin, width), np.float32)

    table = TableRows(keys, rows_at, np.empty(0, np.uint64))
    file = write_rows(directory / f"{1:09d}.0.0-of-1.rows", {"t": table}, {"t": 4 * width})
    kind = TableKind(width, 0, {"kind": "constant", "a": 0.0, "b": 1.0})
    write_member(directory, Member(1, BASE, "0" * 32, "", 0, {"t": kind}, (file,)))


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
    parser.add_argument("--directory", help="on a disk with room for the rows")
    chosen = parser.parse_args()
    draw = np.random.default_rng(1)
    batches = draw.integers(0, chosen.rows, (chosen.repeat, chosen.batch))
    with tempfile.TemporaryDirectory(dir=chosen.directory) as name:
        publish(Path(name), chosen.rows, chosen.width)
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
            print(f"ratio {rates['pull'] / rates['numpy.take']:.2f}")


if __name__ == "__main__":
    main()
