"""Writes pickles as Paddle 2.6.2 does, with its names of NumPy's modules: arrays, and objects."""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphTypeError
from hpcdist.checkpoint.pickled import KINDS
from hpcdist.checkpoint.write import write_bytes

DEPTH = 100  # of containers in each other
PLAIN = (str, int, float, bool, type(None))
Other = Callable[[Any, str], Any]

# Modules as they are called before NumPy 2, which finds them, too.
_BEGIN = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR(K\x01("
_TYPE = b"cnumpy\ndtype\n(%s\x89\x88tR(K\x03%sNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
_END = b"tb"


def write_state(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by name as Paddle 2.6.2 does (protocol 4 of pickle); it is complete, or as it
    was before."""
    write_bytes(path, b"\x80\x04}(", *_pickled(arrays), b"u.")


def _pickled(arrays: Mapping[str, np.ndarray]) -> Iterator[bytes | memoryview]:
    for name, array in arrays.items():
        yield text_pickled(name)
        yield from array_pickled(array)


def array_pickled(array: np.ndarray) -> Iterator[bytes | memoryview]:
    """Yield the operations that make an array."""
    dtype = array.dtype.newbyteorder("<")
    yield _BEGIN
    yield b"".join(b"\x8a\x08" + struct.pack("<q", extent) for extent in array.shape)
    yield b"t" + type_pickled(dtype) + b"\x89"
    data = np.ascontiguousarray(array, dtype).reshape(-1).view(np.uint8).data
    yield b"\x8e" + struct.pack("<Q", data.nbytes)
    yield data
    yield _END


def type_pickled(dtype: np.dtype[Any]) -> bytes:
    """Return the operations that make an element type."""
    order = "<" if dtype.itemsize > 1 else "|"
    return _TYPE % (text_pickled(dtype.str[1:]), text_pickled(order))


def text_pickled(text: str) -> bytes:
    """Return the operation that makes a text."""
    encoded = text.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


# -- objects ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Eval:
    """A tensor within an object: an array that 2.6.2 makes a tensor of."""

    array: np.ndarray


def pickled(value: Any, other: Other) -> list[bytes | memoryview]:
    """Return the parts of the file of an object, in protocol 4.

    ``other`` returns the array, or the `Eval`, that is written of what is no plain data. The place
    in the object is for its error.
    """
    return [b"\x80\x04", *_written(value, other, "the object", 0), b"."]


def _written(value: Any, other: Other, place: str, depth: int) -> Iterator[bytes | memoryview]:
    if depth > DEPTH:
        raise GraphTypeError(f"paddle.save: {place} is nested more than {DEPTH} deep")
    if value is None or isinstance(value, bool):
        yield {None: b"N", True: b"\x88", False: b"\x89"}[value]
    elif isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in KINDS:
        yield from array_pickled(value) if isinstance(value, np.ndarray) else _scalar(value)
    elif isinstance(value, Eval):
        yield _EVAL
        yield from array_pickled(value.array)
        yield b"s\x86R"
    elif isinstance(value, int):
        data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        if len(data) > 255:
            raise GraphTypeError(f"paddle.save: {place} is an integer of {len(data)} bytes")
        yield b"\x8a" + bytes([len(data)]) + data
    elif isinstance(value, float):
        yield b"G" + struct.pack(">d", value)
    elif isinstance(value, str):
        yield text_pickled(value)
    elif isinstance(value, dict):
        yield b"ccollections\nOrderedDict\n)R(" if isinstance(value, OrderedDict) else b"}("
        for key, item in value.items():
            if not isinstance(key, PLAIN):
                raise GraphTypeError(f"paddle.save: {place} has a {type(key).__name__} as a key")
            yield from _written(key, other, place, depth + 1)
            yield from _written(item, other, f"{place}[{key!r}]", depth + 1)
        yield b"u"
    elif type(value) in _SEQUENCES:
        begin, end = _SEQUENCES[type(value)]
        yield begin
        for number, item in enumerate(value):
            yield from _written(item, other, f"{place}[{number}]", depth + 1)
        yield end
    else:
        yield from _written(other(value, place), other, place, depth + 1)


_SEQUENCES: Mapping[type, tuple[bytes, bytes]] = {
    list: (b"](", b"e"),
    tuple: (b"(", b"t"),
    set: (b"\x8f(", b"\x90"),
}
_EVAL = b"cbuiltins\neval\n" + text_pickled("data") + b"}" + text_pickled("data")
_SCALAR = b"cnumpy.core.multiarray\nscalar\n"


def _scalar(value: np.generic) -> Iterator[bytes]:
    array = np.asarray(value)
    data = array.astype(array.dtype.newbyteorder("<")).tobytes()
    yield _SCALAR + type_pickled(array.dtype)
    yield b"C" + bytes([len(data)]) + data + b"\x86R"
