"""Fixtures of the unit tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def programs() -> Iterator[tuple[object, object]]:
    """Build into fresh Programs, names counted afresh; gives (main, startup)."""
    import hpcdist as fluid  # not before a test needs it: some look at what is imported

    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        yield main, startup
