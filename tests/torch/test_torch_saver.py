"""Savers of torch: what a process alone saves is what it goes on with."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

import numpy as np
import torch
from torch import nn

import hpcdist as fluid
import hpcdist.torch as ours
from hpcdist.base.trace.position import here
from hpcdist.checkpoint import Choice, resume_state
from hpcdist.comm.world import mpi_world
from hpcdist.errors import CheckpointError, TableError
from hpcdist.serving import Lookup
from hpcdist.torch import saver, tables

pytestmark = pytest.mark.usefixtures("no_tables_yet")
WEIGHT = {"tensor": "model/weight", "shape": [2, 3], "dtype": "float32"}


class Learner:
    """A model with a table, and all that a checkpoint of it holds."""

    def __init__(self, seed):
        tables.reset()
        torch.manual_seed(seed)
        self.words = ours.Embedding(None, 4, name="words")
        self.top = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.3))
        model = nn.Sequential(self.words, self.top)
        self.objects = {
            "model": model,
            "tables": ours.TableOptimizer(model, "Adagrad", lr=0.1),
            "dense": torch.optim.Adam(self.top.parameters()),
        }
        self.objects["rates"] = torch.optim.lr_scheduler.StepLR(self.objects["tables"], 1, 0.5)

    def step(self):
        loss = self.objects["model"](torch.arange(6)).square().mean()
        for name in ("tables", "dense"):
            self.objects[name].zero_grad()
        loss.backward()
        for name in ("tables", "dense", "rates"):
            self.objects[name].step()
        return loss.item()


def test_days_end_and_versions_are_published_between_steps_of_tables(tmp_path):
    if mpi_world().size > 1:
        pytest.skip("several ranks need the launcher")
    learner = Learner(1)
    model = learner.objects["model"]
    with pytest.raises(CheckpointError, match="no table has a policy"):
        ours.shrink_tables(model)
    publisher = ours.Publisher(tmp_path, model)
    model(torch.arange(6)).sum().backward()
    for call in (lambda: ours.shrink_tables(model), publisher.publish):
        with pytest.raises(TableError, match="gradients of words have come .* between two steps"):
            call()
    learner.objects["tables"].step()
    publisher.close()
    with torch.no_grad(), Lookup(tmp_path, watch=False) as lookup:
        rows = learner.words(torch.arange(6)).numpy()
        np.testing.assert_array_equal(lookup.pull("words", np.arange(6)), rows)
    kept = {"words": Choice(1.0, 3.0)}
    for make in (
        lambda: ours.Publisher(tmp_path, model, keep=kept),
        lambda: ours.Saver(tmp_path, learner.objects, publish=tmp_path, publish_keep=kept),
    ):
        with pytest.raises(TableError, match="'words': .* RowPolicy.* of which there are none"):
            make()
    for make in (ours.shrink_tables, lambda model: ours.Publisher(tmp_path, model)):
        with pytest.raises(TableError, match="expected a model with tables.* a Linear without"):
            make(nn.Linear(1, 1))


def test_a_saver_restores_all_of_a_process_alone(tmp_path):
    if mpi_world().size > 1:
        pytest.skip("several ranks save together under the launcher only")
    learner = Learner(1)
    with ours.Saver(tmp_path, learner.objects) as saver:
        assert saver.restore() is None
        for _ in range(3):
            learner.step()
            saver.after_step()
        saver.save({"seen": 7})
    expected = [learner.step() for _ in range(3)]
    other = Learner(2)
    saver = ours.Saver(tmp_path, other.objects)
    found = saver.restore()
    assert (found.step, found.extra, saver.step) == (3, {"seen": 7}, 3)
    assert other.objects["tables"].param_groups[0]["lr"] == 0.1 * 0.5**3
    assert [other.step() for _ in range(3)] == expected
    with pytest.raises(CheckpointError, match="'words' is in none of the given modules"):
        ours.Saver(tmp_path, {"dense": other.objects["dense"]})
    with pytest.raises(CheckpointError, match="holds dense, model, rates, tables, expected model"):
        ours.Saver(tmp_path, {"model": other.objects["model"]}).restore()


def test_a_module_that_a_model_has_twice_and_a_rate_of_numpys_come_back(tmp_path):
    if mpi_world().size > 1:
        pytest.skip("several ranks save together under the launcher only")
    shared = nn.Linear(3, 3)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    optimizer = torch.optim.SGD(model.parameters(), lr=np.float64(0.1))
    objects, before = {"model": model, "optimizer": optimizer}, shared.weight.detach().clone()
    ours.Saver(tmp_path, objects).save()
    with torch.no_grad():
        shared.weight.zero_()
    ours.Saver(tmp_path, objects).restore()
    assert torch.equal(shared.weight, before) and optimizer.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize("progress", [ours.Saver.after_step, ours.Saver.save])
def test_what_a_saver_can_take_up_makes_a_first_step(tmp_path, monkeypatch, progress):
    if mpi_world().size > 1:
        pytest.skip("several ranks save together under the launcher only")
    noted = []
    monkeypatch.setattr(here, "after_first_step", [lambda: noted.append(1)])
    learner = Learner(1)
    saver = ours.Saver(tmp_path, learner.objects)
    learner.step()
    assert not noted, "a step that no Saver knows is lost if the job fails"
    progress(saver)
    assert noted == [1]


@pytest.mark.parametrize(
    "said",
    [
        7,
        {},
        {"plain": [1]},
        {"pairs": [["weight", WEIGHT, 1]]},
        {"pairs": [[["weight"], WEIGHT]]},
        {"pairs": [["weight", {**WEIGHT, "shape": [1 << 40, 1 << 40]}]]},
        {"pairs": [["weight", {**WEIGHT, "shape": [3, 2]}]]},
        {"pairs": [["weight", {**WEIGHT, "dtype": "load"}]]},
        {"pairs": [["weight", {**WEIGHT, "tensor": "nowhere"}]]},
        {"pairs": [["weight", {**WEIGHT, "tensor": saver.STATES}]]},
        {"pairs": [["other", WEIGHT]]},
        {"pairs": [["weight", WEIGHT]], "versions": {"plain": 7}},
        {"pairs": [["weight", WEIGHT]], "versions": {"pairs": [["", 7]]}},
    ],
    ids=range(13),
)
def test_forged_states_are_refused(tmp_path, monkeypatch, said):
    if mpi_world().size > 1:
        pytest.skip("several ranks save together under the launcher only")
    objects = {"model": nn.Linear(3, 2, bias=False)}
    encoded = saver.encoded
    forged = lambda plain: encoded({**plain, "objects": {"model": said}})  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(saver, "encoded", forged)
        ours.Saver(tmp_path, objects).save()
    with pytest.raises(
        CheckpointError, match=r"step-000000: (malformed|'model'.* (cannot load|was saved as))"
    ):
        ours.Saver(tmp_path, objects).restore()


@pytest.mark.parametrize("random", ["", "AAAA", "A", 5])
def test_forged_random_numbers_are_refused(tmp_path, monkeypatch, random):
    if mpi_world().size > 1:
        pytest.skip("several ranks save together under the launcher only")
    objects = {"model": nn.Linear(3, 2)}
    state = resume_state.random_state()
    with monkeypatch.context() as patch:
        patch.setattr(resume_state, "random_state", lambda: {**state, "torch": random})
        ours.Saver(tmp_path, objects).save()
    with pytest.raises(CheckpointError, match="malformed state of trainer 0"):
        ours.Saver(tmp_path, objects).restore()


def test_a_program_goes_on_with_torchs_random_numbers(tmp_path):
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        x = fluid.data("x", [None, 30])
        masked = fluid.layers.torch_module(nn.Sequential(nn.Linear(30, 30), nn.Dropout(0.5)), x)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())

        def drawn():
            return exe.run(feed={"x": np.ones((2, 30), "float32")}, fetch_list=[masked])[0]

        fluid.checkpoint.save(exe, tmp_path, 1)
        expected = drawn()
        assert (drawn() != expected).any()
        fluid.checkpoint.restore(exe, tmp_path)
        assert (drawn() == expected).all()
