"""Places, and the array library that goes with each: numpy on a CPU, cupy on a GPU."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hpcdist.base import device, settings
from hpcdist.base.errors import GraphError, HpcdistError
from hpcdist.base.extras import install_command
from hpcdist.ops.types import ArrayModule


@dataclass(frozen=True)
class CPUPlace:
    """Compute with numpy in this process.

    Examples:
        >>> fluid.Executor(fluid.CPUPlace()).place
        CPUPlace()
    """

    def __str__(self) -> str:
        return "CPUPlace"

    def _type(self) -> int:
        """Return Fluid's number of the kind of place."""
        return 1


@dataclass(frozen=True)
class CUDAPinnedPlace(CPUPlace):
    """Memory of the host that a GPU copies from; what computes there is numpy."""

    def __str__(self) -> str:
        return "CUDAPinnedPlace"

    def _type(self) -> int:
        return 2


@dataclass(frozen=True)
class CUDAPlace:
    """Compute with cupy on GPU ``device_id`` of those CUDA_VISIBLE_DEVICES shows."""

    device_id: int = 0

    def __str__(self) -> str:
        return f"CUDAPlace({self.device_id})"

    def _type(self) -> int:
        """Return Fluid's number of the kind of place."""
        return 0


class ChosenPlace:
    """Fluid's ``core.Place``: some place, which is set later."""

    def __init__(self) -> None:
        self.place: CPUPlace | CUDAPlace = CPUPlace()

    def set_place(self, place: CPUPlace | CUDAPlace) -> None:
        """Take over that place."""
        self.place = place

    def is_cpu_place(self) -> bool:
        """Return whether it is the host."""
        return not self.is_gpu_place()

    def is_gpu_place(self) -> bool:
        """Return whether it is a GPU."""
        return isinstance(self.place, CUDAPlace)


Place = CPUPlace | CUDAPlace
# More is never there; the kernel might promise it, and end the process when it is written.
_HOST_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def place(name: str) -> Place:
    """Return the place called "cpu" or "gpu", for the option of a script; ValueError for others.

    On several ranks "gpu" is the GPU that the launcher chose for this rank.
    """
    if name not in ("cpu", "gpu"):
        raise ValueError(f"place: expected cpu or gpu, got {name!r}")
    return CPUPlace() if name == "cpu" else CUDAPlace(*selected_gpus()[:1])


def selected_gpus() -> tuple[int, ...]:
    """Return the GPUs that this rank was given, by FLAGS_selected_gpus; none if it says nothing."""
    return settings.SELECTED_GPUS.read()


