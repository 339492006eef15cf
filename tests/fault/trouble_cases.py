"""Troubles that jobs are put into, and what the report must say of each."""

from __future__ import annotations

from functools import partial

from tests.fault.trouble_jobs import report
from tests.fault.trouble_machines import no_compiler, no_namespaces
from tests.fault.troubles import Case
from tests.support.jobs import kills_survivors, needs_mpirun


def no_mpirun() -> str:
    return needs_mpirun.args[0] and needs_mpirun.kwargs["reason"]


def kills_at_once() -> str:
    """Return why ranks cannot write what they did last when another dies, or an empty string."""
    return no_mpirun() or ("MPICH's launcher leaves no time" if kills_survivors() else "")


def _case(name: str, expects: str, missing=no_mpirun, **asked: object) -> Case:
    return Case(name, "report", expects, partial(report, **asked), missing)  # type: ignore[arg-type]


def _slow(cause: str, rank: int, kind: str) -> str:
    return rf"^{cause}: .*rank {rank} \({kind}"


SERVED = {"trainers": 2, "servers": 1}
TWO_SERVERS = {"trainers": 2, "servers": 2}
SUMS = {"trainers": 3}
# The deadline is not reached, nor are the steps: a rank that ends is waited for half a second.
ENDS: dict[str, object] = {"fails": True, "options": "--deadline 60000", "steps": 20_000}
HANGS: dict[str, object] = {"fails": True, "options": "--deadline 4000"}
SLOW: dict[str, object] = {"trouble": "slow script", "seconds": 0.02, "rank": 1}
READS: dict[str, object] = {"trouble": "slow reader", "seconds": 0.02, "loader": True}
# For seconds on fast machines, too.
LEAKS: dict[str, object] = {"trouble": "leak", "bytes": 2**17, "steps": 3000, "hidden": 1500}
# Ranks that mostly compute: of one that is stopped while it waits it is recorded that it waits.
HINDERED: dict[str, object] = {"rank": "all", "more": 10, "steps": 500}
SAVES: dict[str, object] = {"every": 3, "steps": 60}
CHECKS: dict[str, object] = {"env": {"FLAGS_check_nan_inf": "1"}, "log": True}
OWN_ROWS = "--feed local --deadline 60000"

