"""Helpers of tests that run on several ranks."""

from __future__ import annotations

from collections.abc import Callable

from hpcdist.comm.base import Transport


def parallel_assert(transport: Transport, check: Callable[[], None]) -> None:
    """Run ``check`` on every rank; if it fails on some, fail on all with those ranks' messages.

    A plain assert that fails on one rank leaves the others waiting in their next collective call.
    """
    message = b""
    try:
        check()
    except Exception as error:
        message = f"{type(error).__name__}: {error}".encode()
    messages = transport.allgather_bytes(message)
    failed = [f"rank {rank}: {text.decode()}" for rank, text in enumerate(messages) if text]
    if failed:
        raise AssertionError("\n".join(failed))
