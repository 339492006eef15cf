"""Fluid's version that scripts find here: ``paddle.version``, ``paddle.__version__``."""

from __future__ import annotations

full_version = "1.8.5"
major, minor, patch = full_version.split(".")
rc = "0"
istaged = True
commit = ""


def show() -> None:
    """Print it part by part."""
    for part in ("full_version", "major", "minor", "patch", "rc"):
        print(f"{part}: {globals()[part]}")


def mkl() -> str:
    """Return OFF: numpy and numba compute."""
    return "OFF"
