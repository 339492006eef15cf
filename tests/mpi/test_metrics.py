"""Areas under curves over all trainers are those of one process on all rows."""

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import fleet, layers
from tests.support.job import alone, run_job, values

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


def train_to_be_precise():
    """Return what `precision_recall` finds in each step, the counts of which are kept."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x, y = layers.data("x", [4]), layers.data("y", [1], dtype="int64")
        guess = layers.fc(x, 2, act="softmax")
        best, indices = layers.topk(guess, 1)
        counts = layers.create_global_var([2, 4], 0.0, "float32", persistable=True)
        block = main.global_block()
        slots = "BatchMetrics", "AccumMetrics", "AccumStatesInfo"
        outs = {slot: block.create_var(slot.lower(), dtype="float32") for slot in slots}
        inputs = {"MaxProbs": best, "Indices": indices, "Labels": y, "StatesInfo": counts}
        block.append_op("precision_recall", inputs, outs, {"class_number": 2})
        layers.assign(outs["AccumStatesInfo"], counts)
        fluid.optimizer.SGD(0.1).minimize(layers.mean(layers.cross_entropy(guess, y)))
    exe = fluid.Executor()
    exe.run(startup)
    fetches = list(outs.values())
    found = [exe.run(main, batch(step, rows), fetches) for step, rows in enumerate(ROWS)]
    exe.close()
    return found


def test_precision_and_recall_are_those_of_all_rows():
    with alone():
        expected = train_to_be_precise()
    assert expected[-1][2].sum() == 2 * sum(ROWS)
    for found in values(run_job(2, 0, lambda role: train_to_be_precise())):
        for got, wanted in zip(found, expected, strict=True):
            for a, b in zip(got, wanted, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-6)


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
