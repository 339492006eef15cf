"""Tensors that differ between trainers: each goes on with its own, others with trainer 0's."""

from __future__ import annotations

import pytest

from tests.scripts import read_script
from tests.support.jobs import Job, needs_mpirun, needs_torch

pytestmark = [needs_mpirun, needs_torch]
INDIVIDUAL = read_script("torch_individual")


def printed(tmp_path, trainers, servers, *args):
    options = ("--as-torchrun", *(("--pservers", str(servers)) if servers else ()))
    args = (str(tmp_path / "saved"), *args)
    env = {"OMP_NUM_THREADS": "1"}
    job = Job(tmp_path, INDIVIDUAL, *options, ranks=trainers + servers, args=args, env=env)
    ended = job.end()
    assert ended.code == 0, ended
    return {line.split()[1]: line.split(maxsplit=2)[2] for line in ended.out.splitlines()}


@pytest.mark.parametrize("servers", [0, 1])
def test_each_trainer_goes_on_with_its_own_tensors(tmp_path, servers):
    table = ("table",) * servers
    saved = printed(tmp_path, 2, servers, "save", *table)
    assert saved["0"] != saved["1"]
    assert printed(tmp_path, 2, 0, "restore", *table) == saved
    others = printed(tmp_path, 3, 0, "restore", *table)
    assert others == dict.fromkeys("012", saved["0"])
