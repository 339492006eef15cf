"""Fleet's file systems: the local one, and HDFS by a stand-in for the ``hadoop`` command."""

from __future__ import annotations

import pytest

from hpcdist.errors import (
    FileSystemError,
    FSFileExistsError,
    FSFileNotExistsError,
    FSTimeOut,
    HpcdistError,
)
from hpcdist.fluid.fleet.file_systems import FS, HDFSClient, LocalFS

# Does what ``hadoop fs`` does, in the folder of the variable ROOT.
HADOOP = """#!/bin/bash
[ "$1" = fs ] || exit 2
shift
while [[ "$1" == -D* ]]; do echo "$1" >> "$ROOT/../options"; shift; done
command=$1; shift
case $command in
  -test) test "$1" "$ROOT$2"; exit ;;
  -mkdir) mkdir -p "$ROOT$2" ;;
  -rm) rm -rf "$ROOT$3" ;;
  -touchz) : > "$ROOT$1" ;;
  -mv) mv "$ROOT$1" "$ROOT$2" ;;
  -cat) cat "$ROOT$1" ;;
  -put) cp -r "$1" "$ROOT$2" ;;
  -get) cp -r "$ROOT$1" "$2" ;;
  -ls) echo "Found some items"
       for path in "$ROOT$1"/*; do
         kind=-; [ -d "$path" ] && kind=d
         echo "${kind}rw-r--r-- 1 me us $(stat -c %s "$path") 2026-01-01 00:00 ${path#$ROOT}"
       done ;;
  *) echo "$command: Unknown command" >&2; exit 255 ;;
esac
"""


@pytest.fixture
def hadoop(tmp_path, monkeypatch):
    root = tmp_path / "hdfs"
    root.mkdir()
    command = tmp_path / "home" / "bin" / "hadoop"
    command.parent.mkdir(parents=True)
    command.write_text(HADOOP)
    command.chmod(0o755)
    monkeypatch.setenv("ROOT", str(root))
    return HDFSClient(str(tmp_path / "home"), {"fs.default.name": "hdfs://a:1"}, time_out=30_000)


@pytest.fixture(params=["local", "hdfs"])
def place(request, tmp_path):
    """Return a file system, and a path of it where nothing is."""
    if request.param == "local":
        return LocalFS(), str(tmp_path / "there")
    return request.getfixturevalue("hadoop"), "/there"


def test_directories_and_files_come_and_go(place):
    fs, top = place
    assert not fs.is_exist(top) and not fs.is_dir(top) and not fs.is_file(top)
    assert fs.ls_dir(top) == ([], []) and fs.list_dirs(top) == []
    fs.mkdirs(f"{top}/a/b")
    fs.mkdirs(f"{top}/a/b")
    fs.touch(f"{top}/a/x y")
    fs.touch(f"{top}/a/x y")
    assert fs.ls_dir(f"{top}/a") == (["b"], ["x y"]) and fs.list_dirs(f"{top}/a") == ["b"]
    assert fs.is_dir(f"{top}/a") and fs.is_file(f"{top}/a/x y") and not fs.is_file(f"{top}/a")
    with pytest.raises(FSFileExistsError, match="x y exists"):
        fs.touch(f"{top}/a/x y", exist_ok=False)
    fs.delete(f"{top}/a/x y")
    fs.delete(f"{top}/a/x y")
    assert not fs.is_exist(f"{top}/a/x y")
    fs.delete(top)
    assert not fs.is_exist(top)


def test_what_is_moved_replaces_another_only_if_it_is_said(place):
    fs, top = place
    fs.mkdirs(top)
    fs.touch(f"{top}/a")
    with pytest.raises(FSFileNotExistsError, match="there is no .*lost"):
        fs.mv(f"{top}/lost", f"{top}/b")
    fs.mv(f"{top}/a", f"{top}/b")
    fs.touch(f"{top}/a")
    with pytest.raises(FSFileExistsError, match="overwrite=True replaces it"):
        fs.mv(f"{top}/a", f"{top}/b")
    fs.mv(f"{top}/a", f"{top}/b", overwrite=True)
    assert fs.ls_dir(top) == ([], ["b"])


def test_files_are_brought_to_hdfs_and_back(hadoop, tmp_path):
    here = tmp_path / "here"
    (here / "inner").mkdir(parents=True)
    (here / "a.txt").write_text("one\ntwo\n")
    (here / "inner" / "b.txt").write_text("three")
    hadoop.mkdirs("/user")
    hadoop.upload(str(here), "/user")
    assert hadoop.ls_dir("/user") == (["inner"], ["a.txt"])
    assert hadoop.cat("/user/a.txt") == "one\ntwo" and hadoop.cat("/user/lost") == ""
    sizes = {info["path"]: info["size"] for info in hadoop.list_files_info(["/user"])}
    assert sizes["/user/a.txt"] == 8 and hadoop.list_files_info([]) == []
    hadoop.download("/user", str(tmp_path / "back"))
    assert (tmp_path / "back" / "inner" / "b.txt").read_text() == "three"
    hadoop.download("/user/a.txt", str(tmp_path / "one.txt"))
    assert (tmp_path / "one.txt").read_text() == "one\ntwo\n"
    hadoop.upload_dir(str(here), "/days/")
    hadoop.upload_dir(str(here), "/days", overwrite=True)
    assert hadoop.ls_dir("/days/here") == (["inner"], ["a.txt"])
    assert "-Dfs.default.name=hdfs://a:1" in (tmp_path / "options").read_text()
    assert hadoop.need_upload_download() and not LocalFS().need_upload_download()
    for copy in (hadoop.upload, hadoop.download):
        with pytest.raises(FSFileNotExistsError, match="there is no /lost"):
            copy("/lost", "/elsewhere")


def test_a_command_that_fails_or_is_not_there_is_told(tmp_path):
    with pytest.raises(HpcdistError, match="cannot be started.*say where by hadoop_home"):
        HDFSClient(str(tmp_path), None).is_exist("/x")
    slow = tmp_path / "slow" / "bin" / "hadoop"
    slow.parent.mkdir(parents=True)
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    with pytest.raises(FSTimeOut, match="did not end within 0.1 s"):
        HDFSClient(str(tmp_path / "slow"), {}, time_out=100).is_exist("/x")
    slow.write_text("#!/bin/sh\necho no name node >&2; exit 255\n")
    with pytest.raises(FileSystemError, match="-test -e /x ended with exit code 255: no name node"):
        HDFSClient(str(tmp_path / "slow"), {}).is_exist("/x")
    with pytest.raises(NotImplementedError, match="use LocalFS or HDFSClient"):
        FS().is_exist("/x")
    (tmp_path / "file").touch()
    with pytest.raises(FSFileExistsError, match="is a file"):
        LocalFS().mkdirs(str(tmp_path / "file"))
