"""Values that a trainer gives the servers arrive whole, in pieces; what does not fit is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcdist.errors import CheckpointError
from hpcdist.ps import given_values
from hpcdist.ps.given_values import give, take


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (5, 7)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_values_arrive_in_pieces(monkeypatch, shape, dtype):
    monkeypatch.setattr(given_values, "PIECE", 24)
    value = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
    asked: list[Any] = []
    give(asked.append, {"w": value})
    there = np.full(shape, 9, dtype)
    for request in asked:
        take(there, **{key: request[key] for key in ("name", "at", "data")})
    assert there.tobytes() == value.tobytes() and len(asked) == -(-value.nbytes // 24)


@pytest.mark.parametrize(
    ("at", "data"),
    [
        (0, "AAAAAAAA"),
        (-4, "AAAA"),
        (1 << 70, ""),
        ("0", "AAAA"),
        (0, "no text"),
        (0, 3),
        (2.5, "AA=="),
    ],
)
def test_what_does_not_fit_is_refused(at, data):
    there = np.zeros(1, np.float32)
    with pytest.raises(CheckpointError, match="'w' has 4 bytes, the values given do not fit"):
        take(there, "w", at, data)
    assert not there.any()


def test_columns_take_their_own_values():
    there = np.zeros((3, 4), np.float32)
    give(
        lambda request: take(there.T, **{k: request[k] for k in ("name", "at", "data")}),
        {"w": np.arange(12, dtype="float32").reshape(4, 3)},
    )
    assert there.T.reshape(-1).tolist() == list(range(12))
