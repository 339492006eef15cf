from __future__ import annotations

import pytest

from hpcdist.comm.cluster import PSERVER
from hpcdist.ps.messages import REPLY_TAG, REQUEST_TAG, MessageKind
from hpcdist.ps.wire import finish_sends, post_message, receive_message
from tests.cases.ps import PsTests
from tests.cases.transport import LIMIT_S, Body
from tests.support.ps_model import Trained, cluster_of
from tests.support.threads import run_in_world


class TestLoopbackPs(PsTests):
    def run(self, size: int, body: Body) -> None:
        run_in_world(size, body)


@pytest.mark.parametrize("kind", [MessageKind.HELLO, MessageKind.CHECKPOINT])
def test_servers_that_answer_one_trainer_each_do_not_wait_in_a_circle(kind):
    """Each takes the next trainer's request only when its answer has been taken."""
    cluster = cluster_of(2, 2)

    def body(t):
        role = cluster.role_of(t.rank)
        if role.kind == PSERVER:
            for trainer in (role.index, 1 - role.index):
                header, _ = receive_message(t, trainer, REQUEST_TAG, lambda: "a request", LIMIT_S)
                assert header.kind is kind
                ok = MessageKind.HELLO_OK if kind is MessageKind.HELLO else MessageKind.VALUE
                answer = post_message(t, trainer, REPLY_TAG, ok, trainer, 0, role.index)
                finish_sends(t, answer, lambda: "an answer", LIMIT_S)
            return
        trained = Trained(t, cluster, sync_mode=False)
        if kind is MessageKind.HELLO:
            trained.client.connect(trained.plans)
        else:
            assert trained.client.ask("save") == [0, 1]

    run_in_world(4, body)
