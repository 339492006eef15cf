"""GEO: one trainer is local training, several converge, and no update is lost at the end."""

import functools
import pickle

import numpy as np
import pytest

from hpcdist import runtime
from hpcdist.comm.cluster import PSERVER
from hpcdist.comm.world import mpi_world
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope
from hpcdist.transpiler import DistributeTranspilerConfig, GeoSgdTranspiler
from tests.golden.loss_runs import STEPS, build, fed
from tests.mpi.golden_jobs import LOCAL, RUNS, cluster_of, rows_of
from tests.support.mpi_ranks import run_ranks


def values_of(scope, names):
    return {name: np.array(scope.find_var(name).get_tensor()) for name in names}


def train_geo(transport, trainers, servers, setting, *, push_every, steps=STEPS, in_turns=False):
    """Train on this rank; return losses and parameters by name.

    A server returns no losses, and its blocks by (parameter, begin, end). ``steps`` is a number,
    or one for each trainer; if a number, they keep pace. ``in_turns``: one trainer after the other
    takes a step, and leaves.
    """
    cluster = cluster_of(trainers, servers)
    role = cluster.role_of(transport.rank)
    serves = role.kind == PSERVER
    main, startup, loss = build(setting)
    transpiler = GeoSgdTranspiler(DistributeTranspilerConfig(geo_sgd_need_push_nums=push_every))
    transpiler.transpile(
        0 if serves else role.index,
        program=main,
        pservers=",".join(cluster.endpoints),
        trainers=trainers,
        startup_program=startup,
    )
    alike = transport.split(int(serves), transport.rank)
    runtime.start(transport, cluster)
    try:
        exe, scope = Executor(), Scope()
        if serves:
            program, first = transpiler.get_pserver_programs(cluster.endpoints[role.index])
            exe.run(first, scope=scope)
            exe.run(program, scope=scope)
            blocks = program.distribution.blocks
            found = values_of(scope, [b.name for b in blocks])
            return [], {(b.parameter, b.begin, b.end): found[b.name] for b in blocks}
        exe.run(startup, scope=scope)
        losses = []

        def take(step):
            feed = rows_of(fed(setting, step % STEPS), role.index, trainers)
            fetched = exe.run(transpiler.get_trainer_program(), feed, [loss], scope=scope)
            losses.append(float(fetched[0][0]))

        def in_turn(what):
            for trainer in range(trainers if in_turns else 1):
                if trainer == role.index or not in_turns:
                    what()
                if isinstance(steps, int):
                    alike.barrier()

        for step in range(steps if isinstance(steps, int) else steps[role.index]):
            in_turn(functools.partial(take, step))
        in_turn(exe.close)
        return losses, values_of(scope, [p.name for p in main.all_parameters()])
    finally:
        runtime.finish()


def shared(transport, value):
    """Return every rank's value, on every rank."""
    return [pickle.loads(data) for data in transport.allgather_bytes(pickle.dumps(value))]


def local(setting):
    main, startup, loss = build(setting)
    exe, scope = Executor(), Scope()
    exe.run(startup, scope=scope)
    runs = (exe.run(main, fed(setting, step), [loss], scope=scope) for step in range(STEPS))
    return [float(run[0][0]) for run in runs], values_of(
        scope, [p.name for p in main.all_parameters()]
    )


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("push_every", [1, 3, 100])
@pytest.mark.parametrize("name", LOCAL)
def test_one_trainer_is_local_training(name, push_every):
    """Losses and parameters bit for bit; the servers end with them too, up to rounding."""
    setting = RUNS[name]["setting"]
    servers = min(mpi_world().size - 1, 3)

    def body(transport):
        losses, values = train_geo(transport, 1, servers, setting, push_every=push_every)
        held = shared(transport, values)
        if not losses:
            return
        expected, parameters = local(setting)
        assert losses == expected
        assert values.keys() == parameters.keys()
        for name, value in values.items():
            assert np.array_equal(value, parameters[name]), name
        for server in held[1:]:
            for (name, begin, end), block in server.items():
                # Momentum moves rows that a step has not looked up; they are not exchanged.
                if name != "table" or setting["optimizer"] != "momentum":
                    whole = values[name][begin:end]
                    np.testing.assert_allclose(block, whole, rtol=1e-5, atol=1e-6)

    run_ranks(1 + servers, body)


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("push_every", [1, 4])
@pytest.mark.parametrize("name", ["linreg_sgd", "mlp_adam", "emb_sparse_sgd", "emb_sparse_adagrad"])
def test_several_trainers_converge(name, push_every):
    setting = RUNS[name]["setting"]
    servers = min(mpi_world().size - 2, 2)

    def body(transport):
        losses, values = train_geo(transport, 2, servers, setting, push_every=push_every, steps=120)
        held = shared(transport, values)
        # A trainer that starts late finds parameters that the other has trained already.
        untrained = max(shared(transport, float(np.mean(losses[:20])) if losses else 0.0))
        if losses:
            assert np.isfinite(losses).all()
            assert np.mean(losses[-20:]) < 0.7 * untrained
        # They train together: the trainers do not drift apart.
        for name in held[0]:
            if name != "table":
                np.testing.assert_allclose(held[0][name], held[1][name], atol=0.2)

    run_ranks(2 + servers, body)


