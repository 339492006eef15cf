"""Files of dead ranks in shared memory: those are found and removed, and no others."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdist.launch import rank_steps
from hpcdist.launch.doctor import command, stale_files
from hpcdist.launch.doctor.stale_files import find, find_folders, remove
from tests.scripts import read_script

NAME = "sm_segment.n1.0.1a410000.3"
OWNER = read_script("owns_memory")


def make(path: Path, nbytes=4096) -> Path:
    path.write_bytes(b"x" * nbytes)
    return path


def paths(found):
    return [file.path.name for file in found]


def paths_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_stale_once_its_owner_has_been_killed(tmp_path):
    path = tmp_path / NAME
    command = [sys.executable, "-c", OWNER, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout.readline() == "ready\n"
        assert find(tmp_path) == []
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        (stale,) = find(tmp_path)
    assert stale.path == path
    assert paths(remove([stale])) == [NAME]
    assert list(tmp_path.iterdir()) == []


FOLDER_OWNER = """
import sys, tempfile
from hpcdist.base.temporary import temporary_folder
tempfile.tempdir = sys.argv[1]
with temporary_folder() as folder:
    (folder / "model").write_bytes(b"rows")
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_temporary_folder_is_stale_once_its_owner_has_been_killed(tmp_path):
    (tmp_path / "of-the-user").mkdir()
    command = [sys.executable, "-c", FOLDER_OWNER, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout.readline() == "ready\n"
        assert find_folders(tmp_path) == []
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    remove(find_folders(tmp_path))
    assert paths_in(tmp_path) == ["of-the-user"]


def test_what_is_open_or_mapped_stays(tmp_path):
    # MPICH 5.0.2 makes mpich_shm_610759fb_0; older ones mpich_shar_tmp.
    names = ["vader_segment.a.1", "mpich_shar_tmpAb1", "mpich_shm_610759fb_0", "hpcdist-12"]
    names += ["ucx_shm_posix_7"]
    opened, mapped, *_ = [make(tmp_path / name) for name in names]
    with opened.open("rb"), mapped.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
        file.close()
        stale = ["hpcdist-12", "mpich_shm_610759fb_0", "ucx_shm_posix_7"]
        assert paths(find(tmp_path)) == stale
        memory.close()
    assert len(find(tmp_path)) == 5


def test_files_of_others_are_not_looked_at(tmp_path):
    for name in ("psm_1234", "sem.lock", "my_segment", "PostgreSQL.1", "sm_segments"):
        make(tmp_path / name)
    (tmp_path / "vader_segment.directory").mkdir()
    (tmp_path / "sm_segment.link").symlink_to("/etc/passwd")
    assert find(tmp_path) == []


def test_young_files_are_left_to_the_jobs_that_start_now(tmp_path):
    old, _ = make(tmp_path / "sm_segment.old"), make(tmp_path / "sm_segment.new")
    os.utime(old, (1, 1))
    assert paths(find(tmp_path, older_s=60)) == ["sm_segment.old"]


def test_a_new_file_of_the_same_name_is_not_removed(tmp_path):
    path = make(tmp_path / NAME)
    found = find(tmp_path)
    other = make(tmp_path / "other", 5)
    other.replace(path)
    assert remove(found) == []
    assert path.stat().st_size == 5


def test_where_a_process_cannot_be_looked_at_nothing_counts_as_stale(tmp_path, monkeypatch):
    make(tmp_path / NAME)

    def refuse(process):
        raise PermissionError(13, "not yours")

    monkeypatch.setattr(stale_files, "open_files", refuse)
    assert find(tmp_path) == []


def test_a_process_that_has_ended_holds_nothing_before_its_parent_knows(tmp_path, monkeypatch):
    make(tmp_path / NAME)
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as ended:
        assert ended.stdout.read() == b""  # its end closed the pipe; nobody has waited for it
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        open_files = stale_files.open_files

        def refuse(process):  # as for whoever is not root
            if process.name == str(ended.pid):
                raise PermissionError(13, "fd")
            return open_files(process)

        monkeypatch.setattr(stale_files, "open_files", refuse)
        assert paths(find(tmp_path)) == [NAME]


def test_clean_removes_them_and_the_next_start_does(tmp_path, monkeypatch, capsys, caplog):
    monkeypatch.setattr(stale_files, "find", lambda older_s=0.0: find(tmp_path, older_s=older_s))
    monkeypatch.setattr(stale_files, "sees_all", lambda: True)
    make(tmp_path / NAME, 2**20)
    command.main(["--clean"])
    assert "removed 1 file, 1.0 MiB" in capsys.readouterr().out
    os.utime(make(tmp_path / "sm_segment.old", 2**20), (1, 1))
    make(tmp_path / "sm_segment.new")
    with caplog.at_level("INFO"):
        rank_steps.remove_stale_files("n7")
    assert "n7: removed 1 file of dead ranks" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["sm_segment.new"]


def test_in_a_container_nothing_is_removed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(stale_files, "find", lambda older_s=0.0: find(tmp_path))
    monkeypatch.setattr(stale_files, "sees_all", lambda: False)
    path = make(tmp_path / NAME)
    with pytest.raises(SystemExit) as end:
        command.main(["--clean"])
    assert end.value.code == 1
    assert "nothing was removed" in capsys.readouterr().out
    rank_steps.remove_stale_files("n7")
    assert path.exists()
