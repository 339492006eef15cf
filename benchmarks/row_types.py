"""Rows of tables in every type on the click-through task of ctr.py: memory, AUC, speed, in one run.

    python benchmarks/row_types.py

The same network, wide and deep over 26 slots of Zipf ids, is trained from the same beginning on the
same batches, with rows of its tables in float32, float16, bfloat16 and int8, Adagrad's moments for
each value or for each row; then it tells the chances of batches that it has not seen. Memory is all
that the tables take, with ids and index, as a part of float32's with moments for each value. AUC is
compared with that of float32 and the same moments, over 600,000 examples and at a rate at which
runs do not part by their last bits: less of either hides what rounding does. One process: servers
compute the same bits. Behind 500 steps the increment of the last 100, all tables together, is
compared with a checkpoint of the same step. The exit status is 1 if a target is missed. About 5
minutes.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ctr_train
import numpy as np
from rich.table import Table
from rounds import CONSOLE, arguments

import hpcdist as fluid

RATE, TEST_BATCHES = 0.005, 1200
POLICIES: dict[str, dict[str, Any]] = {
    "float32": {},
    "float16": {"rows": "float16"},
    "float16, state too": {"rows": "float16", "state": "float16"},
    "bfloat16, stochastic": {"rows": "bfloat16", "rounding": "stochastic"},
    "int8, state in float16": {"rows": "int8", "state": "float16"},
    "float32, row-wise": {"row_wise": True},
    "float16, row-wise": {"rows": "float16", "row_wise": True},
    "int8, row-wise": {"rows": "int8", "row_wise": True},
}
NEAR = {"float16": 0.0002, "int8": 0.0005}  # of the AUC of float32
MEMORY = {"int8, row-wise": 0.35}  # of float32's
INCREMENT = {"float32": 1 / 6, "int8, row-wise": 1 / 6}  # of a checkpoint
BEFORE, PUBLISHED = 400, 500  # steps: when a base is published, and an increment


def table(ids: Any, width: int, name: str, policy: Any) -> Any:
    """Return the rows of one slot."""
    attr = fluid.ParamAttr(
        name, initializer=fluid.initializer.Uniform(-0.01, 0.01), row_policy=policy
    )
    return fluid.layers.embedding(ids, [-1, width], True, True, param_attr=attr)


def network(policy: Any) -> tuple[Any, Any]:
    """Return the chance of a click, and the loss: ctr.py's network, trained by Adagrad."""
    layers = fluid.layers
    numbers = layers.data("numbers", [ctr_train.NUMBERS])
    clicked = layers.data("clicked", [1], dtype="int64")
    slots = [layers.data(f"slot{i}", [1], dtype="int64") for i in range(ctr_train.SLOTS)]
    deep = [table(ids, ctr_train.WIDTH, "deep", policy) for ids in slots]
    hidden = layers.concat([numbers, *deep], axis=1)
    for width in ctr_train.HIDDEN:
        hidden = layers.fc(hidden, width, act="relu")
    wide = layers.concat([table(ids, 1, "wide", None) for ids in slots], axis=1)
    chances = layers.fc(layers.concat([hidden, wide], axis=1), 2, act="softmax")
    return chances, layers.mean(layers.cross_entropy(chances, clicked))


def auc(chances: np.ndarray, clicked: np.ndarray) -> float:
    """Return the chance that a click has a higher value than none: by ranks, ties counted half."""
    _, inverse, counts = np.unique(chances, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2)[inverse]
    hits = int(clicked.sum())
    misses = len(clicked) - hits
    return float((ranks[clicked == 1].sum() - hits * (hits + 1) / 2) / (hits * misses))


def increment_beside_checkpoint(exe: Any, main: Any, scope: Any, feeds: list[Any]) -> float:
    """Train between a base and an increment; return the bytes of the latter over a checkpoint's."""
    with tempfile.TemporaryDirectory() as name, fluid.scope_guard(scope):
        directory = Path(name)
        publisher = fluid.checkpoint.Publisher(directory / "versions", main_program=main)
        publisher.publish(BEFORE)
        for feed in feeds:
            exe.run(main, feed=feed, fetch_list=[])
        while not publisher.publish(PUBLISHED):  # the base is still being written
            time.sleep(0.1)
        publisher.close()
        (manifest,) = (directory / "versions").glob("*.delta.json")
        increment = sum(file["bytes"] for file in json.loads(manifest.read_text())["files"])
        fluid.checkpoint.save(exe, directory / "saved", PUBLISHED, main)
        files = [path for path in (directory / "saved").rglob("*") if path.is_file()]
        return float(increment / sum(path.stat().st_size for path in files))


