"""What importing the package changes in a process that wants the library only."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"


def run(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return done.stdout


def test_nothing_of_the_process_changes() -> None:
    before, after = json.loads(run(str(SCRIPTS / "imports_only.py")))
    assert after == before


@pytest.mark.parametrize("options", [(), ("-m", "hpcdist"), ("-m", "hpcdist", "--as-paddle")])
def test_data_is_a_function_and_a_module(options: tuple[str, ...]) -> None:
    names = ("paddle", "paddle.fluid") if "--as-paddle" in options else ("", "hpcdist")
    assert run(*options, str(SCRIPTS / "reads_by_name.py"), *names) == "right\n"
