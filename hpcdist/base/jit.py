"""Compiling loops with numba. Only modules of kernels import this: numba takes 0.3 s to import."""

from __future__ import annotations

import functools
import hashlib
import inspect
import logging
import pickle
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core.caching import FunctionCache
from numba.core.runtime import rtsys
from numba.core.serialize import dumps
from numba.extending import _Intrinsic
from numba.np.unsafe import ndarray

from hpcdist.base.errors import SettingError
from hpcdist.base.replaced import write_whole
from hpcdist.base.warned import tells_for_all

_logger = logging.getLogger("hpcdist")

_IMPORTS = re.compile(
    r"^(?:from (hpcdist[\w.]*) import (\([^)]*\)|.*)|import (hpcdist[\w.]*))", re.M
)
as_tuple: Any = ndarray.to_fixed_tuple  # (array, length), in kernels: its elements
_names: dict[tuple[str, str], Any] = {}  # code by file and name: kernels are kept by their names
_compiled: set[Any] = set()  # kernels with the kinds of arrays they are compiled for


def jit(function: Callable[..., Any] | None = None, *, nogil: bool = True) -> Any:
    """Compile a function; kept on disk beside the package, or in the user's cache directory.

    Division by zero gives infinity, as in arrays. Nothing is reordered: two machines, and slices
    of any length, give the same bits. A function made in another one may use that one's compiled
    functions and numbers: they become part of its name. ``nogil``: other threads run meanwhile.
    """
    if function is None:
        return functools.partial(jit, nogil=nogil)
    if vars(numba.config)["DISABLE_JIT"]:
        raise SettingError("NUMBA_DISABLE_JIT is set: kernels are compiled here only; unset it")
    _give_name(function)
    kernel: Any = numba.njit(nogil=nogil, error_model="numpy")(function)
    try:
        kernel._cache = KernelCache(function)  # what cache=True does, with numba's own class
    except RuntimeError:  # no directory can be written
        _tell_not_kept()
    return kernel


def inlined(function: Callable[..., Any]) -> Any:
    """Compile a function into its callers: to hand over arrays takes longer than a short loop."""
    _give_name(function)
    return numba.njit(inline="always", error_model="numpy")(function)


def bound(kernel: Any, *arrays: Any) -> Callable[[], Any]:
    """Compile a kernel for these arrays now, not at the first step, and bind it to them."""
    kind = (kernel, *map(_kind, arrays))
    if kind not in _compiled:  # asking numba takes longer than many a kernel
        kernel.compile(tuple(numba.typeof(a) for a in arrays))
        _compiled.add(kind)
    return functools.partial(kernel, *arrays)


def _kind(value: Any) -> Any:
    """Return the key by which numba distinguishes types of values."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.ndim, value.flags.num
    return tuple(map(_kind, value)) if isinstance(value, tuple) else type(value)


def _give_name(function: Callable[..., Any]) -> None:
    """Name a closure after what it is made with too; refuse one name for two kernels."""
    if function.__closure__:
        made_with = (_name(cell.cell_contents) for cell in function.__closure__)
        function.__qualname__ = function.__name__ = "_".join([function.__name__, *made_with])
    code = function.__code__
    if _names.setdefault((code.co_filename, function.__qualname__), code) != code:
        raise TypeError(f"two kernels are named {function.__qualname__}: one needs another name")


def _name(value: Any) -> str:
    if isinstance(value, _Intrinsic):
        return str(value._name)
    return value.py_func.__name__ if hasattr(value, "py_func") else repr(value)


class KernelCache(FunctionCache):
    """Compiled kernels on disk, each in a file named after everything it was made from.

    numba's own cache looks at the function's file only, so that a change of a function it calls
    goes unnoticed; and it numbers files in an index, so that two processes which compile at the
    same time can give one number to two kernels.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        source = Path(inspect.getfile(function))
        kernel = f"{source.stem}.{function.__qualname__}".replace("<locals>.", "")
        self._cache_file: Any = _KernelFiles(Path(self.cache_path), kernel, _digest(source))

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load what is compiled without numba's compiler: a third of a job's start, if nothing
        is to be compiled. The compiler sets itself up when it is first asked.
        """
        rtsys.initialize(target_context)  # what the machine code calls
        return self._load_overload(sig, target_context)

    def _index_key(self, sig: Any, codegen: Any) -> str:
        """Return the cache key of one function's kernels: types, processor, versions."""
        facts = sys.implementation.cache_tag, numba.__version__, codegen.magic_tuple()
        return hashlib.sha256(f"{sig} {facts}".encode()).hexdigest()[:24]


class Compiling:
    """Says once why a process waits, when it has compiled kernels for a while."""

    TOLD_S = 2.0

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began_s = self._spent_s = 0.0
        self._told = False

    def begin(self, folder: Path) -> None:
        """Note that a kernel is compiled from now on; ``folder`` is where it is kept."""
        self._began_s = self._now()
        if self._spent_s > self.TOLD_S and not self._told:
            self._told = True
            if tells_for_all():
                _logger.info(
                    "compiles kernels at their first use; next time they are in %s", folder
                )

    def end(self) -> None:
        """Note that it is compiled."""
        self._spent_s += self._now() - self._began_s


_compiling = Compiling()


@functools.cache
def _tell_not_kept() -> None:
    """Warn that what is compiled cannot be kept."""
    if tells_for_all():
        _logger.warning(
            "compiled kernels cannot be kept, so that each process compiles for seconds: neither "
            "the package's folder nor ~/.cache can be written; set NUMBA_CACHE_DIR to one that can"
        )


class _KernelFiles:
    """The files of one function's kernels; a new digest of the sources replaces all old files."""

    def __init__(self, folder: Path, kernel: str, sources: str) -> None:
        self._folder, self._kernel, self._sources = folder, kernel, sources

    def load(self, key: str) -> Any:
        try:
            return pickle.loads(self._path(key).read_bytes())
        except (OSError, EOFError, pickle.UnpicklingError):  # not there, or cut short
            _compiling.begin(self._folder)
            return None

    def save(self, key: str, data: Any) -> None:
        _compiling.end()
        try:
            write_whole(self._path(key), dumps(data))
        except OSError:  # a full disk: compile in every process
            return
        for path in self._folder.glob(f"{self._kernel}-*.nbc"):
            if not path.name.startswith(f"{self._kernel}-{self._sources}-"):
                path.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / f"{self._kernel}-{self._sources}-{key}.nbc"


@functools.cache
def _digest(path: Path) -> str:
    """Return a digest of a source file and of all our modules that it imports."""
    sources: dict[Path, bytes] = {}
    _collect(path, sources)
    return hashlib.sha256(b"".join(sorted(sources.values()))).hexdigest()[:16]


def _collect(path: Path, sources: dict[Path, bytes]) -> None:
    if path in sources or not path.exists():
        return
    sources[path] = path.read_bytes()
    for package, names, plain in _IMPORTS.findall(sources[path].decode()):
        module = Path(__file__).parents[2].joinpath(*(package or plain).split("."))
        for place in (module, *(module / name for name in re.findall(r"\w+", names))):
            _collect(place.with_suffix(".py"), sources)
            _collect(place / "__init__.py", sources)
