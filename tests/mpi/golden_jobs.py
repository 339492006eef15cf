"""The golden runs as jobs with parameter servers: what their tests share."""

import time

import numpy as np

from hpcdist import runtime
from hpcdist.comm.cluster import PSERVER, Cluster
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope
from hpcdist.transpiler import DistributeTranspiler, DistributeTranspilerConfig
from tests.golden.loader import golden
from tests.golden.loss_runs import ROWS, STEPS, build, fed

RUNS = golden("losses.json")["runs"]

TURN, STOP = 77, object()  # a tag; the end of a trainer's turns

LOCAL = [n for n, run in RUNS.items() if not run["setting"]["clip"]]


def take_turns(transport, order, trainer):
    """Yield when it is a trainer's turn to step; the next one's comes when this one goes on."""
    token = np.zeros(1)
    for turn, who in enumerate(order):
        before, after = order[turn - 1], (*order, who)[turn + 1]
        if who == trainer:
            if turn and before != who:
                transport.wait_all([transport.irecv(token, before, TURN)], lambda: "a turn")
            yield
            if after != who:
                transport.wait_all([transport.isend(token, after, TURN)], lambda: "the next turn")


def transpiled(cluster, role, setting, config, *, sync=True):
    """Return the main and startup program and the loss of a golden run, and its transpiler."""
    main, startup, loss = build(setting)
    transpiler = DistributeTranspiler(config)
    transpiler.transpile(
        role.index if role.kind != PSERVER else 0,
        program=main,
        pservers=",".join(cluster.endpoints),
        trainers=len(cluster.trainers),
        sync_mode=sync,
        startup_program=startup,
    )
    return main, startup, loss, transpiler


def serve(transpiler, endpoint, exe, scope):
    """Run a server until its trainers have left."""
    program, first = transpiler.get_pserver_programs(endpoint)
    exe.run(first, scope=scope)
    exe.run(program, scope=scope)


def train_async(
    transport, trainers, servers, setting, *, steps=STEPS, slow=None, order=None, **fields
):
    """Train asynchronously on this rank; return losses, parameters, and staleness per step.

    With an ``order`` trainers step one after the other, and begin when it is first their turn.
    """
    cluster = cluster_of(trainers, servers)
    role = cluster.role_of(transport.rank)
    config = DistributeTranspilerConfig()
    for name, value in fields.items():
        setattr(config, name, value)
    main, startup, loss, transpiler = transpiled(cluster, role, setting, config, sync=False)
    runtime.start(transport, cluster)
    try:
        exe, scope = Executor(), Scope()
        if role.kind == PSERVER:
            serve(transpiler, cluster.endpoints[role.index], exe, scope)
            return [], {}, []
        program = transpiler.get_trainer_program()
        turns = take_turns(transport, order, role.index) if order else iter(range(steps))
        more = next(turns, STOP)
        exe.run(startup, scope=scope)
        losses, stale = [], []
        while more is not STOP:
            step = len(losses)
            feed = rows_of(fed(setting, step % STEPS), role.index, trainers)
            losses.append(float(exe.run(program, feed, [loss], scope=scope)[0][0]))
            stale.append(runtime.staleness())
            if slow == role.index:
                time.sleep(0.005)
            more = next(turns, STOP)
        names = [p.name for p in main.all_parameters() if p.name != "table"]
        values = {n: np.array(scope.find_var(n).get_tensor()) for n in names}
        exe.close()
        return losses, values, stale
    finally:
        runtime.finish()


def converged(losses, name):
    """Tell whether losses end far below what an untrained model has.

    A trainer's own first losses say little: the other one may have trained for a while by then.
    """
    untrained = RUNS[name]["local"]["loss"][0]
    return np.isfinite(losses).all() and np.mean(losses[-20:]) < 0.1 * untrained


SHAPES = {2: (1, 1), 3: (2, 1), 4: (2, 2), 7: (4, 3)}  # world size -> trainers, servers


def cluster_of(trainers: int, servers: int) -> Cluster:
    return Cluster(tuple(range(trainers)), tuple(range(trainers, trainers + servers)))


def rows_of(feed, trainer, trainers):
    share = slice(ROWS * trainer // trainers, ROWS * (trainer + 1) // trainers)
    return {name: value[share] for name, value in feed.items()}
