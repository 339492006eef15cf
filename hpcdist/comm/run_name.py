"""What names one run of a job: a later one, of the same script and ranks, has another name."""

from __future__ import annotations

import os
import socket
import time

import xxhash

from hpcdist.base import settings
from hpcdist.comm.process_manager import run_words

BEGUN_NS = time.time_ns()  # numbers of processes come again


def run_name() -> str:
    """Return 16 hexadecimal digits, the same on all ranks of the run, if a launcher names it."""
    name = settings.RUN.read()
    words = (
        (name,) if name else run_words() or (socket.gethostname(), str(os.getpid()), str(BEGUN_NS))
    )
    return xxhash.xxh3_64_hexdigest(repr(words).encode())
