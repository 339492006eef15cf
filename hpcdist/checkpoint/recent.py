"""Where this process has saved or restored checkpoints: what a job that fails can resume from."""

from __future__ import annotations

from pathlib import Path

from hpcdist.checkpoint.directories import is_step, steps
from hpcdist.checkpoint.layout import MANIFEST

_roots: list[Path] = []  # directories of checkpoints, the one used last after the others


def note(directory: str | Path) -> None:
    """Remember a directory of checkpoints, or that which a checkpoint stands in."""
    path = Path(directory).resolve()
    root = path.parent if is_step(path) else path
    if root in _roots:
        _roots.remove(root)
    _roots.append(root)


def newest() -> Path | None:
    """Return the newest complete checkpoint of the directory used last that has one; None without.

    Reads no data, so it is quick, and may be called from any thread.
    """
    paths = (path for root in reversed(_roots) for _, path in reversed(steps(root)))
    return next((path for path in paths if (path / MANIFEST).exists()), None)
