"""One pass over Parquet of Criteo's shape: pyarrow alone, or `hpcdist.data.read`.

    python benchmarks/columnar_pass.py scan|sequential|shuffled FILE ...

Prints one JSON line: rows per second, as steps of 1000 rows, and sums of what was read.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import hpcdist as fluid

FLOATS = [f"I{k}" for k in range(13)]
IDS = [f"C{k}" for k in range(26)]
WINDOW = 1 << 16
BATCH = 4096
STEP = 1000.0  # rows


def write(path: Path, rows: int, seed: int, group: int) -> Path:
    """Write a file of made-up clicks, and return its path."""
    random = np.random.default_rng(seed)
    columns: dict[str, Any] = {name: random.random(rows, np.float32) for name in FLOATS}
    columns |= {name: random.integers(0, 1 << 20, rows) for name in IDS}
    columns["click"] = random.integers(0, 2, rows)
    pq.write_table(pa.table(columns), path, row_group_size=group)
    return path


def scan(files: list[str]) -> Iterator[tuple[int, Any]]:
    """Read row groups with pyarrow, one after the other, as numpy's arrays."""
    for path in files:
        file = pq.ParquetFile(path)
        for number in range(file.num_row_groups):
            table = file.read_row_group(number)
            arrays = {name: table[name].to_numpy() for name in table.column_names}
            yield table.num_rows, arrays


def read(files: list[str], shuffle: int | None) -> Iterator[tuple[int, Any]]:
    """Read batches of all columns."""
    for batch in fluid.data.read(files, batch=BATCH, shuffle=shuffle, window=WINDOW):
        yield len(batch["click"]), batch


def main() -> None:
    """Measure one pass, behind one that is not measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("how", choices=("scan", "sequential", "shuffled"))
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    passes: dict[str, Callable[[], Iterator[tuple[int, Any]]]] = {
        "scan": lambda: scan(options.files),
        "sequential": lambda: read(options.files, None),
        "shuffled": lambda: read(options.files, 1),
    }
    for _ in range(2):  # the first brings the files into memory
        begin, rows, sums = time.perf_counter(), 0, np.zeros(2)
        for count, arrays in passes[options.how]():
            rows += count
            sums += [arrays["C0"].sum(), arrays["click"].sum()]
        seconds = time.perf_counter() - begin
    print(json.dumps({"steps_per_s": rows / STEP / seconds, "losses": sums.tolist()}))


if __name__ == "__main__":
    main()
