"""Checkpoints restored into another network, or beside other numbers in the script."""

from __future__ import annotations

import logging
from contextlib import contextmanager

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.errors import CheckpointError
from tests.support.job import run_job, values

pytestmark = pytest.mark.mpi(min_size=2)
SHAPES = [(1, 0), (2, 0), (1, 1)]  # (trainers, servers)
OPTIMIZERS = {
    "Adam": fluid.optimizer.Adam,
    "SGD": fluid.optimizer.SGD,
    "Adagrad": fluid.optimizer.Adagrad,
}


@contextmanager
def network(
    slots="ab", width=4, rows=60, optimizer="Adam", rate=0.05, beta1=0.9, act=None, table=False
):
    """Give (executor, fetch): a net with a table for each slot, begun, and what runs a step."""
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        fluid.default_startup_program().random_seed = 7
        outs = []
        for slot in slots:
            ids = fluid.data(slot, [None, 1], "int64")
            size = [-1 if table else rows, width]
            attr = fluid.ParamAttr("table") if table else None
            looked_up = fluid.embedding(
                ids, size, is_sparse=True, is_distributed=table, param_attr=attr
            )
            outs.append(fluid.layers.reshape(looked_up, [-1, width]))
        joined = fluid.layers.sum(outs) if len(outs) > 1 else outs[0]
        out = fluid.layers.fc(joined, 1, act=act)
        test = fluid.default_main_program().clone(for_test=True)
        loss = fluid.layers.mean(fluid.layers.square(out - 1.0))
        how = {"beta1": beta1} if optimizer == "Adam" else {}
        OPTIMIZERS[optimizer](rate, **how).minimize(loss)
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        feed = {slot: np.arange(12).reshape(12, 1) for slot in slots}

        def step():
            return exe.run(feed=feed, fetch_list=[loss])[0].item()

        def rows_of(k=0):
            return exe.run(test, feed=feed, fetch_list=[outs[k]])[0]

        yield exe, step, rows_of


def saved(root, **how):
    """Return a script that trains and saves; it returns what the first slot then looks up."""

    def script(role):
        with network(**how) as (exe, step, rows_of):
            for _ in range(3):
                step()
            fluid.checkpoint.save(exe, root, 3)
            return rows_of()

    return script


def restored(root, use, net=None, **how):
    """Return a script that restores into ``net`` and returns ``use(found, step, rows_of)``."""

    def script(role):
        with network(**(net or {})) as (exe, step, rows_of):
            return use(fluid.checkpoint.restore(exe, root, **how), step, rows_of)

    return script


