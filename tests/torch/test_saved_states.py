"""What Savers of torch refuse to save or to restore, by name, before anything changes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

import torch
from torch import nn

import hpcdist.torch as ours
from hpcdist.comm.world import mpi_world
from hpcdist.errors import CheckpointError

pytestmark = pytest.mark.usefixtures("no_tables_yet", "alone")


@pytest.fixture
def alone():
    if mpi_world().size > 1:
        pytest.skip("several ranks save together under the launcher only")


def trained(model, make=torch.optim.Adam, dtype=torch.float32):
    """Return a Saver's objects after a step."""
    model = model.to(dtype)
    optimizer = make(model.parameters())
    model(torch.ones(4, 3, dtype=dtype)).square().mean().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


class Masked(nn.Linear):
    def __init__(self):
        super().__init__(3, 2)
        self.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))
        self.register_buffer("mean", torch.zeros(2))


def test_a_mask_is_saved_with_its_infinities_and_what_becomes_infinite_is_not(tmp_path):
    objects = trained(Masked())
    saver = ours.Saver(tmp_path, objects)
    saver.save()
    expected = objects["model"].mask.clone()
    objects["model"].mask.zero_()
    saver.restore()
    assert torch.equal(objects["model"].mask, expected)
    objects["model"].mean[1] = torch.inf
    saver.step = 1
    saver.save()
    assert ours.Saver(tmp_path, objects).restore().step == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("part", ["model", "optimizer"])
def test_nan_in_a_parameter_or_in_an_optimizer_is_not_saved(tmp_path, dtype, part, caplog):
    objects = trained(nn.Linear(3, 2), dtype=dtype)
    weight = objects["model"].weight
    with torch.no_grad():
        of = weight if part == "model" else objects["optimizer"].state[weight]["exp_avg"]
        of[1, 2] = torch.nan
    ours.Saver(tmp_path, objects).save()
    assert ours.Saver(tmp_path, objects).restore() is None
    assert f"trainer 0: '{part}/" in caplog.text and "holds NaN or infinity" in caplog.text


class Second(nn.Linear):
    """Reads what was saved by its first version, too."""

    _version = 2

    def _load_from_state_dict(self, state_dict, prefix, metadata, *args):
        if metadata.get("version") != 2:
            state_dict[f"{prefix}weight"] = 10 * state_dict[f"{prefix}weight"]
        super()._load_from_state_dict(state_dict, prefix, metadata, *args)


def test_a_module_reads_its_own_version(tmp_path):
    model = nn.Sequential(Second(3, 2))
    expected = model[0].weight.detach().clone()
    ours.Saver(tmp_path, {"model": model}).save()
    ours.Saver(tmp_path, {"model": model}).restore()
    assert torch.equal(model[0].weight, expected)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (nn.Sequential(nn.Linear(3, 2)), "'1.weight' was saved as float32[2, 2], expected nothing"),
        (nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 3)), "expected float32[3, 2]"),
        (
            nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2), nn.BatchNorm1d(2)),
            "'2.weight' was saved as nothing, expected float32[2]",
        ),
        (
            nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)).double(),
            "'0.weight' was saved as float32[2, 3], expected float64[2, 3]",
        ),
        (nn.Sequential(nn.Linear(3, 2), Second(2, 2)).double(), "saved as float32, expected float"),
    ],
    ids=range(5),
)
def test_another_model_is_refused_and_nothing_changes(tmp_path, model, says):
    objects = trained(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)))
    ours.Saver(tmp_path, objects).save()
    drawn, before = torch.get_rng_state(), model[0].weight.detach().clone()
    others = {"model": model, "optimizer": torch.optim.Adam(model.parameters())}
    torch.rand(1)
    drawn = torch.get_rng_state()
    with pytest.raises(CheckpointError) as refused:
        ours.Saver(tmp_path, others).restore()
    assert says in str(refused.value) and "differs from the one that was saved" in str(
        refused.value
    )
    assert torch.equal(model[0].weight, before)
    assert torch.equal(torch.get_rng_state(), drawn)


def test_another_optimizer_is_refused(tmp_path):
    objects = trained(nn.Linear(3, 2))
    ours.Saver(tmp_path, objects).save()
    parameters = [*objects["model"].parameters()]
    for other, says in (
        (torch.optim.SGD(parameters, momentum=0.9), "SGD needs 'momentum', which was not saved"),
        (
            torch.optim.Adam([{"params": [one]} for one in parameters]),
            r"of \[2\] .*, expected \[1, 1\]",
        ),
    ):
        with pytest.raises(CheckpointError, match=says):
            ours.Saver(tmp_path, {**objects, "optimizer": other}).restore()


@pytest.mark.parametrize("make", [torch.optim.LBFGS, torch.optim.Adafactor, torch.optim.ASGD])
def test_optimizers_that_do_not_have_all_their_defaults_in_groups_go_on(tmp_path, make):
    model = nn.Linear(3, 2)
    optimizer = make(model.parameters())

    def step():
        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(4, 3)).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure).item()

    step()
    saver = ours.Saver(tmp_path, {"model": model, "optimizer": optimizer})
    saver.save()
    expected = [step(), step()]
    saver.restore()
    assert [step(), step()] == expected


def test_what_was_restored_in_inference_mode_trains_on(tmp_path):
    objects = trained(nn.Linear(3, 2))
    saver = ours.Saver(tmp_path, objects)
    with torch.inference_mode():
        saver.save()
        saver.restore()
    objects["optimizer"].step()


def test_what_has_no_state_is_refused_when_a_saver_is_made(tmp_path):
    sampler = torch.utils.data.SequentialSampler([1, 2])
    with pytest.raises(CheckpointError, match="'sampler': a SequentialSampler has no state_dict"):
        ours.Saver(tmp_path, {"model": nn.Linear(3, 2), "sampler": sampler})


class Kept:
    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def test_names_of_checkpoints_themselves_and_endless_states_are_refused_when_saved(tmp_path):
    with pytest.raises(CheckpointError, match="'torch/states' is the name of"):
        ours.Saver(tmp_path, {"torch": Kept({"states": torch.ones(2)})}).save()
    endless = {}
    endless["again"] = endless
    with pytest.raises(CheckpointError, match="contains itself"):
        ours.Saver(tmp_path, {"endless": Kept(endless)}).save()


def test_a_loader_that_is_ahead_of_training_is_named_once(tmp_path, caplog):
    words = ours.Embedding(None, 4)
    objects = {"words": words, "rows": ours.TableOptimizer(words, "SGD", lr=0.1)}
    saver = ours.Saver(tmp_path, {**objects, "sampler": Kept({"at": 0})})
    ids = [torch.arange(3), torch.arange(3), torch.arange(3)]
    for batch in ours.rows_ahead(ids, lambda given: {words: given}):
        words(batch).sum().backward()
        objects["rows"].step()
        saver.after_step()
    (warning,) = [r.getMessage() for r in caplog.records if "not trained yet" in r.getMessage()]
    assert "if 'sampler' says which batches" in warning
