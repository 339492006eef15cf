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
    for part in ("tools", "models/rank/dnn", "models/rank/slot_dnn"):
        shutil.copytree(Path(CLONE, part), tmp_path / part)
    (tmp_path / "model").mkdir()  # else each worker makes it that does not find it: a race
    text = (tmp_path / CONFIG).read_text()
    # The only number that cannot be given after -o: the trainer would take it as text.
    (tmp_path / CONFIG).write_text(re.sub(r"geo_step: \d+", "geo_step: 2", text))
    return tmp_path


def run(directory, *command, ranks=4):
    ran = subprocess.run(
        [
            *(MPIRUN, "-n", str(ranks), sys.executable, "-m", "hpcdist", "--as-paddle"),
            *("--pservers", str(ranks // 2), "--all-output", *command),
        ],
        cwd=directory,
        env=clean_environment() | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stderr + ran.stdout


def areas(clone):
    told = run(clone, "tools/static_ps_trainer.py", "-m", CONFIG, "-o", *OPTIONS)
    (told,) = set(re.findall(r"train_result_dict: .*'auc': \[(.*?)\]", told))
    return [float(number) for number in re.findall(r"0\.\d+", told)]


@needs_mpirun
@pytest.mark.parametrize("mode", ["sync", "async", "geo"])
def test_a_trainer_of_paddlerec_runs_as_it_is(clone, mode):
    text = (clone / CONFIG).read_text()
    (clone / CONFIG).write_text(re.sub(r'sync_mode: "\w+"', f'sync_mode: "{mode}"', text))
    first, last = areas(clone)
    assert last > first  # the same 80 rows again
    assert (clone / "model" / "1" / "__model__").exists()


@needs_mpirun
def test_the_online_trainer_of_paddlerec_runs_as_it_is_and_goes_on(clone):
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
    directory = clone / "models/rank/slot_dnn"
    for day in ("20190720", "20190721", "20190722"):
        for split in ("0000", "0600", "1200", "1800"):
            (directory / "data" / day / split).mkdir(parents=True)
            shutil.copy(directory / "data/demo_10", directory / "data" / day / split)
    config = yaml.safe_load((directory / "config_online.yaml").read_text())
    accessor = config["table_parameters"]["embedding"]["accessor"]
    del accessor["embed_sgd_param"], accessor["embedx_sgd_param"]
    runner = config["runner"]
    runner |= {"split_interval": 360, "pipe_command": "python queuedataset_reader.py"}
    config["hyper_parameters"]["layer_sizes"] = [16, 8]
    told, trainer = [], "../../../tools/static_ps_online_trainer.py"
    # Worker 0 leaves a barrier out where it makes a done-file: there must be one worker then.
    for runner["end_day"], ranks in (("20190720", 2), ("20190721", 4)):
        (directory / "config.yaml").write_text(yaml.safe_dump(config))
        told.append(run(directory, trainer, "-m", "config.yaml", ranks=ranks))
    assert "going to load model" not in told[0]
    assert "going to load model output_model/20190721/0/" in told[1]
    written = (directory / "output_model/donefile.txt").read_text().splitlines()
    found = [line.split("\t")[:4:3] for line in written]
    assert found == [["20190720", "1"], ["20190721", "-1"], ["20190721", "1"], ["20190722", "-1"]]
    assert (directory / "output_model/20190722/base/__model__").exists()