CASES = [
    # One rank is slower than the others.
    _case(
        "slow script of a trainer",
        _slow("a slow rank", 1, "trainer 1") + ".*script",
        **SERVED,
        **SLOW,
    ),
    _case("slow script of a rank that sums", _slow("a slow rank", 1, "trainer 1"), **SUMS, **SLOW),
    _case(
        "slow script, asynchronous",
        _slow("a slow rank", 1, "trainer 1"),
        **SERVED,
        **SLOW,
        mode="async",
    ),
    _case(
        "slow script of trainer 0",
        _slow("a slow rank", 0, "trainer 0"),
        **SERVED,
        **SLOW | {"rank": 0},
    ),
    _case(
        "hindered trainer", _slow("a slow rank", 1, "trainer 1"), **SERVED, **HINDERED, stopped=1
    ),
    _case(
        "hindered rank that sums",
        _slow("a slow rank", 2, "trainer 2"),
        **SUMS,
        **HINDERED,
        stopped=2,
    ),
    _case(
        "more rows on one trainer",
        _slow("a slow rank", 1, "trainer 1") + ".*its steps",
        **SERVED,
        rank=1,
        more=40,
        options="--feed local",
    ),
    _case(
        "hindered server 0",
        _slow("a slow server", 2, "server 0"),
        **TWO_SERVERS,
        stopped=2,
        steps=300,
    ),
    _case(
        "hindered server 1",
        _slow("a slow server", 3, "server 1"),
        **TWO_SERVERS,
        stopped=3,
        steps=300,
    ),
    # All wait for something that is too slow.
    _case("slow reader", "^the reader: ", **SERVED, **READS, rank="all"),
    _case("slow reader of one rank", "^the reader: .*rank 1 ", **SUMS, **READS, rank=1),
    _case("slow reader, alone", "^the reader: .*rank 0 ", trainers=1, **READS, rank=0),
    _case("slow script of all", "^the script: ", **SERVED, **SLOW | {"rank": "all"}),
    _case("slow script of all that sum", "^the script: ", **SUMS, **SLOW | {"rank": "all"}),
    _case(
        "skewed placement",
        r"^placement: server \d \(rank [23]\)",
        **TWO_SERVERS,
        mode="sync",
        slices=False,
        hidden=2000,
    ),
    _case(
        "skewed placement on three servers",
        r"^placement: server \d \(rank [234]\)",
        trainers=2,
        servers=3,
        mode="sync",
        slices=False,
        hidden=2000,
    ),
    _case(
        "garbage on rank 1",
        _slow("garbage collection", 1, "trainer 1"),
        **SERVED,
        trouble="garbage",
        rank=1,
        steps=1000,
    ),
    _case(
        "garbage on rank 0",
        _slow("garbage collection", 0, "trainer 0"),
        **SUMS,
        trouble="garbage",
        rank=0,
        steps=1000,
    ),
    _case("too many checkpoints", "^checkpoints: rank 0", **SERVED, every=1, steps=60),
    _case(
        "checkpoints on a slow disk",
        "^checkpoints: rank 0",
        no_compiler,
        **SERVED,
        **SAVES,
        slow_disk=True,
    ),
    _case("leaking trainer", _slow("memory", 1, "trainer 1"), **SERVED, **LEAKS, rank=1),
    _case("leaking rank that sums", _slow("memory", 0, "trainer 0"), **SUMS, **LEAKS, rank=0),
    # The job fails.
    *(
        _case(
            f"{trouble} on a {kind}",
            rf"rank {rank} \({kind}.*(failed at|died: killed|ended)",
            kills_at_once if trouble in ("SIGKILL", "_exit", "out of memory") else no_mpirun,
            **jobs,
            **ENDS,
            trouble=trouble,
            rank=rank,
        )
        for trouble, kind, rank, jobs in (
            ("SIGKILL", "trainer 1", 1, SERVED),
            ("SIGKILL", "server 0", 2, SERVED),
            ("SIGKILL", "trainer 2", 2, SUMS),
            ("SIGTERM", "trainer 1", 1, SERVED),
            ("_exit", "trainer 0", 0, SUMS),
            ("exit", "trainer 1", 1, SERVED),
            ("raise", "trainer 1", 1, SUMS),
            ("out of memory", "trainer 1", 1, SERVED),
            ("broken reader", "trainer 1", 1, {**SERVED, "loader": True}),
        )
    ),
    *(
        _case(
            f"{trouble} of a {kind}",
            rf"rank {rank} \({kind}.* is missing",
            **jobs,
            **HANGS,
            trouble=trouble,
            rank=rank,
        )
        for trouble, kind, rank, jobs in (
            ("hang", "trainer 1", 1, SERVED),
            ("hang", "trainer 2", 2, SUMS),
            ("SIGSTOP", "trainer 1", 1, SERVED),
            ("SIGSTOP", "server 0", 2, SERVED),
        )
    ),
    *(
        _case(
            f"a NaN of rank {rank}, {words}",
            (rf"rank {rank}.*" if rank else "") + "log.*holds NaN",
            **jobs | CHECKS,
            trouble="negative",
            rank=rank,
            fails=True,
            options=OWN_ROWS if rank else "",
        )
        for words, rank, jobs in (
            ("with servers", 1, SERVED),
            ("summed", 2, SUMS),
            ("alone", 0, {"trainers": 1}),
            ("beside a sparse table", 1, {**SERVED, "sparse": True}),
        )
    ),
    _case(
        "an infinity of rank 1",
        r"rank 1.*holds infinity",
        **SERVED | CHECKS,
        trouble="infinite",
        rank=1,
        fails=True,
        options=OWN_ROWS,
    ),
    _case(
        "another program on rank 1",
        r"rank 1|trainer 1",
        **SERVED,
        **ENDS,
        trouble="another program",
        rank=1,
    ),
    _case(
        "a wrong shape on rank 1",
        r"rank 1 \(trainer 1.*failed at[^$]*'x'",
        **SERVED,
        **ENDS,
        trouble="shape",
        rank=1,
    ),
    _case(
        "a full disk",
        "No space left|ENOSPC|disk",
        no_namespaces,
        **SERVED,
        **ENDS,
        every=10,
        small_disk=True,
    ),
    _case(
        "a directory that another job saves into",
        "saves into",
        **SERVED,
        **ENDS,
        every=10,
        locked=True,
    ),
    # As administrators see them.
    _case(
        "only trainer 0 evaluates, now and then",
        _slow("a slow rank", 0, "trainer 0"),
        **SERVED,
        **SLOW | {"rank": 0, "seconds": 0.3, "steps": 300},
        each=10,
    ),
    _case(
        "busy threads beside the training of rank 1",
        _slow("a slow rank", 1, "trainer 1"),
        **SUMS,
        trouble="busy threads",
        rank=1,
        steps=300,
    ),
    *(
        _case(
            f"{trouble} of rank 1",
            rf"rank 1 \(trainer 1.*({says})",
            **jobs,
            **ENDS,
            trouble=trouble,
            rank=1,
        )
        for trouble, says, jobs in (
            ("segfault", "died: killed|ended", SERVED),
            ("CPU limit", "died: killed|ended", SUMS),
            ("memory limit", "failed at", SERVED),
            ("recursion", "failed at", SUMS),
        )
    ),
    _case(
        "rank 1 has fewer batches",
        "the script of trainer 1 has ended after 40 steps",
        **SUMS,
        **ENDS,
        trouble="ends early",
        rank=1,
    ),
    *(
        _case(f"{trouble} on rank 1", r"rank 1 \(trainer 1.* is missing", **jobs, **HANGS, **asked)
        for trouble, jobs, asked in (
            ("a deadlock", SERVED, {"trouble": "deadlock", "rank": 1}),
            ("a question that nobody answers", SUMS, {"trouble": "a question", "rank": 1}),
        )
    ),
    _case(
        "a reader that is slow now and then",
        "^the reader: ",
        **SERVED,
        **READS | {"seconds": 0.05},
        rank="all",
        rows=8,
    ),
    # Nothing is wrong.
    _case("healthy, with a server", "", **SERVED),
    _case("healthy, with two servers", "", **TWO_SERVERS),
    _case("healthy, summed", "", **SUMS),
    _case("healthy, alone", "", trainers=1),
    _case("healthy, transpiled", "", **SERVED, mode="sync"),
    _case("healthy, asynchronous", "", **SERVED, mode="async"),
    _case("healthy, with a communicator", "", **SERVED, mode="communicator"),
    _case("healthy, geo", "", **SERVED, mode="geo"),
    _case("healthy, with a loader", "", **SERVED, loader=True),
    _case("healthy, with own rows", "", **SUMS, options="--feed local"),
    _case("healthy, with a sparse table", "", **SERVED, sparse=True),
    _case("healthy, with some checkpoints", "", **SERVED, every=300, steps=600),
    _case("healthy, many layers", "", **SUMS, layers=6),
    _case("healthy, long", "", **SERVED, steps=600),
]
