"""Measure the table of sparse rows against bare loops, np.take, PyTorch and Fluid, in one run.

    python benchmarks/sparse_table.py --torch-python T/bin/python --fluid-python F/bin/python

A table of 4 million rows of 16 float32 with Adagrad (Adam beside the peers' Adam) is pulled from
and pushed to, a million different ids at a time, by the table itself and through MPI with one
server. Each line is a ratio of speeds within one round, the median over rounds. The exit status is
1 if a target is missed. About 3 minutes, 3 GiB; one thread per process.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import table_bare as bare
from rich.table import Table
from rounds import CONSOLE, FROM_CHECKOUT, HERE, Failed, arguments, json_object, run_text
from vs_fluid import MPI_ENVIRONMENT, mpirun

from hpcdist.ps import index_kernels as kernels
from hpcdist.ps.mapped_memory import PAGE_BYTES
from hpcdist.ps.policy_table import PolicyTable
from hpcdist.ps.row_policy import ClickScore, RowPolicy
from hpcdist.ps.row_values import CONSTANT
from hpcdist.ps.table import RowInitializer, RowOptimizer, SparseTable
from hpcdist.ps.table_memory import TableMemory

BATCH = 16384  # ids that are inserted at once
START = RowInitializer("uniform", -0.1, 0.1)
RATE, EPSILON = np.float32(0.01), np.float32(1e-6)
Lines = list[tuple[str, float, float | None]]  # what, ratio, the least (memory: most) it may be


def seconds(call: Callable[..., object], *arguments: object) -> float:
    """Return how long a call takes."""
    begin = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - begin


def processor_seconds(call: Callable[..., object], *arguments: object) -> float:
    """Return the processor time that a call takes: a neighbour's turn is not the table's."""
    begin = time.thread_time()
    call(*arguments)
    return time.thread_time() - begin


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def distinct(count: int, seed: int) -> np.ndarray:
    """Return different ids from all of int64."""
    generator = np.random.default_rng(seed)
    return np.unique(generator.integers(-(2**63), 2**63 - 1, count + count // 100))[:count].take(
        generator.permutation(count)
    )


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


# -- the table itself ------------------------------------------------------------------------------
def filled(ids: np.ndarray, dim: int, kind: str) -> tuple[SparseTable, dict[str, float]]:
    """Return a table of these ids, and what filling it told."""
    table = SparseTable("table", dim, RowOptimizer(kind), START, 1)
    out = np.zeros((BATCH, dim), np.float32)
    batches, pauses = [], [0.0]
    grow = TableMemory.grow

    def timed(memory: TableMemory) -> None:
        # Time of the processor: a neighbour's turn is no pause of the table.
        begin = time.thread_time()
        grow(memory)
        pauses.append(time.thread_time() - begin)

    before = resident_bytes()
    TableMemory.grow = timed  # type: ignore[method-assign]
    for begin in range(0, len(ids), BATCH):
        part = ids[begin : begin + BATCH]
        started = time.thread_time()
        table.pull(part, out[: len(part)])
        batches.append(time.thread_time() - started)
    TableMemory.grow = grow  # type: ignore[method-assign]
    told = {
        "memory": table.nbytes / table.payload_bytes,
        "resident": (resident_bytes() - before) / table.payload_bytes,
        "pause": max(pauses) / median(batches),
        "worst": max(batches) / median(batches),
        "pause_ms": max(pauses) * 1e3,
    }
    return table, told


def index_seconds(ids: np.ndarray, dim: int) -> float:
    """Return how long a table's index takes for ids, in batches and growing; not its rows.

    Only the part of an id that is beside its row is written there, into memory touched before, as
    the bare loop's arrays are.
    """
    memory = TableMemory("index", 4 * (1 + 2 * dim))
    memory.book[kernels.SEGMENT_TO_GROW] = kernels.NO_ROOM
    while len(memory.chunk_memory) << memory.shift < len(ids):
        memory.grow()
        memory.chunk_memory[-1][:: PAGE_BYTES // 2] = 0
    layout = np.array([0, memory.shift, memory.stride])
    start = np.uint64(1), CONSTANT, np.zeros(3)
    records = np.empty(BATCH, np.int64)

    def insert() -> None:
        for begin in range(0, len(ids), BATCH):
            part, at = ids[begin : begin + BATCH], 0
            while at < len(part):
                at = kernels.locate(
                    part, at, len(part), True, records, memory.book, memory.directory,
                    memory.segments, memory.chunks, layout, *start,
                )  # fmt: skip
                if at < len(part):
                    memory.grow()

    return processor_seconds(insert)


def inserts(ids: np.ndarray, dim: int, rounds: int) -> tuple[Lines, dict[str, float]]:
    """Compare filling a table, in batches and growing, with bare loops.

    One that makes rows too, into arrays of full size; for the index alone one whose arrays grow as
    well, and one whose arrays have their full size.
    """
    size = 1 << (2 * len(ids)).bit_length()
    plain, with_rows, index, growing, told = [], [], [], [], {}
    for count in [2] + [len(ids)] * rounds:  # the first round compiles
        keys, rows = np.ones(size, np.int64), np.full(size, -1, np.int32)
        index_only = processor_seconds(bare.insert, keys, rows, ids[:count], 0)
        rows.fill(-1)
        # As in the table, memory of rows is touched here for the first time.
        memory = np.empty((len(ids), 2 * dim), np.float32)
        facts = memory.ctypes.data, dim, START.a, START.b
        whole = processor_seconds(bare.insert_with_rows, keys, rows, ids[:count], 0, *facts)
        del memory, keys, rows
        grown = processor_seconds(bare.insert_growing, ids[:count])
        ours = processor_seconds(filled, ids[:count], dim, "adagrad")
        alone = index_seconds(ids[:count], dim)
        plain.append(index_only / ours)
        with_rows.append(whole / ours)
        index.append(index_only / alone)
        growing.append(grown / alone)
        times = {"insert": ours, "index": alone, "bare": whole}
        times |= {"bare_index": index_only, "bare_growing": grown}
        told = {f"{name}_ns": t / len(ids) * 1e9 for name, t in times.items()}
    del plain[0], with_rows[0], index[0], growing[0]
    lines: Lines = [
        ("insert / bare loop that makes the same rows", median(with_rows), 0.7),
        ("insert into the index alone / bare loop that grows", median(growing), 0.7),
        ("  / bare loop into arrays of full size", median(index), None),
        ("  with rows / that loop, without rows", median(plain), None),
    ]
    return lines, told


def accesses(table: SparseTable, ids: np.ndarray, count: int, rounds: int) -> tuple[Lines, dict]:
    """Compare pull with np.take, and push with a fused update, of rows of known index."""
    rows, dim = len(table), table.dim
    param, moment = np.ones((rows, dim), np.float32), np.ones((rows, dim), np.float32)
    out, grads = np.zeros((count, dim), np.float32), np.zeros((count, dim), np.float32)
    generator = np.random.default_rng(1)
    grads[:] = generator.normal(size=grads.shape)
    bare.adagrad(param, moment, np.arange(2), grads, RATE, EPSILON)
    takes, pulls, updates, pushes = [], [], [], []
    for _ in range(rounds):
        index = generator.permutation(rows)[:count]
        wanted = ids[index]
        # The fastest of its modes; the default checks indices into a buffer first.
        takes.append(processor_seconds(np.take, param, index, 0, out, "clip"))
        pulls.append(processor_seconds(table.pull, wanted, out))
        updates.append(processor_seconds(bare.adagrad, param, moment, index, grads, RATE, EPSILON))
        pushes.append(processor_seconds(table.push, wanted, grads, RATE))
    lines: Lines = [
        ("pull / np.take", median([a / b for a, b in zip(takes, pulls)]), 0.5),
        ("push / fused update", median([a / b for a, b in zip(updates, pushes)]), 0.4),
    ]
    return lines, {"take": takes, "pull_s": pulls, "update": updates, "push_s": pushes}


# -- tables with a budget --------------------------------------------------------------------------
class Stream:
    """A table with a budget that trains batches: a share of the ids is new, the others are not."""

    def __init__(self, policy: RowPolicy, dim: int, rows: float) -> None:
        self.table = PolicyTable("table", dim, RowOptimizer("adagrad"), START, 1, policy=policy)
        self.generator = np.random.default_rng(1)
        self.grads = self.generator.normal(size=(BATCH, dim)).astype(np.float32)
        self.out, self.begun, self.within = np.zeros_like(self.grads), 0, policy.budget_rows // 2
        while self.begun < rows:
            self.train(1.0)

    def train(self, share: float) -> float:
        """Look a batch up and train it; return the processor time."""
        new = int(BATCH * share)
        lowest = max(0, self.begun - self.within)
        numbers = self.generator.integers(lowest, max(1, self.begun), BATCH)
        numbers[:new] = np.arange(self.begun, self.begun + new)
        self.begun += new
        ids = numbers * 0x9E3779B97F4A7C1  # no two of them are equal

        def step() -> None:
            self.table.pull(ids, self.out)
            self.table.push(ids, self.grads, RATE)

        return processor_seconds(step)


def budgets(rows: int, dim: int) -> tuple[Lines, Lines]:
    """Compare full tables with half-full ones, batch by batch: speeds, and the worst pause."""
    speeds, pauses = [], []
    for keep in ("recent", "score"):
        score = ClickScore() if keep == "score" else None
        policy = RowPolicy(budget_rows=rows, keep=keep, score=score)
        # Parts fill at about the same time, and are emptied at more and more different ones.
        half, full = Stream(policy, dim, rows / 2), Stream(policy, dim, rows * 1.5)
        for share in (0.25, 1.0):
            times = []
            while len(times) < 10 or half.begun < rows * (0.5 + 0.2 * share):
                times.append((half.train(share), full.train(share)))
            of_half, of_full = zip(*times)
            what = f"full table / half-full one, kept by {keep}, {share:.0%} of ids new"
            speeds.append((what, sum(of_half) / sum(of_full), 0.95))
            pauses.append((f"worst pause, {what}", max(of_full) / median(of_half) - 1, 1.0))
    return speeds, pauses


# -- through MPI -----------------------------------------------------------------------------------
def as_trainer(ids: np.ndarray, count: int, rounds: int, dim: int) -> None:
    """Run one rank of the job; the trainer prints its times."""
    import table_job

    def work(trainer: table_job.Trainer) -> None:
        batch, generator = trainer.batch, np.random.default_rng(1)
        for begin in range(0, len(ids), count):
            batch.index([ids[begin : begin + count]])
            trainer.pull()
            trainer.push()
        names = ("index", "pull", "take", "push", "bare_take", "bare_update")
        times: dict[str, list[float]] = {name: [] for name in names}
        out = np.zeros((count, dim), np.float32)
        param, moment = np.ones((len(ids), dim), np.float32), np.ones((len(ids), dim), np.float32)
        bare.adagrad(param, moment, np.arange(2), out, RATE, EPSILON)
        moves = np.array([(0, 0, count, out.ctypes.data)])
        for _ in range(rounds):
            index = generator.permutation(len(ids))[:count]
            wanted = ids[index]
            # Beside what goes through MPI, so that neighbours slow both down.
            times["bare_take"].append(seconds(np.take, param, index, 0, out, "clip"))
            times["index"].append(seconds(batch.index, [wanted]))
            times["pull"].append(seconds(trainer.pull))
            times["take"].append(seconds(batch.take, moves))
            pushed = seconds(batch.clear) + seconds(batch.add, moves) + seconds(trainer.push)
            # A pull of one row is answered when the server has applied what was pushed.
            batch.index([wanted[:1]])
            times["push"].append(pushed + seconds(trainer.pull))
            update = seconds(bare.adagrad, param, moment, index, out, RATE, EPSILON)
            times["bare_update"].append(update)
            trainer.push()
        print(json.dumps(times), flush=True)

    table_job.run(dim, RowOptimizer("adagrad"), START, work, lambda index, statistics: None)


def through_mpi(options: argparse.Namespace) -> Lines:
    command = [mpirun(), "-n", "2", sys.executable, __file__, "--trainer"]
    for name in ("rows", "ids", "dim", "rounds"):
        command += [f"--{name}", str(getattr(options, name))]
    found = json_object(run_text(command, MPI_ENVIRONMENT | FROM_CHECKOUT, 600))
    look_ups = [sum(t) for t in zip(found["index"], found["pull"], found["take"])]

    def ratio(bare_times: str, ours: list[float]) -> float:
        return median([a / b for a, b in zip(found[bare_times], ours)])

    return [
        ("pull through MPI / np.take", ratio("bare_take", found["pull"]), 0.25),
        ("  with finding repeats and copying rows to their places", ratio("bare_take", look_ups),
         None),
        ("push through MPI / fused update", ratio("bare_update", found["push"]), 0.2),
    ]  # fmt: skip


# -- peers -----------------------------------------------------------------------------------------
def against(name: str, python: str | None, options: argparse.Namespace, times: dict) -> Lines:
    """Compare pull, and push with two optimizers, with another library's."""
    if python is None:
        raise Failed(f"no --{name}-python given")
    command = [python, str(HERE / f"table_{name}.py")]
    for option in ("rows", "ids", "dim", "rounds"):
        command += [f"--{option}", str(getattr(options, option))]
    found = json_object(run_text(command, {}, 900))
    lines: Lines = []
    for kind in ("adagrad", "adam"):
        for what in ("pull_s", "push_s"):
            ratio = median(found[kind][what]) / median(times[kind][what])
            lines.append((f"{what[:4]} / {name}'s, {kind}", ratio, None))
    return lines


