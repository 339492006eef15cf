"""Options of Fluid's launchers: what they mean, and what to use where they mean nothing."""

from __future__ import annotations

import pytest

from hpcdist.comm.cluster import Cluster
from hpcdist.errors import LaunchError
from hpcdist.fluid.compat.fluid_options import REFUSED, check_counts
from hpcdist.launch import command_line, options


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    monkeypatch.delenv("HPCDIST_PSERVERS", raising=False)


def test_names_of_fluids_for_options_of_ours():
    found = options.parse(["--log_dir", "log", "--server_num", "2", "train.py", "--gpus", "9"])
    assert (found.log_dir, found.pservers) == ("log", 2)
    assert found.script_args == ("--gpus", "9")
    ours = options.parse(["--log-dir", "log", "--pservers", "2", "train.py"])
    assert (ours.log_dir, ours.pservers) == ("log", 2)


def test_options_that_mean_the_same():
    import os

    given = ["--gpus=5,7", "--print_config", "False", "--log_level", "20", "--worker_num", "4"]
    found = options.parse([*given, "--nproc_per_node=2", "--node_ip", "127.0.0.1", "train.py"])
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5,7"
    assert found.quiet and found.log_level == 20
    assert (found.worker_num, found.nproc_per_node) == (4, 2)


@pytest.mark.parametrize("name", [*REFUSED, "--use_paddlecloud"])
def test_options_that_mean_nothing_here_say_what_to_use(name, capsys, monkeypatch):
    monkeypatch.setattr(command_line, "launched_rank", lambda: 0)
    with pytest.raises(SystemExit):
        options.parse([name, "10.0.0.1", "train.py"])
    assert f"{name} is an option of Fluid's launcher: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--gpus", "1"], "1 is not among CUDA_VISIBLE_DEVICES=4,5,6,7"),
        (["--selected_gpus", "all"], "expected numbers separated by commas, got 'all'"),
        (["--print_config", "no"], "expected True or False, got 'no'"),
    ],
)
def test_wrong_values(given, words, capsys, monkeypatch):
    monkeypatch.setattr(command_line, "launched_rank", lambda: 0)
    with pytest.raises(SystemExit):
        options.parse([*given, "train.py"])
    assert words in capsys.readouterr().err


def test_numbers_are_checked():
    cluster = Cluster((0, 1, 2), (3,))
    check_counts(3, 2, cluster, ["a", "a", "b", "b"])
    check_counts(None, None, cluster, ["a", "a", "a", "b"])
    with pytest.raises(LaunchError, match="job has 3 trainers: start mpirun -n 5"):
        check_counts(4, None, cluster, ["a"] * 4)
    with pytest.raises(LaunchError, match="1 ranks run on b: start mpirun -n 6"):
        check_counts(None, 3, cluster, ["a", "a", "a", "b"])
