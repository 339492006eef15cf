"""The files of ``fluid.save`` and ``paddle.static.save``: pickled dicts of arrays, without pickle.

What writes them is `pickling`. A small interpreter reads them. It supports only the operations of
such files (protocols 2 to 5), calls nothing that a file names, and takes at most a few times the
file's size of memory: little where arrays lie in the file as they are, which are read by rows, when
they are asked for.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shown
from typing import Any, ClassVar

import numpy as np

from hpcdist.base.errors import CheckpointError
from hpcdist.checkpoint.files import open_plain, read_into
from hpcdist.checkpoint.fluid_files import Tensor

KINDS = "biuf"
MAX_OPERATIONS = 10_000_000  # of a file; an array takes about 30
MAX_MEMO = 1_000_000  # values that a file comes back to; an array takes about 6
MAX_STACK = 10_000  # values at a time; pickle writes a dict in batches of 1000
MAX_TUPLE = 64
MAX_NAME = 4096
MAX_DIMENSIONS = 32


@dataclass
class Array:
    """What a file says of an array, before it is one."""

    state: Any = None


@dataclass
class DType:
    """What a file says of a dtype: its name, and in which order its bytes are."""

    name: Any
    state: Any = None


@dataclass(frozen=True)
class Bytes:
    """Bytes that are left in the file."""

    offset: int
    count: int

    def __len__(self) -> int:
        return self.count


class Called:
    """A function that a file names: it stands for what it would make."""

    def __init__(self, name: str) -> None:
        self.name = name


MARK = object()
_GLOBALS = {
    ("numpy.core.multiarray", "_reconstruct"): Called("array"),
    ("numpy._core.multiarray", "_reconstruct"): Called("array"),
    ("numpy", "ndarray"): Called("type of arrays"),
    ("numpy", "dtype"): Called("dtype"),
    ("_codecs", "encode"): Called("bytes"),
}
_CONSTANTS = {0x4E: None, 0x88: True, 0x89: False, 0x29: ()}
_INTEGERS = {0x4A: "<i", 0x4B: "<B", 0x4D: "<H"}
# What is written with its length before it: whether it is text, and how the length is written.
_SIZED = {
    0x58: ("utf-8", "<I"),  # BINUNICODE
    0x8C: ("utf-8", "<B"),
    0x8D: ("utf-8", "<Q"),
    0x54: ("latin-1", "<i"),  # BINSTRING, of Python 2
    0x55: ("latin-1", "<B"),
    0x42: (None, "<I"),  # BINBYTES
    0x43: (None, "<B"),
    0x8E: (None, "<Q"),
    0x96: (None, "<Q"),  # BYTEARRAY8
}
_PUT, _GET = {0x71: "<B", 0x72: "<I"}, {0x68: "<B", 0x6A: "<I"}


def is_pickled(path: Path) -> bool:
    """Return whether a file begins as pickles of protocol 2 and later do."""
    with open_plain(path) as file:
        return bytes(file.read(1)) == b"\x80"


def read_state(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file of Fluid's, by name; CheckpointError if it holds anything else.

    No code of the file, nor any that it names, is run.
    """
    return {name: in_memory(array) for name, array in stored_arrays(path).items()}


def in_memory(array: Tensor | np.ndarray) -> np.ndarray:
    """Return an array that may still be in its file."""
    return array.read() if isinstance(array, Tensor) else array


def stored_arrays(path: Path) -> dict[str, Tensor | np.ndarray]:
    """Return the arrays of `read_state`; those that lie in the file as they are stay there."""
    found: dict[str, Tensor | np.ndarray] = run(Machine, path)
    return found


def run(machine: type[Machine], path: Path, *given: Any) -> Any:
    """Return the object that a machine makes of a file and of what is given.

    CheckpointError if it is none of its files.
    """
    with open_plain(path) as file:
        try:
            return machine(file, os.fstat(file.fileno()).st_size, path, *given).run()
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
        except (ValueError, IndexError, TypeError) as error:
            raise CheckpointError(f"{path}: not a file of {machine.OF} ({error})") from None


