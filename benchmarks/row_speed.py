"""Pulls and pushes of tables with every kind of row and policy beside those of a plain one.

    python benchmarks/row_speed.py

Tables of 1 million rows of 16 with Adagrad, each by itself in this process. Batches of different
ids that have rows are pulled, then pushed; in each round all tables in turn, the plain one first
and last. Times are of the processor, so that neighbours count little. Printed are the medians over
rounds of the plain table's time over each one's, their quartiles, and what pushes could come to at
most if rows took only the arithmetic of their types more: the least time in which 512 of them in
the cache are read into float32, and rounded. The last table has all on:
admission, expiry, a budget, a score, and a tier on disk that holds the rows looked up. The exit
status is 1 if a target is missed. About 2 minutes, 2 GiB.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.table import Table
from rounds import CONSOLE, arguments

from hpcdist.ps import packed_kernels
from hpcdist.ps.policy_table import PolicyTable
from hpcdist.ps.row_policy import ClickScore, RowPolicy
from hpcdist.ps.table import RowInitializer, RowOptimizer, SparseTable

START = RowInitializer("uniform", -0.1, 0.1)
RATE = np.float32(0.01)
KINDS: dict[str, dict[str, Any]] = {
    "float16": {"rows": "float16"},
    "bfloat16": {"rows": "bfloat16"},
    "bfloat16, stochastic": {"rows": "bfloat16", "rounding": "stochastic"},
    "int8": {"rows": "int8"},
    "float32, state in float16": {"state": "float16"},
    "float16, state too": {"rows": "float16", "state": "float16"},
    "int8, state in float16": {"rows": "int8", "state": "float16"},
    "int8, row-wise": {"rows": "int8", "row_wise": True},
}


def policies(rows: int, disk: str) -> dict[str, dict[str, Any]]:
    """Return the policies of tables: one thing each, then all, in float32 and in fewer bytes."""
    budget = {"budget_rows": rows}
    tier = {"disk": disk, "memory_rows": rows}
    common = {"admit_after": 2, "expire_days": 30, **budget, "score": ClickScore(), **tier}
    return {
        "admission": {"admit_after": 2},
        "expiry": {"expire_days": 30},
        "budget": budget,
        "disk": tier,
        "all on": common,
        "all on, int8, row-wise": {**common, "rows": "int8", "row_wise": True},
    }


def made(words: dict[str, Any], dim: int) -> SparseTable:
    """Return an empty table."""
    policy, facts = RowPolicy(**words), ("table", dim)
    optimizer = RowOptimizer("adagrad", row_wise=policy.row_wise)
    if policy.keeps_all or policy == RowPolicy():
        kept: dict[str, Any] = {"storage": policy.storage, "tier": policy.tier}
        return SparseTable(*facts, optimizer, START, 1, **kept)
    return PolicyTable(*facts, optimizer, START, 1, policy=policy)


def rounding_ns(table: SparseTable) -> float:
    """Return the least time in which a row in the cache is read into float32, and rounded."""
    packed, count = table._packed, 512
    if packed is None or table.storage.same_bytes(None):
        return 0.0
    ids = table.export(0, count)[0]
    records = table._found(ids, create=False)
    if table.tier is not None:
        records = table.tier.bodies(ids, records)
    rows = np.zeros((count + 16, 1 + table.dim + table.state_width), np.float32)[:count]
    least = float("inf")
    for _ in range(2000):
        begin = time.perf_counter()
        packed_kernels.unpack(records, rows, packed._facts)
        packed_kernels.pack(ids, records, rows, 1, packed._facts, packed._seed_key, True)
        least = min(least, time.perf_counter() - begin)
    return least / count * 1e9


def seconds(call: Callable[..., object], *arguments: object) -> float:
    """Return the processor time that a call takes."""
    begin = time.thread_time()
    call(*arguments)
    return time.thread_time() - begin


def main() -> None:
    """Print one table of ratios and one JSON line; exit 1 if a target is missed."""
    parser = arguments(__doc__, 15)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=16384)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--only", help="tables whose names have this in them")
    options = parser.parse_args()
    draw = np.random.default_rng(0)
    ids = draw.permutation(options.rows) * 0x9E3779B97F4A7C1
    grads = draw.normal(size=(options.batch, options.dim)).astype(np.float32)
    out = np.zeros_like(grads)
    with tempfile.TemporaryDirectory() as disk:
        wanted = KINDS | policies(options.rows * 2, disk)
        wanted = {k: v for k, v in wanted.items() if not options.only or options.only in k}
        tables = {name: made(words, options.dim) for name, words in wanted.items()}
        tables = {"plain": made({}, options.dim), **tables, "plain again": made({}, options.dim)}
        for table in tables.values():
            for begin in range(0, options.rows, options.batch):
                part = ids[begin : begin + options.batch]
                for _ in range(2):  # looked up twice, they are admitted
                    table.push(part, grads[: len(part)], RATE)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in tables}
        for _ in range(options.rounds):
            wanted_ids = draw.permutation(ids)[: 4 * options.batch].reshape(4, -1)
            for name, table in tables.items():
                pulled = sum(seconds(table.pull, part, out) for part in wanted_ids)
                pushed = sum(seconds(table.push, part, grads, RATE) for part in wanted_ids)
                found[name].append((pulled, pushed))
    report = Table("table", title=f"{options.rows:,} rows of {options.dim}, Adagrad")
    for heading in ("ns of a pull", "of a push", "pull", "push", "quartiles of push", "at most"):
        report.add_column(heading, justify="right")
    ratios = {}
    for name, times in found.items():
        beside = np.array(found["plain"]) / np.array(times)
        pull, push = np.median(beside, axis=0).tolist()
        low, high = np.quantile(beside[:, 1], (0.25, 0.75)).tolist()
        each = np.median(times, axis=0) / (4 * options.batch) * 1e9
        plain = float(np.median(found["plain"], axis=0)[1]) / (4 * options.batch) * 1e9
        most = plain / (plain + rounding_ns(tables[name]))
        ratios[name] = [pull, push, low, high, most]
        report.add_row(
            *(name, f"{each[0]:.0f}", f"{each[1]:.0f}"),
            *(f"{pull:.2f}", f"{push:.2f}", f"{low:.2f} to {high:.2f}", f"{most:.2f}"),
        )
    CONSOLE.print(report)
    print(json.dumps(ratios), flush=True)
    missed = min(min(r[:2]) for name, r in ratios.items() if name in KINDS or "on" in name) < 0.8
    sys.exit(missed)


if __name__ == "__main__":
    main()
