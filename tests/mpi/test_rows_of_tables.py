"""Sparse tables cut over servers: in some steps a server gets no rows, and changes nothing."""

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from tests.support.job import alone, begin, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

ROWS, WIDTH, STEPS = 2000, 16, 8  # large enough to be cut in two
OPTIMIZERS = {
    "sgd": lambda: fluid.optimizer.SGD(0.1),
    "adagrad": lambda: fluid.optimizer.Adagrad(0.1),
    "adam": lambda: fluid.optimizer.Adam(0.01),
    "lazy adam": lambda: fluid.optimizer.Adam(0.01, lazy_mode=True),
    "momentum": lambda: fluid.optimizer.Momentum(0.1, 0.9),
    "rmsprop": lambda: fluid.optimizer.RMSProp(0.01),
}


def build(optimizer):
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        ids = fluid.data("ids", [None, 1], "int64")
        y = fluid.data("y", [None, 1], "float32")
        table = fluid.ParamAttr("table", initializer=fluid.initializer.Uniform(-0.5, 0.5))
        rows = layers.embedding(ids, [ROWS, WIDTH], is_sparse=True, param_attr=table)
        loss = layers.mean(layers.square_error_cost(layers.fc(rows, 1), y))
        OPTIMIZERS[optimizer]().minimize(loss)
    return main, startup, loss


def batch(step):
    """Rows of one half of the table only, of each half again and again."""
    rng = np.random.default_rng(step)
    first = ROWS // 2 if step % 3 == 1 else 0
    ids = rng.choice(8, 8, replace=False) + first
    return {"ids": ids[:, None], "y": rng.uniform(-1, 1, (8, 1)).astype(np.float32)}


def losses_of(exe, program, loss):
    fetched = [exe.run(program, feed=batch(step), fetch_list=[loss])[0] for step in range(STEPS)]
    return [float(value[0]) for value in fetched]


@pytest.mark.parametrize("sync_mode", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("servers", [1, 2, 3])
def test_a_server_without_rows_moves_what_moves_by_itself(optimizer, sync_mode, servers):
    def script(role):
        main, startup, loss = build(optimizer)
        exe, program = begin(role, 1, servers, main, startup, sync_mode=sync_mode)
        found = losses_of(exe, program, loss)
        exe.close()
        return found

    (found,) = values(run_job(1, servers, script))
    with alone():
        main, startup, loss = build(optimizer)
        exe = fluid.Executor()
        exe.run(startup)
        expected = losses_of(exe, main, loss)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert expected[-1] != expected[0]