class Machine:
    """What reads such files, operation by operation."""

    OF = "fluid.save"  # what has written them
    PARTS = "an array"
    GLOBALS: ClassVar[Mapping[Any, Called]] = _GLOBALS

    def __init__(self, file: Any, size: int, path: Path) -> None:
        self._file, self._path = file, path
        self._left = size  # bytes of the file that have not been read
        self._spent, self._size = 0, size  # bytes that were made of those read
        self._window, self._at = b"", 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._given: set[int] = set()  # the bytes that are an array

    def run(self) -> Any:
        """Return the content of the file; ValueError, TypeError or IndexError for other files."""
        for _ in range(MAX_OPERATIONS):
            code = self._take(1)[0]
            if code == 0x2E:  # STOP
                return self._result()
            self._operate(code)
            if len(self._stack) > MAX_STACK or len(self._memo) > MAX_MEMO:
                raise ValueError("its stack or memo is too large")
        raise ValueError("too many operations")

    def _result(self) -> Any:
        (state,) = self._stack
        if not isinstance(state, dict):
            raise ValueError(f"a {type(state).__name__}, not a dict")
        return {name: self._array_of(array) for name, array in state.items()}

    # -- bytes -----------------------------------------------------------------------------------
    def _take(self, count: int) -> bytes:
        """Return the next bytes of the file."""
        if not 0 <= count <= self._left:
            raise ValueError("it is truncated")
        self._left -= count
        data, self._at = self._window[self._at : self._at + count], self._at + count
        return data if len(data) == count else self._behind(data, count).tobytes()

    def _long(self, count: int) -> np.ndarray | Bytes:
        """Return the next bytes of the file; leave them there if they may be many."""
        if count <= len(self._window) - self._at or count > self._left:
            return np.frombuffer(self._take(count), np.uint8).copy()
        left = Bytes(self._size - self._left, count)
        self._left -= count
        self._file.seek(left.offset + count)
        self._window, self._at = b"", 0
        return left

    def _behind(self, begin: bytes, count: int) -> np.ndarray:
        """Return ``count`` bytes that begin so, and fill the window with what follows them."""
        out = np.empty(count, np.uint8)
        out[: len(begin)] = np.frombuffer(begin, np.uint8)
        window = bytearray(min(1 << 16, self._left))
        for part in (out[len(begin) :].data, memoryview(window)):
            if not read_into(self._file, part):
                raise ValueError("it is truncated")
        self._window, self._at = bytes(window), 0
        return out

    def _number(self, form: str) -> int:
        return int(struct.unpack(form, self._take(struct.calcsize(form)))[0])

    def _line(self) -> str:
        line = bytearray()
        while (byte := self._take(1)) != b"\n":
            line += byte
            if len(line) > MAX_NAME:
                raise ValueError(f"a name of more than {MAX_NAME} bytes")
        return line.decode()

    # -- operations ------------------------------------------------------------------------------
    def _operate(self, code: int) -> None:
        stack = self._stack
        if code in _CONSTANTS:
            stack.append(_CONSTANTS[code])
        elif code in _INTEGERS:
            stack.append(self._number(_INTEGERS[code]))
        elif code == 0x8A:  # LONG1
            stack.append(int.from_bytes(self._take(self._number("<B")), "little", signed=True))
        elif code in _SIZED:
            encoding, form = _SIZED[code]
            count = self._number(form)
            stack.append(self._take(count).decode(encoding) if encoding else self._long(count))
        elif code == 0x28:
            stack.append(MARK)
        elif code == 0x74:  # TUPLE
            self._tuple(self._above_mark())
        elif 0x85 <= code <= 0x87:  # TUPLE1, TUPLE2, TUPLE3
            self._tuple([stack.pop() for _ in range(code - 0x84)][::-1])
        elif code == 0x7D:
            stack.append({})
        elif code in (0x73, 0x75):  # SETITEM, SETITEMS
            self._set(self._above_mark() if code == 0x75 else [stack.pop(), stack.pop()][::-1])
        elif code in _PUT:
            self._memo[self._number(_PUT[code])] = stack[-1]
        elif code == 0x94:  # MEMOIZE
            self._memo[len(self._memo)] = stack[-1]
        elif code in _GET:
            number = self._number(_GET[code])
            if number not in self._memo:
                raise ValueError(f"there is no value {number}")
            stack.append(self._memo[number])
        elif code == 0x63:  # GLOBAL
            stack.append(self._function(self._line(), self._line()))
        elif code == 0x93:  # STACK_GLOBAL
            name, module = stack.pop(), stack.pop()
            stack.append(self._function(module, name))
        elif code == 0x52:  # REDUCE
            self._reduce()
        elif code == 0x62:  # BUILD
            state, target = stack.pop(), stack[-1]
            if not isinstance(target, (Array, DType)) or not isinstance(state, tuple):
                raise ValueError("a state for an object that is not an array")
            target.state = state
        elif code in (0x80, 0x95):  # PROTO, FRAME
            self._take(1 if code == 0x80 else 8)
        else:
            self._operate_besides(code)

    def _operate_besides(self, code: int) -> None:
        raise ValueError(f"operation {bytes([code])!r} is not part of {self.PARTS}")

    def _above_mark(self) -> list[Any]:
        for count, value in enumerate(reversed(self._stack)):
            if value is MARK:
                values = self._stack[len(self._stack) - count :]
                del self._stack[len(self._stack) - count - 1 :]
                return values
        raise ValueError("a mark is missing")

    def _tuple(self, items: list[Any]) -> None:
        inner = [item for item in items if isinstance(item, tuple)]
        if len(items) > MAX_TUPLE or any(isinstance(i, tuple) for t in inner for i in t):
            raise ValueError("a tuple that is too large or nested three deep")
        self._stack.append(tuple(items))

    def _set(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise ValueError("items for an object that is not a dict")
        for name, value in zip(items[::2], items[1::2]):
            if not isinstance(name, str) or len(name) > MAX_NAME:
                raise ValueError(f"a variable called {shown(name)}")
            if not isinstance(value, Array):
                raise ValueError(f"variable {shown(name)} is a {type(value).__name__}")
            target[name] = value

    def _function(self, module: object, name: object) -> Called:
        named = isinstance(module, str) and isinstance(name, str)
        called = self.GLOBALS.get((module, name)) if named else None
        if called is None:
            raise ValueError(f"{_word(module)}.{_word(name)} is not part of {self.PARTS}")
        return called

    def _reduce(self) -> None:
        arguments, called = self._stack.pop(), self._stack.pop()
        if not isinstance(called, Called) or not isinstance(arguments, tuple):
            raise ValueError(f"a call that is not part of {self.PARTS}")
        self._stack.append(self._made(called.name, arguments))

    def _made(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Return a stand-in for the result of a call."""
        if 1 <= len(arguments) <= 3:
            if name == "array":
                return Array()
            if name == "dtype":
                return DType(arguments[0])
            if name == "bytes":
                return self._encoded(*arguments)
        raise ValueError(f"a call that is not part of {self.PARTS}")

    def _encoded(self, text: object, encoding: object) -> np.ndarray:
        if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
            raise ValueError("malformed bytes")
        self._spend(len(text))
        return _latin(text)

    def _spend(self, nbytes: int) -> None:
        """Raise ValueError if the same bytes of the file make more than three times the file."""
        self._spent += nbytes
        if self._spent > 3 * self._size:
            raise ValueError("it would unpack to more than three times its size")

    # -- arrays ----------------------------------------------------------------------------------
    def _array_of(self, array: Array) -> Tensor | np.ndarray:
        _, shape, dtype_state, columns, data = _items(array.state, 5)
        if not isinstance(dtype_state, DType) or columns not in (False, 0):
            raise ValueError("an array without a dtype, or in Fortran order")
        order = "|" if dtype_state.state is None else _items(dtype_state.state, 8)[1]
        if not isinstance(dtype_state.name, str) or not 2 <= len(dtype_state.name) <= 3:
            raise ValueError(f"dtype {shown(dtype_state.name)}")
        dtype = np.dtype(dtype_state.name)
        if dtype.kind not in KINDS or order not in ("<", "|", "="):
            raise ValueError(f"dtype {shown(dtype_state.name)}")
        if not isinstance(shape, tuple) or len(shape) > MAX_DIMENSIONS:
            raise ValueError("a malformed shape")
        if not all(type(d) is int and 0 <= d < 1 << 48 for d in shape):
            raise ValueError(f"shape {shown(shape)}")
        raw = _latin(data) if isinstance(data, str) else data
        if not isinstance(raw, (np.ndarray, Bytes)):
            raise ValueError("malformed array")
        self._spend(len(raw))
        if isinstance(raw, Bytes):
            if len(raw) != math.prod(shape) * dtype.itemsize:
                raise ValueError(f"{len(raw)} bytes for shape {shown(shape)}")
            return self._left_at(raw, dtype.name, shape)
        raw = raw.copy() if id(raw) in self._given else raw
        self._given.add(id(raw))
        return raw.view(dtype).reshape(shape)

    def _left_at(self, raw: Bytes, dtype: str, shape: tuple[int, ...]) -> Tensor:
        return Tensor(self._path.parent, self._path.name, raw.offset, dtype, shape)


def _latin(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("latin-1"), np.uint8).copy()


def _items(state: object, count: int) -> tuple[Any, ...]:
    if not isinstance(state, tuple) or len(state) != count:
        raise ValueError("an array or a dtype without its state")
    return state


def _word(name: object) -> str:
    return name[:80] if isinstance(name, str) else shown(name)
