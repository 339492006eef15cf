"""Files beside a script that have the name of a package, which Python then does not find."""

from __future__ import annotations

from pathlib import Path

# Some are imported only when they are needed. Not six, of which scripts have copies.
PACKAGES = ("h5py", "llvmlite", "mpi4py", "numba", "numpy", "rich", "scipy", "xxhash")


def hidden_package(folder: Path) -> str:
    """Say which package a file hides in a folder that Python looks into first; or nothing."""
    for package in PACKAGES:
        if (folder / f"{package}.py").exists():
            return (
                f"{package}.py in {folder} hides the package {package}: give the file another name"
            )
    return ""
