"""Prints what a process is like before and after it has imported the package."""

import gc
import json
import os
import signal
import sys
import threading


def facts():
    return {
        "garbage": len(gc.callbacks),
        "mask": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
        "handlers": [str(signal.getsignal(k)) for k in signal.valid_signals()],
        "hooks": [str(sys.excepthook), str(threading.excepthook), str(sys.displayhook)],
        "importers": [str(finder) for finder in sys.path_hooks],
        "environ": dict(os.environ),
        "threads": threading.active_count(),
        "path": list(sys.path),
    }


before = facts()
import hpcdist  # noqa: E402, F401

print(json.dumps([before, facts()]))
