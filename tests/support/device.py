"""A stand-in for cupy over simulated GPUs: as strict as cupy is about what kernels pass to it.

Its arrays are no numpy arrays, and mixing the two raises TypeError, as does what cupy lacks. They
lie in memory of their own (`support_streams`), and what is computed is there once somebody has
waited for it. What it cannot show is that a real GPU computes the same: tests/gpu does that.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import sys
import textwrap
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.device_arrays import (
    DeviceArray,
    Shape,
    added_as_threads_come,
    arrays_in,
    check_hidden,
    computed,
    replaced,
    view_of,
)
from tests.support.device_memory import MemoryPool, using_allocator
from tests.support.streams import (
    MACHINE,
    Device,
    Event,
    Stream,
    get_elapsed_time,
    launch,
)


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
        if not arrays_in(args):
            raise TypeError("cupy computes nothing of numbers alone here")
        # Errors of types and shapes are raised here, as by cupy.
        ones = [np.ones((), a.dtype) if isinstance(a, DeviceArray) else a for a in args]
        made = np.empty((), into.dtype) if into is not None else None
        with np.errstate(all="ignore"):
            known = self._ufunc(*ones, out=made, **facts)
        shape = np.broadcast_shapes(*(a.shape for a in arrays_in(args)))
        if into is None:
            several = isinstance(known, tuple)
            spread = [np.broadcast_to(k, shape) for k in (known if several else (known,))]
            return computed(self._ufunc, args, None, facts, tuple(spread) if several else spread[0])
        if into.shape != shape and np.broadcast_shapes(into.shape, shape) != into.shape:
            raise ValueError(f"Out shape is mismatched: {into.shape}, expected {shape}")
        check_hidden(args, into)
        return computed(self._ufunc, args, into, facts | {"out": into})

    def at(self, array: DeviceArray, index: Any, values: Any) -> None:
        if self._ufunc is not np.add:
            raise NotImplementedError(f"`{self._ufunc.__name__}.at` is not supported here")
        computed(added_as_threads_come, (array, index, values), array)

    def reduce(
        self, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False
    ) -> Any:
        if self._ufunc is np.add:
            return array.sum(axis, dtype, out, keepdims)
        if self._ufunc is np.multiply:
            return array.prod(axis, dtype, out, keepdims)
        raise NotImplementedError(f"`{self._ufunc.__name__}.reduce` is not supported yet")


# Functions by the keywords that cupy's take, besides positional arguments.
KEYWORDS = {
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
        if set(facts) - set(KEYWORDS[name]):
            raise TypeError(f"cupy.{name} takes no {sorted(set(facts) - set(KEYWORDS[name]))}")
        if name == "argsort":
            facts["kind"] = "stable"
        arrays_in((args, facts))
        return _called(name, args, facts)

    return call


def _called(name: str, args: tuple[Any, ...], facts: dict[str, Any]) -> Any:
    function = getattr(np, name)
    if name == "may_share_memory":
        return function(*replaced(args, view_of))
    if name in ("moveaxis", "expand_dims"):
        return args[0]._seen(function(*replaced(args, view_of), **facts))
    if name == "copyto":
        if type(args[1]) in (bool, int, float):
            np.can_cast(args[1], args[0].dtype)  # as cupy does: numpy refuses Python numbers
        check_hidden(args[1:2], args[0])
        computed(function, args, args[0], facts)
        return None
    if name == "take":
        out = facts.get("out", args[3] if len(args) > 3 else None)
        facts["mode"] = "wrap"  # cupy's places wrap around
        return computed(function, args, out, facts)
    positions = {"concatenate": 2, "cumsum": 3, "dot": 2, "clip": 3, "sum": 3, "amax": 2}
    at = positions.get(name)
    out = facts.get("out", args[at] if at is not None and len(args) > at else None)
    known = None
    if name in _OF_VALUES:
        MACHINE.current().synchronize()
        known = function(*replaced(args, view_of), **replaced(facts, view_of))
        if name == "allclose":
            known = np.asarray(known)
    return computed(function, args, out, facts, known)


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
            views = replaced(args, view_of)

            def run() -> None:
                MACHINE.here.fusing = True
                try:
                    assert function(*views) is None
                finally:
                    MACHINE.here.fusing = False

            launch(run, [array._memory for array in arrays_in(args)])

        return call

    def __getattr__(self, name: str) -> Any:
        if name in KEYWORDS:
            return _function(name)
        found = getattr(np, name, None)
        if isinstance(found, np.ufunc) and name != "matmul":
            return Ufunc(found)
        raise AttributeError(f"module 'cupy' has no attribute {name!r} here")

    def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
        if out is None:
            return computed(np.matmul, (a, b))
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        assert out.shape == (*batch, a.shape[-2], b.shape[-1]), "CuPy takes no other shape"
        return computed(np.matmul, (a, b), out, {"out": out})


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
                views = replaced(args, view_of)

                def run() -> None:
                    numbers = list(range(math.prod(grid) * math.prod(block)))
                    MACHINE.random.shuffle(numbers)
                    for self._here.number in numbers:
                        function(*views)

                launch(run, [array._memory for array in arrays_in(args)])

            return call

        return made


MODULE = Module()
DeviceArray.module = MODULE
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
