"""``paddle.dataset.common``: where Fluid's data sets lie on this machine."""

from __future__ import annotations

import hashlib
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

from hpcdist.base.errors import DataError
from hpcdist.fluid.dataset.files import damaged, find

__all__ = ["DATA_HOME", "download", "md5file"]

# What is raised for files that are cut off, changed, or hold something else.
_DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    pickle.PickleError,
    EOFError,
    OSError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    MemoryError,
)

DATA_HOME = str(Path.home() / ".cache/paddle/dataset")


def download(url: str, module_name: str, md5sum: str, save_name: str | None = None) -> str:
    """Return where the file of an address lies; nothing is fetched, nor is the checksum asked."""
    return str(file_of(module_name, save_name or url.split("/")[-1]))


def md5file(fname: str) -> str:
    """Return the MD5 of a file's content, in hexadecimal digits."""
    digest = hashlib.md5()
    with open(fname, "rb") as file:
        for piece in iter(partial(file.read, 1 << 20), b""):
            digest.update(piece)
    return digest.hexdigest()


def file_of(module: str, name: str) -> Path:
    """Return where a file of a data set lies: in Fluid's cache, or HPCDIST_DATA_HOME.

    DataError if it is nowhere here, saying where to put it.
    """
    if path := kept_by_fluid(module, name) or find(name):
        return path
    raise DataError(
        f"paddle.dataset.{module}: cannot find {name}, and nothing is downloaded here: put the "
        f"file that Fluid downloads to {Path(DATA_HOME) / module / name}, or into "
        "HPCDIST_DATA_HOME, on every host"
    )


def kept_by_fluid(module: str, name: str) -> Path | None:
    """Return where Fluid has put a file of a data set that it has downloaded; None if nowhere."""
    directory = Path(DATA_HOME) / module
    candidates = [directory / f"{module}%2F{name}", directory / name]  # the address's last part
    return next((path for path in candidates if path.is_file()), None)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise DataError, with the file's name, for whatever its content makes fail."""
    try:
        yield
    except DataError:
        raise
    except _DAMAGE as error:
        raise damaged(path, f"{type(error).__name__}: {error}") from error


def files_in(path: Path, chosen: Callable[[str], bool]) -> Iterator[IO[bytes]]:
    """Give the files of a tar archive whose names are chosen, in the archive's order."""
    with tarfile.open(path) as archive:
        for entry in archive:
            if entry.isfile() and chosen(entry.name):
                file = archive.extractfile(entry)
                assert file is not None, "a plain file"
                yield file
        assert archive.fileobj is not None, "it is open"
        while archive.fileobj.read(1 << 20):  # at its end gzip compares the checksum
            pass


def lines_of(path: Path, member: str) -> Iterator[str]:
    """Yield the lines of the files of a tar archive whose names end so, in the archive's order."""
    is_member = False
    with reading(path):
        for file in files_in(path, lambda name: name.endswith(member)):
            is_member = True
            for line in file:
                yield line.decode("utf-8").strip()
    if not is_member:
        raise damaged(path, f"it has no {member}")
