"""Files that have the name of a module, which Python then does not find; looked for first of all.

Nothing else may be imported here: it could be what a file hides.
"""

from __future__ import annotations

import os
import sys

from hpcdist.base.signals import STARTS_SCRIPT

# Some are imported only when they are needed. Not six, of which scripts have copies.
PACKAGES = ("h5py", "llvmlite", "mpi4py", "numba", "numpy", "rich", "scipy", "xxhash")
# Python's own that numpy and this package import in any case.
STANDARD = (
    *("copy", "csv", "email", "inspect", "json", "logging", "numbers", "operator", "pickle"),
    *("platform", "queue", "random", "secrets", "select", "selectors", "socket", "string"),
    *("struct", "subprocess", "tempfile", "threading", "token", "tokenize", "types", "typing"),
)


def hidden_module(folder: str) -> str:
    """Say which module a file hides in a folder that Python looks into first; or nothing."""
    for name in (*PACKAGES, *STANDARD):
        if os.path.exists(os.path.join(folder, f"{name}.py")):
            if name in PACKAGES:
                return f"{name}.py in {folder} hides the package {name}: give the file another name"
            if name not in sys.modules:  # one that is loaded is found whatever is beside a script
                return f"{name}.py in {folder} hides Python's {name}: give the file another name"
    return ""


FIRST = os.path.abspath(sys.path[0]) if sys.path else ""
# What the script's folder hides, for the launcher to say; not where Python's own files are first.
FOUND = "" if FIRST in ("", os.path.dirname(os.__file__)) else hidden_module(FIRST)
if FOUND and not STARTS_SCRIPT:
    raise ImportError(FOUND)
if FOUND:  # the launcher itself needs nothing of that folder
    del sys.path[0]
