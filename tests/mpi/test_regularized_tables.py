"""Weight decay of sparse tables: all rows, as in Fluid; of distributed ones the rows of a batch."""

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.regularizer import L1Decay, L2Decay
from tests.support.job import alone, begin, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

ROWS, WIDTH, STEPS = 2000, 16, 6  # large enough to be cut in two
DECAYS = {"l1": L1Decay(0.02), "l2": L2Decay(0.1)}
CLIP = fluid.clip.GradientClipByGlobalNorm(0.5)
OPTIMIZERS = {
    "sgd": fluid.optimizer.SGD,
    "adagrad": fluid.optimizer.Adagrad,
    "clipped": lambda rate, **how: fluid.optimizer.SGD(rate, grad_clip=CLIP, **how),
}


def build(optimizer, decay, *, own, distributed):
    """``own``: the table alone is regularized, else all parameters by the optimizer."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        ids = fluid.data("ids", [None, 1], "int64")
        y = fluid.data("y", [None, 1], "float32")
        table = fluid.ParamAttr(
            "table",
            initializer=fluid.initializer.Uniform(-0.5, 0.5),
            regularizer=DECAYS[decay] if own else None,
        )
        how = {"is_sparse": True, "is_distributed": distributed, "param_attr": table}
        rows = layers.embedding(ids, [ROWS, WIDTH], **how)
        loss = layers.mean(layers.square_error_cost(layers.fc(rows, 1), y))
        OPTIMIZERS[optimizer](0.1, regularization=None if own else DECAYS[decay]).minimize(loss)
    return main, startup, loss


def losses_of(exe, program, loss):
    """Train on the first half of the table, and look at all of it at last."""
    found = []
    for step in range(STEPS):
        rng = np.random.default_rng(step)
        seen = np.tile(rng.integers(0, ROWS // 2, 8), 4)  # by each trainer, some twice
        ids = np.arange(0, ROWS, 50) if step == STEPS - 1 else seen
        y = rng.uniform(-1, 1, (len(ids), 1)).astype(np.float32)
        (value,) = exe.run(program, feed={"ids": ids[:, None], "y": y}, fetch_list=[loss])
        found.append(float(value[0]))
    return found


def expected(*args, **kind):
    with alone():
        main, startup, loss = build(*args, **kind)
        exe = fluid.Executor()
        exe.run(startup)
        return losses_of(exe, main, loss)


@pytest.mark.parametrize("distributed", [False, True], ids=["sparse", "distributed"])
@pytest.mark.parametrize(
    ("optimizer", "decay", "own"), [("sgd", "l2", 1), ("adagrad", "l1", 0), ("clipped", "l2", 0)]
)
@pytest.mark.parametrize(("trainers", "servers"), [(1, 1), (2, 2)])
def test_a_job_decays_as_one_process(trainers, servers, optimizer, decay, own, distributed):
    kind = {"own": bool(own), "distributed": distributed}

    def script(role):
        main, startup, loss = build(optimizer, decay, **kind)
        exe = fluid.Executor()
        exe.run(startup)
        found = losses_of(exe, main, loss)
        exe.close()
        return found

    for found in values(run_job(trainers, servers, script)):
        np.testing.assert_allclose(found, expected(optimizer, decay, **kind), rtol=1e-5)


@pytest.mark.parametrize(
    ("distributed", "sync_mode"), [(False, True), (True, False)], ids=["sparse", "asynchronous"]
)
def test_a_script_that_transpiles_decays_as_one_process(distributed, sync_mode):
    kind = {"own": False, "distributed": distributed}

    def script(role):
        main, startup, loss = build("sgd", "l2", **kind)
        exe, program = begin(role, 1, 1, main, startup, sync_mode=sync_mode)
        found = losses_of(exe, program, loss)
        exe.close()
        return found

    (found,) = values(run_job(1, 1, script))
    np.testing.assert_allclose(found, expected("sgd", "l2", **kind), rtol=1e-5)
