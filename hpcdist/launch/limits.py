"""Limits of the shell or the batch system (ulimit) that are too low for a rank."""

from __future__ import annotations

import contextlib
import os
import resource

from hpcdist.base.errors import LaunchError
from hpcdist.base.setting import environment

# Two ranks of Open MPI begin with so little, not with 20 files; scipy waits for ever in 400 MB.
LEAST = (
    (resource.RLIMIT_NOFILE, 32, "open {} files", "ulimit -n 1024"),
    (resource.RLIMIT_AS, 10**9, "have {} bytes of addresses", "ulimit -v unlimited"),
)
OWN_THREADS = 8  # of a rank, beside those of numpy's library
MOST_COUNTED = 2**14  # a higher limit is no rank's trouble
WHERE = "in the batch script or shell that starts it"


def check_limits() -> None:
    """Refuse limits below which MPI, numpy or numba end this process, or wait without a word."""
    for limit, least, may, command in LEAST:
        allowed = resource.getrlimit(limit)[0]
        if allowed != resource.RLIM_INFINITY and allowed < least:
            raise LaunchError(
                f"this process may {may.format(allowed)}, and needs {least} at least: {command}, "
                f"{WHERE}"
            )


def few_threads() -> str:
    """Say that this user may start too few threads; or nothing. To be asked before numpy's import.

    Its library ends a process that cannot have them, by a signal that looks like Ctrl-C.
    """
    allowed = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if os.geteuid() == 0 or not 0 <= allowed < MOST_COUNTED:  # Linux limits nothing for root
        return ""
    asked = environment(None).get("OMP_NUM_THREADS", "")
    needs = OWN_THREADS + (int(asked) if asked.isdigit() else len(os.sched_getaffinity(0)))
    has = threads_of(os.geteuid())
    if has + needs <= allowed:
        return ""
    return (
        f"this user may have {allowed} threads on this host and has {has}, where a rank starts up "
        f"to {needs}: ulimit -u {MOST_COUNTED}, {WHERE}, or OMP_NUM_THREADS=1"
    )


def threads_of(user: int) -> int:
    """Count the threads of all processes of a user on this host, as the limit does."""
    count = 0
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # gone meanwhile, or hidden from this user
            if os.stat(f"/proc/{entry}").st_uid == user:
                count += len(os.listdir(f"/proc/{entry}/task"))
    return count
