"""The stand-ins for cupy take what cupy takes. Needs cupy, with NCCL, but no GPU."""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any

import numpy as np
import pytest

from hpcdist.base.optimizers import FORMULAS
from hpcdist.executor.chains import join_chains
from hpcdist.ops.normalization import batch_norm
from hpcdist.ops.optimize import mixed_precision, update_device
from tests.gpu.gpus import missing
from tests.support import device as support_device
from tests.support import nccl as support_nccl
from tests.support.ops import names_kernels_use

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


@pytest.mark.parametrize("name", support_device.KEYWORDS)
def test_functions_have_these_keywords(cupy, name):
    theirs = parameters(getattr(cupy, name))
    if "kwargs" not in theirs:  # those of einsum and pad are not in their signatures
        assert set(support_device.KEYWORDS[name]) <= set(theirs)


def test_cupy_has_what_kernels_ask_of_it(cupy):
    assert sorted(name for name in names_kernels_use() if not hasattr(cupy, name)) == []


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

    from hpcdist.ops.embedding.run_kernels import sum_runs_kernel

    sum_runs_kernel.cache_clear()  # of the stand-in, perhaps
    kernel = sum_runs_kernel(cupy)
    sum_runs_kernel.cache_clear()
    ids, one = _cuda_types.CArray(np.dtype("int64"), 1, True, True), np.dtype("int64")
    for dtype, spelt in (("float32", "float"), ("float64", "double")):
        rows = _cuda_types.CArray(np.dtype(dtype), 2, True, True)
        numbers = [_cuda_types.Scalar(one)] * 3
        types = (ids, ids, rows, rows, *numbers)
        void = _cuda_types.void
        made = _compile.transpile(kernel._func, ["__global__"], kernel._mode, types, void)
        assert f"{spelt} sum_;" in made.code  # added in the type of the values
        assert "long long place" in made.code and "long long end" in made.code


@pytest.fixture
def made(cupy, monkeypatch) -> Any:
    """Return what makes arrays: without a GPU at addresses that nobody has, to be traced only."""
    if not missing():
        yield lambda shape, dtype="float32": cupy.zeros(shape, dtype)
        return
    memory = cupy.cuda.UnownedMemory(0x7F00_0000_0000, 1 << 20, None, 0)
    before = cupy.cuda.get_allocator()
    cupy.cuda.set_allocator(lambda nbytes: cupy.cuda.MemoryPointer(memory, 0))
    offsets = iter(range(0, 1 << 20, 4096))

    def make(shape: Any, dtype: str = "float32") -> Any:
        place = cupy.cuda.MemoryPointer(memory, next(offsets))
        return cupy.ndarray(shape, dtype, memptr=place)

    yield make
    cupy.cuda.set_allocator(before)


def assert_one_kernel(cupy: Any, fused: Any, *args: Any) -> None:
    """Assert that cupy.fuse makes one kernel of a function; without a GPU it is not launched."""
    fused._memo.clear()
    try:
        fused(*args)
    except cupy.cuda.runtime.CUDARuntimeError:
        assert missing()
    kernels = [kernel for kernel, *_ in fused._memo.values()]
    assert [type(kernel).__name__ for kernel in kernels] == ["ElementwiseKernel"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FORMULAS)
def test_cupy_makes_one_kernel_of_a_rule(cupy, made, name, dtype):
    rule, number = FORMULAS[name], np.dtype(dtype).type
    param, grad, *states = (made((3, 32), dtype) for _ in range(2 + rule.states))
    powers = [made((3, 1), dtype) for _ in range(rule.powers)]
    constants = [number(0.5)] * rule.constants
    args = (param, grad, number(1), made((1, 1), dtype), *states, *powers, *constants)
    assert_one_kernel(cupy, update_device.rule_kernel(cupy, name), *args)


def test_cupy_makes_one_kernel_of_each_part_of_batch_norm(cupy, made):
    kernels = batch_norm.device_kernels(cupy)
    x, y, dy, dx = (made((2, 3, 4)) for _ in range(4))
    columns = [made((1, 3, 1)) for _ in range(6)]
    number = np.float32(0.5)
    for name, args in {
        "squares": (x, columns[0], y),
        "moments": (*(made((3,)) for _ in range(8)), number, number, number),
        "normalize": (x, *columns[:4], y),
        "slopes": (x, *columns[:2], dy, y),
        "scaled": (dy, *columns[:2], dx),
        "back": (x, *columns[:3], dy, *columns[3:5], dx, number),
    }.items():
        assert_one_kernel(cupy, kernels[name], *args)


def test_cupy_makes_one_kernel_of_the_loss_scaling(cupy, made):
    scales, counts = [made((1,)) for _ in range(2)], [made((1,), "int32") for _ in range(4)]
    (scale, new_scale), (good, bad, new_good, new_bad) = scales, counts
    limits, ratios = [np.int32(3), np.int32(1)], [np.float32(2), np.float32(0.5)]
    args = (made((1,), "bool"), scale, good, bad, new_scale, new_good, new_bad, *limits, *ratios)
    assert_one_kernel(cupy, mixed_precision.loss_scaling_kernel(cupy), *args)


def test_cupy_makes_one_kernel_of_rounding_to_bfloat16(cupy, made):
    bits = [made((7,), "uint32") for _ in range(2)]
    assert_one_kernel(cupy, mixed_precision.bfloat16_kernel(cupy), *bits)


def test_cupy_makes_one_kernel_of_a_chain(cupy, made):
    x, bias, y, mask = made((4, 3)), made((1, 3)), made((4, 3)), made((4, 3), "bool")
    calls = [
        functools.partial(cupy.add, x, bias, out=y),
        functools.partial(cupy.maximum, y, 0, out=y),
        functools.partial(cupy.greater, y, 0.5, mask),
        functools.partial(cupy.copyto, y, np.float32(3), where=mask),
        functools.partial(cupy.copyto, x, y),
    ]
    operator: Any = None
    (step,), _ = join_chains(cupy, calls, [operator] * len(calls))
    assert_one_kernel(cupy, step.func, *step.args)
    apart, _ = join_chains(cupy, [*calls, functools.partial(cupy.matmul, x, x.T)], [operator] * 6)
    assert len(apart) == 2
