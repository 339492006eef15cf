"""Jobs that restore, train and save, to be chained in any mode."""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.base import settings
from hpcdist.checkpoint import Checkpoint
from hpcdist.comm.world import mpi_world
from tests.support.job import alone, run_job, values

STEP = 4

ALONE = (1, 0)  # one process, of no job

OPTIMIZERS = {
    "Adam": lambda rate: fluid.optimizer.Adam(rate),
    "Momentum": lambda rate: fluid.optimizer.Momentum(rate, 0.9, use_nesterov=True),
    "Ftrl": lambda rate: fluid.optimizer.Ftrl(rate, l1=1e-3),
}


def dense_net(optimizer):
    """Return the loss of a net whose weights are cut by rows, one of them looked up in."""
    x = fluid.data(name="x", shape=[None, 13], dtype="float32")
    ids = fluid.data(name="ids", shape=[None, 1], dtype="int64")
    hidden = fluid.layers.fc(fluid.layers.fc(x, size=1501, act="relu"), size=12)
    looked_up = fluid.layers.embedding(ids, size=[3001, 12])
    loss = fluid.layers.mean(fluid.layers.square(hidden + looked_up))
    optimizer(fluid.layers.exponential_decay(0.01, 3, 0.8)).minimize(loss)
    return loss


def table_net(optimizer):
    """Return the loss of a net with a distributed table of any ids."""
    ids = fluid.data("ids", [None, 1], "int64")
    rows = fluid.layers.embedding(ids, [-1, 8], is_sparse=True, is_distributed=True)
    loss = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(rows, 1)))
    optimizer(fluid.layers.exponential_decay(0.05, 3, 0.8)).minimize(loss)
    return loss


def batch(step, net):
    random = np.random.default_rng(step)
    x = {"x": random.random((12, 13), dtype=np.float32)} if net is dense_net else {}
    return {**x, "ids": random.integers(0, 3001, (12, 1))}


def job(net, optimizer, root, before=None, steps=STEP, **how):
    """Return a script that restores ``before`` if given, trains, and saves in ``root``."""

    def script(role):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            fluid.default_startup_program().random_seed = 2
            loss, exe = net(optimizer), fluid.Executor()
            exe.run(fluid.default_startup_program())
            if before is not None:
                assert fluid.checkpoint.restore(exe, before).step == STEP
            losses = [
                exe.run(feed=batch(step, net), fetch_list=[loss])[0].item()
                for step in range(STEP if before else 0, steps)
            ]
            fluid.checkpoint.save(exe, root, steps, **how)
            return losses

    return script


def run(shape, script):
    """Run a script as a job of (trainers, servers), or on one rank by itself; return its losses.

    A third element says where parameters live that are no distributed tables.
    """
    if shape != ALONE:
        trainers, servers, *dense = shape
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(settings.DENSE.name, *(dense or ["pserver"]))
            return values(run_job(trainers, servers, script))
    world, losses = mpi_world(), None
    try:
        if world.rank == 0:
            with alone():
                losses = script(None)
    finally:
        world.barrier()
    return [losses]


def bits(root, step=STEP):
    """Return everything that was saved as bytes, rows of tables sorted by id."""
    with Checkpoint(root / f"step-{step:06d}") as saved:
        found = {name: saved.read(name).tobytes() for name in saved.variables}
        tables: dict[str, list] = {}
        for home, table in zip(saved.facts.table_homes, saved.facts.tables):
            parts = []
            for part, width in (("ids", 0), ("rows", table.dim), ("state", table.state_width)):
                shape = (table.count, width) if width else (table.count,)
                array = np.empty(shape, np.int64 if part == "ids" else np.float32)
                for read in saved.files[home].jobs(f"{table.path}/{part}", 0, len(array), array):
                    read()
                parts.append(array)
            tables.setdefault(table.name, []).append(parts)
            found[f"{table.name} shared"] = np.float32(table.shared).tobytes()
    for name, parts in tables.items():
        ids, rows, state = (np.concatenate(arrays) for arrays in zip(*parts))
        order = np.argsort(ids)
        assert len(set(ids.tolist())) == len(ids) > 20
        found |= {f"{name} ids": ids[order].tobytes(), f"{name} rows": rows[order].tobytes()}
        found[f"{name} state"] = state[order].tobytes()
    return found