DIFFERENT = {
    "swapped slots": ({"slots": "ba"}, ["lookup_table_v2(Ids=a", "lookup_table_v2(Ids=b"]),
    "a slot more": ({"slots": "abc"}, ["'embedding_2.w_0'", "in the program, not in"]),
    "a slot less": ({"slots": "a"}, ["'embedding_1.w_0'", "in the checkpoint, not in"]),
    "wider": ({"width": 8}, ["float32[60, 4] in the checkpoint, float32[60, 8]"]),
    "longer": ({"rows": 90}, ["float32[60, 4] in the checkpoint, float32[90, 4]"]),
    "without state": ({"optimizer": "SGD"}, ["moment1_0", "adam("]),
    "other state": ({"optimizer": "Adagrad"}, ["moment1_0", "_moment_0"]),
    "activation": ({"act": "tanh"}, ["only in the program: tanh"]),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", DIFFERENT)
def test_another_network_is_refused_with_all_differences(mpi_tmp_path, name, shape):
    net, words = DIFFERENT[name]

    def script(role):
        with network(**net) as (exe, step, rows_of):
            before = rows_of()
            with pytest.raises(CheckpointError, match="the program differs") as caught:
                fluid.checkpoint.restore(exe, mpi_tmp_path)
            np.testing.assert_array_equal(rows_of(), before)  # nothing has changed
            step()
            return str(caught.value)

    values(run_job(2, 0, saved(mpi_tmp_path)))
    for text in values(run_job(*shape, script)):
        assert all(word in text for word in words), text
        assert "partial=True" in text


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", DIFFERENT)
def test_what_fits_is_taken_by_name(mpi_tmp_path, name, shape):
    net, _ = DIFFERENT[name]
    (expected, *_) = values(run_job(2, 0, saved(mpi_tmp_path)))

    def use(found, step, rows_of):
        looked_up = rows_of(1 if name == "swapped slots" else 0)
        return dict(found.taken), dict(found.left), looked_up, step()

    script = restored(mpi_tmp_path, use, net, partial=True)
    for taken, left, rows, loss in values(run_job(*shape, script)):
        if name == "wider":
            np.testing.assert_array_equal(rows[:, :4], expected)
            assert taken["embedding_0.w_0"].startswith("[60, 4] of float32[60, 8]")
            assert (rows[:, 4:] != 0).any()  # as they began
        elif name != "swapped slots":
            np.testing.assert_array_equal(rows, expected)
        assert "fc_0.b_0" in taken and np.isfinite(loss)
        assert not taken.keys() & left.keys()
        if name == "a slot more":
            assert left["embedding_2.w_0"] == "not in the checkpoint"
        if name in ("without state", "other state"):
            assert left["embedding_0.w_0_moment1_0"] == "not in the program"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("net", [{"width": 6}, {"optimizer": "SGD"}, {"optimizer": "Adagrad"}])
def test_rows_of_distributed_tables_are_taken_as_far_as_they_fit(mpi_tmp_path, net, shape):
    (expected, *_) = values(run_job(2, 0, saved(mpi_tmp_path, slots="a", table=True)))
    net = {"slots": "a", "table": True, **net}

    def use(found, step, rows_of):
        return found.taken["table"], rows_of(), step()

    for taken, rows, loss in values(
        run_job(*shape, restored(mpi_tmp_path, use, net, partial=True))
    ):
        np.testing.assert_array_equal(rows[:, :4], expected)
        assert "without their state" in taken and np.isfinite(loss)


@contextmanager
def warnings_of_checkpoints():
    """Give the texts that are logged of checkpoints."""
    texts: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: texts.append(record.getMessage())
    logger = logging.getLogger("hpcdist.checkpoint")
    logger.addHandler(handler)
    try:
        yield texts
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize("rates", ["saved", "script"])
@pytest.mark.parametrize("shape", SHAPES)
def test_another_rate_is_named_and_the_script_may_choose(mpi_tmp_path, shape, rates):
    plain = {"slots": "a", "optimizer": "SGD"}
    values(run_job(2, 0, saved(mpi_tmp_path, **plain)))

    def script(role):
        with network(**plain, rate=0.5) as (exe, step, rows_of), warnings_of_checkpoints() as texts:
            fluid.checkpoint.restore(exe, mpi_tmp_path, rates=rates)
            before = rows_of()
            step()
            return np.abs(rows_of() - before).max().item(), texts

    def unchanged(role):
        with network(**plain) as (exe, step, rows_of), warnings_of_checkpoints() as texts:
            fluid.checkpoint.restore(exe, mpi_tmp_path, rates=rates)
            before = rows_of()
            step()
            return np.abs(rows_of() - before).max().item(), texts

    moved, told = zip(*values(run_job(*shape, script)))
    as_saved, silent = zip(*values(run_job(*shape, unchanged)))
    assert not any(silent)
    (text,) = told[0]
    assert "'learning_rate_0': the script says 0.5, the checkpoint 0.05" in text
    assert moved[0] == pytest.approx(as_saved[0] * (10 if rates == "script" else 1), rel=1e-3)


@pytest.mark.parametrize("shape", SHAPES)
def test_another_number_of_an_optimizer_is_named(mpi_tmp_path, shape):
    values(run_job(2, 0, saved(mpi_tmp_path)))

    def script(role):
        with network(beta1=0.8) as (exe, step, _), warnings_of_checkpoints() as texts:
            fluid.checkpoint.restore(exe, mpi_tmp_path)
            step()
            return texts

    told = values(run_job(*shape, script))[0]
    assert told and all("adam: beta1: the script says 0.8, the checkpoint 0.9" in t for t in told)


def test_neither_names_of_what_is_computed_nor_metrics_count(mpi_tmp_path):
    values(run_job(2, 0, saved(mpi_tmp_path)))

    def script(role):
        with network() as (exe, _, _):
            main = fluid.default_main_program()
            with fluid.program_guard(main):
                out = main.global_block().var("fc_0.tmp_1")
                fluid.layers.Print(fluid.layers.reduce_max(out), print_phase="forward")
            with warnings_of_checkpoints() as texts:
                assert fluid.checkpoint.restore(exe, mpi_tmp_path).step == 3
            return texts

    assert values(run_job(2, 0, script)) == [[], []]


def test_a_test_program_takes_what_it_has(mpi_tmp_path):
    (expected, *_) = values(run_job(2, 0, saved(mpi_tmp_path, slots="a")))

    def script(role):
        with network(slots="a") as (exe, _, rows_of):
            test = fluid.default_main_program().clone(for_test=True)
            assert fluid.checkpoint.restore(exe, mpi_tmp_path, test).step == 3
            return rows_of()

    np.testing.assert_array_equal(values(run_job(1, 0, script))[0], expected)


def test_whose_rates_count_is_one_of_two(mpi_tmp_path):
    def script(role):
        with network() as (exe, _, _), pytest.raises(CheckpointError, match="'saved' or 'script'"):
            fluid.checkpoint.restore(exe, mpi_tmp_path, rates="mine")

    values(run_job(1, 0, script))
