"""Requests of a rank to its launcher through PMIx, the standard interface between the two.

Under ``mpirun --with-ft ulfm`` a process that ends by a signal, or with code 0, is reported to the
others; one that ends with another code is not (PRRTE 3). `report_death` sends the event that PRRTE
leaves out: Open MPI then takes the death as any other. `kill`, `finalize` and `abort` end a job
without the explanations that MPI_Abort and mpirun print behind the message of the rank that failed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from hpcdist.comm.process_manager import pmix_process

# The PMIx standard, chapter 3 and the headers of PMIx 4 and later.
PROC_TERM_WO_SYNC = -200  # PMIX_ERR_PROC_TERM_WO_SYNC
RANGE_NAMESPACE = 3  # PMIX_RANGE_NAMESPACE: all processes of the job
TYPE_BOOL, TYPE_PROC = 1, 22  # PMIX_BOOL, PMIX_PROC
NAME_BYTES, PROC_BYTES, INFO_BYTES = 256, 260, 552  # pmix_proc_t: name and number; pmix_info_t
NEEDED = (
    *("Init", "Initialized", "Finalize", "Abort", "Notify_event", "Job_control"),
    *("Info_construct", "Info_load", "Info_destruct"),
)
AFFECTED_PROC = b"pmix.evproc"  # PMIX_EVENT_AFFECTED_PROC
KILL = b"pmix.jctrl.kill"  # PMIX_JOB_CTRL_KILL


def report_death(rank: int) -> bool:
    """Report the death of a rank of this job to all its ranks; return whether that was possible.

    Any thread may call it, and any number of ranks: a death that is known changes nothing.
    """
    library, me = _pmix(), pmix_process()
    if library is None or me is None:
        return False
    job, process_rank = me
    info = ctypes.create_string_buffer(INFO_BYTES)
    library.PMIx_Info_construct(info)
    library.PMIx_Info_load(info, AFFECTED_PROC, _process(job, rank), ctypes.c_uint16(TYPE_PROC))
    status = library.PMIx_Notify_event(
        ctypes.c_int(PROC_TERM_WO_SYNC),
        _process(job, process_rank),
        ctypes.c_uint8(RANGE_NAMESPACE),
        info,
        ctypes.c_size_t(1),
        None,
        None,
    )
    library.PMIx_Info_destruct(info)
    return bool(status == 0)


def kill(ranks: Sequence[int]) -> bool:
    """Ask the launcher to kill ranks of this job; return whether it takes the request.

    Only for ranks whose launcher, Open MPI's mpirun, is the parent of this process: its daemons on
    other hosts cannot do it (PRRTE 3).
    """
    library, me = _pmix(), pmix_process()
    if library is None or me is None or not ranks:
        return False
    processes = b"".join(_process(me[0], rank).raw for rank in ranks)
    info = ctypes.create_string_buffer(INFO_BYTES)
    library.PMIx_Info_construct(info)
    library.PMIx_Info_load(
        info, KILL, ctypes.byref(ctypes.c_bool(True)), ctypes.c_uint16(TYPE_BOOL)
    )
    results, number = ctypes.c_void_p(), ctypes.c_size_t()
    status = library.PMIx_Job_control(
        ctypes.create_string_buffer(processes, len(processes)),
        ctypes.c_size_t(len(ranks)),
        info,
        ctypes.c_size_t(1),
        ctypes.byref(results),
        ctypes.byref(number),
    )
    library.PMIx_Info_destruct(info)
    return bool(status == 0)


def finalize() -> None:
    """Leave the launcher in order, so that it takes this process's exit code as its own choice."""
    library = _pmix()
    # As often as PMIx was started: Open MPI does it several times.
    while library is not None and library.PMIx_Initialized():
        if library.PMIx_Finalize(None, ctypes.c_size_t(0)):
            return


def abort(code: int) -> bool:
    """End the whole job with an exit code; return False where there is no PMIx for that."""
    library = _pmix()
    if library is None or pmix_process() is None:
        return False
    return bool(library.PMIx_Abort(ctypes.c_int(code), b"", None, ctypes.c_size_t(0)) == 0)


def _process(job: str, rank: int) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(
        job.encode().ljust(NAME_BYTES, b"\0") + rank.to_bytes(4, "little"), PROC_BYTES
    )


def begin(launcher: int) -> bool:
    """Begin with the library of the launcher, a process; return whether there is one.

    For a process that ends before its MPI has begun.
    """
    if _pmix() is None and pmix_process() is not None and (library := _loaded_by(launcher)):
        _pmix.cache_clear()
        return not library.PMIx_Init(None, None, ctypes.c_size_t(0))
    return _pmix() is not None


@cache
def _pmix() -> ctypes.CDLL | None:
    """Return the PMIx library that Open MPI has loaded into this process."""
    return _loaded_by("self")


def _loaded_by(process: int | str) -> ctypes.CDLL | None:
    """Load the PMIx library that a process has, if it is one that this module can use."""
    try:
        lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    except OSError:
        return None
    for path in sorted({line.split(maxsplit=5)[-1] for line in lines if "/libpmix.so" in line}):
        library = ctypes.CDLL(path)
        if all(hasattr(library, f"PMIx_{name}") for name in NEEDED):
            return library
    return None
