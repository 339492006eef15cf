"""Fill a table with many ids over several servers on one machine, and time every batch.

    python benchmarks/huge_table.py --ids 100000000 --servers 4 --plot curve.svg

A trainer pulls batches of ids drawn from all of int64, nearly all of them new, and pushes a
gradient for each (SGD, dim 4). Printed for every tenth: ids in the table, milliseconds per batch of
new ids (median, worst) and of ids that the table has, memory that is left; then each server's
table, and the processor time of all tables per batch, which neighbours change little. 100 million
ids take about 3 GiB. A job that would leave less than --spare GiB of the machine's memory is ended.
--plot draws the time of every batch against the size (matplotlib, `pip install "hpcdist[plot]"`;
svg, png or pdf, by the file's name).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from rounds import FROM_CHECKOUT, environment
from vs_fluid import MPI_ENVIRONMENT, mpirun

DIM, TENTHS = 4, 10


def available_gib() -> float:
    """Return how much memory programs may still take on this machine."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 2**20
    raise SystemExit("/proc/meminfo does not say how much memory is available")


def as_rank(count: int, batch_ids: int, spare_gib: float) -> None:
    """Run one rank of the job; the trainer prints a JSON line for every tenth, servers one each."""
    import table_job

    from hpcdist.ps.table import RowInitializer, RowOptimizer

    def work(trainer: table_job.Trainer) -> None:
        generator = np.random.default_rng(0)
        known = np.empty(0, np.int64)
        done, least = 0, available_gib()

        def step(ids: np.ndarray) -> float:
            begin = time.perf_counter()
            trainer.batch.index([ids])
            trainer.pull()
            trainer.push()
            return (time.perf_counter() - begin) * 1e3

        for tenth in range(TENTHS):
            new, again, sizes, known_sizes = [], [], [], []
            while done < count * (tenth + 1) // TENTHS:
                ids = generator.integers(-(2**63), 2**63 - 1, batch_ids)
                new.append(step(ids))
                done += batch_ids
                sizes.append(done)
                if len(new) % 10 == 1:
                    # Ids of all ages, not those that are in the cache.
                    kept = generator.random(batch_ids) < done / (done + 10 * batch_ids)
                    known = np.where(kept[: len(known)], known, ids) if len(known) else ids
                    again.append(step(generator.permutation(known)))
                    known_sizes.append(done)
                least = min(least, available_gib())
                if least < spare_gib:
                    raise SystemExit(f"only {least:.1f} GiB of memory are left: ended")
            told = {
                "ids": done,
                "new_ms": statistics.median(new),
                "worst_ms": max(new),
                "known_ms": statistics.median(again),
                "available_gib": round(least, 2),
                "new": [sizes, new],
                "known": [known_sizes, again],
            }
            print(json.dumps(told), flush=True)

    def report(index: int, table: table_job.TimedTable) -> None:
        told = {"server": index, "steps": table.steps} | vars(table.statistics())
        print(json.dumps(told), flush=True)

    start = RowInitializer("uniform", -0.1, 0.1)
    table_job.run(DIM, RowOptimizer("sgd"), start, work, report)


Curve = tuple[np.ndarray, np.ndarray]  # ids in the table, milliseconds


def waited(tenths: list[dict[str, Any]], kind: str) -> Curve:
    """Return what the trainer waited for each batch of ``new`` or ``known`` ids."""
    sizes, times = (np.concatenate([told[kind][k] for told in tenths]) for k in (0, 1))
    return sizes, times


def worked(servers: list[dict[str, Any]], *, new: bool) -> Curve:
    """Return the processor time of all servers' tables for each batch."""
    steps = np.array([s["steps"] for s in servers])  # [servers, batches, 3]
    rows, made, times = steps.sum(axis=0).T
    chosen = (made > 0) == new
    return rows[chosen], times[chosen]


