"""Troubles of jobs, and what the report says of them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from hpcdist.launch import job_report
from tests.fault.trouble_machines import no_compiler, no_namespaces, preloaded
from tests.fault.troubles import Case
from tests.jobs import Job, clean_environment, kills_survivors, needs_mpirun

STOPPED_S, RUNS_S = 0.03, 0.02  # of a process that others take the core from

# Trains on batches of its own making; the trouble is in its only argument.
SCRIPT = """
import gc, json, os, signal, sys, time
import numpy as np
import hpcdist as fluid

RANK = int(os.environ.get("HPCDIST_RANK", "0"))
asked = json.loads(sys.argv[1])
AT = asked.get("rank") in (RANK, "all")
SERVES = os.environ.get("PADDLE_TRAINING_ROLE") == "PSERVER"
steps = asked.get("steps", 150)
trouble = asked.get("trouble", "") if AT else ""
after = asked.get("after", 40)

def note(what, value):
    with open(f"new.{what}.{RANK}", "w") as f:
        f.write(str(value))
    os.replace(f.name, f"{what}.{RANK}")

def end_here():
    if trouble == "raise":
        raise ValueError("on purpose")
    if trouble == "exit":
        sys.exit(3)
    if trouble == "_exit":
        os._exit(3)
    if trouble == "out of memory":
        np.ones(2**50)
    if trouble == "hang":
        while True:
            time.sleep(0.1)
    if trouble == "segfault":
        import ctypes
        ctypes.string_at(0)
    if trouble == "deadlock":
        import threading
        lock = threading.Lock()
        with lock:
            lock.acquire()
    if trouble == "a question":
        os.read(os.pipe()[0], 1)
    if trouble == "CPU limit":
        import resource
        resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
        while True:
            pass
    if trouble == "memory limit":
        import resource
        held = int(open("/proc/self/statm").read().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (held + 2**26, held + 2**26))
        np.ones(2**25)
    if trouble == "recursion":
        end_here.__globals__["deeper"] = lambda: deeper()
        deeper()
    if trouble in ("SIGKILL", "SIGTERM", "SIGSTOP"):
        os.kill(os.getpid(), getattr(signal, trouble))

note("pid", os.getpid())
progress = os.open(f"step.{RANK}", os.O_CREAT | os.O_WRONLY)
os.pwrite(progress, b"      -1", 0)
if SERVES and trouble in ("SIGKILL", "SIGSTOP"):
    import threading
    def later():
        while not os.path.exists("step.0") or int(open("step.0").read() or 0) < after:
            time.sleep(0.005)
        end_here()
    threading.Thread(target=later, daemon=True).start()
if trouble == "late":
    time.sleep(8)
width, rows = asked.get("width", 256), 48
x = fluid.data(name="x", shape=[None, width], dtype="float32")
y = fluid.data(name="y", shape=[None, 1], dtype="float32")
feeds = [x, y]
hidden = x
if asked.get("log"):
    hidden = fluid.layers.log(hidden)
for _ in range(asked.get("layers", 1)):
    hidden = fluid.layers.fc(hidden, asked.get("hidden", 256), act="tanh")
if asked.get("sparse"):
    ids = fluid.data(name="ids", shape=[None, 1], dtype="int64")
    feeds.append(ids)
    row = fluid.layers.embedding(ids, [50, 8], is_sparse=True)
    hidden = fluid.layers.concat([hidden, fluid.layers.sqrt(fluid.layers.abs(row) - 0.0)], 1)
if trouble == "another program":
    hidden = fluid.layers.scale(hidden, 2.0)
loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, size=1), y))
optimizer = fluid.optimizer.SGD(1e-3)
exe = fluid.Executor(fluid.CPUPlace())
main, random = None, np.random.RandomState(3)
if asked.get("mode"):
    config = fluid.DistributeTranspilerConfig()
    mode = asked["mode"]
    config.sync_mode = mode == "sync"
    config.slice_var_up = asked.get("slices", True)
    if "least" in asked:
        config.min_block_size = asked["least"]
    if mode == "communicator":
        config.runtime_split_send_recv = True
    if mode == "geo":
        config.geo_sgd_mode, config.geo_sgd_need_push_nums = True, 5
        t = fluid.transpiler.GeoSgdTranspiler(config)
    else:
        t = fluid.DistributeTranspiler(config)
    optimizer.minimize(loss)
    t.transpile(int(os.environ["PADDLE_TRAINER_ID"]),
                pservers=os.environ["PADDLE_PSERVERS_IP_PORT_LIST"],
                trainers=int(os.environ["PADDLE_TRAINERS"]), sync_mode=mode == "sync")
    if SERVES:
        main, startup = t.get_pserver_programs(os.environ["PADDLE_CURRENT_ENDPOINT"])
        exe.run(startup)
        exe.run(main)
        sys.exit()
    main = t.get_trainer_program()
else:
    optimizer.minimize(loss)
exe.run(fluid.default_startup_program())

