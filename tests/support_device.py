"""A stand-in for cupy over simulated GPUs: as strict as cupy is about what kernels pass to it.

Its arrays are no numpy arrays, and mixing the two raises TypeError, as does what cupy lacks. They
lie in memory of their own (`support_streams`), and what is computed is there once somebody has
waited for it. What it cannot show is that a real GPU computes the same: tests/gpu does that.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import functools
import inspect
import math
import sys
import textwrap
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from tests.support_streams import (
    MACHINE,
    Device,
    Event,
    Memory,
    Stream,
    get_elapsed_time,
    launch,
)

Shape = tuple[int, ...]


class MemoryPointer:
    """A place in an allocation."""

    def __init__(self, mem: Memory, offset: int) -> None:
        self.mem, self.ptr = mem, mem.ptr + offset
        self.device_id = mem.device

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)


class MemoryPool:
    """Memory apart from all others': what is freed is given out again, by its size."""

    def __init__(self) -> None:
        self._free: dict[int, list[Memory]] = {}

    def malloc(self, nbytes: int) -> MemoryPointer:
        """Return memory; while a CUDA graph is recorded, only what was had before."""
        free = self._free.setdefault(nbytes, [])
        if not free:
            MACHINE.refuse_capturing(f"cudaMalloc of {nbytes} bytes")
        memory = free.pop() if free else Memory(nbytes, MACHINE.device)
        pointer = MemoryPointer(memory, 0)
        weakref.finalize(pointer, free.append, memory).atexit = False
        return pointer


def _malloc(nbytes: int) -> MemoryPointer:
    MACHINE.refuse_capturing("memory that all share, and others have at the replay")
    return MemoryPointer(Memory(nbytes, MACHINE.device), 0)


def _allocator() -> Callable[[int], MemoryPointer]:
    found: Callable[[int], MemoryPointer] = getattr(MACHINE.here, "allocator", _malloc)
    return found


@contextlib.contextmanager
def using_allocator(malloc: Callable[[int], MemoryPointer]) -> Iterator[None]:
    """Have this thread's arrays lie where ``malloc`` says."""
    before, MACHINE.here.allocator = _allocator(), malloc
    try:
        yield
    finally:
        MACHINE.here.allocator = before


class Flags:
    """What cupy tells of an array's layout; it knows no read-only arrays."""

    def __init__(self, flags: Any) -> None:
        self.c_contiguous, self.f_contiguous = flags.c_contiguous, flags.f_contiguous
        self.owndata = flags.owndata


class DeviceArray(NDArrayOperatorsMixin):
    """An array that only this module, and kernels once they run, may look into."""

    def __init__(
        self, shape: Any, dtype: Any = float, memptr: Any = None, *, _of: Any = None
    ) -> None:
        """Make an array as cupy's class does; ``_of``: (a view of its bytes, what is allocated)."""
        if _of is None:
            shape = (shape,) if isinstance(shape, int) else tuple(shape)
            nbytes = math.prod(shape) * np.dtype(dtype).itemsize
            if memptr is None:
                memptr = _allocator()(nbytes)
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
        return (MODULE.matmul if ufunc is np.matmul else Ufunc(ufunc))(*inputs, **facts)

    def __array_function__(self, function: Any, _types: Any, args: Any, facts: Any) -> Any:
        return getattr(MODULE, function.__name__)(*args, **facts)

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
            known = self._view[_replaced(index, _view)]
        take = lambda x, i: np.asarray(x[_inside(i, x.shape)])  # noqa: E731
        return _computed(take, (self, index), known=known)

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.ndim:
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        if not _of_device(index) and not _listed(index):
            target = self[index]
            if isinstance(value, DeviceArray) and _same(value, target):
                return  # of x[i] += y, the last part: cupy skips it
            _check_hidden((value,), target)
            _computed(lambda v, out: np.copyto(out, v, casting="unsafe"), (value, target), target)
            return

        def put(view: np.ndarray, index: Any, value: Any) -> None:
            view[_inside(index, view.shape)] = value

        _computed(put, (self, index, value), self)

    # -- kernels -----------------------------------------------------------------------------
    def fill(self, value: Any) -> None:
        _computed(lambda x, v: x.fill(v), (self, value), self)

    def copy(self) -> DeviceArray:
        return _computed(lambda x: x.copy(), (self,))

    def astype(self, dtype: Any) -> DeviceArray:
        return _computed(lambda x: x.astype(dtype), (self,))

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


