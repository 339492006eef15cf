"""Optional dependencies: the command that installs what a feature needs."""

from __future__ import annotations

import importlib.metadata
import re

PACKAGE = "hpcdist"
_EXTRA = re.compile(r"""\bextra\s*==\s*["']([\w.-]+)["']""")


def install_command(extra: str) -> str:
    """Name the command that installs an extra of hpcdist, from wherever the user is.

    It names the packages themselves, as the metadata of the installed hpcdist lists them: hpcdist
    may have been installed from a checkout, a wheel or an index, and pip finds them in each case.

    >>> install_command("images")
    "python -m pip install 'pillow>=10'"
    """
    needed = " ".join(f"'{requirement}'" for requirement in requirements(extra))
    # A package that is only on sys.path has no metadata, but lies in a checkout.
    return f"python -m pip install {needed or _of_checkout(extra)}"


def _of_checkout(extra: str) -> str:
    return f"'.[{extra}]' in the checkout of {PACKAGE}"


def requirements(extra: str) -> list[str]:
    """List what an extra installs; nothing if hpcdist is not installed or has no such extra."""
    try:
        declared = importlib.metadata.requires(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found = []
    for requirement in declared:
        package, _, marker = requirement.partition(";")
        if extra in _EXTRA.findall(marker):
            found.append(package.strip())
    return found
