"""Deep gradient compression: trainers against its formulas in numpy, and what is refused."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.comm.cluster import Cluster
from hpcdist.errors import CheckpointError
from hpcdist.fleet import DistributedStrategy, Fleet
from hpcdist.launch import environment
from tests.mpi.collective_jobs import parameters, refused
from tests.support.job import alone, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

FEATURES, HIDDEN, ROWS, STEPS = 64, 256, 8, 7  # one parameter of 16384 elements, three of fewer
BEGIN, RAMPUP, SPARSITY = 2, 3, [0.75, 0.9, 0.99]
RATE, MU, DECAY = 0.1, 0.9, 0.01
TRAINERS = [2, 3]


def batch(step: int, trainer: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(100 * step + trainer)
    x = rng.uniform(-1, 1, (ROWS, FEATURES)).astype(np.float32)
    return {"x": x, "y": np.sin(x[:, :1] * 3)}


def network(minimize: Any) -> tuple[Any, Any, Any]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x, y = layers.data("x", [FEATURES]), layers.data("y", [1])
        hidden = layers.fc(x, HIDDEN, act="tanh")
        loss = layers.mean(layers.square_error_cost(layers.fc(hidden, 1), y))
        minimize(loss)
    return main, startup, loss


def optimizer(nesterov: bool = False, clip: float | None = None, trainers: int = 2) -> Any:
    return fluid.optimizer.DGCMomentumOptimizer(
        RATE,
        MU,
        rampup_begin_step=BEGIN,
        rampup_step=RAMPUP,
        sparsity=SPARSITY,
        use_nesterov=nesterov,
        regularization=fluid.regularizer.L2Decay(DECAY),
        num_trainers=trainers,
        grad_clip=None if clip is None else fluid.clip.GradientClipByNorm(clip),
    )


def script(patch: Any, trainers: int, choose: Any, root: Any = None, begin: int = 0) -> Any:
    """A script of fleet; it saves after step 4, or goes on from there."""

    def run(role: Any) -> Any:
        cluster = Cluster(tuple(range(trainers)))
        for name, value in environment.variables(cluster, role.index).items():
            patch.setenv(name, value)
        fleet = Fleet()
        fleet.init(is_collective=True)
        made = choose(fleet)
        main, startup, loss = network(made.minimize)
        exe = fluid.Executor()
        exe.run(startup)
        if begin:
            fluid.checkpoint.restore(exe, root, main_program=main)
        losses = []
        for step in range(begin, STEPS):
            feed = batch(step, role.index)
            losses.append(float(exe.run(fleet.main_program, feed=feed, fetch_list=[loss])[0][0]))
            if step == 3 and root is not None and not begin:
                fluid.checkpoint.save(exe, root, 4, main_program=main)
        return losses, {n: v.tobytes() for n, v in parameters(main).items()}, parameters(main)

    return run


def compressing(nesterov: bool, clip: float | None, trainers: int) -> Any:
    return lambda fleet: fleet.distributed_optimizer(optimizer(nesterov, clip, trainers))


# -- in numpy --------------------------------------------------------------------------------------
class Reference:
    """All trainers in one process: gradients by the framework, all else by the paper."""

    def __init__(self, trainers: int, nesterov: bool, clip: float | None) -> None:
        self.trainers, self.nesterov = trainers, nesterov
        self.clip = None if clip is None else clip * trainers**-0.5
        self.main, startup, self.loss = network(fluid.backward.append_backward)
        self.exe = fluid.Executor()
        self.exe.run(startup)
        self.values = parameters(self.main)
        self.u: dict[tuple[str, int], np.ndarray] = {}
        self.v: dict[tuple[str, int], np.ndarray] = {}
        for name, value in self.values.items():
            for k in range(trainers):
                self.u[name, k] = np.zeros(value.shape, np.float32).reshape(-1)
                self.v[name, k] = np.zeros(value.shape, np.float32).reshape(-1)

    def step(self, number: int) -> list[float]:
        names = sorted(self.values)
        losses, gradients = [], []
        for k in range(self.trainers):
            loss, *found = self.exe.run(
                self.main,
                feed=batch(number, k),
                fetch_list=[self.loss, *(f"{name}@GRAD" for name in names)],
            )
            losses.append(float(loss[0]))
            gradients.append(dict(zip(names, (g.reshape(-1) for g in found))))
        for name in names:
            sparse = self.values[name].size >= 16384 and number >= BEGIN
            move = self._sent if sparse else self._dense
            value = self.values[name]
            moved = value.reshape(-1) - RATE * move(name, number, [g[name] for g in gradients])
            self.values[name] = moved.reshape(value.shape).astype(np.float32)
            tensor = fluid.global_scope().find_var(name).get_tensor()
            tensor.set(self.values[name], fluid.CPUPlace())
        return losses

    def _dense(self, name: str, number: int, gradients: list[np.ndarray]) -> np.ndarray:
        value = self.values[name].reshape(-1)
        g = np.mean(gradients, axis=0) + DECAY * value
        if self.clip is not None and value.size < 16384:  # Fluid clips it after the sum
            mean = np.mean(gradients, axis=0)
            most = self.clip * self.trainers**0.5
            g = mean * min(1, most / np.linalg.norm(mean)) + DECAY * value
        u = MU * self.u[name, 0] + g
        for k in range(self.trainers):
            self.u[name, k] = u.copy()
        return g + MU * u if self.nesterov else u

    def _sent(self, name: str, number: int, gradients: list[np.ndarray]) -> np.ndarray:
        value = self.values[name].reshape(-1)
        sparsity = SPARSITY[min((number - BEGIN) * len(SPARSITY) // RAMPUP, len(SPARSITY) - 1)]
        count = int(value.size * (1 - np.float32(sparsity)))
        total = np.zeros(value.size)
        for k, g in enumerate(gradients):
            part = g / self.trainers
            if self.clip is not None:
                part = part * min(1, self.clip / np.linalg.norm(part))
            g = part * self.trainers + DECAY * value
            u, v = self.u[name, k], self.v[name, k]
            if self.nesterov:
                u[:] = MU * (u + g)
                v += u + g
            else:
                u[:] = MU * u + g
                v += u
            chosen = np.argsort(np.abs(v))[-count:]
            total[chosen] += v[chosen]
            u[chosen] = v[chosen] = 0
        return total / self.trainers


@pytest.mark.parametrize(
    ("trainers", "nesterov", "clip"), [(2, False, None), (3, True, None), (2, False, 0.05)]
)
def test_trainers_send_the_largest_elements(trainers, nesterov, clip, monkeypatch, caplog):
    caplog.set_level(logging.WARNING, "hpcdist")
    choose = compressing(nesterov, clip, trainers)
    found = values(run_job(trainers, 0, script(monkeypatch, trainers, choose)))
    with alone():
        reference = Reference(trainers, nesterov, clip)
        losses = [reference.step(number) for number in range(STEPS)]
    got = np.array([losses for losses, _, _ in found]).T
    np.testing.assert_allclose(got, losses, rtol=1e-4, atol=1e-5)
    assert all(held == found[0][1] for _, held, _ in found)
    for name, value in reference.values.items():
        np.testing.assert_allclose(found[0][2][name], value, rtol=1e-3, atol=1e-5)


def test_what_differs_from_one_process_is_told_before_the_first_step(monkeypatch, caplog):
    caplog.set_level(logging.WARNING, "hpcdist")

    def told(role: Any) -> Any:
        script(monkeypatch, 2, compressing(False, None, 2))(role)
        return [text for text in caplog.messages if "DGCMomentum" in text]

    first, second = values(run_job(2, 0, told))
    (text,) = first
    assert "from step 3 on" in text and "but not equal" in text
    assert second == []


@pytest.mark.parametrize("trainers", TRAINERS)
def test_until_it_begins_it_is_momentum(trainers, monkeypatch):
    """So it is in one process."""
    decay = fluid.regularizer.L2Decay(DECAY)
    late = fluid.optimizer.DGCMomentumOptimizer(RATE, MU, STEPS, regularization=decay)
    momentum = fluid.optimizer.Momentum(RATE, MU, regularization=decay)
    found = []
    for made in (late, momentum):
        choose = lambda fleet, made=made: fleet.distributed_optimizer(made)  # noqa: E731
        found.append(values(run_job(trainers, 0, script(monkeypatch, trainers, choose))))
    assert [rank[:2] for rank in found[0]] == [rank[:2] for rank in found[1]]
    with alone():
        for minimize in (optimizer().minimize, momentum.minimize):
            main, startup, loss = network(minimize)
            with fluid.scope_guard(fluid.Scope()):
                exe = fluid.Executor()
                exe.run(startup)
                for number in range(STEPS):
                    exe.run(main, feed=batch(number, 0), fetch_list=[loss])
                found.append({n: v.tobytes() for n, v in parameters(main).items()})
    assert found[2] == found[3]


def of_strategy(fleet: Any) -> Any:
    strategy = DistributedStrategy()
    strategy.dgc = True
    strategy.dgc_configs = {"rampup_begin_step": 1, "sparsity": [0.9]}
    decay = fluid.regularizer.L2Decay(DECAY)
    momentum = fluid.optimizer.Momentum(RATE, MU, regularization=decay)
    return fleet.distributed_optimizer(momentum, strategy)


def test_a_job_goes_on_with_what_was_not_sent(mpi_tmp_path, monkeypatch):
    whole = values(run_job(2, 0, script(monkeypatch, 2, of_strategy, mpi_tmp_path)))
    rest = values(run_job(2, 0, script(monkeypatch, 2, of_strategy, mpi_tmp_path, begin=4)))
    for (losses, held, _), (all_losses, all_held, _) in zip(rest, whole):
        assert (losses, held) == (all_losses[4:], all_held)
    with alone():
        late = fluid.optimizer.DGCMomentumOptimizer(RATE, MU, 1, sparsity=[0.9])
        main, startup, _ = network(late.minimize)
        exe = fluid.Executor()
        exe.run(startup)
        with pytest.raises(CheckpointError, match="had not sent of its gradients, this job has 1"):
            fluid.checkpoint.restore(exe, mpi_tmp_path, main_program=main)


def test_a_job_goes_on_from_one_process_which_sends_all(mpi_tmp_path, monkeypatch):
    ((losses, *_),) = values(run_job(1, 0, script(monkeypatch, 1, of_strategy, mpi_tmp_path)))
    rest = values(run_job(2, 0, script(monkeypatch, 2, of_strategy, mpi_tmp_path, begin=4)))
    assert rest[0][0][0] == losses[4]


def plain(role: Any) -> Any:
    """A script that knows nothing of ranks."""
    main, startup, loss = network(optimizer().minimize)
    exe = fluid.Executor()
    exe.run(startup)
    feeds = [[batch(step, k) for k in range(2)] for step in range(STEPS)]
    whole = [{n: np.concatenate([f[n] for f in step]) for n in step[0]} for step in feeds]
    return [float(exe.run(main, feed=feed, fetch_list=[loss])[0][0]) for feed in whole]


def test_a_plain_script_compresses_too(monkeypatch):
    first, second = values(run_job(2, 0, plain))
    with alone():
        reference = Reference(2, False, None)
        losses = [float(np.mean(reference.step(number))) for number in range(STEPS)]
    assert first == second
    np.testing.assert_allclose(first, losses, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("gradient_merge", "gradient merge sends in some steps only"),
        ("amp", "mixed precision scales by other numbers"),
        ("localsgd", "sends parameters and no gradients, which DGCMomentum would compress"),
    ],
)
def test_what_does_not_go_with_it(field, words, monkeypatch):
    def choose(fleet: Any) -> Any:
        strategy = DistributedStrategy()
        setattr(strategy, field, True)
        if field == "gradient_merge":
            strategy.gradient_merge_configs = {"k_steps": 2}
        return fleet.distributed_optimizer(optimizer(), strategy)

    refused(script(monkeypatch, 2, choose), words)


def test_servers_refuse_it():
    outcomes = run_job(1, 1, plain, aborts=False)
    assert any("DGCMomentum compresses the gradients" in outcome.error for outcome in outcomes)
