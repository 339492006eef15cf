"""Inference models that jobs save and load: their answers, and that training goes on as it was."""

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.executor.scope import Scope, scope_guard
from tests.support.job import alone, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)
KINDS = {
    "dense": {},
    "sparse": {"is_sparse": True},
    "distributed": {"is_sparse": True, "is_distributed": True},
}
STEPS = 9
IDS = np.random.default_rng(3).integers(0, 60, (STEPS, 12, 2))
SEEN_OR_NOT = {"ids": np.arange(48).reshape(24, 2)}  # batches that are shared, too


def script(folder, kind, apart):
    """Save after 3 steps, train 3, load, answer, train 3 again; return losses and answers."""
    with fluid.unique_name.guard(), fluid.program_guard(fluid.Program(), fluid.Program()):
        fluid.default_startup_program().random_seed = 4
        ids = fluid.data("ids", [None, 2], "int64")
        begin = fluid.initializer.Uniform(-0.5, 0.5)
        how = {"param_attr": fluid.ParamAttr("table", initializer=begin), **KINDS[kind]}
        rows = fluid.embedding(ids, [60, 4], **how)
        answer = layers.fc(layers.reshape(rows, [-1, 8]), 1)
        loss = layers.mean(layers.square(answer - 1.0))
        fluid.optimizer.Adagrad(0.1).minimize(loss)
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        found = []

        def train():
            for _ in range(3):
                (value,) = exe.run(feed={"ids": IDS[len(found)]}, fetch_list=[loss])
                found.append(float(value[0]))

        train()
        fluid.io.save_inference_model(folder, ["ids"], [answer], exe)
        train()
        with scope_guard(Scope() if apart else fluid.global_scope()):
            program, _, fetches = fluid.io.load_inference_model(folder, exe)
            (answers,) = exe.run(program, feed=SEEN_OR_NOT, fetch_list=fetches)
        train()
        exe.close()
        return found, answers


@pytest.mark.parametrize(
    ("trainers", "servers", "kind", "apart", "dense"),
    [
        *((1, 1, kind, True, "pserver") for kind in KINDS),
        *((2, 2, kind, apart, "pserver") for kind in KINDS for apart in (True, False)),
        (2, 0, "sparse", True, "pserver"),
        (2, 2, "distributed", True, "collective"),
    ],
)
def test_a_job_answers_as_one_process_and_trains_on(
    mpi_tmp_path, tmp_path, monkeypatch, trainers, servers, kind, apart, dense
):
    monkeypatch.setenv("HPCDIST_DENSE", dense)
    folder = str(mpi_tmp_path / "model")
    outcomes = values(run_job(trainers, servers, lambda role: script(folder, kind, apart)))
    with alone():
        losses, answers = script(str(tmp_path), kind, apart)
    for found, answered in outcomes:
        np.testing.assert_allclose(found, losses, rtol=1e-5)
        np.testing.assert_allclose(answered, answers, rtol=1e-5, atol=1e-7)
    with alone(), scope_guard(Scope()):  # what the job has saved, and nothing else
        exe = fluid.Executor()
        program, _, fetches = fluid.io.load_inference_model(folder, exe)
        (answered,) = exe.run(program, feed=SEEN_OR_NOT, fetch_list=fetches)
    np.testing.assert_allclose(answered, answers, rtol=1e-5, atol=1e-7)
