"""Files that have the name of a module, which Python then does not find; looked for first of all.

Nothing else may be imported here: it could be what a file hides.
"""

from __future__ import annotations

import os
import sys

# Some are imported only when they are needed. Not six, of which scripts have copies.
PACKAGES = ("h5py", "llvmlite", "mpi4py", "numba", "numpy", "rich", "scipy", "xxhash")
# Python's own that numpy, numba and this package import in any job.
STANDARD = (
    *("argparse", "array", "ast", "base64", "binascii", "bisect", "bz2", "calendar", "concurrent"),
    *("contextvars", "copy", "copyreg", "csv", "ctypes", "dataclasses", "datetime", "decimal"),
    *("difflib", "dis", "email", "enum", "fcntl", "fnmatch", "fractions", "gettext", "glob"),
    *("gzip", "hashlib", "heapq", "hmac", "html", "inspect", "ipaddress", "json", "linecache"),
    *("locale", "logging", "lzma", "math", "mmap", "multiprocessing", "numbers", "opcode"),
    *("operator", "pathlib", "pickle", "pkgutil", "platform", "pprint", "queue", "quopri"),
    *("random", "re", "resource", "secrets", "select", "selectors", "shlex", "shutil", "signal"),
    *("socket", "statistics", "string", "struct", "subprocess", "sysconfig", "tempfile"),
    *("textwrap", "threading", "timeit", "token", "tokenize", "traceback", "types", "typing"),
    *("urllib", "uuid", "weakref", "zipfile", "zlib"),
)


def hidden_module(folder: str) -> str:
    """Say which module a file hides in a folder that Python looks into first; or nothing."""
    try:
        there = {name.removesuffix(".py") for name in os.listdir(folder) if name.endswith(".py")}
    except OSError:  # Python finds nothing there either
        return ""
    for name in (*PACKAGES, *STANDARD):
        if name in there:
            if name in PACKAGES:
                return f"{name}.py in {folder} hides the package {name}: give the file another name"
            if name not in sys.modules:  # one that is loaded is found whatever is beside a script
                return f"{name}.py in {folder} hides Python's {name}: give the file another name"
    return ""


# Python has this first argument while it imports the package of `python -m hpcdist`.
STARTS_SCRIPT = sys.argv[:1] == ["-m"] and "hpcdist" in sys.orig_argv
FIRST = os.path.abspath(sys.path[0]) if sys.path else ""
# What the script's folder hides, for the launcher to say; not where Python's own files are first.
FOUND = "" if FIRST in ("", os.path.dirname(os.__file__)) else hidden_module(FIRST)
if FOUND and not STARTS_SCRIPT:
    raise ImportError(FOUND)
if FOUND:  # the launcher itself needs nothing of that folder
    del sys.path[0]