def _added_as_threads_come(view: np.ndarray, index: Any, values: Any) -> None:
    """Add at places that repeat, as CuPy does: atomically, in no order."""
    places = np.arange(view.size).reshape(view.shape)[index].reshape(-1)
    values = np.broadcast_to(values, view[index].shape).reshape(-1)
    order = list(range(len(places)))
    MACHINE.random.shuffle(order)
    np.add.at(view, np.unravel_index(places[order], view.shape), values[order])


# -- launching ---------------------------------------------------------------------------------
def _owner(array: np.ndarray) -> np.ndarray:
    """Return the array whose memory this one shows."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _arrays(value: Any) -> list[DeviceArray]:
    """Return the arrays of a GPU among arguments; TypeError for what cupy does not take."""
    if isinstance(value, DeviceArray):
        return [value]
    if isinstance(value, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    if isinstance(value, slice):
        value = (value.start, value.stop, value.step)
    if isinstance(value, (list, tuple)):
        return [array for part in value for array in _arrays(part)]
    return list(_arrays(tuple(value.values()))) if isinstance(value, dict) else []


def _replaced(value: Any, by: Callable[[DeviceArray], np.ndarray]) -> Any:
    if isinstance(value, DeviceArray):
        return by(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_replaced(part, by) for part in value)
    if isinstance(value, dict):
        return {name: _replaced(part, by) for name, part in value.items()}
    return value


def _shaped(array: DeviceArray) -> np.ndarray:
    """Return zeros of an array's shape that take no memory, to learn what comes out of it."""
    return np.broadcast_to(np.zeros((), array.dtype), array.shape)


