"""A trainer's error about rows or packets that do not come names the servers that are silent."""

from __future__ import annotations

import numpy as np
import pytest

from hpcdist.checkpoint.ranks import agreed
from hpcdist.comm import loopback
from hpcdist.comm.cluster import Cluster
from hpcdist.errors import DeadlineError
from hpcdist.ps.batch import LookupBatch, TableSpec
from hpcdist.ps.sparse_rpc import RowClient, RowRequest
from hpcdist.ps.table_rpc import TableClient
from tests.support.ps_model import Trained, cluster_of

CLUSTER = Cluster(trainers=(0,), servers=(1, 2))
DEADLINE_S = 0.01


def look_up_by_id(transport):
    client, specs = TableClient(transport, CLUSTER, 0, DEADLINE_S), [TableSpec("words", 4)]
    batch = LookupBatch(specs, 2)
    batch.index([np.arange(9)])
    client.pull(batch)


def look_up_by_index(transport):
    client, rows = RowClient(transport, CLUSTER, 0, DEADLINE_S), np.zeros((3, 4), np.float32)
    wanted = [RowRequest(name, "words", np.arange(3), rows) for name in CLUSTER.endpoints]
    client.pull(wanted, 0)


def ask_for_changed_rows(transport):
    client, like = RowClient(transport, CLUSTER, 0, DEADLINE_S), np.zeros((3, 4), np.float32)
    client.changed(CLUSTER.endpoints[1], "words", "words@GRAD", like, 0)


@pytest.mark.parametrize(
    ("act", "missing"),
    [(look_up_by_id, (1, 2)), (look_up_by_index, (1, 2)), (ask_for_changed_rows, (2,))],
)
def test_silent_servers_are_missing(act, missing):
    with pytest.raises(DeadlineError, match="rows of") as late:
        act(loopback.world(3)[0])
    assert late.value.missing == missing


def test_whoever_has_not_started_may_be_missing_at_the_start():
    trained = Trained(loopback.world(3)[0], cluster_of(2, 1), deadline_s=DEADLINE_S)
    with pytest.raises(DeadlineError, match="waiting for servers .* to start") as late:
        trained.client.connect(trained.plans)
    assert late.value.missing == (2, 1)


def test_trainers_do_not_agree_on_a_deadline_of_which_one_knows_who_is_missing():
    def ask_a_server():
        raise error

    error = DeadlineError("nothing came")
    with pytest.raises(DeadlineError) as late:
        agreed(lambda data: pytest.fail("told to others, who would report it"), ask_a_server, "")
    assert late.value is error
