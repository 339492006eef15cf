"""A stand-in for cupy over host memory: as strict as cupy is about what kernels pass to it.

Its arrays are no numpy arrays, and mixing the two raises TypeError, as does what cupy lacks. What
it cannot show is that a real GPU computes the same: tests/gpu does that, where there is one.
"""

from __future__ import annotations

import ctypes
import math
import types
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin


def _host(value: Any) -> Any:
    """Return what numpy computes with; TypeError for what cupy does not take."""
    if isinstance(value, DeviceArray):
        return value.host
    if isinstance(value, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    if isinstance(value, (list, tuple)):
        return type(value)(_host(v) for v in value)
    if isinstance(value, slice):
        return slice(_host(value.start), _host(value.stop), _host(value.step))
    return value


def _device(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_device(v) for v in value)
    return DeviceArray(np.asarray(value)) if isinstance(value, (np.ndarray, np.generic)) else value


class DeviceArray(NDArrayOperatorsMixin):
    """An array that only this module may look into."""

    def __init__(self, host: Any, dtype: Any = None, memptr: Any = None) -> None:
        """Wrap host memory or, called as cupy's class is, lay (shape, dtype) on other memory."""
        if memptr is not None:
            nbytes = math.prod(host) * np.dtype(dtype).itemsize
            raw = (ctypes.c_uint8 * nbytes).from_address(memptr.ptr)
            host = np.frombuffer(raw, dtype).reshape(host)
        self.host = host
        self.data = types.SimpleNamespace(ptr=host.ctypes.data, owner=host)
        self._memory = memptr  # which stays as long as this does

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
        return Ufunc(ufunc)(*inputs, **facts)

    def __array_function__(self, function: Any, _types: Any, args: Any, facts: Any) -> Any:
        return getattr(MODULE, function.__name__)(*args, **facts)

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "dtype", "ndim", "size", "nbytes", "itemsize", "strides", "flags"):
            return getattr(self.host, name)
        raise AttributeError(f"cupy.ndarray has no {name!r} here")

    def __len__(self) -> int:
        return len(self.host)

    def __bool__(self) -> bool:
        return bool(self.host)

    def __int__(self) -> int:
        return int(self.host)

    __index__ = __int__

    def __float__(self) -> float:
        return float(self.host)

    def __getitem__(self, index: Any) -> DeviceArray:
        return DeviceArray(np.asarray(self.host[_host(index)]))

    def __setitem__(self, index: Any, value: Any) -> None:
        self.host[_host(index)] = _host(value)

    @property
    def T(self) -> DeviceArray:
        return DeviceArray(self.host.T)

    def get(
        self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True
    ) -> np.ndarray:
        if stream is None:
            return self.host.copy()
        if blocking or type(out) is not np.ndarray or out.shape != self.shape:
            raise ValueError(f"expected a copy that does not wait, into an array, got {out!r}")
        stream.launch(lambda: np.copyto(out, self.host))
        return out

    def set(self, arr: np.ndarray, stream: Any = None) -> None:
        if type(arr) is not np.ndarray or arr.dtype != self.dtype:
            raise TypeError(f"expected a numpy array of {self.dtype}, got {arr!r}")
        if arr.shape != self.shape:
            raise ValueError(f"Shape mismatch. Old shape: {self.shape}, new shape: {arr.shape}")
        if stream is None:
            self.host[...] = arr
        else:
            stream.launch(lambda: np.copyto(self.host, arr))

    def fill(self, value: Any) -> None:
        self.host.fill(_host(value))

    def view(self, dtype: Any) -> DeviceArray:
        return DeviceArray(self.host.view(dtype))

    def copy(self) -> DeviceArray:
        return DeviceArray(self.host.copy())

    def astype(self, dtype: Any) -> DeviceArray:
        return DeviceArray(self.host.astype(dtype))

    def item(self) -> Any:
        return self.host.item()

    def reshape(self, *shape: Any) -> DeviceArray:
        return DeviceArray(self.host.reshape(*shape))

    def transpose(self, *axes: Any) -> DeviceArray:
        return DeviceArray(self.host.transpose(*axes))

    def swapaxes(self, a: int, b: int) -> DeviceArray:
        return DeviceArray(self.host.swapaxes(a, b))

    def clip(self, low: Any = None, high: Any = None, out: Any = None) -> Any:
        return _device(self.host.clip(_host(low), _host(high), _host(out)))

    def argmax(self, axis: Any = None, out: Any = None) -> Any:
        return _device(self.host.argmax(axis, _host(out)))

    def argmin(self, axis: Any = None, out: Any = None) -> Any:
        return _device(self.host.argmin(axis, _host(out)))

    def max(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        return _device(self.host.max(axis, _host(out), keepdims=keepdims))

    def min(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        return _device(self.host.min(axis, _host(out), keepdims=keepdims))

    def any(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        return _device(self.host.any(axis, out=_host(out), keepdims=keepdims))

    def all(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        return _device(self.host.all(axis, out=_host(out), keepdims=keepdims))

    def _reduced(self, name: str, axis: Any, dtype: Any, out: Any, keepdims: bool) -> Any:
        return _device(getattr(self.host, name)(axis, dtype, _host(out), keepdims=keepdims))

    def sum(
        self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False
    ) -> Any:
        return self._reduced("sum", axis, dtype, out, keepdims)

    def mean(
        self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False
    ) -> Any:
        return self._reduced("mean", axis, dtype, out, keepdims)

    def prod(
        self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False
    ) -> Any:
        return self._reduced("prod", axis, dtype, out, keepdims)


class Ufunc:
    """A ufunc with the keywords that cupy's have; outputs may be positional."""

    def __init__(self, ufunc: np.ufunc) -> None:
        self._ufunc = ufunc

    def __call__(self, *args: Any, out: Any = None, dtype: Any = None, **casting: Any) -> Any:
        if set(casting) - {"casting"}:
            raise TypeError(f"Wrong arguments {casting}")
        args, into = args[: self._ufunc.nin], (*args[self._ufunc.nin :], out)[0]
        if not all(isinstance(a, (DeviceArray, int, float, bool, np.generic)) for a in args):
            raise TypeError(f"Unsupported type among {[type(a) for a in args]}")
        if into is not None and not isinstance(into, DeviceArray):
            raise TypeError(f"Unsupported type {type(into)} of out")
        facts = {"dtype": dtype} if dtype is not None else {}
        found = self._ufunc(*map(_host, args), out=_host(into), **facts, **casting)
        return into if into is not None else _device(found)

    def at(self, array: DeviceArray, index: Any, values: Any) -> None:
        if self._ufunc is not np.add:
            raise NotImplementedError(f"`{self._ufunc.__name__}.at` is not supported here")
        np.add.at(array.host, _host(index), _host(values))

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


def _function(name: str) -> Any:
    def call(*args: Any, **facts: Any) -> Any:
        if name == "argsort" and facts.pop("kind", None) not in (None, "stable"):
            raise ValueError("kind can only be None or 'stable'")
        if set(facts) - set(_KEYWORDS[name]):
            raise TypeError(f"cupy.{name} takes no {sorted(set(facts) - set(_KEYWORDS[name]))}")
        if name == "argsort":
            facts["kind"] = "stable"
        if name == "copyto" and type(args[1]) in (bool, int, float):
            np.can_cast(args[1], args[0].dtype)  # as cupy does: numpy refuses Python numbers
        return _device(
            getattr(np, name)(*map(_host, args), **{k: _host(v) for k, v in facts.items()})
        )

    return call


class Module(types.ModuleType):
    """The module ``cupy`` as far as it is used."""

    ndarray = DeviceArray
    uint8 = np.uint8
    finfo = staticmethod(np.finfo)

    def __init__(self) -> None:
        super().__init__("cupy")
        device = types.SimpleNamespace(use=lambda: None)
        runtime = types.SimpleNamespace(
            getDeviceCount=lambda: 1, CUDARuntimeError=type("CUDARuntimeError", (Exception,), {})
        )
        self.cuda = types.SimpleNamespace(runtime=runtime, Device=lambda index: device)

    def asarray(self, value: Any, dtype: Any = None) -> DeviceArray:
        return value if isinstance(value, DeviceArray) else DeviceArray(np.array(value, dtype))

    def __getattr__(self, name: str) -> Any:
        if name in _KEYWORDS:
            return _function(name)
        found = getattr(np, name, None)
        if isinstance(found, np.ufunc) and name != "matmul":
            return Ufunc(found)
        raise AttributeError(f"module 'cupy' has no attribute {name!r} here")

    def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
        return _device(np.matmul(_host(a), _host(b), out=_host(out)))


MODULE = Module()
