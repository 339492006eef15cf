"""PaddleRec's trainer for parameter servers, as it is, where a clone is at hand.

PADDLEREC=/path/to/PaddleRec python -m pytest tests/processes/test_paddlerec.py
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.jobs import MPIRUN, clean_environment, needs_mpirun

CLONE = os.environ.get("PADDLEREC", "")
CONFIG = "models/rank/dnn/config_cpups.yaml"
OPTIONS = [
    "runner.epochs=2",
    "runner.train_batch_size=10",
    "runner.print_interval=2",
    "hyper_parameters.optimizer.learning_rate=0.001",
]

pytestmark = pytest.mark.skipif(
    not Path(CLONE, CONFIG).is_file(), reason="PADDLEREC is no clone of PaddleRec"
)


@pytest.fixture
def clone(tmp_path):
    for part in ("tools", "models/rank/dnn"):
        shutil.copytree(Path(CLONE, part), tmp_path / part)
    (tmp_path / "model").mkdir()  # else each worker makes it that does not find it: a race
    text = (tmp_path / CONFIG).read_text()
    # The only number that cannot be given after -o: the trainer would take it as text.
    (tmp_path / CONFIG).write_text(re.sub(r"geo_step: \d+", "geo_step: 2", text))
    return tmp_path


def areas(clone):
    ran = subprocess.run(
        [
            *(MPIRUN, "-n", "4", sys.executable, "-m", "hpcdist", "--as-paddle"),
            *("--pservers", "2", "--all-output"),
            *("tools/static_ps_trainer.py", "-m", CONFIG, "-o", *OPTIONS),
        ],
        cwd=clone,
        env=clean_environment() | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    (told,) = set(re.findall(r"train_result_dict: .*'auc': \[(.*?)\]", ran.stderr + ran.stdout))
    return [float(number) for number in re.findall(r"0\.\d+", told)]


@needs_mpirun
@pytest.mark.parametrize("mode", ["sync", "async", "geo"])
def test_a_trainer_of_paddlerec_runs_as_it_is(clone, mode):
    text = (clone / CONFIG).read_text()
    (clone / CONFIG).write_text(re.sub(r'sync_mode: "\w+"', f'sync_mode: "{mode}"', text))
    first, last = areas(clone)
    assert last > first  # the same 80 rows again
    assert (clone / "model" / "1" / "__model__").exists()
