"""A model of clicks that is trained day after day, and its data on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np

import hpcdist as fluid
from hpcdist import layers
from hpcdist.checkpoint import latest

DAYS = ("20261130", "20261201")
PASSES = ("0000", "1200")
ROWS = 61  # of a pass: two trainers have unequal numbers of batches


def write_days(root: Path, done: str = "data.done", rows: int = ROWS) -> Path:
    """Write two days of clicks, two passes each, in two files; return the directory."""
    for d, day in enumerate(DAYS):
        for p, split in enumerate(PASSES):
            directory = root / day / split
            directory.mkdir(parents=True)
            rng = np.random.default_rng(2 * d + p)
            lines = []
            for _ in range(rows):
                user, item = rng.integers(1, 40), rng.integers(1, 20)
                click = int((user + item) % 3 == 0)
                lines.append(f"1 {user} 2 {item} {item + 100} 1 {rng.random():.3f} 1 {click}\n")
            for k, part in enumerate((lines[: rows // 3], lines[rows // 3 :])):
                (directory / f"part-{k}").write_text("".join(part))
            if done:
                (directory / done).touch()
    return root


def network() -> tuple[list[Any], Any, Any]:
    """Return the inputs, the chance of a click and the loss; rows of users expire."""
    user = fluid.data("user", [None, 1], "int64")
    item = fluid.data("item", [None, 1], "int64", lod_level=1)
    hour = fluid.data("hour", [None, 1], "float32")
    click = fluid.data("click", [None, 1], "int64")
    of_user = fluid.ParamAttr("users", row_policy=fluid.RowPolicy(expire_days=1))
    users = layers.embedding(user, [-1, 4], is_sparse=True, is_distributed=True, param_attr=of_user)
    items = layers.embedding(item, [-1, 4], is_sparse=True, is_distributed=True, param_attr="items")
    pooled = layers.sequence_pool(items, "sum")
    hidden = layers.dropout(layers.concat([users, pooled, hour], axis=1), 0.1)
    chance = layers.fc(layers.fc(hidden, 8, act="relu"), 1, act="sigmoid")
    loss = layers.mean(layers.log_loss(chance, layers.cast(click, "float32")))
    return [user, item, hour, click], chance, loss


def dataset_of(variables: list[Any]) -> Any:
    """Return a Dataset of these variables, in batches of 10."""
    dataset = fluid.DatasetFactory().create_dataset("InMemoryDataset")
    dataset.set_use_var(variables)
    dataset.set_batch_size(10)
    return dataset


def bits_of(checkpoints: Path) -> dict[str, bytes]:
    """Return the bytes of everything in the newest checkpoint, by name."""
    found: dict[str, bytes] = {}

    def note(name: str, entry: Any) -> None:
        if isinstance(entry, h5py.Dataset) and not name.startswith("@"):
            found[name] = entry[()].tobytes()

    with h5py.File(latest(checkpoints) / "manifest.h5") as file:
        file.visititems(note)
    return found
