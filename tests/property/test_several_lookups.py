"""Ragged slots that are looked up in one table at once: each keeps its own sequences."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

import hpcdist as fluid
from hpcdist.executor.scope import Scope, scope_guard
from hpcdist.graph import names
from hpcdist.graph.lod import Lod
from hpcdist.graph.registry import Meta
from hpcdist.graph.shape_rules import infer_outputs
from tests.support.thread_jobs import ranks_as_threads

# Both slots have 6 rows, also each trainer's half of them, but other sequences.
LENGTHS = [([2, 1, 1, 2], [1, 2, 2, 1]), ([1, 2, 2, 1], [2, 1, 1, 2])]


def build():
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), names.guard():
        startup.random_seed = 3
        slots = [fluid.data(name, [None, 1], "int64", lod_level=1) for name in ("a", "b")]
        sums = [
            fluid.layers.sequence_pool(
                fluid.layers.embedding(
                    slot,
                    [9, 2],
                    is_sparse=True,
                    param_attr=fluid.ParamAttr("table", initializer=fluid.initializer.Uniform()),
                ),
                "sum",
            )
            for slot in slots
        ]
        loss = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(sums, 2)))
        fluid.optimizer.SGD(0.1).minimize(loss)
    return main, startup, loss


def train(built):
    main, startup, loss = built
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    random = np.random.RandomState(0)
    losses = []
    for lengths in LENGTHS:
        ids = [random.randint(0, 9, [6, 1]) for _ in lengths]
        feed = {
            name: fluid.create_lod_tensor(rows, [each], fluid.CPUPlace())
            for name, rows, each in zip(("a", "b"), ids, lengths)
        }
        losses.append(float(exe.run(main, feed=feed, fetch_list=[loss])[0][0]))
    return losses


def test_slots_with_as_many_rows_keep_their_sequences():
    with scope_guard(Scope()):
        alone = train(build())
    with ranks_as_threads() as run:
        for trainers, servers in [(1, 1), (2, 2)]:
            built = [build() for _ in range(trainers + servers)]
            for losses in run(trainers, servers, [lambda b=b: train(b) for b in built]):
                np.testing.assert_allclose(losses, alone, rtol=1e-6)


def test_rows_are_grouped_as_their_own_ids():
    lods = [Lod.of_lengths([[2, 1]]), None, Lod.of_lengths([[1, 2]])]
    ids = [Meta((3, 1), "int64", lod=lod) for lod in lods]
    table, rows = Meta((9, 2), "float32"), Meta((3, 2), "float32")
    lookups = [SimpleNamespace(kind="lookup_table")] * 3
    asked = [
        ("distributed_lookup_table", {"Ids": ids, "W": [table]}, {}, "Outputs"),
        ("merge_ids", {"Ids": ids, "Rows": ids, "X": [rows]}, {}, "Out"),
        ("pull_sparse", {"Ids": ids}, {"lookups": lookups, "widths": [2] * 3}, "Out"),
    ]
    for type, inputs, attrs, slot in asked:
        found = infer_outputs(type, inputs, attrs)[slot]
        assert [meta.lod for meta in found] == lods, type
