"""The files of ``paddle.save``: dicts, lists, tuples, sets, numbers, text and arrays, nested.

They are pickles; what reads them is `pickled.Machine`, which calls nothing that a file names:
of what 2.6.2 writes for a tensor, ``eval("data", {"data": array})``, only the array is taken.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hpcdist.checkpoint.pickled import (
    Array,
    Bytes,
    Called,
    DType,
    Machine,
    in_memory,
    run,
)
from hpcdist.checkpoint.pickling import DEPTH, PLAIN

Leaf = Callable[[np.ndarray], Any]


def read_object(path: Path, tensor: Leaf) -> Any:
    """Return the object in a file; its arrays are what ``tensor`` makes of them.

    Where tensors have names, as 2.6.2 writes those of dynamic mode, other arrays stay arrays.
    CheckpointError if the file holds anything else. No code of the file is run.
    """
    return run(_Objects, path, tensor)


class _Objects(Machine):
    OF = "paddle.save"
    PARTS = "what paddle.save writes"
    GLOBALS: ClassVar[Mapping[Any, Called]] = {
        **Machine.GLOBALS,
        ("numpy.core.multiarray", "scalar"): Called("scalar"),
        ("numpy._core.multiarray", "scalar"): Called("scalar"),
        ("collections", "OrderedDict"): Called("ordered"),
        **{
            (module, name): Called(name)
            for module in ("builtins", "__builtin__")
            for name in ("eval", "tuple", "set")
        },
    }

    def __init__(self, file: Any, size: int, path: Path, tensor: Leaf) -> None:
        super().__init__(file, size, path)
        self._tensor = tensor
        self._named = False  # whether a tensor has a name

    def _result(self) -> Any:
        (root,) = self._stack
        return _Conversion(self, self._tensor, self._named).of(root, 0)

    def _tuple(self, items: list[Any]) -> None:
        self._named |= len(items) == 2 and isinstance(items[0], str) and isinstance(items[1], Array)
        self._stack.append(tuple(items))

    def _set(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise ValueError("items for an object that is not a dict")
        for key, value in zip(items[::2], items[1::2]):
            target[_plain(key)] = value

    def _operate_besides(self, code: int) -> None:
        stack = self._stack
        if code == 0x47:  # BINFLOAT
            stack.append(struct.unpack(">d", self._take(8))[0])
        elif code == 0x5D:
            stack.append([])
        elif code == 0x8F:
            stack.append(set())
        elif code in (0x61, 0x65):  # APPEND, APPENDS
            items = self._above_mark() if code == 0x65 else [stack.pop()]
            self._list().extend(items)
        elif code == 0x90:  # ADDITEMS
            items = self._above_mark()
            if not isinstance(stack[-1], set):
                raise ValueError("items for an object that is not a set")
            stack[-1].update(map(_plain, items))
        else:
            super()._operate_besides(code)

    def _list(self) -> list[Any]:
        target = self._stack[-1]
        if not isinstance(target, list):
            raise ValueError("items for an object that is not a list")
        return target

    def _made(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if name == "ordered" and not arguments:
            return OrderedDict()
        if name == "set" and len(arguments) == 1 and isinstance(arguments[0], list):
            return set(map(_plain, arguments[0]))
        if name == "tuple" and len(arguments) == 1 and isinstance(arguments[0], tuple):
            return arguments[0]
        if name == "eval" and len(arguments) == 2 and arguments[0] == "data":
            given = arguments[1]
            if isinstance(given, dict) and isinstance(given.get("data"), Array):
                return given["data"]
        if name == "scalar" and len(arguments) == 2 and isinstance(arguments[0], DType):
            data = arguments[1]
            if isinstance(data, (np.ndarray, Bytes)):
                one = Array((1, (), arguments[0], False, data))
                return self.array(one)[()]
        return super()._made(name, arguments)

    def array(self, array: Array) -> np.ndarray:
        """Return an array, in memory."""
        return in_memory(self._array_of(array))

    def bytes(self, left: Bytes) -> bytes:
        """Return bytes that have been left in the file."""
        return self._left_at(left, "uint8", (len(left),)).read().tobytes()


def _plain(key: Any) -> Any:
    if not isinstance(key, PLAIN):
        raise ValueError(f"a {type(key).__name__} as a key")
    return key


class _Conversion:
    """Makes objects of what stands for them; what is shared stays so."""

    def __init__(self, machine: _Objects, tensor: Leaf, named: bool) -> None:
        self._machine, self._tensor, self._named = machine, tensor, named
        self._made: dict[int, tuple[Any, Any]] = {}

    def of(self, value: Any, depth: int) -> Any:
        if isinstance(value, PLAIN):
            return value
        if id(value) not in self._made:
            if depth > DEPTH:
                raise ValueError(f"it is nested more than {DEPTH} deep, or holds itself")
            self._made[id(value)] = value, self._new(value, depth + 1)
        return self._made[id(value)][1]

    def _new(self, value: Any, depth: int) -> Any:
        if isinstance(value, Array):
            array = self._machine.array(value)
            return array if self._named else self._tensor(array)
        if isinstance(value, Bytes):
            return self._machine.bytes(value)
        if isinstance(value, np.ndarray):
            return value.tobytes()
        if isinstance(value, tuple) and self._is_named(value):
            return self._tensor(self._machine.array(value[1]))
        if isinstance(value, dict):
            for key, item in value.items():
                value[key] = self.of(item, depth)
            return value
        if isinstance(value, list):
            value[:] = [self.of(item, depth) for item in value]
            return value
        if isinstance(value, tuple):
            return tuple(self.of(item, depth) for item in value)
        if isinstance(value, (set, np.generic)):
            return value
        raise ValueError(f"a {type(value).__name__}")

    def _is_named(self, value: tuple[Any, ...]) -> bool:
        named = self._named and len(value) == 2
        return named and isinstance(value[0], str) and isinstance(value[1], Array)
