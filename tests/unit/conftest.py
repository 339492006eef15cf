"""What holds here: one process."""

from __future__ import annotations

import os
import subprocess
from typing import NoReturn

import pytest


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse what takes long on a fresh or busy machine: it is tested in other folders."""
    for owner, name in (
        (os, "fork"),
        (os, "posix_spawn"),
        (os, "system"),
        (subprocess.Popen, "__init__"),
    ):
        monkeypatch.setattr(owner, name, _refuse_processes)


def _refuse_processes(*_: object, **__: object) -> NoReturn:
    pytest.fail("a unit test starts no process: move it to tests/processes")
