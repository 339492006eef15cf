"""Sleep until a count in memory changes that another process may write: Linux's futex."""

from __future__ import annotations

import ctypes
import errno
import platform
import sys

from hpcdist.comm.base import Array

_NUMBERS = {"x86_64": 202, "aarch64": 98, "ppc64le": 221, "riscv64": 98, "s390x": 238}
CALL_NUMBER = _NUMBERS.get(platform.machine()) if sys.platform == "linux" else None
WAIT, WAKE = 0, 1
EVERYONE = 2**31 - 1
_call = ctypes.CDLL(None, use_errno=True).syscall  # lets other threads of Python run meanwhile
_call.restype = ctypes.c_long
# The kernel looks at 4 bytes: the lower half of a count, which changes when it grows.
_LOW = 0 if sys.byteorder == "little" else 4
# For compiled loops: where the function lies, the number of the call, and _LOW.
FOR_KERNELS = ctypes.cast(_call, ctypes.c_void_p).value or 0, CALL_NUMBER or 0, _LOW


class _Span(ctypes.Structure):
    """C's struct timespec."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Futex:
    """A count of 8 bytes in memory, of which processes can sleep until it has grown."""

    def __init__(self, memory: Array) -> None:
        """``memory``: the count's 8 bytes, at a multiple of 8."""
        self._memory = memory  # keeps the address valid
        self._address = ctypes.c_void_p(memory.ctypes.data + _LOW)

    def sleep(self, count: int, seconds: float) -> bool:
        """Sleep while the count is ``count``, ``seconds`` at most, or until a signal comes.

        Returns False, at once, where there is no such call.
        """
        if CALL_NUMBER is None:
            return False
        span = _Span(int(seconds), int(seconds % 1 * 1e9))
        value = ctypes.c_uint(count % 2**32)
        done = _call(ctypes.c_long(CALL_NUMBER), self._address, WAIT, value, ctypes.byref(span))
        return done == 0 or ctypes.get_errno() != errno.ENOSYS

    def wake(self) -> None:
        """Wake all who sleep on the count, which has grown."""
        if CALL_NUMBER is not None:
            _call(ctypes.c_long(CALL_NUMBER), self._address, WAKE, EVERYONE)
