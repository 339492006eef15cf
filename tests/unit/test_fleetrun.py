"""Which mpirun line `fleetrun` makes of Paddle's options."""

from __future__ import annotations

import pytest

from hpcdist.errors import LaunchError
from hpcdist.launch import fleetrun


@pytest.mark.parametrize(
    ("asked", "started"),
    [
        (
            "--server_num=2 --worker_num=2 train.py -m config.yaml",
            "mpirun -n 4 python -m hpcdist --as-paddle --pservers 2 train.py -m config.yaml",
        ),
        (
            "--server_num 1 --trainer_num 3 --log_dir=l train.py --seed 9",
            "mpirun -n 4 python -m hpcdist --as-paddle --pservers 1 --log_dir=l train.py --seed 9",
        ),
        (
            "--servers=127.0.0.1:1,127.0.0.1:2 --workers 127.0.0.1:3 --seed 7 -m package.train x",
            "mpirun -n 3 python -m hpcdist --as-paddle --pservers 2 --seed 7 -m package.train x",
        ),
        ("--nproc_per_node=2 train.py", "mpirun -n 2 python -m hpcdist --as-paddle train.py"),
        ("--worker_num 2 train.py", "mpirun -n 2 python -m hpcdist --as-paddle train.py"),
        ("train.py", "python -m hpcdist --as-paddle train.py"),
        ("--as-paddle train.py", "python -m hpcdist --as-paddle train.py"),
        (
            "--gpus 0,1 train.py",
            "mpirun -n 2 python -m hpcdist --as-paddle --gpus 0,1 train.py",
        ),
        ("--ips 127.0.0.1 train.py", "python -m hpcdist --as-paddle --ips 127.0.0.1 train.py"),
    ],
)
def test_the_line_that_is_started(asked, started):
    assert " ".join(fleetrun.command(asked.split())) == started


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("--server_num=2 train.py", "how many workers"),
        ("--server_num=2 --servers a:1 --worker_num 1 train.py", "--server_num says 2, --servers"),
        ("--server_num=1 --nproc_per_node 2 train.py", "is for training without servers"),
        ("--server_num=0 --worker_num 1 train.py", "at least 1 worker and 1 server, got 1 and 0"),
        ("--worker_num 0 train.py", "at least 1 worker"),
    ],
)
def test_numbers_that_do_not_fit_are_told(asked, told):
    with pytest.raises(LaunchError, match=told):
        fleetrun.command(asked.split())


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("--ips 10.0.0.1,10.0.0.2 train.py", "mpirun --host"),
        ("--server_nums=2 train.py", "--server_nums"),
        ("--server_num=two --worker_num 1 train.py", "invalid int value: 'two'"),
    ],
)
def test_options_that_are_not_there_are_refused(asked, told, capsys):
    with pytest.raises(SystemExit):
        fleetrun.command(asked.split())
    assert told in capsys.readouterr().err
