"""split_group of torch.distributed: groups of ours are split on the CPU."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

import torch.distributed as dist  # noqa: E402
from torch.distributed import device_mesh, split_group  # noqa: E402
from torch.distributed.tensor import DeviceMesh, DTensor, Partial  # noqa: E402

from hpcdist.errors import GroupError  # noqa: E402
from tests.support.jobs import clean_environment  # noqa: E402
from tests.torch.torch_ranks import of_all, pairs  # noqa: E402


def ranks_of(group: dist.ProcessGroup | None) -> list[int] | None:
    return None if group is None else dist.get_process_group_ranks(group)


def summed(group: dist.ProcessGroup) -> int:
    """Return the sum of the job's ranks in the group, as its ranks sum it."""
    rank = torch.tensor(dist.get_rank())
    dist.all_reduce(rank, group=group)
    return int(rank)


def shares(size: int) -> list[list[int]]:
    """Return even and odd ranks, both backwards."""
    return [part for part in ([*range(size)][::-2], [*range(size)][-2::-2]) if part]


@pytest.mark.mpi
def test_each_rank_gets_the_group_that_it_is_in():
    size = of_all(0).size
    expected = next(sorted(part) for part in shares(size) if dist.get_rank() in part)
    by_default = split_group(split_ranks=shares(size))
    described = split_group(of_all(0).ours, shares(size), group_desc="halves")
    for group in (by_default, described):
        assert ranks_of(group) == expected
        assert group.size() == len(expected)
        assert dist.get_rank(group) == expected.index(dist.get_rank())
        assert summed(group) == sum(expected)
        mesh = DeviceMesh.from_group(group, "cpu")  # which finds groups by their names
        part = DTensor.from_local(torch.ones(1), mesh, [Partial()])
        assert int(part.full_tensor()) == len(expected)
    assert described.group_desc == "halves"
    assert by_default.group_desc.startswith("default_pg:split:")
    assert by_default.group_name != described.group_name
    assert dist.get_backend(by_default) == dist.get_backend()


@pytest.mark.mpi
def test_ranks_in_no_split_get_none_and_groups_are_split_again():
    whole = of_all(0)
    first = split_group(whole.ours, [[0]])
    assert ranks_of(first) == ([0] if dist.get_rank() == 0 else None)
    # Ranks are now in different numbers of groups.
    last = whole.size - 1
    ends = split_group(whole.ours, [sorted({0, last})])
    assert ranks_of(ends) == (sorted({0, last}) if dist.get_rank() in (0, last) else None)
    if whole.size < 2:
        return
    halves = split_group(whole.ours, [[0], [*range(1, whole.size)]])
    nested = split_group(halves, [[halves.size() - 1]])  # one beside the other
    assert ranks_of(nested) == ([dist.get_rank()] if dist.get_rank() in (0, last) else None)
    if nested is not None:
        assert summed(nested) == dist.get_rank()
    beside = {pair.ranks: pair.ours for pair in pairs()}.get(tuple(range(1, whole.size)))
    if dist.get_rank() == 0:
        with pytest.raises(GroupError, match="rank 0 calls split_group of a group that it is not"):
            split_group(beside, [[0]])
    else:
        assert ranks_of(split_group(beside, [[0]])) == ([1] if dist.get_rank() == 1 else None)


@pytest.mark.mpi
def test_splits_that_cannot_be_are_refused_on_all_ranks():
    whole = of_all(0)
    size = whole.size
    for wrong, told in (
        (None, "with nothing in it"),
        ([], "with nothing in it"),
        ([[0], []], "with nothing in it"),
        ([[0, 0]], "rank 0 twice"),
        ([[0], [0, *range(1, size)]], "rank 0 twice"),
        ([[size]], f"rank {size} of a group of {size}"),
        ([[-1]], "rank -1 of a group"),
    ):
        with pytest.raises(ValueError, match=told):
            split_group(whole.ours, wrong)
    with pytest.raises(GroupError, match="expected backend='hpcdist', or a part of it"):
        split_group(whole.ours, [[0]], backend="cpu:gloo")
    assert summed(whole.ours) == sum(range(size)), "the parent still works"
    if size > 1:
        with pytest.raises(GroupError, match=r"every rank must make the same call, rank 0 makes"):
            split_group(whole.ours, [[dist.get_rank()]])


@pytest.mark.mpi
def test_a_split_has_its_time_out_and_the_backend_that_is_chosen():
    whole = of_all(0)
    if whole.size == 1:
        return
    group = split_group(
        whole.ours, [[*range(whole.size)]], timedelta(seconds=0.2), backend="cpu:hpcdist"
    )
    assert dist.get_backend(group) == "cpu:hpcdist"
    if dist.get_rank() == 0:
        with pytest.raises(TimeoutError, match=r"nothing came within 0\.2 s"):
            dist.barrier(group)
    dist.barrier(whole.ours)


@pytest.mark.mpi
def test_groups_of_torchs_own_are_split_by_torch():
    whole = of_all(0)
    with pytest.raises(RuntimeError, match="No device associated with the default pg"):
        split_group(whole.gloo, [[0]])
    assert dist.split_group is split_group is device_mesh.split_group


def test_a_name_that_was_imported_before_hpcdist_splits_as_well(tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch.distributed as dist\n"
        "from torch.distributed import split_group\n"
        "import hpcdist.torch\n"
        "dist.init_process_group('hpcdist')\n"
        "print(split_group(split_ranks=[[0]]).size())\n"
    )
    ran = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "1\n"), ran.stderr
