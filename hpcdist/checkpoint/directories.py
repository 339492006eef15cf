"""Directories of checkpoints: one for each step, by name, and which of them a crash has left."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hpcdist.base.checks import checked_path
from hpcdist.checkpoint.layout import MANIFEST

STEP = re.compile(r"step-(\d+)")
UNFINISHED = "unfinished"  # in a directory whose first manifest is not written yet
PRUNED = ".pruned"  # after the name of a checkpoint that is being deleted


def directory_of(root: str | Path, step: int) -> Path:
    """Return the directory of the checkpoint of a step."""
    return Path(root) / f"step-{step:06d}"


def is_step(path: Path) -> bool:
    """Return whether a directory is named as that of one checkpoint, not of several."""
    return STEP.fullmatch(path.name) is not None


def steps(root: str | Path) -> list[tuple[int, Path]]:
    """Return (step, directory) of all checkpoints below ``root``, by step.

    One whose manifest is lost counts, but cannot be read; what a crash has left does not count.
    """
    root = checked_path("root", root)
    if not root.is_dir():
        return []
    named = [(int(m[1]), p) for p in root.iterdir() if (m := STEP.fullmatch(p.name))]
    return sorted((step, path) for step, path in named if path.is_dir() and not left_over(path))


def left_over(path: Path) -> bool:
    """Return whether a crash has left this directory, of a save or of a deletion."""
    if path.is_symlink() or not path.is_dir():
        return False
    names = os.listdir(path)
    if MANIFEST in names:
        return path.name.endswith(PRUNED)
    return path.name.endswith(PRUNED) or UNFINISHED in names or not names