def main() -> None:
    """Print one table of ratios and one JSON line; exit 1 if a target is missed."""
    parser = arguments(__doc__, 5)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--ids", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--torch-python", help="a Python that has torch")
    parser.add_argument("--fluid-python", help="a Python that has paddlepaddle==1.8.5")
    parser.add_argument("--trainer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    ids = distinct(options.rows, 0)
    if options.trainer:
        as_trainer(ids, options.ids, options.rounds, options.dim)
        return
    lines, told = inserts(ids, options.dim, min(3, options.rounds))
    times = {}
    for kind in ("adagrad", "adam"):
        table, growth = filled(ids, options.dim, kind)
        found, times[kind] = accesses(table, ids, options.ids, options.rounds)
        if kind == "adagrad":
            lines += found
            memory = [(f"{what}, of ids, rows and state", growth[what], 1.3) for what in
                      ("memory", "resident")]  # fmt: skip
            memory.append(("worst pause while growing / a batch", growth["pause"], 1.0))
            told |= growth
        del table
    speeds, pauses = budgets(options.rows // 4, options.dim)
    lines, memory = lines + speeds, memory + pauses
    for contender in (
        lambda: through_mpi(options),
        lambda: against("torch", options.torch_python, options, times),
        lambda: against("fluid", options.fluid_python, options, times),
    ):
        try:
            lines += contender()
        except Failed as reason:
            CONSOLE.print(f"left out: {reason}", markup=False)
    report = Table("what", title=f"{options.ids:,} of {options.rows:,} rows, dim {options.dim}")
    for heading in ("ratio", "target", ""):
        report.add_column(heading, justify="right")
    missed = 0
    for bound, part in ((">=", lines), ("<=", memory)):
        for what, ratio, target in part:
            good = target is None or (ratio >= target if bound == ">=" else ratio <= target)
            missed += not good
            goal = "" if target is None else f"{bound} {target:g}"
            word = "" if target is None else "reached" if good else "MISSED"
            report.add_row(what, f"{ratio:.2f}", goal, word)
    CONSOLE.print(report)
    ratios = {what: ratio for what, ratio, _ in lines + memory}
    print(json.dumps({"ratios": ratios, "told": told}), flush=True)
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
