"""NaN in what servers apply: told once on each, whose it is; or the end of the job."""

import re

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.comm.cluster import PSERVER
from tests.support.job import begin, run_job

pytestmark = pytest.mark.mpi(min_size=3)


def train(role, bad, *, sparse=False, sync_mode=None):
    """Train 5 steps; in the third, the last trainer's rows are ``bad``."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        ids, x = fluid.data("ids", [None, 1], "int64"), fluid.data("x", [None, 4])
        rows = fluid.layers.embedding(ids, [30, 4], is_sparse=sparse, param_attr="table")
        loss = layers.mean(rows * x if sparse else layers.fc(rows * x, 3))
        fluid.optimizer.SGD(0.1).minimize(loss)
    if sync_mode is None:
        exe, program = fluid.Executor(), main
        exe.run(startup)
    else:
        exe, program = begin(role, 2, 1, main, startup, sync_mode=sync_mode)
    for step in range(5):
        feed = {"ids": np.arange(8)[:, None], "x": np.ones((8, 4), np.float32)}
        if step == 2 and (sync_mode is None or role.index == 1):
            feed["x"][6:] = bad
        exe.run(program, feed=feed)
    exe.close()


def messages(caplog, bad, **kind):
    """Return what the server of a job of two trainers says, and how the job's ranks ended."""

    def script(role):
        caplog.clear()
        try:
            train(role, bad, **kind)
        except SystemExit:
            assert role.kind == PSERVER
        return [r.getMessage() for r in caplog.records if "server 0" in r.getMessage()]

    outcomes = run_job(2, 1, script)
    return outcomes, next(o.value for o in outcomes if o.role.kind == PSERVER)


@pytest.mark.parametrize(
    ("sync_mode", "bad", "what"),
    [(None, np.inf, "(infinity|NaN)"), (True, np.nan, "NaN"), (False, np.nan, "NaN")],
    ids=["plain", "sync", "async"],
)
def test_a_server_tells_once_whose_gradient_of_which_parameter_it_is(caplog, bad, what, sync_mode):
    outcomes, said = messages(caplog, bad, sync_mode=sync_mode)
    assert not any(o.error for o in outcomes), outcomes
    (only,) = said
    words = r"server 0\)?, step 3: the gradient of '(table|fc_0.._0)' from trainer 1 holds " + what
    assert re.search(words, only), only


def test_rows_of_sparse_tables_are_looked_at(caplog):
    _, said = messages(caplog, np.nan, sparse=True)
    assert len(said) == 1
    assert "step 3: the gradient of 'table' from trainer 1 holds NaN" in said[0]


@pytest.mark.parametrize("name", ["HPCDIST_ON_NAN", "FLAGS_check_nan_inf"])
def test_the_job_ends_if_asked(caplog, monkeypatch, name):
    monkeypatch.setenv(name, "end" if name == "HPCDIST_ON_NAN" else "1")
    outcomes, _ = messages(caplog, np.nan)
    assert any("NotFiniteError" in o.error_types for o in outcomes)
