"""The version of the installed package."""

from __future__ import annotations

import importlib.metadata

from hpcdist.base.extras import PACKAGE


def version() -> str:
    """Read the version from the installation; its build has taken it from a tag of git.

    A package that is on sys.path without having been installed answers "0+unknown".
    """
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return "0+unknown"
