"""Servers of scripts without a Program: they keep what trainer 0 announces, one model at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hpcdist import runtime
from hpcdist.base.errors import CommError
from hpcdist.executor.backend import CPUPlace
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope
from hpcdist.fluid.declared.programs import transpiled_for
from hpcdist.ps.facts import Facts
from hpcdist.ps.messages import REPLY_TAG, REQUEST_TAG, VALUE_TAG, MessageKind
from hpcdist.ps.wire import post_message, receive_message
from hpcdist.runtime.pserver.declared import FOLLOWS, deadline_s


def serve() -> None:
    """Keep what trainer 0 announces, one model after another, until every trainer has left."""
    while _serve_model():
        pass


def _serve_model() -> bool:
    """Keep one model; return whether another may follow.

    A script that makes no tables leaves without announcing any.
    """
    job = runtime.current()
    assert job is not None, "only a job has servers"
    endpoint = job.cluster.endpoints[job.role.index]

    def describe() -> str:
        return f"server {job.role.index} waiting for the first look-up in a table"

    transport, (first, *others) = job.transport, job.cluster.trainers
    header, payload = receive_message(transport, first, REQUEST_TAG, describe, None)
    if header.kind is MessageKind.CLOSE:
        for trainer in others:
            receive_message(transport, trainer, REQUEST_TAG, describe, None)
        return False
    if header.kind is not MessageKind.KEEP:
        raise CommError(f"server {job.role.index}: unexpected {header.kind.name} from trainer 0")
    facts = Facts.parse(payload)
    serving, startup = transpiled_for(facts, job.cluster, 0).get_pserver_programs(endpoint)
    serving.distribution = replace(serving.distribution, fingerprint=facts.fingerprint)
    executor, scope = Executor(CPUPlace()), Scope()
    executor.run(startup, scope=scope)
    follows = np.zeros(1, np.float32)
    scope.var(FOLLOWS).hold(follows)
    coming = []
    for _, piece in facts.plan(job.cluster, 0).blocks_on(endpoint):
        value = scope.var(piece.name).value
        coming.append(transport.irecv(value, first, VALUE_TAG))
    transport.wait_all(
        coming, lambda: f"{endpoint} waiting for the first values of parameters", deadline_s()
    )
    executor.run(serving, scope=scope)
    if not follows[0]:
        return False
    told = post_message(transport, first, REPLY_TAG, MessageKind.VALUE, 0, 0, None)
    transport.wait_all(told, lambda: f"{endpoint} telling trainer 0 that it is free", deadline_s())
    return True
