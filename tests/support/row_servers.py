"""Servers of tables of rows, made alike, and trained by ids of Zipf's law."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcdist.ps.batch import owners_of
from tests.cases.checkpoint import TABLE, Servers, build


def servers_of(make: Callable[[], Any], count: int) -> Servers:
    """Return servers with a table each, as ``make()`` gives it."""
    servers = Servers(*build(), count, tables=True)
    servers.tables = [make() for _ in range(count)]
    for scope, table in zip(servers.scopes, servers.tables):
        scope.var(TABLE).value = table
    return servers


def push_batches(tables: Sequence[Any], steps: int, seed: int, ids: int) -> None:
    """Push gradients of batches of 400 out of ``ids`` ids, to each table its own."""
    random = np.random.default_rng(seed)
    for _ in range(steps):
        batch = random.zipf(1.2, 400).astype(np.int64) % ids
        grads = random.normal(size=(400, 4)).astype(np.float32)
        owners = owners_of(batch, len(tables))
        for k, table in enumerate(tables):
            table.push(batch[owners == k], grads[owners == k], 0.1)
