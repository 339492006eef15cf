"""Areas under curves over all trainers are those of one process on all rows."""

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import fleet, layers
from tests.support_job import alone, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

ROWS = [7, 1, 2, 13, 1, 8]  # in each step: some trainers have none


def build():
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x, y = layers.data("x", [4]), layers.data("y", [1], dtype="int64")
        guess = layers.fc(x, 2, act="softmax")
        total, last, stats = layers.auc(guess, y, num_thresholds=999, slide_steps=2)
        loss = layers.mean(layers.cross_entropy(guess, y))
        fluid.optimizer.SGD(0.1).minimize(loss)
    return main, startup, [total, last, *stats, loss]


def batch(step, rows):
    rng = np.random.default_rng(step)
    label = rng.integers(0, 2, (rows, 1))
    x = rng.normal(size=(rows, 4)) + 0.5 * label
    return {"x": x.astype("float32"), "y": label}


def train():
    main, startup, fetches = build()
    exe = fluid.Executor()
    exe.run(startup)
    found = [exe.run(main, batch(step, rows), fetches) for step, rows in enumerate(ROWS)]
    exe.close()
    return found


@pytest.mark.parametrize(("trainers", "servers"), [(2, 0), (2, 1), (3, 1)])
def test_a_plain_script_fetches_the_area_of_all_rows(trainers, servers):
    with alone():
        expected = train()
    for found in values(run_job(trainers, servers, lambda role: train())):
        for got, wanted in zip(found, expected, strict=True):
            for a, b in zip(got, wanted, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize(("trainers", "servers"), [(2, 0), (2, 1)])
def test_fleets_metrics_are_of_all_trainers(trainers, servers):
    def script(role):
        if role.kind == "PSERVER":
            raise SystemExit(0)
        own = np.array([role.index + 1.0, 5.0])
        return (
            fleet.metrics.sum(own),
            fleet.metrics.max(own),
            fleet.metrics.min(own),
            fleet.metrics.auc(np.array([role.index, 0, 2]), np.array([3, role.index, 0])),
            fleet.metrics.acc(role.index, 2),
        )

    for total, most, least, area, share in values(run_job(trainers, servers, script)):
        assert (total.tolist(), most.tolist(), least.tolist()) == ([3, 10], [2, 5], [1, 5])
        # All: positives 1, 0, 4 and negatives 6, 1, 0 by bucket.
        assert area == pytest.approx((4 * 7 + 0.5 * 6) / (5 * 7))
        assert share == 0.25