def medians(curve: Curve, count: int) -> Curve:
    """Return the end of each tenth of ``count`` ids and the median time in it."""
    ends = count * np.arange(1, TENTHS + 1) / TENTHS
    tenth = np.minimum(curve[0] * TENTHS // (count + 1), TENTHS - 1)
    return ends, np.array([np.median(curve[1][tenth == k]) for k in range(TENTHS)])


def draw(path: str, title: str, curves: dict[str, Curve], count: int) -> None:
    """Draw the time of each batch against the ids in the table, and the medians of tenths."""
    import matplotlib

    matplotlib.use("Agg")  # to a file: no display is needed
    matplotlib.rcParams["svg.hashsalt"] = "huge_table"  # the same picture is the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for k, (label, curve) in enumerate(curves.items()):
        axes.plot(curve[0] / 1e6, curve[1], ".", ms=2, alpha=0.4, color=f"C{k}", rasterized=True)
        ends, middle = medians(curve, count)
        axes.plot(ends / 1e6, middle, "o-", color=f"C{k}", label=label)
    axes.set(title=title, xlabel="ids in the tables, millions", ylabel="ms per batch")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(path, dpi=120, metadata={"Date": None} if path.endswith(".svg") else None)


def main() -> None:
    """Run the job and print its curve; exit 1 if it fails or ids are missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ids", type=int, default=100_000_000)
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=100_000, help="ids of a batch")
    parser.add_argument("--spare", type=float, default=4.0, metavar="GiB")
    parser.add_argument("--plot", metavar="FILE", help="draw the curve")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plot and find_spec("matplotlib") is None:
        parser.error('--plot needs matplotlib: pip install "hpcdist[plot]"')
    if options.rank:
        as_rank(options.ids, options.batch, options.spare)
        return
    command = [mpirun(), "-n", str(1 + options.servers), sys.executable, __file__, "--rank"]
    command += ["--ids", str(options.ids), "--batch", str(options.batch)]
    command += ["--spare", str(options.spare)]
    servers, tenths = [], []
    print("| ids | ms per batch of new ids | worst | of known ids | GiB available |")
    print("|---|---|---|---|---|", flush=True)
    variables = environment(MPI_ENVIRONMENT | FROM_CHECKOUT)
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        for line in job.stdout:
            if not line.startswith("{"):
                print(line, end="", file=sys.stderr)
                continue
            told = json.loads(line)
            if "server" in told:
                servers.append(told)
                continue
            tenths.append(told)
            print(
                f"| {told['ids']:,} | {told['new_ms']:.1f} | {told['worst_ms']:.1f} "
                f"| {told['known_ms']:.1f} | {told['available_gib']} |",
                flush=True,
            )
    print("| server | rows | bytes | of payload | pulled | pushed |\n|---|---|---|---|---|---|")
    for s in sorted(servers, key=lambda s: s["server"]):
        share = s["nbytes"] / s["payload_bytes"]
        print(
            f"| {s['server']} | {s['rows']:,} | {s['nbytes']:,} | {share:.3f} "
            f"| {s['rows_pulled']:,} | {s['rows_pushed']:,} |"
        )
    if len(servers) == options.servers:
        curves = {
            "new ids, as the trainer waits": waited(tenths, "new"),
            "known ids, as the trainer waits": waited(tenths, "known"),
            "new ids, processor time of all tables": worked(servers, new=True),
            "known ids, processor time of all tables": worked(servers, new=False),
        }
        print("| ids | processor ms per batch of new ids | of known ids |\n|---|---|---|")
        last = list(curves.values())[2:]
        for end, new, known in zip(
            *medians(last[0], options.ids), medians(last[1], options.ids)[1]
        ):
            print(f"| {end:,.0f} | {new:.1f} | {known:.1f} |")
        if options.plot:
            what = f"batches of {options.batch:,} ids pulled and pushed, dim {DIM}"
            title = f"{what}, {options.servers} servers; lines: medians of tenths"
            draw(options.plot, title, curves, options.ids)
    rows = sum(s["rows"] for s in servers)
    # Random 64-bit ids hardly ever repeat.
    sys.exit(job.returncode or rows < options.ids * 0.999999)


if __name__ == "__main__":
    main()