def _computed(
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
    memories = [array._memory for array in _arrays((args, facts, out))]
    # Like a kernel, which knows addresses, it keeps no array alive.
    views, named = _replaced(args, _view), _replaced(facts, _view)

    def run() -> Any:
        return work(*views, **named)

    if out is not None:
        launch(run, memories)
        return out
    if known is None:
        with np.errstate(all="ignore"):
            known = work(*_replaced(args, _shaped), **_replaced(facts, _shaped))
    several = isinstance(known, (tuple, list))
    made = [DeviceArray(np.shape(m), np.asarray(m).dtype) for m in (known if several else (known,))]
    targets = [array._view for array in made]

    def fill() -> None:
        found = run()
        for target, value in zip(targets, found if several else (found,), strict=True):
            np.copyto(target, value)

    launch(fill, [*memories, *(m._memory for m in made)])
    return type(known)(made) if several else made[0]


def _view(array: DeviceArray) -> np.ndarray:
    return array._view


def _method(name: str, array: DeviceArray, args: tuple[Any, ...], out: Any, **facts: Any) -> Any:
    if out is not None:
        if not isinstance(out, DeviceArray):
            raise TypeError(f"Unsupported type {type(out)} of out")
        facts["out"] = out

    def work(x: np.ndarray, *rest: Any, **facts: Any) -> Any:
        return getattr(x, name)(*rest, **facts)

    return _computed(work, (array, *args), out, facts)


def _same(a: DeviceArray, b: DeviceArray) -> bool:
    facts = [(x.data.ptr, x.shape, x.strides, x.dtype) for x in (a, b)]
    return facts[0] == facts[1]


def _check_hidden(args: tuple[Any, ...], out: DeviceArray) -> None:
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


class Ufunc:
    """A ufunc with the keywords that cupy's have; outputs may be positional."""

    def __init__(self, ufunc: np.ufunc) -> None:
        self._ufunc = ufunc
        self.nin, self.nout = ufunc.nin, ufunc.nout

    def __call__(self, *args: Any, out: Any = None, dtype: Any = None, **casting: Any) -> Any:
        if fusing():
            assert out is None and dtype is None and not casting and len(args) == self.nin
            return self._ufunc(*_of_kernel(args))
        if set(casting) - {"casting"}:
            raise TypeError(f"Wrong arguments {casting}")
        args, into = args[: self._ufunc.nin], (*args[self._ufunc.nin :], out)[0]
        if not all(isinstance(a, (DeviceArray, int, float, bool, np.generic)) for a in args):
            raise TypeError(f"Unsupported type among {[type(a) for a in args]}")
        if into is not None and not isinstance(into, DeviceArray):
            raise TypeError(f"Unsupported type {type(into)} of out")
        facts = {"dtype": dtype} if dtype is not None else {}
        facts |= casting
        if not _arrays(args):
            raise TypeError("cupy computes nothing of numbers alone here")
        # Errors of types and shapes are raised here, as by cupy.
        ones = [np.ones((), a.dtype) if isinstance(a, DeviceArray) else a for a in args]
        made = np.empty((), into.dtype) if into is not None else None
        with np.errstate(all="ignore"):
            known = self._ufunc(*ones, out=made, **facts)
        shape = np.broadcast_shapes(*(a.shape for a in _arrays(args)))
        if into is None:
            several = isinstance(known, tuple)
            spread = [np.broadcast_to(k, shape) for k in (known if several else (known,))]
            return _computed(
                self._ufunc, args, None, facts, tuple(spread) if several else spread[0]
            )
        if into.shape != shape and np.broadcast_shapes(into.shape, shape) != into.shape:
            raise ValueError(f"Out shape is mismatched: {into.shape}, expected {shape}")
        _check_hidden(args, into)
        return _computed(self._ufunc, args, into, facts | {"out": into})

    def at(self, array: DeviceArray, index: Any, values: Any) -> None:
        if self._ufunc is not np.add:
            raise NotImplementedError(f"`{self._ufunc.__name__}.at` is not supported here")
        _computed(_added_as_threads_come, (array, index, values), array)

    def reduce(
        self, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False
    ) -> Any:
        if self._ufunc is np.add:
            return array.sum(axis, dtype, out, keepdims)
        if self._ufunc is np.multiply:
            return array.prod(axis, dtype, out, keepdims)
        raise NotImplementedError(f"`{self._ufunc.__name__}.reduce` is not supported yet")


# Functions by the keywords that cupy's take, besides positional arguments.
_KEYWORDS = {
    "allclose": (),
    "amax": ("axis", "out"),
    "append": (),
    "arange": ("dtype",),
    "argpartition": ("axis",),
    "argsort": ("axis",),
    "ascontiguousarray": (),
    "bincount": ("minlength",),
    "clip": ("out",),
    "concatenate": ("axis", "out"),
    "copyto": ("casting", "where"),
    "cross": ("axis",),
    "cumsum": ("axis", "dtype", "out"),
    "diag": (),
    "dot": ("out",),
    "einsum": ("optimize",),
    "empty": ("dtype",),
    "empty_like": (),
    "expand_dims": ("axis",),
    "flatnonzero": (),
    "flip": ("axis",),
    "full": ("dtype",),
    "may_share_memory": (),
    "moveaxis": (),
    "ones": ("dtype",),
    "outer": (),
    "pad": ("mode", "constant_values"),
    "repeat": ("axis",),
    "roll": ("axis",),
    "sort": ("axis",),
    "stack": ("axis",),
    "sum": ("axis", "dtype", "out", "keepdims"),
    "take": ("axis", "out"),
    "take_along_axis": ("axis",),
    "tile": (),
    "trace": (),
    "tril": (),
    "triu": (),
    "unique": (),
    "where": (),
    "zeros": ("dtype",),
    "zeros_like": (),
}
# How large their results are, only the GPU knows: the host waits for it.
_OF_VALUES = {"allclose", "bincount", "flatnonzero", "repeat", "unique"}
_WITHOUT_KERNELS = {"may_share_memory", "moveaxis", "expand_dims", "diag"}


def fusing() -> bool:
    """Tell whether this thread is inside a kernel that `Module.fuse` made."""
    return getattr(MACHINE.here, "fusing", False)


def _of_kernel(args: Any) -> Any:
    """Return what a function within a kernel works on: its operands, and numbers, nothing else."""
    for arg in args:
        if isinstance(arg, DeviceArray):
            raise TypeError("Concrete ndarray is not supported in fusion.")
        if isinstance(arg, (int, float)) and not isinstance(arg, (bool, np.generic)):
            raise TypeError(f"{arg!r} has no type of its own: in a kernel it would be 64 bits wide")
    return args


@functools.cache
def _function(name: str) -> Any:
    def call(*args: Any, **facts: Any) -> Any:
        if fusing():
            assert name == "where" and not facts, f"cupy.{name} is no function of elements"
            return np.where(*_of_kernel(args))
        if name == "argsort" and facts.pop("kind", None) not in (None, "stable"):
            raise ValueError("kind can only be None or 'stable'")
        if set(facts) - set(_KEYWORDS[name]):
            raise TypeError(f"cupy.{name} takes no {sorted(set(facts) - set(_KEYWORDS[name]))}")
        if name == "argsort":
            facts["kind"] = "stable"
        _arrays((args, facts))
        return _called(name, args, facts)

    return call


def _called(name: str, args: tuple[Any, ...], facts: dict[str, Any]) -> Any:
    function = getattr(np, name)
    if name == "may_share_memory":
        return function(*_replaced(args, _view))
    if name in ("moveaxis", "expand_dims"):
        return args[0]._seen(function(*_replaced(args, _view), **facts))
    if name == "copyto":
        if type(args[1]) in (bool, int, float):
            np.can_cast(args[1], args[0].dtype)  # as cupy does: numpy refuses Python numbers
        _check_hidden(args[1:2], args[0])
        _computed(function, args, args[0], facts)
        return None
    if name == "take":
        out = facts.get("out", args[3] if len(args) > 3 else None)
        facts["mode"] = "wrap"  # cupy's places wrap around
        return _computed(function, args, out, facts)
    positions = {"concatenate": 2, "cumsum": 3, "dot": 2, "clip": 3, "sum": 3, "amax": 2}
    at = positions.get(name)
    out = facts.get("out", args[at] if at is not None and len(args) > at else None)
    known = None
    if name in _OF_VALUES:
        MACHINE.current().synchronize()
        known = function(*_replaced(args, _view), **_replaced(facts, _view))
        if name == "allclose":
            known = np.asarray(known)
    return _computed(function, args, out, facts, known)


def asarray(value: Any, dtype: Any = None) -> DeviceArray:
    """Return an array of a GPU, as it is or copied from the host through memory of its own."""
    if isinstance(value, DeviceArray):
        return value if dtype is None or value.dtype == dtype else value.astype(dtype)
    host = np.array(value, dtype, order="C")
    made = DeviceArray(host.shape, host.dtype)
    MACHINE.counts.uploads += 1
    view = made._view
    MACHINE.current().launch(lambda: np.copyto(view, host))
    return made


class Module(types.ModuleType):
    """The module ``cupy`` as far as it is used, on a machine with some GPUs."""

    ndarray = DeviceArray
    ufunc = Ufunc
    uint8, float16 = np.uint8, np.float16
    finfo = staticmethod(np.finfo)
    asarray = staticmethod(asarray)

    def __init__(self, gpus: int = 1) -> None:
        super().__init__("cupy")
        runtime = types.SimpleNamespace(
            getDeviceCount=lambda: gpus,
            runtimeGetVersion=lambda: 12090,
            CUDARuntimeError=type("CUDARuntimeError", (Exception,), {}),
        )
        self.cuda = types.SimpleNamespace(
            runtime=runtime,
            Device=lambda device=None: Device(device, gpus),
            Stream=Stream,
            Event=Event,
            get_current_stream=lambda device_id=-1: MACHINE.current(),
            get_elapsed_time=get_elapsed_time,
            MemoryPool=MemoryPool,
            using_allocator=using_allocator,
        )

    def empty(self, shape: Any, dtype: Any = float) -> DeviceArray:
        return DeviceArray(shape, dtype)

    def empty_like(self, a: DeviceArray) -> DeviceArray:
        return DeviceArray(a.shape, a.dtype)

    def zeros(self, shape: Any, dtype: Any = float) -> DeviceArray:
        made = DeviceArray(shape, dtype)
        made.fill(0)
        return made

    def zeros_like(self, a: DeviceArray) -> DeviceArray:
        return self.zeros(a.shape, a.dtype)

    def fuse(self, function: Callable[..., None]) -> Callable[..., None]:
        """Return one kernel of a function that writes element by element into its arrays."""

        def call(*args: Any) -> None:
            for arg in args:
                assert isinstance(arg, (DeviceArray, np.generic)), type(arg)
            views = _replaced(args, _view)

            def run() -> None:
                MACHINE.here.fusing = True
                try:
                    assert function(*views) is None
                finally:
                    MACHINE.here.fusing = False

            launch(run, [array._memory for array in _arrays(args)])

        return call

    def __getattr__(self, name: str) -> Any:
        if name in _KEYWORDS:
            return _function(name)
        found = getattr(np, name, None)
        if isinstance(found, np.ufunc) and name != "matmul":
            return Ufunc(found)
        raise AttributeError(f"module 'cupy' has no attribute {name!r} here")

    def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
        if out is None:
            return _computed(np.matmul, (a, b))
        return _computed(np.matmul, (a, b), out, {"out": out})


# -- kernels written in Python (cupyx.jit) ---------------------------------------------------------
class _Jit(types.ModuleType):
    """The module ``cupyx.jit``: what it would compile, Python runs, thread by thread."""

    def __init__(self) -> None:
        super().__init__("cupyx.jit")
        self._here = threading.local()

    def grid(self, ndim: int) -> int:
        assert ndim == 1
        number: int = self._here.number
        return number

    def rawkernel(self) -> Callable[[Callable[..., None]], Any]:
        def made(function: Callable[..., None]) -> Any:
            source = ast.parse(textwrap.dedent(inspect.getsource(function)))
            if any(isinstance(node, (ast.Break, ast.Continue)) for node in ast.walk(source)):
                raise NotImplementedError("CuPy 13 compiles neither break nor continue")

            def call(grid: Shape, block: Shape, args: tuple[Any, ...]) -> None:
                assert 0 < math.prod(block) <= 1024 and math.prod(grid) > 0
                for arg in args:
                    assert isinstance(arg, (DeviceArray, int, float, np.generic)), type(arg)
                views = _replaced(args, _view)

                def run() -> None:
                    numbers = list(range(math.prod(grid) * math.prod(block)))
                    MACHINE.random.shuffle(numbers)
                    for self._here.number in numbers:
                        function(*views)

                launch(run, [array._memory for array in _arrays(args)])

            return call

        return made


MODULE = Module()
JIT = _Jit()
CUPYX = types.ModuleType("cupyx")
CUPYX.jit = JIT  # type: ignore[attr-defined]
CUPYX.empty_pinned = lambda shape, dtype: np.empty(shape, dtype)  # type: ignore[attr-defined]


def install(monkeypatch: Any, module: Module = MODULE, seed: int = 0) -> Module:
    """Have `import` find the stand-in; ``seed`` decides the order of what it does."""
    MACHINE.restart(seed)
    for name, found in (("cupy", module), ("cupyx", CUPYX), ("cupyx.jit", JIT)):
        monkeypatch.setitem(sys.modules, name, found)
    return module
