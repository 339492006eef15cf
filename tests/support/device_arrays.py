"""Arrays of the stand-in for cupy: see `support_device`."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from tests.support.device_memory import MemoryPointer, allocator
from tests.support.streams import (
    MACHINE,
    Device,
    Memory,
    launch,
)

Shape = tuple[int, ...]


class Flags:
    """What cupy tells of an array's layout; it knows no read-only arrays."""

    def __init__(self, flags: Any) -> None:
        self.c_contiguous, self.f_contiguous = flags.c_contiguous, flags.f_contiguous
        self.owndata = flags.owndata


class DeviceArray(NDArrayOperatorsMixin):
    """An array that only this module, and kernels once they run, may look into."""

    module: Any = None  # the stand-in for the module `cupy`, which computes with arrays

    def __init__(
        self, shape: Any, dtype: Any = float, memptr: Any = None, *, _of: Any = None
    ) -> None:
        """Make an array as cupy's class does; ``_of``: (a view of its bytes, what is allocated)."""
        if _of is None:
            shape = (shape,) if isinstance(shape, int) else tuple(shape)
            nbytes = math.prod(shape) * np.dtype(dtype).itemsize
            if memptr is None:
                memptr = allocator()(nbytes)
            offset = memptr.ptr - memptr.mem.ptr
            raw = memptr.mem.bytes[offset : offset + nbytes]
            _of = raw.view(dtype).reshape(shape), memptr
        self._view, self._pointer = _of
        self._memory: Memory = self._pointer.mem

    # -- what is known without waiting -------------------------------------------------------
    @property
    def data(self) -> MemoryPointer:
        base = self._memory.bytes.ctypes.data
        return MemoryPointer(self._memory, self._view.ctypes.data - base if self.size else 0)

    @property
    def device(self) -> Device:
        return Device(self._memory.device)

    @property
    def flags(self) -> Flags:
        return Flags(self._view.flags)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"data": (self.data.ptr, False), "shape": self.shape, "version": 3}

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **facts: Any) -> Any:
        if method != "__call__":
            return NotImplemented
        if "out" in facts:
            (facts["out"],) = facts["out"]
        return (self.module.matmul if ufunc is np.matmul else self.module.ufunc(ufunc))(
            *inputs, **facts
        )

    def __array_function__(self, function: Any, _types: Any, args: Any, facts: Any) -> Any:
        return getattr(self.module, function.__name__)(*args, **facts)

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "dtype", "ndim", "size", "nbytes", "itemsize", "strides"):
            return getattr(self._view, name)
        raise AttributeError(f"cupy.ndarray has no {name!r} here")

    def __len__(self) -> int:
        return len(self._view)

    def _seen(self, view: np.ndarray) -> DeviceArray:
        return DeviceArray((), _of=(view, self._pointer))

    # -- what waits --------------------------------------------------------------------------
    def _waited(self) -> np.ndarray:
        MACHINE.counts.downloads += 1
        MACHINE.current().synchronize()
        return self._view

    def __bool__(self) -> bool:
        return bool(self._waited())

    def __int__(self) -> int:
        return int(self._waited())

    __index__ = __int__

    def __float__(self) -> float:
        return float(self._waited())

    def item(self) -> Any:
        return self._waited().item()

    def get(
        self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True
    ) -> np.ndarray:
        if out is None:
            out = np.empty(self.shape, self.dtype)
        elif type(out) is not np.ndarray:
            raise TypeError(f"Only numpy.ndarray can be obtained from cupy.ndarray, got {out!r}")
        if out.shape != self.shape or out.dtype != self.dtype or not out.flags.c_contiguous:
            raise ValueError(f"Shape mismatch. Expected shape: {self.shape}, actual: {out.shape}")
        MACHINE.counts.downloads += 1
        stream = stream or MACHINE.current()
        view = self._view
        stream.launch(lambda: np.copyto(out, view))
        if blocking:
            stream.synchronize()
        return out

    def set(self, arr: np.ndarray, stream: Any = None) -> None:
        """Copy from the host: it is read when the stream comes to it, unless it is gone by then."""
        if type(arr) is not np.ndarray or arr.dtype != self.dtype:
            raise TypeError(f"{arr!r} array cannot be set to {self.dtype} array")
        if arr.shape != self.shape:
            raise ValueError(f"Shape mismatch. Old shape: {self.shape}, new shape: {arr.shape}")
        if not self.flags.c_contiguous:
            raise RuntimeError("Cannot set to non-contiguous array")
        MACHINE.refuse_capturing("memory of the host, which a replay would read again")
        MACHINE.counts.uploads += 1
        view, source = self._view, np.ascontiguousarray(arr)
        alive = weakref.ref(_owner(source))
        address, shape, dtype = source.ctypes.data, source.shape, source.dtype

        def copy() -> None:
            held = alive()
            if held is None:  # freed: whoever has that memory now
                view.view(np.uint8)[...] = 0xFF
                return
            raw = (ctypes.c_uint8 * view.nbytes).from_address(address)
            np.copyto(view, np.frombuffer(raw, dtype).reshape(shape))

        (stream or MACHINE.current()).launch(copy)

    # -- views -------------------------------------------------------------------------------
    def view(self, dtype: Any) -> DeviceArray:
        return self._seen(self._view.view(dtype))

    @property
    def T(self) -> DeviceArray:
        return self._seen(self._view.T)

    def transpose(self, *axes: Any) -> DeviceArray:
        return self._seen(self._view.transpose(*axes))

    def swapaxes(self, a: int, b: int) -> DeviceArray:
        return self._seen(self._view.swapaxes(a, b))

    def reshape(self, *shape: Any) -> DeviceArray:
        found = self._view.reshape(*shape)
        if found.size and not np.may_share_memory(found, self._view):
            return self.copy().reshape(*shape)  # no view has this shape
        return self._seen(found)

    def __getitem__(self, index: Any) -> DeviceArray:
        if not _of_device(index) and not _listed(index):
            view = self._view[index]
            if isinstance(view, np.ndarray):
                return self._seen(view)
            places = index if isinstance(index, tuple) else (index,)
            return self._seen(self._view[(*places, ...)])
        known = None
        if _by_mask(index):  # how many are selected, only the GPU knows
            MACHINE.current().synchronize()
            known = self._view[replaced(index, view_of)]
        take = lambda x, i: np.asarray(x[_inside(i, x.shape)])  # noqa: E731
        return computed(take, (self, index), known=known)

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.ndim:
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        if not _of_device(index) and not _listed(index):
            target = self[index]
            if isinstance(value, DeviceArray) and _same(value, target):
                return  # of x[i] += y, the last part: cupy skips it
            check_hidden((value,), target)
            computed(lambda v, out: np.copyto(out, v, casting="unsafe"), (value, target), target)
            return

        def put(view: np.ndarray, index: Any, value: Any) -> None:
            view[_inside(index, view.shape)] = value

        computed(put, (self, index, value), self)

    # -- kernels -----------------------------------------------------------------------------
    def fill(self, value: Any) -> None:
        computed(lambda x, v: x.fill(v), (self, value), self)

    def copy(self) -> DeviceArray:
        return computed(lambda x: x.copy(), (self,))

    def astype(self, dtype: Any) -> DeviceArray:
        return computed(lambda x: x.astype(dtype), (self,))

    def clip(self, low: Any = None, high: Any = None, out: Any = None) -> Any:
        return _method("clip", self, (low, high), out)

    def argmax(self, axis: Any = None, out: Any = None) -> Any:
        return _method("argmax", self, (axis,), out)

    def argmin(self, axis: Any = None, out: Any = None) -> Any:
        return _method("argmin", self, (axis,), out)

    def max(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        return _method("max", self, (axis,), out, keepdims=keepdims)

    def min(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        return _method("min", self, (axis,), out, keepdims=keepdims)

    def any(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        return _method("any", self, (axis,), out, keepdims=keepdims)

    def all(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        return _method("all", self, (axis,), out, keepdims=keepdims)

    def sum(
        self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False
    ) -> Any:
        return _method("sum", self, (axis, dtype), out, keepdims=keepdims)

    def mean(
        self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False
    ) -> Any:
        return _method("mean", self, (axis, dtype), out, keepdims=keepdims)

    def prod(
        self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False
    ) -> Any:
        return _method("prod", self, (axis, dtype), out, keepdims=keepdims)


def added_as_threads_come(view: np.ndarray, index: Any, values: Any) -> None:
    """Add at places that repeat, as CuPy does: atomically, in no order."""
    places = np.arange(view.size).reshape(view.shape)[index].reshape(-1)
    values = np.broadcast_to(values, view[index].shape).reshape(-1)
    order = list(range(len(places)))
    MACHINE.random.shuffle(order)
    np.add.at(view, np.unravel_index(places[order], view.shape), values[order])


def _owner(array: np.ndarray) -> np.ndarray:
    """Return the array whose memory this one shows."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def arrays_in(value: Any) -> list[DeviceArray]:
    """Return the arrays of a GPU among arguments; TypeError for what cupy does not take."""
    if isinstance(value, DeviceArray):
        return [value]
    if isinstance(value, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    if isinstance(value, slice):
        value = (value.start, value.stop, value.step)
    if isinstance(value, (list, tuple)):
        return [array for part in value for array in arrays_in(part)]
    return list(arrays_in(tuple(value.values()))) if isinstance(value, dict) else []


def replaced(value: Any, by: Callable[[DeviceArray], np.ndarray]) -> Any:
    if isinstance(value, DeviceArray):
        return by(value)
    if isinstance(value, (list, tuple)):
        return type(value)(replaced(part, by) for part in value)
    if isinstance(value, dict):
        return {name: replaced(part, by) for name, part in value.items()}
    return value


def _shaped(array: DeviceArray) -> np.ndarray:
    """Return zeros of an array's shape that take no memory, to learn what comes out of it."""
    return np.broadcast_to(np.zeros((), array.dtype), array.shape)


def computed(
    work: Callable[..., Any],
    args: tuple[Any, ...],
    out: DeviceArray | None = None,
    facts: dict[str, Any] | None = None,
    known: Any = None,
) -> Any:
    """Launch ``work(*args, **facts)``; without ``out`` its results are new arrays.

    Their shapes are those of its results for zeros, or of ``known``.
    """
    facts = facts or {}
    memories = [array._memory for array in arrays_in((args, facts, out))]
    # Like a kernel, which knows addresses, it keeps no array alive.
    views, named = replaced(args, view_of), replaced(facts, view_of)

    def run() -> Any:
        return work(*views, **named)

    if out is not None:
        launch(run, memories)
        return out
    if known is None:
        with np.errstate(all="ignore"):
            known = work(*replaced(args, _shaped), **replaced(facts, _shaped))
    several = isinstance(known, (tuple, list))
    made = [DeviceArray(np.shape(m), np.asarray(m).dtype) for m in (known if several else (known,))]
    targets = [array._view for array in made]

    def fill() -> None:
        found = run()
        for target, value in zip(targets, found if several else (found,), strict=True):
            np.copyto(target, value)

    launch(fill, [*memories, *(m._memory for m in made)])
    return type(known)(made) if several else made[0]


def view_of(array: DeviceArray) -> np.ndarray:
    return array._view


def _method(name: str, array: DeviceArray, args: tuple[Any, ...], out: Any, **facts: Any) -> Any:
    if out is not None:
        if not isinstance(out, DeviceArray):
            raise TypeError(f"Unsupported type {type(out)} of out")
        facts["out"] = out

    def work(x: np.ndarray, *rest: Any, **facts: Any) -> Any:
        return getattr(x, name)(*rest, **facts)

    return computed(work, (array, *args), out, facts)


def _same(a: DeviceArray, b: DeviceArray) -> bool:
    facts = [(x.data.ptr, x.shape, x.strides, x.dtype) for x in (a, b)]
    return facts[0] == facts[1]


def check_hidden(args: tuple[Any, ...], out: DeviceArray) -> None:
    """Count the operands that cupy copies first: any other array object where the result lies."""
    for array in args:
        is_other = isinstance(array, DeviceArray) and array is not out
        if is_other and np.may_share_memory(array._view, out._view):
            MACHINE.counts.hidden += 1
            MACHINE.counts.launches += 1


def _of_device(index: Any) -> bool:
    places = index if isinstance(index, tuple) else (index,)
    return any(isinstance(place, DeviceArray) for place in places)


def _listed(index: Any) -> bool:
    places = index if isinstance(index, tuple) else (index,)
    return any(isinstance(place, (list, np.ndarray)) for place in places)


def _by_mask(index: Any) -> bool:
    places = index if isinstance(index, tuple) else (index,)
    return any(isinstance(place, DeviceArray) and place.dtype == bool for place in places)


def _inside(index: Any, shape: Shape) -> Any:
    """Return an index whose places lie within the shape: cupy's wrap around, and raise nothing."""
    places = index if isinstance(index, tuple) else (index,)
    if any(place is None or place is Ellipsis for place in places) or len(places) > len(shape):
        return index
    found = tuple(
        place % extent if isinstance(place, np.ndarray) and place.dtype != bool else place
        for place, extent in zip(places, shape)
    )
    return found if isinstance(index, tuple) else found[0]
