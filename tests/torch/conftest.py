"""Fixtures of the tests of hpcdist.torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def no_tables_yet() -> Iterator[None]:
    """Let a test begin without tables, and leave none to the next one."""
    from hpcdist.torch import tables  # those who use it have torch

    tables.reset()
    yield
    tables.reset()
