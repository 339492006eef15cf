"""Fill a table with many ids over several servers on one machine, and time every batch.

    python benchmarks/huge_table.py --ids 100000000 --servers 4

A trainer pulls batches of ids drawn from all of int64, nearly all of them new, and pushes a
gradient for each (SGD, dim 4). Printed for every tenth: ids in the table, milliseconds per batch of
new ids (median, worst) and of ids that the table has, memory that is left; then each server's
table. 100 million ids take about 3 GiB. A job that would leave less than --spare GiB of the
machine's memory is ended.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

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
            new, again = [], []
            while done < count * (tenth + 1) // TENTHS:
                ids = generator.integers(-(2**63), 2**63 - 1, batch_ids)
                new.append(step(ids))
                done += batch_ids
                if len(new) % 10 == 1:
                    # Ids of all ages, not those that are in the cache.
                    kept = generator.random(batch_ids) < done / (done + 10 * batch_ids)
                    known = np.where(kept[: len(known)], known, ids) if len(known) else ids
                    again.append(step(generator.permutation(known)))
                least = min(least, available_gib())
                if least < spare_gib:
                    raise SystemExit(f"only {least:.1f} GiB of memory are left: ended")
            told = {
                "ids": done,
                "new_ms": statistics.median(new),
                "worst_ms": max(new),
                "known_ms": statistics.median(again),
                "available_gib": round(least, 2),
            }
            print(json.dumps(told), flush=True)

    def report(index: int, found: object) -> None:
        print(json.dumps({"server": index} | vars(found)), flush=True)

    start = RowInitializer("uniform", -0.1, 0.1)
    table_job.run(DIM, RowOptimizer("sgd"), start, work, report)


def main() -> None:
    """Run the job and print its curve; exit 1 if it fails or ids are missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ids", type=int, default=100_000_000)
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=100_000, help="ids of a batch")
    parser.add_argument("--spare", type=float, default=4.0, metavar="GiB")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        as_rank(options.ids, options.batch, options.spare)
        return
    command = [mpirun(), "-n", str(1 + options.servers), sys.executable, __file__, "--rank"]
    command += ["--ids", str(options.ids), "--batch", str(options.batch)]
    command += ["--spare", str(options.spare)]
    servers = []
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
    rows = sum(s["rows"] for s in servers)
    # Random 64-bit ids hardly ever repeat.
    sys.exit(job.returncode or rows < options.ids * 0.999999)


if __name__ == "__main__":
    main()
