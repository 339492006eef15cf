"""The daily loop of a PyTorch script: by three functions of its own."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

import numpy as np
import torch
from torch import nn

import hpcdist.torch as ours
from hpcdist import online
from hpcdist.comm.world import mpi_world
from hpcdist.errors import CheckpointError
from hpcdist.serving import Lookup
from hpcdist.torch import tables

pytestmark = pytest.mark.usefixtures("no_tables_yet")


@pytest.fixture
def data(tmp_path):
    """Three days: ids, of which every third is clicked."""
    for day in range(1, 4):
        directory = tmp_path / "data" / f"2026120{day}"
        directory.mkdir(parents=True)
        np.save(directory / "ids.npy", np.random.default_rng(day).integers(0, 50, 400))
        (directory / "data.done").touch()
    return tmp_path / "data"


def run(data, saved, last):
    """Train until a day, as a new process; return the rows, and what was reported."""
    tables.reset()
    torch.manual_seed(1)
    words, top = ours.Embedding(None, 4, name="words"), nn.Linear(4, 1)
    model = nn.Sequential(words, top)
    optimizers = {
        "tables": ours.TableOptimizer(model, "Adagrad", lr=0.5),
        "dense": torch.optim.SGD(top.parameters(), 0.5),
    }

    def load(files, number):
        ids = np.concatenate([np.load(file) for file in files])
        return torch.from_numpy(np.random.default_rng(number).permutation(ids)).split(16)

    def score(batches):
        with torch.no_grad():
            for ids in batches:
                yield torch.sigmoid(model(ids)), ids % 3 == 0

    def train(batches):
        for ids in batches:
            for optimizer in optimizers.values():
                optimizer.zero_grad()
            clicked = (ids % 3 == 0).float()[:, None]
            nn.functional.binary_cross_entropy_with_logits(model(ids), clicked).backward()
            for optimizer in optimizers.values():
                optimizer.step()
        return sum(map(len, batches))

    published = {"publish": saved.with_name("published"), "publish_every": 1}
    saver = ours.Saver(saved, {"model": model, **optimizers}, every=1, **published)
    told = []
    parts = online.Parts(load, score, train)
    online.train(data, "20261201", parts, saver, last=last, after_pass=told.append)
    with torch.no_grad():
        return words(torch.arange(50)).numpy().copy(), told


def test_days_are_trained_by_functions_of_the_script(tmp_path, data):
    if mpi_world().size > 1:
        pytest.skip("several ranks need the launcher")
    rows, told = run(data, tmp_path / "whole", "20261203")
    assert [report.rows for report in told] == [400] * 3
    assert told[0].auc < 0.6 and told[2].auc > 0.9, told
    _, before = run(data, tmp_path / "parts", "20261201")
    of_parts, after = run(data, tmp_path / "parts", "20261203")
    assert before + after == told
    np.testing.assert_array_equal(of_parts, rows)
    with Lookup(tmp_path / "published", watch=False) as lookup:
        np.testing.assert_array_equal(lookup.pull("words", np.arange(50)), rows)


def test_what_has_no_table_is_not_published(tmp_path):
    tables.reset()
    with pytest.raises(CheckpointError, match="none of the objects has a table"):
        ours.Saver(tmp_path, {"model": nn.Linear(1, 1)}, publish=tmp_path / "published")