def trained(words: dict[str, Any], feeds: list[Any], tests: list[Any]) -> dict[str, float]:
    """Train from the beginning; return the AUC, the bytes of the deep table, and seconds."""
    policy = fluid.RowPolicy(**words) if words else None
    main, startup = fluid.Program(), fluid.Program()
    startup.random_seed = 7
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        chances, loss = network(policy)
        test = main.clone(for_test=True)
        fluid.optimizer.Adagrad(RATE).minimize(loss)
    exe, scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
    exe.run(startup, scope=scope)
    began = time.perf_counter()
    for feed in feeds[:BEFORE]:
        exe.run(main, feed=feed, fetch_list=[], scope=scope)
    seconds = time.perf_counter() - began
    increment = increment_beside_checkpoint(exe, main, scope, feeds[BEFORE:PUBLISHED])
    began = time.perf_counter() - seconds
    for feed in feeds[PUBLISHED:]:
        exe.run(main, feed=feed, fetch_list=[], scope=scope)
    seconds = time.perf_counter() - began
    told = [exe.run(test, feed=feed, fetch_list=[chances], scope=scope)[0] for feed in tests]
    clicked = np.concatenate([feed["clicked"].reshape(-1) for feed in tests])
    deep = scope.find_var("deep").value
    exe.close()
    return {
        "auc": auc(np.concatenate(told)[:, 1], clicked),
        "bytes": deep.nbytes,
        "payload": deep.row_bytes + deep.state_bytes,
        "increment": increment,
        "seconds": seconds * len(feeds) / (len(feeds) - PUBLISHED + BEFORE),
    }


def main() -> None:
    """Print one table and one JSON line; exit 1 if a target is missed."""
    parser = arguments(__doc__, 1)
    parser.add_argument("--steps", type=int, default=2000, help="more than 500")
    parser.add_argument("--only", help="rows whose names have this in them, and float32")
    options = parser.parse_args()
    if options.steps <= PUBLISHED:
        parser.error(f"--steps: expected more than {PUBLISHED}, got {options.steps}")
    feeds = ctr_train.batches(0, options.steps)
    tests = ctr_train.batches(1, TEST_BATCHES)
    report = Table("rows", title=f"wide and deep, rows of {ctr_train.WIDTH}, {options.steps} steps")
    headings = "bytes of a row", "memory", "AUC", "beside float32", "increment", "steps/s", ""
    for heading in headings:
        report.add_column(heading, justify="right")
    found: dict[str, dict[str, float]] = {}
    missed = 0
    for name, words in POLICIES.items():
        if options.only and not name.startswith("float32") and options.only not in name:
            continue
        one = found[name] = trained(words, feeds, tests)
        one["memory"] = one["bytes"] / found["float32"]["bytes"]
        beside = found["float32, row-wise" if words.get("row_wise") else "float32"]
        one["off"] = one["auc"] - beside["auc"]
        near = NEAR.get(words.get("rows", ""), 1.0)
        good = abs(one["off"]) <= near and one["memory"] <= MEMORY.get(name, 1.0)
        good &= one["increment"] <= INCREMENT.get(name, 1.0)
        missed += not good
        report.add_row(
            *(name, f"{one['payload']:.0f}", f"{one['memory']:.3f}", f"{one['auc']:.5f}"),
            *(f"{one['off']:+.5f}", f"{one['increment']:.3f}"),
            f"{options.steps / one['seconds']:.0f}",
            "" if near == 1.0 else "reached" if good else "MISSED",
        )
        CONSOLE.print(f"{name}: {one}", markup=False)
    CONSOLE.print(report)
    print(json.dumps(found), flush=True)
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
