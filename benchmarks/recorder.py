"""Race the recorder: steps with what is always recorded, with every detail, and with nothing.

    python benchmarks/recorder.py

All in one process, in turn, in blocks of some ten milliseconds: neighbours see the same machine,
and the time is that of the thread, so that other programs do not count. The ratios are medians over
neighbours. linreg has steps of some 25 microseconds, mlp of some milliseconds. First the cost of
one event by itself is measured. "Watched" is what --metrics adds: what a step notes, as above, and
what the writing thread needs every two seconds, in three forms of files, as a share of these.
"""

from __future__ import annotations

import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from rounds import FROM_CHECKOUT, ONE_THREAD, arguments, say

os.environ.update(ONE_THREAD)
sys.path.insert(0, FROM_CHECKOUT["PYTHONPATH"])

BLOCK = {"linreg": 2000, "mlp": 10}  # steps
MIB = 16
WAYS = {  # MiB of the ring, details of every step, fetched numbers
    "nothing": (0, False, False),
    "recorded": (MIB, False, False),
    "every detail": (MIB, True, False),
    "watched": (MIB, False, True),
}
EVERY_S, WRITINGS = 2.0, 4  # of the thread that writes; the first is not counted
# The most that recording may take, as a share of the time without.
TARGETS = {
    "linreg": {"recorded": 0.05, "watched": 0.05},
    "mlp": {"recorded": 0.01, "every detail": 0.05, "watched": 0.02},
}


def event_ns() -> float:
    """Return what one event costs, with the two looks at the clock, in nanoseconds."""
    from hpcdist.base.trace.events import EventKind
    from hpcdist.base.trace.recorder import Recorder

    recorder, now, count = Recorder(MIB * 2**20), time.monotonic_ns, 20_000
    record, found = recorder.record, []
    for _ in range(21):
        begin = time.thread_time_ns()
        for step in range(count):
            at = now()
            record(EventKind.OPERATOR, 0, at, now(), step=step)
        found.append((time.thread_time_ns() - begin) / count)
    return statistics.median(found)


def writing_share(step: Callable[[int], Any]) -> tuple[float, int]:
    """Return what share of the time the thread of --metrics needs, and which steps are noted then.

    The latter as the mask of their numbers.
    """
    from hpcdist.base.trace.files import RankOfJob
    from hpcdist.base.trace.metric_log import metric_log
    from hpcdist.base.trace.recorder import recorder
    from hpcdist.base.trace.status import JobStatus
    from hpcdist.launch.status_writer import Watch

    of = RankOfJob(0, "TRAINER", 0, socket.gethostname(), os.getpid())
    facts = JobStatus("benchmark", __file__, 1, time.time(), 1e9)
    recorder.begin(MIB * 2**20)
    found = []
    with tempfile.TemporaryDirectory() as directory:
        watch = Watch(of, facts, directory, ("csv", "tensorboard"), directory)
        watch.begin()
        for _ in range(WRITINGS):
            late, number = time.monotonic() + EVERY_S, 0
            while time.monotonic() < late:
                step(number)
                number += 1
            begin = time.thread_time()
            watch.write()
            found.append((time.thread_time() - begin) / EVERY_S)
        mask = metric_log.mask
        watch.close("ended")
    return statistics.median(found[1:]), mask


def race(case: str, rounds: int) -> dict[str, Any]:
    """Return microseconds per step, and what recording adds as a share."""
    from cases import CASES, batches
    from train import network

    import hpcdist as fluid
    from hpcdist.base.trace.metric_log import metric_log
    from hpcdist.base.trace.recorder import recorder

    with fluid.program_guard(fluid.Program(), fluid.Program()):
        loss = network(CASES[case])
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        feeds = [{"x": x, "y": y} for x, y in batches(CASES[case], trainer=0)]

        def run(step: int) -> None:
            exe.run(feed=feeds[step % len(feeds)], fetch_list=[loss])

        writing, mask = writing_share(run)
        took: dict[str, list[float]] = {way: [] for way in WAYS}
        metric_log.begin(fetches=False)
        for _ in range(rounds + 3):
            for way, (mib, always, fetches) in WAYS.items():
                recorder.begin(mib * 2**20, always=always)
                metric_log.fetches, metric_log.mask = fetches, mask
                begin = time.thread_time_ns()
                for step in range(BLOCK[case]):
                    run(step)
                took[way].append((time.thread_time_ns() - begin) / BLOCK[case] / 1000)
                metric_log.taken()  # as the thread would
    took = {way: found[3:] for way, found in took.items()}  # after the warm-up
    added = {
        way: statistics.median(a / b for a, b in zip(took[way], took["nothing"])) - 1
        for way in WAYS
    }
    added["watched"] += writing
    return {
        "case": case,
        "writing": writing,
        "us_per_step": {way: statistics.median(found) for way, found in took.items()},
        "added": added,
        "targets": TARGETS[case],
    }


def main() -> None:
    """Race the cases; exit 1 if recording takes more than it may."""
    parser = arguments(__doc__, 60)
    parser.add_argument("--case", choices=sorted(BLOCK), action="append", help="default: both")
    options = parser.parse_args()
    cost = event_ns()
    print(f"one event: {cost:.0f} ns", file=sys.stderr)
    rows = [race(case, options.rounds) for case in options.case or sorted(BLOCK)]
    missed = False
    for row in rows:
        for way, added in row["added"].items():
            most = row["targets"].get(way)
            missed |= most is not None and added > most
            limit = "" if most is None else f" (at most {most:.0%})"
            each = row["us_per_step"][way]
            print(f"{row['case']}, {way}: {each:.2f} us, {added:+.1%}{limit}", file=sys.stderr)
    say([{"case": "one event", "ns": cost}, *rows])
    sys.exit(missed)


if __name__ == "__main__":
    main()
