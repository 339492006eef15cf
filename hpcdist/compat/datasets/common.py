"""``paddle.dataset.common``: where Fluid's data sets lie on this machine."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator
from pathlib import Path

from hpcdist.dataset.files import damaged, find
from hpcdist.errors import DataError

__all__ = ["DATA_HOME", "download", "md5file"]

DATA_HOME = str(Path.home() / ".cache/paddle/dataset")


def download(url: str, module_name: str, md5sum: str, save_name: str | None = None) -> str:
    """Return where the file of an address lies; nothing is fetched, nor is the checksum asked."""
    return str(file_of(module_name, save_name or url.split("/")[-1]))


def md5file(fname: str) -> str:
    """Return the MD5 of a file's content, in hexadecimal digits."""
    with open(fname, "rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def file_of(module: str, name: str) -> Path:
    """Return where a file of a data set lies: in Fluid's cache, or HPCDIST_DATA_HOME.

    DataError if it is nowhere here, saying where to put it.
    """
    directory = Path(DATA_HOME) / module
    kept = [directory / f"{module}%2F{name}", directory / name]  # the address's last part
    if there := next((path for path in kept if path.is_file()), None) or find(name):
        return there
    raise DataError(
        f"paddle.dataset.{module}: cannot find {name}, and nothing is downloaded here: put the "
        f"file that Fluid downloads to {kept[1]}, or into HPCDIST_DATA_HOME, on every host"
    )


def lines_of(path: Path, member: str) -> Iterator[str]:
    """Yield the lines of the files of a tar archive whose names end so, in the archive's order."""
    found = False
    try:
        with tarfile.open(path) as archive:
            for entry in archive:
                if entry.isfile() and entry.name.endswith(member):
                    found = True
                    file = archive.extractfile(entry)
                    assert file is not None, "a plain file"
                    for line in file:
                        yield line.decode("utf-8").strip()
    except (tarfile.TarError, EOFError, OSError, UnicodeDecodeError) as error:
        raise damaged(path, error) from error
    if not found:
        raise damaged(path, f"it has no {member}")
