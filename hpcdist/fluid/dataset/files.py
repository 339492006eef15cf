"""Where the files of data sets come from: HPCDIST_DATA_HOME, else the cache, else a download."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpcdist.base import settings
from hpcdist.base.errors import DataError

DATA_HOME = settings.DATA_HOME.name
CONNECT_S = 20


@dataclass(frozen=True)
class RemoteFile:
    """A file that everybody can get: its local name, address and "algorithm:checksum"."""

    name: str
    url: str
    checksum: str


def local_path(file: RemoteFile) -> Path | None:
    """Return where the file lies on this machine, or None. Its content is not looked at."""
    return _in_data_home(file) or _in_cache(file)


def fetch(file: RemoteFile) -> Path:
    """Return the path of the file, downloading it into the cache if it is nowhere here.

    A file in HPCDIST_DATA_HOME is the user's and taken as it is; one in the cache is compared
    with its checksum and downloaded again if it differs. Any number of ranks may call at once:
    each writes a temporary file in the cache and renames it.
    """
    if path := _in_data_home(file):
        return path
    import pooch  # not at the top: it is slow to import, and rarely needed

    cache, stale = _cache(), _in_cache(file)
    try:
        # Before pooch does it with a check first, which two ranks can pass together.
        cache.mkdir(parents=True, exist_ok=True)
        return Path(
            pooch.retrieve(
                file.url,
                known_hash=file.checksum,
                fname=file.name,
                path=cache,
                downloader=pooch.HTTPDownloader(timeout=CONNECT_S),
            )
        )
    except (OSError, ValueError) as error:  # no network or disk; wrong checksum
        stale_note = f" (the one in {cache} has a wrong checksum)" if stale else ""
        raise DataError(
            f"cannot get {file.name}{stale_note} from {file.url}: {error}; set {DATA_HOME} to a "
            f"directory that has it, or put it into {cache}"
        ) from error


def require(name: str, source: str) -> Path:
    """Return the path of a file that the user has put into HPCDIST_DATA_HOME, or the cache.

    ``source`` says where everybody can get it, for the DataError if it is nowhere here.
    """
    if path := find(name):
        return path
    raise DataError(
        f"cannot find {name}: get {source}, put it into a directory, and set {DATA_HOME} to it"
    )


def find(name: str) -> Path | None:
    """Return where a file of that name lies on this machine, or None."""
    directories = [directory for directory in (_data_home(), _cache()) if directory]
    return next((d / name for d in directories if (d / name).is_file()), None)


def damaged(path: Path, problem: object) -> DataError:
    """Return the error for a file whose content is not what its name says."""
    return DataError(f"{path} is damaged: {problem}; delete it or replace it by a good copy")


def _data_home() -> Path | None:
    text = settings.DATA_HOME.read()
    if not text:
        return None
    home = Path(text).expanduser()
    if not home.is_dir():
        raise DataError(f"{DATA_HOME} must name a directory, got {text!r}")
    return home


def _in_data_home(file: RemoteFile) -> Path | None:
    home = _data_home()
    return home / file.name if home and (home / file.name).is_file() else None


def _in_cache(file: RemoteFile) -> Path | None:
    path = _cache() / file.name
    return path if path.is_file() else None


def _cache() -> Path:
    import pooch

    return Path(pooch.os_cache("hpcdist"))
