"""Sending and receiving control messages over a transport."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcdist.base.errors import RankFailure
from hpcdist.comm.base import Array, Request, Transport
from hpcdist.ps.messages import HEADER, Header, MessageKind, decode_header, decode_payload, encode


def new_header() -> Array:
    """Return a buffer to receive a header into."""
    return np.zeros(HEADER.size, np.uint8)


def post_message(
    transport: Transport,
    peer: int,
    tag: int,
    kind: MessageKind,
    trainer: int,
    step: int,
    payload: object,
) -> list[Request]:
    """Start sending a control message; return the requests to wait for."""
    parts = encode(kind, trainer, step, payload)
    return [transport.isend(part, peer, tag) for part in parts if part.nbytes]


def unended(transport: Transport, requests: Sequence[Request]) -> list[int]:
    """Return which of these requests have not ended, or have failed."""
    left = []
    for i, request in enumerate(requests):
        try:
            if not transport.test_all([request]):
                left.append(i)
        except RankFailure:
            left.append(i)
    return left


def finish_sends(
    transport: Transport,
    requests: Sequence[Request],
    describe: Callable[[], str],
    deadline_s: float | None,
) -> None:
    """Wait until messages have left; those to ranks that have died count as gone."""
    try:
        transport.wait_all(requests, describe, deadline_s)
    except RankFailure:
        for request in requests:
            with contextlib.suppress(RankFailure):
                transport.wait_all([request], describe, deadline_s)


def read_payload(
    transport: Transport,
    peer: int,
    tag: int,
    header: Header,
    describe: Callable[[], str],
    deadline_s: float | None,
) -> Any:
    """Receive and decode the payload that follows a header; None when it announces none."""
    body = np.zeros(header.length, np.uint8)
    if header.length:
        transport.wait_all([transport.irecv(body, peer, tag)], describe, deadline_s)
    return decode_payload(body)


def receive_message(
    transport: Transport, peer: int, tag: int, describe: Callable[[], str], deadline_s: float | None
) -> tuple[Header, Any]:
    """Wait for a control message from ``peer``; return its header and payload."""
    data = new_header()
    transport.wait_all([transport.irecv(data, peer, tag)], describe, deadline_s)
    header = decode_header(data)
    return header, read_payload(transport, peer, tag, header, describe, deadline_s)