def made():
    n = rows * asked.get("more", 1) if AT else rows
    fed = {"x": random.rand(n, width).astype("float32") + 0.1, "y": np.ones((n, 1), "float32")}
    if asked.get("sparse"):
        fed["ids"] = random.randint(0, 50, (n, 1)).astype("int64")
    return fed

pool = [made() for _ in range(8)]

def batch(step):
    fed = {name: array.copy() for name, array in pool[step % 8].items()}
    if trouble == "negative" and step == after:
        fed["x"][-1, 0] = -1.0
    if trouble == "infinite" and step == after:
        fed["y"][0, 0] = 3e38
    if trouble == "shape" and step == after:
        fed["x"] = fed["x"][:, 1:]
    return fed

def batches():
    for step in range(steps):
        if trouble == "slow reader":
            time.sleep(asked["seconds"])
        if trouble == "broken reader" and step == after:
            raise OSError("the file is gone")
        yield [batch(step)[v.name] for v in feeds]

if asked.get("loader"):
    loader = fluid.io.DataLoader.from_generator(feed_list=feeds, capacity=4)
    loader.set_batch_generator(batches)
    source = (fed[0] if isinstance(fed, list) else fed for fed in loader())
else:
    source = map(batch, range(steps))
kept = []
gc.freeze()
for step, fed in enumerate(source):
    os.pwrite(progress, b"%8d" % step, 0)
    if step == after:
        end_here()
    if trouble == "slow script" and step % asked.get("each", 1) == 0:
        time.sleep(asked["seconds"])
    if trouble == "ends early" and step == after:
        break
    if trouble == "busy threads" and step == 0:
        import threading
        def busy():
            while True:
                pass
        threading.Thread(target=busy, daemon=True).start()
    if trouble == "garbage":
        cycles = [[] for _ in range(20000)]
        for cycle in cycles:
            cycle.append(cycle)
        del cycles, cycle
        gc.collect()
    if trouble == "leak":
        kept.append(np.ones(asked["bytes"] // 8))
    exe.run(main, feed=fed, fetch_list=[loss])
    if asked.get("every") and step % asked["every"] == 0:
        fluid.checkpoint.save(exe, "saved", step)
exe.close()
"""


def report(
    directory: Path,
    *,
    trainers: int = 2,
    servers: int = 0,
    options: str = "",
    fails: bool = False,
    stopped: int | None = None,
    slow_disk: bool = False,
    small_disk: bool = False,
    locked: bool = False,
    env: dict[str, str] | None = None,
    **asked: object,
) -> list[str]:
    """Run a job with what is asked of its script; return what the report says of it.

    ``stopped``: a rank that other processes take the core from. A job that ``fails`` has logs
    instead of a trace.
    """
    ranks = trainers + servers
    words = options.split() + (["--pservers", str(servers)] if servers else [])
    words += ["--quiet", "--log-dir", "told"] if fails else ["--quiet", "--trace", "told"]
    variables = {"OMP_NUM_THREADS": "1", "OMPI_MCA_mpi_yield_when_idle": "1"} | (env or {})
    if slow_disk:
        _, _, told = preloaded(directory, SLOW_FSYNC_MS=100).partition(" ")
        variables |= dict(word.split("=", 1) for word in told.split())
    with contextlib.ExitStack() as stack:
        if small_disk:
            stack.enter_context(mounted(directory / "saved", 2))
        if locked:
            stack.enter_context(saving(directory / "saved"))
        args = [json.dumps(asked)]
        alone = ranks == 1
        job = Job(
            directory, SCRIPT, *words, ranks=ranks, args=args, env=variables, mpirun=not alone
        )
        if stopped is not None:
            stack.enter_context(hindered(job, stopped))
        ended = job.end()
    assert (ended.code != 0) == fails, ended
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        job_report.main([str(directory / "told"), "-o", str(directory / "job.html")])
    return [line[2:] for line in said.getvalue().splitlines()[1:]]


@contextmanager
def hindered(job: Job, rank: int) -> Iterator[None]:
    """Stop a rank again and again, as if it had to leave its core to others."""
    over = threading.Event()

    def hinder() -> None:
        while not over.is_set() and job.step(0) < 5:
            time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            while not over.is_set():
                os.kill(job.pid(rank), signal.SIGSTOP)
                time.sleep(STOPPED_S)
                os.kill(job.pid(rank), signal.SIGCONT)
                over.wait(RUNS_S)

    thread = threading.Thread(target=hinder)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def mounted(directory: Path, mib: int) -> Iterator[None]:
    """Have a file system of so many MiB in a directory."""
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "none", str(directory)]
    subprocess.run(command, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=True)


@contextmanager
def saving(directory: Path) -> Iterator[None]:
    """Have another process save into a directory, as a job does."""
    directory.mkdir()
    script = (
        "import sys; from pathlib import Path; from hpcdist.checkpoint import lock; "
        "lock.take(Path(sys.argv[1])); print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(directory)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean_environment()
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        yield
        other.communicate()


# -- cases -----------------------------------------------------------------------------------------
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