@pytest.mark.mpi(min_size=3)
def test_differences_by_numbers():
    """One of two trainers leaves at once; the other's differences still count one half.

    After 7 steps with an exchange after 3, 6 and at the end, by the formulas of the mode.
    """
    setting = RUNS["linreg_sgd"]["setting"]

    def body(transport):
        losses, values = train_geo(transport, 2, 1, setting, push_every=3, steps=[7, 0])
        held = shared(transport, values)
        if losses:
            trained, served = by_hand(setting, 7, 3)
            np.testing.assert_allclose(held[0]["w"], trained, rtol=1e-5)
            np.testing.assert_allclose(held[2]["w", 0, 13], served, rtol=1e-5)

    run_ranks(3, body)


def by_hand(setting, steps, push_every):
    """Return what the first of two trainers has of w, and what the servers have, in float64."""
    x = np.append(0.1 * np.sin(1.0 + np.arange(13)), 0.05)[:, None]  # w and b
    y, z = x.copy(), x.copy()
    for step in range(steps):
        batch = rows_of(fed(setting, step), 0, 2)
        rows = np.hstack([batch["x"], np.ones((8, 1))])
        x = x - 0.01 * 2 * rows.T @ (rows @ x - batch["y"]) / 8
        if (step + 1) % push_every == 0 or step + 1 == steps:
            d = (x - y) / 2
            y, z = y + d, z + d
            x, y = x + z - y, z
    return x[:13], z[:13]


# -- several trainers, against a simulation in one process -----------------------------------------
class Simulated:
    """A trainer of GEO in this process: its own Program and scope, and what it has last read."""

    def __init__(self, setting):
        self.setting = setting
        self.main, startup, self.loss = build(setting)
        self.exe, self.scope = Executor(), Scope()
        self.exe.run(startup, scope=self.scope)
        self.names = [p.name for p in self.main.all_parameters()]
        self.y = values_of(self.scope, self.names)
        self.losses, self.touched, self.unseen = [], set(), set()

    def step(self, step, trainer, trainers):
        feed = rows_of(fed(self.setting, step), trainer, trainers)
        (loss,) = self.exe.run(self.main, feed, [self.loss], scope=self.scope)
        self.losses.append(float(loss[0]))
        self.touched |= set(feed["id"].reshape(-1).tolist()) if "id" in feed else set()

    def exchange(self, z, trainers, others):
        """d = (x - y) / trainers; y += d; z += d; x += z - y; y = z: of tables the rows known."""
        for name in self.names:
            x, y = np.array(self.scope.find_var(name).get_tensor()), self.y[name]
            pushed = sorted(self.touched) if name == "table" else slice(None)
            d = (x[pushed] - y[pushed]) / np.float32(trainers)
            y[pushed] += d
            z[name][pushed] += d
            if name == "table":
                for trainer in (self, *others):
                    trainer.unseen |= self.touched
            pulled = sorted(self.unseen) if name == "table" else slice(None)
            x[pulled] += z[name][pulled] - y[pulled]
            y[pulled] = z[name][pulled]
            self.scope.find_var(name).get_tensor().set(x, None)
        self.touched, self.unseen = set(), set()


def simulated(setting, trainers, push_every):
    """Train as GEO's trainers do that take turns; return them, and what the servers hold."""
    workers = [Simulated(setting) for _ in range(trainers)]
    z = {name: value.copy() for name, value in workers[0].y.items()}
    last = STEPS - STEPS % push_every
    for step in range(STEPS):
        for k, worker in enumerate(workers):
            worker.step(step, k, trainers)
            if (step + 1) % push_every == 0:
                worker.exchange(z, trainers, workers[:k] + workers[k + 1 :])
    for k, worker in enumerate(workers):
        if last < STEPS:
            worker.exchange(z, trainers, workers[:k] + workers[k + 1 :])
    return workers, z


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("push_every", [1, 3])
@pytest.mark.parametrize("name", ["linreg_sgd", "mlp_adam", "emb_sparse_sgd", "emb_sparse_adagrad"])
def test_trainers_in_turns_are_those_of_a_simulation(name, push_every):
    """Losses of each trainer, its parameters, and those of the servers; two trainers, or three."""
    setting = RUNS[name]["setting"]
    trainers, servers = (3, 1) if mpi_world().size > 3 and push_every == 1 else (2, 1)
    servers = mpi_world().size - trainers if trainers == 2 else servers

    def body(transport):
        losses, values = train_geo(
            transport, trainers, servers, setting, push_every=push_every, in_turns=True
        )
        held = shared(transport, (losses, values))
        workers, z = simulated(setting, trainers, push_every)
        for worker, (found, values) in zip(workers, held):
            np.testing.assert_allclose(found, worker.losses, rtol=1e-5)
            for parameter, value in values_of(worker.scope, worker.names).items():
                np.testing.assert_allclose(values[parameter], value, rtol=1e-5, atol=1e-6)
        for _, server in held[trainers:]:
            for (parameter, begin, end), block in server.items():
                np.testing.assert_allclose(block, z[parameter][begin:end], rtol=1e-5, atol=1e-6)

    run_ranks(trainers + servers, body)
