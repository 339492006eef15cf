"""Dispatchers: which server gets which block."""

from __future__ import annotations

from types import SimpleNamespace
from zlib import crc32

import pytest

from hpcdist.transpiler import HashName, PSDispatcher, RoundRobin

ENDPOINTS = ["ps0:6174", "ps1:6174", "ps2:6174"]


def blocks(*names):
    return [SimpleNamespace(name=name, shape=(1,)) for name in names]


def test_round_robin_goes_on_where_the_last_call_ended():
    dispatcher = RoundRobin(ENDPOINTS)
    assert dispatcher.dispatch(blocks("a", "b")) == ENDPOINTS[:2]
    assert dispatcher.dispatch(blocks("c", "d")) == [ENDPOINTS[2], ENDPOINTS[0]]


def test_reset_starts_at_the_first_server():
    dispatcher = RoundRobin(ENDPOINTS)
    dispatcher.dispatch(blocks("a"))
    dispatcher.reset()
    assert dispatcher.dispatch(blocks("b")) == ENDPOINTS[:1]


def test_hash_name_is_a_function_of_the_name_only():
    names = [f"fc_{i}.w_0" for i in range(20)]
    chosen = HashName(ENDPOINTS).dispatch(blocks(*names))
    assert chosen == [ENDPOINTS[crc32(n.encode()) % 3] for n in names]
    backwards = HashName(ENDPOINTS).dispatch(blocks(*reversed(names)))
    assert backwards == chosen[::-1]
    assert set(chosen) == set(ENDPOINTS)


def test_endpoints_are_readable_and_the_base_dispatches_nothing():
    dispatcher = PSDispatcher(tuple(ENDPOINTS))
    assert dispatcher.eps == ENDPOINTS
    with pytest.raises(NotImplementedError, match="dispatch"):
        dispatcher.dispatch(blocks("a"))
