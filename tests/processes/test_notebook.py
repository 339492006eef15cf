"""Jobs that a notebook starts: what they print, how they fail, how they end."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcdist import notebook
from hpcdist.launch.processes import lives
from hpcdist.notebook import JobError, losses_of
from tests.support.jobs import clean_environment, needs_mpirun

ROOT = Path(__file__).parents[2]
RANKS = """
import os, sys, time
open(f"pid.{os.environ['HPCDIST_RANK']}", "w").write(str(os.getpid()))
print("loss", 0.5, flush=True)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_numbers_behind_the_word_loss():
    assert losses_of("loss=1e-3, Loss: 2; loss: -0.5 glossary 7") == [1e-3, -0.5]
    assert losses_of("loss nan") == []


@needs_mpirun
def test_a_job_prints_and_its_losses_are_kept(here, capfd):
    finished = notebook.run(RANKS, 2, options=("--quiet",), timeout_s=300)
    assert finished.code == 0 and finished.losses == (0.5,)
    assert "loss 0.5" in finished.output and "loss 0.5" in capfd.readouterr().out
    assert {path.name for path in here.glob("pid.*")} == {"pid.0", "pid.1"}


@needs_mpirun
def test_a_failing_job_raises_the_message_of_its_rank(here):
    script = "import os\nif os.environ['HPCDIST_RANK'] == '1': raise ValueError('bad luck')\n"
    script += "import time; time.sleep(600)\n"
    with pytest.raises(JobError, match=r"(?s)exit code 1.*rank 1 .*failed.*ValueError: bad luck"):
        notebook.run(script, 2)


def test_what_is_refused(here):
    with pytest.raises(JobError, match='expected its path, or its text, got 2: run."train.py"'):
        notebook.run(2, pservers=1)
    with pytest.raises(JobError, match="pservers=2 of n=2 ranks"):
        notebook.run("train.py", 2, pservers=2)
    with pytest.raises(JobError, match=r"no script 'train.py' in .*line break"):
        notebook.run("train.py", 2)


def test_a_job_that_takes_too_long_is_ended(here):
    begin = time.monotonic()
    with pytest.raises(JobError, match="had not ended after 1 s"):
        notebook.run("import time\ntime.sleep(600)\n", 1, timeout_s=1)
    assert time.monotonic() < begin + 300


@needs_mpirun
def test_a_job_ends_with_the_kernel(here):
    code = f"from hpcdist import notebook; notebook.run({RANKS + 'time.sleep(600)'!r}, 2)"
    kernel = subprocess.Popen(
        [sys.executable, "-c", code],
        env=clean_environment() | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )
    files = [here / "pid.0", here / "pid.1"]
    late = time.monotonic() + 300
    while not all(file.exists() and file.read_text() for file in files):
        assert time.monotonic() < late
        time.sleep(0.1)
    kernel.send_signal(signal.SIGKILL)
    kernel.wait()
    pids = [int(file.read_text()) for file in files]
    while any(map(lives, pids)):
        assert time.monotonic() < late, "ranks outlive the kernel"
        time.sleep(0.1)


NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))


@needs_mpirun
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook(file, here, monkeypatch):
    """Its cells run, with what they assert, and each job's curve is drawn."""
    missing = [name for name in ("nbclient", "ipykernel", "matplotlib") if not _is_there(name)]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: pip install '.[notebook]'")
    if "import torch" in file.read_text("utf-8") and not _is_there("torch"):
        pytest.skip("torch is not installed: pip install '.[torch]'")
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    made = nbformat.read(file, as_version=4)
    NotebookClient(made, timeout=500, kernel_name="python3").execute()
    jobs = [cell for cell in made.cells if "hpcdist.notebook.run(" in cell.source]
    assert jobs
    for cell in jobs:
        printed = "".join(output.get("text", "") for output in cell.outputs)
        assert "loss" in printed
        assert any("image/png" in output.get("data", {}) for output in cell.outputs)


def _is_there(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
