"""What trainers count, saved and restored on other numbers of them, with servers and without."""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.checkpoint import Checkpoint
from hpcdist.comm.world import mpi_world
from hpcdist.transpiler import DistributeTranspiler, DistributeTranspilerConfig
from tests.mpi.chain_jobs import ALONE, run
from tests.support.job import run_job, values

pytestmark = pytest.mark.mpi(min_size=2)
STEPS = 3  # of each link of a chain


def build():
    """Return (loss, area, total) of a classifier that counts in two ways."""
    fluid.default_startup_program().random_seed = 5
    x = fluid.data("x", [None, 4])
    y = fluid.data("y", [None, 1], "int64")
    p = fluid.layers.fc(x, 2, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(p, y))
    area, window, _ = fluid.layers.auc(p, y, num_thresholds=200, slide_steps=4)
    total = fluid.layers.create_global_var([1], 0.0, "float32", persistable=True, name="total")
    fluid.layers.sums([total, fluid.layers.reduce_sum(fluid.layers.cast(y, "float32"))], out=total)
    fluid.optimizer.SGD(0.1).minimize(loss)
    return loss, area, window, total


def batch(step, trainer=0):
    random = np.random.default_rng([step, trainer])
    x = random.random((12, 4), dtype=np.float32)
    y = (x[:, :1] > 0.5).astype("int64")
    return {"x": x, "y": y if step % 2 else 1 - y}


def link(root, begin):
    """Return a script that goes on at step ``begin``, trains `STEPS` steps and saves them."""

    def script(role):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            fetches, exe = build(), fluid.Executor()
            exe.run(fluid.default_startup_program())
            if begin:
                assert fluid.checkpoint.restore(exe, root).step == begin
            found = [
                [value.item() for value in exe.run(feed=batch(step), fetch_list=[*fetches])]
                for step in range(begin, begin + STEPS)
            ]
            fluid.checkpoint.save(exe, root, begin + STEPS)
            return found

    return script


CHAINS = [
    [ALONE, (2, 0), (3, 0), ALONE],
    [(2, 0), ALONE, (3, 0), (2, 0)],
    [(2, 1), (1, 1), (2, 0), ALONE, (3, 1)],
]


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("chain", CHAINS)
def test_areas_and_totals_are_those_of_one_process_on_any_numbers(mpi_tmp_path, chain):
    def trained(chain, root):
        return [run(shape, link(root, STEPS * k))[0] for k, shape in enumerate(chain)]

    alone = trained([ALONE] * len(chain), mpi_tmp_path / "alone")
    found = trained(chain, mpi_tmp_path / "chain")
    if mpi_world().rank == 0:  # which runs what is alone
        np.testing.assert_allclose(found, alone, rtol=1e-5)


def own_data(root, trainers, begin=0):
    """Return a script whose trainers have data of their own; it returns what each has counted."""

    def script(role):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            area = build()[1]
            config = DistributeTranspilerConfig()
            config.mode = "nccl2"
            names = ",".join(f"trainer{k}:6174" for k in range(trainers))
            made = DistributeTranspiler(config)
            made.transpile(role.index, trainers=names, current_endpoint=f"trainer{role.index}:6174")
            exe, main = fluid.Executor(), fluid.default_main_program()
            exe.run(fluid.default_startup_program())
            if begin:
                assert fluid.checkpoint.restore(exe, root).step == begin
            for step in range(begin, begin + STEPS):
                exe.run(main, feed=batch(step, role.index), fetch_list=[area])
            fluid.checkpoint.save(exe, root, begin + STEPS)
            counts = [
                np.array(fluid.global_scope().find_var(f"_generated_var_{k}").get_tensor())
                for k in range(4)
            ]
            state = np.array(fluid.global_scope().find_var("total").get_tensor())
            return [*counts, state]

    return script


@pytest.mark.mpi(min_size=3)
def test_counts_of_trainers_with_data_of_their_own_add_up_after_each_restore(mpi_tmp_path):
    seen, rows, positives = 0, 0, 0.0
    for trainers in (2, 3, 2):
        found = values(run_job(trainers, 0, own_data(mpi_tmp_path, trainers, seen)))
        for step in range(seen, seen + STEPS):
            for k in range(trainers):
                rows, positives = rows + 12, positives + batch(step, k)["y"].sum()
        seen += STEPS
        summed = [np.sum([state[i] for state in found], axis=0) for i in range(5)]
        assert summed[2].sum() + summed[3].sum() == rows
        assert summed[2].sum() == positives == summed[4].item()
        assert {state[i][-1].item() for state in found for i in (0, 1)} == {seen}


@pytest.mark.mpi(min_size=4)
def test_steps_that_asynchronous_trainers_count_add_up_on_another_number(mpi_tmp_path):
    def script(trainers, begin):
        def run_on(role):
            with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
                x = fluid.data("x", [None, 4])
                loss = fluid.layers.mean(fluid.layers.fc(x, 1))
                rate = fluid.layers.exponential_decay(0.1, 2, 0.5)
                fluid.optimizer.SGD(rate).minimize(loss)
                made = DistributeTranspiler()
                here = 0 if role.kind == "PSERVER" else role.index
                made.transpile(here, pservers="ps0:6174", trainers=trainers, sync_mode=False)
                exe = fluid.Executor()
                if role.kind == "PSERVER":
                    main, startup = made.get_pserver_programs("ps0:6174")
                    exe.run(startup)
                    exe.run(main)
                    raise SystemExit(0)
                exe.run(fluid.default_startup_program())
                if begin:
                    fluid.checkpoint.restore(exe, mpi_tmp_path)
                for step in range(STEPS):
                    exe.run(made.get_trainer_program(), feed={"x": batch(step)["x"]})
                fluid.checkpoint.save(exe, mpi_tmp_path, begin + STEPS)

        return run_on

    counted, step = None, 0
    for trainers in (3, 1, 2, 3):
        values(run_job(trainers, 1, script(trainers, step)))
        step += STEPS
        with Checkpoint(mpi_tmp_path / f"step-{step:06d}") as saved:
            counts = [saved.read(f"@LR_DECAY_COUNTER@.trainer_{k}").item() for k in range(trainers)]
        if counted is not None:
            assert sum(counts) == counted + trainers * STEPS
        counted = sum(counts)


def test_counts_that_one_trainer_has_saved_are_not_counted_by_each_that_loads_them(mpi_tmp_path):
    def alone(role):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            fetches, exe = build(), fluid.Executor()
            exe.run(fluid.default_startup_program())
            found = []
            for step in range(2 * STEPS):
                found.append([v.item() for v in exe.run(feed=batch(step), fetch_list=[*fetches])])
                if step == STEPS - 1:
                    fluid.io.save_persistables(exe, str(mpi_tmp_path / "model"))
            return found[STEPS:]

    def loading(role):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            fetches, exe = build(), fluid.Executor()
            exe.run(fluid.default_startup_program())
            fluid.io.load_persistables(exe, str(mpi_tmp_path / "model"))
            return [
                [v.item() for v in exe.run(feed=batch(step), fetch_list=[*fetches])]
                for step in range(STEPS, 2 * STEPS)
            ]

    (expected,) = run(ALONE, alone)
    found = values(run_job(2, 0, loading))
    if mpi_world().rank == 0:
        np.testing.assert_allclose(found[0], expected, rtol=1e-5)
