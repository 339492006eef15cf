"""Reports a death to Open MPI that its launcher does not pass on.

Under ``mpirun --with-ft ulfm`` a process that ends by a signal, or with code 0, is reported to the
others; one that ends with another code is not (PRRTE 3). This sends the event that PRRTE leaves
out, through PMIx, the standard interface between a job and its launcher: Open MPI then takes the
death as any other.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from hpcdist.comm.process_manager import pmix_process

# The PMIx standard, chapter 3 and the headers of PMIx 4 and later.
PROC_TERM_WO_SYNC = -200  # PMIX_ERR_PROC_TERM_WO_SYNC
RANGE_NAMESPACE = 3  # PMIX_RANGE_NAMESPACE: all processes of the job
TYPE_PROC = 22  # PMIX_PROC
NAME_BYTES, PROC_BYTES, INFO_BYTES = 256, 260, 552  # pmix_proc_t: name and number; pmix_info_t
AFFECTED_PROC = b"pmix.evproc"  # PMIX_EVENT_AFFECTED_PROC


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


def _process(job: str, rank: int) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(
        job.encode().ljust(NAME_BYTES, b"\0") + rank.to_bytes(4, "little"), PROC_BYTES
    )


@cache
def _pmix() -> ctypes.CDLL | None:
    """Return the PMIx library that Open MPI has loaded into this process."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    for path in sorted({line.split(maxsplit=5)[-1] for line in lines if "/libpmix.so" in line}):
        library = ctypes.CDLL(path)
        needed = ("PMIx_Info_construct", "PMIx_Info_load", "PMIx_Info_destruct")
        if all(hasattr(library, name) for name in (*needed, "PMIx_Notify_event")):
            return library
    return None
