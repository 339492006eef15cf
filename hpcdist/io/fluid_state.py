"""The files of Fluid's ``fluid.save``: pickled dicts of arrays, of which no code is ever run."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from hpcdist.errors import CheckpointError

KINDS = "biuf"


class _Array:
    """What stands for an array while a file is read: it only notes what the file says."""

    shape: Any = ()
    dtype: Any = None
    data: Any = None

    def __setstate__(self, state: Any) -> None:
        _, self.shape, self.dtype, columns, self.data = state
        if columns:
            raise ValueError("an array in Fortran's order")

    def made(self) -> np.ndarray:
        """Return the array; ValueError or TypeError if the file says something else."""
        dtype, data = self.dtype.made(), self.data
        raw = data.encode("latin-1") if isinstance(data, str) else data
        if not isinstance(raw, bytes) or not all(type(d) is int and d >= 0 for d in self.shape):
            raise ValueError("malformed array")
        return np.frombuffer(raw, dtype).reshape(self.shape).copy()


class _DType:
    """What stands for a dtype: its name, and in which order its bytes are."""

    def __init__(self, name: Any, *_: Any) -> None:
        self._name, self._order = name, "<"

    def __setstate__(self, state: Any) -> None:
        self._order = state[1]

    def made(self) -> np.dtype[Any]:
        """Return the dtype, which is one of numbers."""
        found = np.dtype(str(self._name))
        if found.kind not in KINDS or self._order not in ("<", "|", "="):
            raise ValueError(f"dtype {self._name!r}")
        return found


def _array(*_: Any) -> _Array:
    return _Array()


def _bytes(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise ValueError(f"encoding {encoding!r}")
    return text.encode("latin-1")


class _Reader(pickle.Unpickler):
    """Knows the four names that pickled arrays are made of, and only functions of this file."""

    _KNOWN = {  # noqa: RUF012
        ("numpy.core.multiarray", "_reconstruct"): _array,
        ("numpy._core.multiarray", "_reconstruct"): _array,
        ("numpy", "ndarray"): None,
        ("numpy", "dtype"): _DType,
        ("_codecs", "encode"): _bytes,
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._KNOWN[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of an array") from None


def read_state(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file of Fluid's, by name; CheckpointError if it holds anything else.

    The file decides which of a few functions of this module are called, and on what; nothing of
    another module can be.
    """
    try:
        with open(path, "rb") as file:
            said = _Reader(file, encoding="latin1").load()
        if not isinstance(said, dict):
            raise ValueError(f"a {type(said).__name__}, not a dict")
        return {_name(name): array.made() for name, array in said.items()}
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    except Exception as error:  # whatever a malformed file makes pickle raise
        raise CheckpointError(f"{path}: not a file of fluid.save ({error})") from None


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise ValueError(f"a variable called {name!r}")
    return name
