"""The golden runs over parameter servers: a rank trains or serves, by the size of the world.

2 ranks: 1 trainer, 1 server; 3: 2 and 1; 4: 2 and 2; 7: 4 and 3.
"""

import numpy as np
import pytest

from hpcdist import runtime
from hpcdist.comm.cluster import PSERVER
from hpcdist.comm.world import mpi_world
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope
from hpcdist.transpiler import DistributeTranspilerConfig
from tests.golden.loader import golden
from tests.golden.loss_runs import STEPS, fed, tolerance
from tests.mpi.golden_jobs import SHAPES, cluster_of, rows_of, serve, transpiled
from tests.support.mpi_ranks import run_ranks

RUNS = {n: run for n, run in golden("losses.json")["runs"].items() if run["setting"]["sync"]}


def train(transport, cluster, setting, config=None):
    """Run 20 steps on this rank; return its losses and parameters, none on a server."""
    role = cluster.role_of(transport.rank)
    trainers = len(cluster.trainers)
    config = config or DistributeTranspilerConfig()
    main, startup, loss, transpiler = transpiled(cluster, role, setting, config)
    runtime.start(transport, cluster)
    try:
        exe, scope = Executor(), Scope()
        if role.kind == PSERVER:
            serve(transpiler, cluster.endpoints[role.index], exe, scope)
            return [], {}
        program = transpiler.get_trainer_program()
        exe.run(startup, scope=scope)
        losses = []
        for step in range(STEPS):
            feed = rows_of(fed(setting, step), role.index, trainers)
            losses.append(float(exe.run(program, feed, [loss], scope=scope)[0][0]))
        held = {p.name: scope.find_var(p.name) for p in main.all_parameters()}
        values = {n: np.array(v.get_tensor()) for n, v in held.items() if v.elsewhere is None}
        exe.close()
        return losses, values
    finally:
        runtime.finish()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", sorted(RUNS))
def test_losses_of_the_golden_run(name, monkeypatch):
    monkeypatch.setenv("HPCDIST_SPARSE_ROWS", "fluid")  # Fluid's Momentum misses rows
    run = RUNS[name]
    setting = run["setting"]
    size = mpi_world().size
    if size not in SHAPES:
        pytest.skip(f"no golden shape for {size} ranks")
    trainers, servers = SHAPES[size]
    cluster = cluster_of(trainers, servers)
    config = DistributeTranspilerConfig()
    for field, value in setting["config"].items():
        setattr(config, field, value)

    def body(transport):
        losses, values = train(transport, cluster, setting, config)
        gathered = transport.allgather_bytes(np.array(losses, np.float64).tobytes())
        mine = [np.frombuffer(g, np.float64) for g in gathered][:trainers]
        near = tolerance(setting)
        if (trainers, servers) == (2, 2):
            for got, want in zip(mine, run["trainers"]):
                np.testing.assert_allclose(got, want["loss"], rtol=near, atol=near)
        if not setting["clip"] or trainers == 1:
            np.testing.assert_allclose(np.mean(mine, 0), run["local"]["loss"], rtol=near, atol=near)
        for parameter, want in run["local"]["params"].items():
            if values and parameter != "table" and not setting["clip"]:
                first = values[parameter].reshape(-1)[: len(want["first"])]
                np.testing.assert_allclose(first, want["first"], rtol=near, atol=near)

    run_ranks(size, body)
