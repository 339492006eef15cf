"""A script that publishes and ends without closing is told what is in no version."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.jobs import clean_environment

SCRIPT = """
import sys
import numpy as np
import hpcdist

table = hpcdist.ps.connect("users", 4, publish=sys.argv[1], publish_every=1)
for step in range(40):
    rows = table.pull(np.arange(5))
    table.push(np.arange(5), np.ones_like(rows)).wait()
if sys.argv[2] == "close":
    table.close()
"""


@pytest.mark.parametrize("start", [(), ("-m", "hpcdist")], ids=["python", "hpcdist"])
@pytest.mark.parametrize("end", ["close", "no close"])
def test_rows_in_no_version_are_told_at_the_end(
    tmp_path: Path, end: str, start: tuple[str, ...]
) -> None:
    script, versions = tmp_path / "script.py", tmp_path / "versions"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, *start, str(script), str(versions), end],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert not [*versions.glob("*.tmp")]
    newest = json.loads(max(versions.glob("*.json")).read_text())["step"]
    told = "step 40 was the last one" in done.stderr
    assert told == (newest != 40), (newest, done.stderr)
    if end == "close":
        assert newest == 40