class Backend(Protocol):
    """The array library of a place, and what the executor does with memory there."""

    xp: ArrayModule
    device_id: int | None  # None: host memory
    alignment: int  # bytes at whose multiples values begin that are summed together

    def enter(self) -> None:
        """Select this place for the current thread: each thread chooses its own GPU."""
        return

    def finish(self) -> None:
        """Raise what a GPU has found wrong and nobody was told of, once its kernels have ended."""
        return

    def copy_in(self, buffer: Any, value: np.ndarray) -> None:
        """Copy a host array into a buffer of the same shape; it may be changed at once."""
        ...

    def feed(self, name: str, buffer: Any, value: np.ndarray) -> None:
        """Copy what a step is fed as ``name``; a GPU may do so beside the kernels of the last."""
        ...

    def feed_ahead(self, name: str, value: np.ndarray) -> None:
        """Begin to copy what the next step is likely to be fed; it must not be changed by then."""
        return

    def copy_out(self, buffer: Any) -> np.ndarray:
        """Return a host copy of a buffer."""
        ...

    def adopt(self, array: Any) -> Any:
        """Return the array itself, or its copy in this place's memory."""
        ...

    def bytes(self, count: int) -> Any:
        """Return an uninitialized buffer of ``count`` bytes, uint8, that starts on a cache line."""
        ...

    def address(self, array: Any) -> int:
        """Return where an array begins in memory."""
        ...

    def flat(self, arrays: Sequence[Any]) -> Any:
        """Return adjacent arrays, with what lies between them, as one of one dimension."""
        ...

    def mark(self) -> Any:
        """Return a mark of when all that was launched so far has been computed."""
        ...

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the time between two marks; waits for the second."""
        ...


class NumpyBackend(Backend):
    """Arrays in host memory."""

    xp: ArrayModule = np
    device_id: int | None = None
    alignment = 1

    def copy_in(self, buffer: Any, value: np.ndarray) -> None:
        np.copyto(buffer, value)

    def feed(self, name: str, buffer: Any, value: np.ndarray) -> None:
        np.copyto(buffer, value)

    def copy_out(self, buffer: Any) -> np.ndarray:
        return buffer.copy()

    def adopt(self, array: Any) -> Any:
        return array if isinstance(array, np.ndarray) else device.download(array)

    def bytes(self, count: int) -> Any:
        if count > _HOST_BYTES:
            raise GraphError(
                f"the program needs arrays of {count / 2**30:.4g} GiB together, and this machine "
                f"has {_HOST_BYTES / 2**30:.4g} GiB of memory: feed smaller batches, or use more "
                "machines"
            )
        raw = np.empty(count + 64, np.uint8)
        start = -raw.ctypes.data % 64
        return raw[start : start + count]

    def address(self, array: Any) -> int:
        return int(array.ctypes.data)

    def flat(self, arrays: Sequence[Any]) -> Any:
        first = arrays[0].reshape(-1)
        length = sum(array.size for array in arrays)
        return np.lib.stride_tricks.as_strided(first, (length,), first.strides)

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


class CupyBackend(Backend):
    """Arrays in the memory of one GPU; cupy is imported when the first one is made."""

    alignment = 128  # what a GPU reads at once

    def __init__(self, device_id: int) -> None:
        settings.tell_cupy()
        try:
            self.xp = importlib.import_module("cupy")
            count = self.xp.cuda.runtime.getDeviceCount()
        except ImportError as error:
            raise HpcdistError(
                f"CUDAPlace({device_id}) needs cupy, which cannot be imported ({error}): "
                f"{install_command('cuda12')} (or cuda13), or use CPUPlace()"
            ) from None
        except Exception as error:  # cupy raises its own CUDARuntimeError without a driver
            raise HpcdistError(
                f"CUDAPlace({device_id}): no usable GPU ({error}); use CPUPlace()"
            ) from None
        if device_id >= count:
            raise HpcdistError(f"CUDAPlace({device_id}): this process sees {count} GPUs only")
        self.device_id: int | None = device_id
        self._use = self.xp.cuda.Device(device_id).use
        self._use()
        self._landings: dict[str, device.Landing] = {}  # by the names of feeds

    def enter(self) -> None:
        self._use()

    def finish(self) -> None:
        self._use()
        device.finish(self.xp)

    def copy_in(self, buffer: Any, value: np.ndarray) -> None:
        device.upload(buffer, value)

    def feed(self, name: str, buffer: Any, value: np.ndarray) -> None:
        if value.nbytes < device.AHEAD:
            device.upload(buffer, value)
        else:
            self._landing(name).fill(buffer, value)

    def feed_ahead(self, name: str, value: np.ndarray) -> None:
        if value.nbytes >= device.AHEAD:
            self._landing(name).begin(value)

    def _landing(self, name: str) -> device.Landing:
        landing = self._landings.get(name)
        if landing is None:
            landing = self._landings[name] = device.Landing(self.xp)
        return landing

    def copy_out(self, buffer: Any) -> np.ndarray:
        dense = isinstance(buffer, self.xp.ndarray)
        return device.download(buffer) if dense else buffer.get()  # of SelectedRows

    def adopt(self, array: Any) -> Any:
        return array if isinstance(array, self.xp.ndarray) else self.xp.asarray(array)

    def bytes(self, count: int) -> Any:
        return self.xp.empty(count, self.xp.uint8)

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def flat(self, arrays: Sequence[Any]) -> Any:
        end = self.address(arrays[-1]) + arrays[-1].nbytes
        length = (end - self.address(arrays[0])) // arrays[0].itemsize
        return self.xp.ndarray((length,), arrays[0].dtype, memptr=arrays[0].data)

    def mark(self) -> Any:
        return self.xp.cuda.get_current_stream().record(self.xp.cuda.Event())

    def seconds(self, begin: Any, end: Any) -> float:
        end.synchronize()
        return float(self.xp.cuda.get_elapsed_time(begin, end)) / 1e3


def backend_of(place: Place) -> Backend:
    """Return the backend of a place; HpcdistError if the machine has no such device."""
    if isinstance(place, CPUPlace):
        return NumpyBackend()
    if isinstance(place, CUDAPlace):
        return CupyBackend(place.device_id)
    raise HpcdistError(f"expected CPUPlace() or CUDAPlace(i), got {place!r}")
