"""File systems as fleet's scripts see them: the local one, and HDFS through ``hadoop fs``.

``paddle.distributed.fleet.utils`` has `LocalFS` and `HDFSClient`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hpcdist.base.errors import (
    FileSystemError,
    FSFileExistsError,
    FSFileNotExistsError,
    FSTimeOut,
)

__all__ = ["FS", "FSFileExistsError", "FSFileNotExistsError", "FSTimeOut", "HDFSClient", "LocalFS"]

ExecuteError = FileSystemError  # Paddle's name for a command that failed
_FALSE = 1  # with which ``hadoop fs -test`` ends where the answer is no


class FS:
    """What both file systems have; paths are strings."""

    def is_exist(self, fs_path: str) -> bool:
        """Return whether a file or directory is there."""
        raise NotImplementedError("use LocalFS or HDFSClient")

    def is_dir(self, fs_path: str) -> bool:
        """Return whether a directory is there."""
        raise NotImplementedError("use LocalFS or HDFSClient")

    def is_file(self, fs_path: str) -> bool:
        """Return whether a file is there."""
        return self.is_exist(fs_path) and not self.is_dir(fs_path)

    def ls_dir(self, fs_path: str) -> tuple[list[str], list[str]]:
        """Return the names of directories and of files in a directory, if there is one."""
        raise NotImplementedError("use LocalFS or HDFSClient")

    def list_dirs(self, fs_path: str) -> list[str]:
        """Return the names of the directories in a directory, if there is one."""
        return self.ls_dir(fs_path)[0]

    def mkdirs(self, fs_path: str) -> None:
        """Make a directory, and those above it, unless it is there."""
        raise NotImplementedError("use LocalFS or HDFSClient")

    def delete(self, fs_path: str) -> None:
        """Delete a file, or a directory with all that is in it, if one is there."""
        raise NotImplementedError("use LocalFS or HDFSClient")

    def touch(self, fs_path: str, exist_ok: bool = True) -> None:
        """Make an empty file; one that is there stays, or is an error without ``exist_ok``."""
        if not self.is_exist(fs_path):
            self._make_empty(fs_path)
        elif not exist_ok:
            raise FSFileExistsError(f"touch: {fs_path} exists")

    def mv(
        self,
        fs_src_path: str,
        fs_dst_path: str,
        overwrite: bool = False,
        test_exists: bool = True,
    ) -> None:
        """Rename a file or directory; with ``overwrite`` it takes the place of another one."""
        if not self.is_exist(fs_src_path):
            raise FSFileNotExistsError(f"mv: there is no {fs_src_path}")
        if self.is_exist(fs_dst_path):
            if not overwrite:
                raise FSFileExistsError(f"mv: {fs_dst_path} exists: overwrite=True replaces it")
            self.delete(fs_dst_path)
        self._rename(fs_src_path, fs_dst_path)

    def need_upload_download(self) -> bool:
        """Return whether programs need `upload` and `download` to use the files."""
        raise NotImplementedError("use LocalFS or HDFSClient")

    def _make_empty(self, path: str) -> None:
        raise NotImplementedError("use LocalFS or HDFSClient")

    def _rename(self, source: str, destination: str) -> None:
        raise NotImplementedError("use LocalFS or HDFSClient")


class LocalFS(FS):
    """Files of this machine, and of shared file systems that are mounted on it."""

    def mv(  # its names of parameters are not those of HDFSClient.mv
        self, src_path: str, dst_path: str, overwrite: bool = False, test_exists: bool = False
    ) -> None:
        """Rename a file or directory; with ``overwrite`` it takes the place of another one."""
        super().mv(src_path, dst_path, overwrite, test_exists)

    def is_exist(self, fs_path: str) -> bool:
        """Return whether a file or directory is there."""
        return os.path.exists(fs_path)

    def is_dir(self, fs_path: str) -> bool:
        """Return whether a directory is there."""
        return os.path.isdir(fs_path)

    def ls_dir(self, fs_path: str) -> tuple[list[str], list[str]]:
        """Return the sorted names of the directories and of the files in a directory."""
        if not os.path.exists(fs_path):
            return [], []
        with os.scandir(fs_path) as entries:
            named = sorted((entry.name, entry.is_dir()) for entry in entries)
        return [n for n, is_dir in named if is_dir], [n for n, is_dir in named if not is_dir]

    def mkdirs(self, fs_path: str) -> None:
        """Make a directory, and those above it, unless it is there."""
        if os.path.isfile(fs_path):
            raise FSFileExistsError(f"mkdirs: {fs_path} is a file")
        os.makedirs(fs_path, exist_ok=True)

    def delete(self, fs_path: str) -> None:
        """Delete a file, or a directory with all that is in it, if one is there."""
        if os.path.isdir(fs_path) and not os.path.islink(fs_path):
            shutil.rmtree(fs_path)
        else:
            Path(fs_path).unlink(missing_ok=True)

    def rename(self, fs_src_path: str, fs_dst_path: str) -> None:
        """Rename a file or directory."""
        os.rename(fs_src_path, fs_dst_path)

    def need_upload_download(self) -> bool:
        """Return False."""
        return False

    def _make_empty(self, path: str) -> None:
        Path(path).touch()

    def _rename(self, source: str, destination: str) -> None:
        self.rename(source, destination)


class HDFSClient(FS):
    """Files of HDFS, by the command ``<hadoop_home>/bin/hadoop fs``; without a home, by PATH's.

    ``configs`` are given to the command as ``-D<name>=<value>``. A command that does not end within
    ``time_out`` milliseconds raises FSTimeOut, one that fails FileSystemError with what it says.
    hadoop itself tries again where a name node is busy: ``sleep_inter`` is not used.
    """

    def __init__(
        self,
        hadoop_home: str | None,
        configs: Mapping[str, Any] | None,
        time_out: int = 5 * 60 * 1000,
        sleep_inter: int = 1000,
    ) -> None:
        home = os.path.expandvars(hadoop_home or "")  # scripts say "$HADOOP_HOME"
        self._hadoop = f"{home}/bin/hadoop" if home else "hadoop"
        self._options = [f"-D{name}={value}" for name, value in (configs or {}).items()]
        self._time_out_s = time_out / 1000

    def is_exist(self, fs_path: str) -> bool:
        """Return whether a file or directory is there."""
        return self._test("-e", fs_path)

    def is_dir(self, fs_path: str) -> bool:
        """Return whether a directory is there."""
        return self._test("-d", fs_path)

    def ls_dir(self, fs_path: str) -> tuple[list[str], list[str]]:
        """Return the names of directories and of files in a directory, if there is one."""
        if not self.is_exist(fs_path):
            return [], []
        listed = [(kind, os.path.basename(path)) for kind, _, path in self._listed([fs_path])]
        return [n for kind, n in listed if kind == "d"], [n for kind, n in listed if kind != "d"]

    def list_files_info(self, path_list: Sequence[str]) -> list[dict[str, Any]]:
        """Return the ``path`` and ``size`` (bytes) of all that is in these directories."""
        if not path_list:
            return []
        return [{"path": path, "size": size} for _, size, path in self._listed(path_list)]

    def mkdirs(self, fs_path: str) -> None:
        """Make a directory, and those above it, unless it is there."""
        self._run("-mkdir", "-p", fs_path)

    def delete(self, fs_path: str) -> None:
        """Delete a file, or a directory with all that is in it, if one is there."""
        self._run("-rm", "-r", "-f", fs_path)

    def cat(self, fs_path: str) -> str:
        """Return the text of a file without its last newline; "" if there is no such file."""
        return self._run("-cat", fs_path).rstrip("\n") if self.is_file(fs_path) else ""

    def upload(
        self, local_path: str, fs_path: str, multi_processes: int = 5, overwrite: bool = False
    ) -> None:
        """Copy a file, or what is in a directory, to HDFS, ``multi_processes`` files at once."""
        if not os.path.exists(local_path):
            raise FSFileNotExistsError(f"upload: there is no {local_path}")
        names = sorted(os.listdir(local_path)) if os.path.isdir(local_path) else None
        files = [local_path] if names is None else [os.path.join(local_path, n) for n in names]
        if overwrite and self.is_exist(fs_path):
            self.delete(fs_path)
            self.mkdirs(fs_path)
        self._copy([("-put", file, fs_path) for file in files], multi_processes)

    def upload_dir(self, local_dir: str, dest_dir: str, overwrite: bool = False) -> None:
        """Copy a directory into one of HDFS."""
        if overwrite:
            self.delete(f"{dest_dir.rstrip('/')}/{os.path.basename(local_dir.rstrip('/'))}")
        self.mkdirs(dest_dir)
        self._run("-put", local_dir.rstrip("/"), dest_dir.rstrip("/"))

    def download(
        self, fs_path: str, local_path: str, multi_processes: int = 5, overwrite: bool = False
    ) -> None:
        """Copy a file, or what is in a directory, from HDFS, ``multi_processes`` at once."""
        if not self.is_exist(fs_path):
            raise FSFileNotExistsError(f"download: there is no {fs_path}")
        if overwrite:
            LocalFS().delete(local_path)
        if not self.is_dir(fs_path):
            self._run("-get", fs_path, local_path)
            return
        os.makedirs(local_path, exist_ok=True)
        inside = [name for names in self.ls_dir(fs_path) for name in names]
        self._copy([("-get", f"{fs_path}/{name}", local_path) for name in inside], multi_processes)

    def need_upload_download(self) -> bool:
        """Return True."""
        return True

    def _make_empty(self, path: str) -> None:
        self._run("-touchz", path)

    def _rename(self, source: str, destination: str) -> None:
        self._run("-mv", source, destination)

    # -- the command ---------------------------------------------------------------------------
    def _test(self, condition: str, path: str) -> bool:
        code, _, told = self._ended("-test", condition, path)
        if code not in (0, _FALSE):
            raise FileSystemError(self._failure(("-test", condition, path), code, told))
        return code == 0

    def _listed(self, paths: Sequence[str]) -> list[tuple[str, int, str]]:
        """Return kind ("d": directory), bytes and path of all that is in directories."""
        fields = [line.split(None, 7) for line in self._run("-ls", *paths).splitlines()]
        return [(f[0][0], int(f[4]), f[7]) for f in fields if len(f) == 8]

    def _copy(self, commands: Sequence[tuple[str, ...]], at_once: int) -> None:
        with ThreadPoolExecutor(max(1, at_once), "hpcdist-hadoop") as pool:
            for done in [pool.submit(self._run, *command) for command in commands]:
                done.result()

    def _run(self, *arguments: str) -> str:
        code, said, told = self._ended(*arguments)
        if code:
            raise FileSystemError(self._failure(arguments, code, told))
        return said

    def _ended(self, *arguments: str) -> tuple[int, str, str]:
        command = [self._hadoop, "fs", *self._options, *arguments]
        try:
            ended = subprocess.run(
                command, capture_output=True, text=True, timeout=self._time_out_s, check=False
            )
        except subprocess.TimeoutExpired:
            words = f"hadoop fs {' '.join(arguments)}: did not end within {self._time_out_s:g} s"
            raise FSTimeOut(f"{words}: time_out= says how long to wait, in ms") from None
        except OSError as error:
            raise FileSystemError(
                f"HDFSClient: {self._hadoop} cannot be started ({error.strerror}): install Hadoop,"
                " say where by hadoop_home, or mount the file system and use LocalFS"
            ) from error
        return ended.returncode, ended.stdout, ended.stderr

    def _failure(self, arguments: Sequence[str], code: int, told: str) -> str:
        return f"hadoop fs {' '.join(arguments)} ended with exit code {code}: {told.strip()[-500:]}"
