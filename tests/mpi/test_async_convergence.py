"""Asynchronous trainers learn houses and handwritten digits as well as one process does."""

import json

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import runtime
from hpcdist.comm.cluster import PSERVER
from hpcdist.comm.world import mpi_world
from hpcdist.dataset import diabetes, digits, files, mnist, uci_housing
from hpcdist.executor.scope import Scope
from hpcdist.transpiler import (
    DistributeTranspiler,
    DistributeTranspilerConfig,
    GeoSgdTranspiler,
)
from tests.mpi.golden_jobs import cluster_of
from tests.support.mpi_ranks import run_ranks

SPLIT = {"sync_mode": False, "runtime_split_send_recv": True}
QUEUED = {"max_merge_var_num": 2, "send_queue_size": 4, "is_sgd_optimizer": 0}
MODES = {  # fields of the configuration, FLAGS_communicator_*
    "async": ({}, {}),
    "stale": ({"max_staleness": 2}, {}),
    "dc_asgd": ({"enable_dc_asgd": True}, {}),
    "queued": (SPLIT, QUEUED),
    "half_async": (SPLIT | {"half_async": True}, {}),
    "geo": ({"geo_sgd_need_push_nums": 5}, {}),
}


def regression(data, unit):
    """Return what makes (loss, test program, inputs, samples to train, to test, a score).

    Values are in units that keep gradients small, as delay compensation needs: it squares them.
    """

    def task(rate):
        x = fluid.data(name="x", shape=[None, data.feature_num], dtype="float32")
        y = fluid.data(name="y", shape=[None, 1], dtype="float32")
        loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, size=1), y))
        test = fluid.default_main_program().clone(for_test=True)
        fluid.optimizer.SGD(rate).minimize(loss)
        samples = [[(x, y / unit) for x, y in part()()] for part in (data.train, data.test)]
        return loss, test, [x, y], *samples, loss

    return task


def classification(samples_of, features):
    """The same of a perceptron over handwritten digits, which is scored by its accuracy."""

    def task(rate):
        image = fluid.data(name="image", shape=[None, features], dtype="float32")
        label = fluid.data(name="label", shape=[None, 1], dtype="int64")
        hidden = fluid.layers.fc(image, size=64, act="relu")
        prediction = fluid.layers.fc(hidden, size=10, act="softmax")
        loss = fluid.layers.mean(fluid.layers.cross_entropy(input=prediction, label=label))
        accuracy = fluid.layers.accuracy(input=prediction, label=label)
        test = fluid.default_main_program().clone(for_test=True)
        fluid.optimizer.SGD(rate).minimize(loss)
        samples = samples_of()
        held = len(samples) // 4
        return loss, test, [image, label], samples[:-held], samples[-held:], accuracy

    return task


def needs(file, there):
    """Skip where a data set is neither in HPCDIST_DATA_HOME nor in the cache."""
    why = f"{files.DATA_HOME} lacks a file: curl -L {file.url} -o {file.name}"
    return pytest.mark.skipif(not there, reason=why)


# Data that come along, and larger ones where they are here.
NUMBERS = [
    pytest.param(regression(diabetes, 100), id="diabetes"),
    pytest.param(
        regression(uci_housing, 10),
        id="houses",
        marks=needs(uci_housing.FILE, uci_housing.available()),
    ),
]
IMAGES = [
    pytest.param(
        classification(lambda: [*digits.train()(), *digits.test()()], digits.feature_num),
        id="digits",
    ),
    pytest.param(
        classification(lambda: list(mnist.test()())[:4000], 784),
        id="mnist",
        marks=needs(mnist.FILES["test"][0], mnist.available("test")),
    ),
]


def run_epochs(exe, program, task, index, trainers, epochs, batch, scope):
    """Train on every ``trainers``-th sample; return the score on the test samples."""
    loss, test, inputs, train, held, score = task
    feeder = fluid.DataFeeder(inputs, fluid.CPUPlace())
    mine = train[index::trainers]
    order = np.random.RandomState(index)
    for _ in range(epochs):
        shuffled = [mine[i] for i in order.permutation(len(mine))]
        for begin in range(0, len(shuffled) - batch + 1, batch):
            feed = feeder.feed(shuffled[begin : begin + batch])
            exe.run(program, feed=feed, fetch_list=[loss], scope=scope)
    return float(exe.run(test, feed=feeder.feed(held), fetch_list=[score], scope=scope)[0][0])


def build(task, rate):
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 7
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        return main, startup, task(rate)


def alone(task, rate, epochs, batch):
    """Return the score of one process that trains on all samples."""
    main, startup, made = build(task, rate)
    exe, scope = fluid.Executor(), Scope()
    exe.run(startup, scope=scope)
    return run_epochs(exe, main, made, 0, 1, epochs, batch, scope)


def together(transport, mode, task, rate, epochs, batch):
    """Train with two asynchronous trainers; return this one's score, None on a server."""
    servers = transport.size - 2
    cluster = cluster_of(2, servers)
    role = cluster.role_of(transport.rank)
    config = DistributeTranspilerConfig()
    for name, value in MODES[mode][0].items():
        setattr(config, name, value)
    main, startup, made = build(task, rate)
    transpiler = (GeoSgdTranspiler if mode == "geo" else DistributeTranspiler)(config)
    transpiler.transpile(
        0 if role.kind == PSERVER else role.index,
        program=main,
        pservers=",".join(cluster.endpoints),
        trainers=2,
        startup_program=startup,
        **({} if mode == "geo" else {"sync_mode": False}),
    )
    runtime.start(transport, cluster)
    try:
        exe, scope = fluid.Executor(), Scope()
        if role.kind == PSERVER:
            program, first = transpiler.get_pserver_programs(cluster.endpoints[role.index])
            exe.run(first, scope=scope)
            exe.run(program, scope=scope)
            return None
        exe.run(startup, scope=scope)
        program = transpiler.get_trainer_program()
        score = run_epochs(exe, program, made, role.index, 2, epochs, batch, scope)
        exe.close()
        return score
    finally:
        runtime.finish()


def scores(monkeypatch, mode, *what):
    """Return (the score of each of two trainers, one process's); nothing on other ranks."""
    for name, value in MODES[mode][1].items():
        monkeypatch.setenv(f"FLAGS_communicator_{name}", str(value))
    found = []

    def body(transport):
        own = together(transport, mode, *what)
        told = [json.loads(data) for data in transport.allgather_bytes(json.dumps(own).encode())]
        if transport.rank == 0:
            found.extend(([score for score in told if score is not None], alone(*what)))

    run_ranks(min(mpi_world().size, 4), body)
    return found


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("task", NUMBERS)
def test_two_trainers_learn_a_regression(monkeypatch, task, mode):
    found = scores(monkeypatch, mode, task, 0.02, 25, 20)
    if found:
        together, alone = found
        assert alone < 0.4, "one process itself has not converged"
        assert min(together) < 1.25 * alone + 0.02  # the one that ended last knows all updates


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("task", IMAGES)
def test_two_trainers_learn_handwritten_digits(monkeypatch, task, mode):
    found = scores(monkeypatch, mode, task, 0.01, 12, 25)
    if found:
        together, alone = found
        assert alone > 0.85, "one process itself has not converged"
        assert max(together) > alone - 0.06
