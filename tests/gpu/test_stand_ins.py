"""The stand-ins for cupy take what cupy takes. Needs cupy, with NCCL, but no GPU."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import pytest

from tests import support_device, support_nccl
from tests.gpu.gpus import missing

pytestmark = pytest.mark.skipif(
    missing().startswith("cupy cannot"), reason=missing() or "cupy is there"
)


@pytest.fixture(scope="module")
def cupy() -> Any:
    return pytest.importorskip("cupy")


@pytest.fixture(scope="module")
def nccl() -> Any:
    found = pytest.importorskip("cupy.cuda.nccl")
    if not found.available:
        pytest.skip("cupy finds no NCCL")
    return found


def parameters(function: Any) -> list[str]:
    """Return the names of a function's parameters; of a compiled one its docstring tells them."""
    try:
        return [name for name in inspect.signature(function).parameters if name != "self"]
    except ValueError:
        (listed,) = re.findall(r"^\S+\((.*?)\)(?: ->.*)?$", function.__doc__.splitlines()[0])
    names = [part.partition("=")[0].split()[-1] for part in listed.split(", ")]
    return [name for name in names if name != "self"]


@pytest.mark.parametrize("name", support_device._KEYWORDS)
def test_functions_have_these_keywords(cupy, name):
    theirs = parameters(getattr(cupy, name))
    if "kwargs" not in theirs:  # those of einsum and pad are not in their signatures
        assert set(support_device._KEYWORDS[name]) <= set(theirs)


METHODS = [
    name
    for name, found in vars(support_device.DeviceArray).items()
    if inspect.isfunction(found) and not name.startswith("_")
]


@pytest.mark.parametrize("name", METHODS)
def test_arrays_have_these_methods(cupy, name):
    renamed = {"low": "min", "high": "max", "a": "axis1", "b": "axis2", "shape": "args"}
    ours = parameters(getattr(support_device.DeviceArray, name))
    theirs = parameters(getattr(cupy.ndarray, name))
    assert {renamed.get(n, n) for n in ours} - {"args", "axes"} <= set(theirs)


def test_signs_are_ufuncs(cupy):
    used = {"add", "multiply", "sqrt", "maximum", "true_divide", "floor_divide", "fmod", "copysign"}
    used |= {"negative", "exp", "log", "power", "equal", "less", "logical_not", "isfinite", "expm1"}
    assert all(isinstance(getattr(cupy, name), cupy.ufunc) for name in used)
    for ufunc in (cupy.add, cupy.multiply):
        assert callable(ufunc.reduce)


COMMUNICATION = ["allReduce", "reduce", "broadcast", "allGather", "send", "recv"]


@pytest.mark.parametrize("name", [*COMMUNICATION, "check_async_error", "abort", "destroy"])
def test_communicators_take_these_arguments(nccl, name):
    ours = parameters(getattr(support_nccl.Communicator, name))
    assert ours == parameters(getattr(nccl.NcclCommunicator, name))


def test_types_and_ids_of_nccl(cupy, nccl):
    ours = support_nccl.Nccl(int(cupy.__version__.split(".")[0]))
    assert all(hasattr(nccl, f"NCCL_{dtype.upper()}") for dtype in support_nccl.DTYPES)
    assert issubclass(nccl.NcclError, RuntimeError)
    made, standing = nccl.get_unique_id(), ours.get_unique_id()
    assert type(made) is type(standing) and len(made) == len(standing)
    assert nccl.get_version() > 20000
    wrong = tuple(made) if isinstance(made, bytes) else bytes(part & 0xFF for part in made)
    for module in (nccl, ours):
        with pytest.raises(TypeError, match="commId"):
            module.NcclCommunicator(2, wrong, 0)


def test_streams_and_events(cupy):
    assert parameters(cupy.cuda.Event.record) == ["stream"]
    assert {"disable_timing"} <= set(parameters(cupy.cuda.Event.__init__))
    assert {"non_blocking"} <= set(parameters(cupy.cuda.Stream.__init__))
    for owner, names in (
        (
            cupy.cuda.Stream,
            ("wait_event", "synchronize", "record", "done", "__enter__", "__exit__"),
        ),
        (cupy.cuda.Event, ("done", "record", "synchronize")),
        (cupy.cuda.Device, ("use", "pci_bus_id", "id", "__enter__", "__exit__")),
        (cupy.cuda.MemoryPointer, ("ptr", "mem", "device_id", "__add__")),
        (cupy.ndarray, ("data", "device", "flags", "strides")),
        (cupy.cuda, ("get_current_stream", "runtime")),
    ):
        assert all(hasattr(owner, name) for name in names)


def test_pinned_memory_is_asked_for_by_shape_and_type():
    cupyx = pytest.importorskip("cupyx")
    assert parameters(cupyx.empty_pinned)[:2] == ["shape", "dtype"]
    assert support_device.CUPYX.empty_pinned((2, 3), np.float32).shape == (2, 3)


def test_flags_tell_of_no_writing(cupy):
    from cupy._core.flags import Flags

    assert hasattr(Flags, "c_contiguous") and not hasattr(Flags, "writeable")


def test_cupy_makes_cuda_of_our_kernels(cupy):
    """In the wheel's own words, without a GPU or a compiler: which types come out."""
    from cupyx.jit import _compile, _cuda_types

    from hpcdist.ops.run_kernels import _kernel

    _kernel.cache_clear()  # of the stand-in, perhaps
    kernel = _kernel(cupy)
    _kernel.cache_clear()
    ids, one = _cuda_types.CArray(np.dtype("int64"), 1, True, True), np.dtype("int64")
    for dtype, spelt in (("float32", "float"), ("float64", "double")):
        rows = _cuda_types.CArray(np.dtype(dtype), 2, True, True)
        numbers = [_cuda_types.Scalar(one)] * 3
        types = (ids, ids, rows, rows, *numbers)
        void = _cuda_types.void
        made = _compile.transpile(kernel._func, ["__global__"], kernel._mode, types, void)
        assert f"{spelt} found;" in made.code  # added in the type of the values
        assert "long long place" in made.code and "long long end" in made.code
