"""What the array has found: choices that trained otherwise than one process without a word."""

from __future__ import annotations

import pytest

from hpcdist.errors import HpcdistError
from tests.equality.features import MODE
from tests.equality.jobs import EQUAL, REFUSED, compare, in_threads, run_job, surroundings

ASYNCHRONOUS = ["asynchronous", "communicator", "half-asynchronous"]


@pytest.mark.parametrize("mode", ASYNCHRONOUS)
@pytest.mark.parametrize("save", ["same ranks", "on one process", "of one process"])
@pytest.mark.parametrize("schedule", ["exponential", "Noam"])
def test_a_schedule_goes_on_in_another_mode(mode, save, schedule):
    """Asynchronous trainers count the next step, all others the last one."""
    outcome = compare({"mode": mode, "schedule": schedule, "save": save})
    assert outcome.kind == EQUAL, outcome


@pytest.mark.parametrize("mode", ["transpiled", *ASYNCHRONOUS])
def test_a_rate_that_a_transpiled_script_sets_is_refused(mode):
    """Servers have a value of their own, and went on with it."""
    outcome = compare({"mode": mode, "schedule": "set by the script"})
    assert outcome.kind == REFUSED and "'own_rate' was changed on a trainer" in outcome.why


@pytest.mark.parametrize("optimizer", ["Momentum", "Nesterov", "Adam", "RMSProp", "lazy Adam"])
@pytest.mark.parametrize("regularizer", ["none", "L2"])
def test_rows_that_move_without_being_looked_up_are_exchanged(optimizer, regularizer):
    """With GEO servers only had the rows that were looked up; momentum moves the others, too."""
    choice = {"mode": "GEO", "optimizer": optimizer, "regularizer": regularizer}
    for save in ("none", "on one process"):
        outcome = compare({**choice, "table": "sparse", "save": save})
        assert outcome.kind == EQUAL, outcome


@pytest.mark.parametrize("mode", MODE.levels)
@pytest.mark.parametrize("table", ["sparse", "distributed"])
def test_dpsgd_moves_no_rows(mode, table):
    """Its clip is of the norm of the whole gradient: one process refuses it, and so does a job."""
    choice = {"optimizer": "Dpsgd", "table": table, "mode": mode}
    assert compare(choice).kind == REFUSED
    with (
        surroundings(choice) as root,
        pytest.raises(HpcdistError, match="dpsgd|this program has none"),
    ):
        run_job(choice, root, in_threads)


@pytest.mark.parametrize("mode", ["servers", "no servers"])
def test_chances_of_half_precision_are_counted_beside_those_of_one_process(mode):
    """AUC counts chances by thousandths: bfloat16 moves them by some, and loses none."""
    outcome = compare({"metric": "AUC", "strategy": "bfloat16", "mode": mode})
    assert outcome.kind == EQUAL, outcome


@pytest.mark.parametrize("optimizer", ["Adamax", "RMSProp", "centered RMSProp", "Lamb"])
@pytest.mark.parametrize("mode", ["servers", "servers for tables"])
def test_rows_move_by_more_optimizers(optimizer, mode):
    """A power of Adamax counted in one process only."""
    outcome = compare({"optimizer": optimizer, "table": "distributed", "mode": mode})
    assert outcome.kind == EQUAL, outcome


@pytest.mark.parametrize("table", ["none", "sparse"])
def test_lamb_finds_whole_parameters_on_servers(table):
    """Its rate follows from the norm of a parameter: servers refused to have parts of one."""
    outcome = compare({"optimizer": "Lamb", "table": table, "mode": "servers"})
    assert outcome.kind == EQUAL, outcome
