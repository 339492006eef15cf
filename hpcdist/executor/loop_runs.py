"""Runs of small calls as one: instead of numpy's functions, the loops that these would call.

A call of numpy on a few elements takes half a microsecond, whatever it computes. What stays the
same in every step (operands, shapes, the loop for their types) is found once and put into a table,
which one compiled call walks (`loop_kernels`). The arithmetic is numpy's own, so the bits are too;
that a table says what its call does is tried on random operands before it is used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdist.base.ufunc_loops import coalesced, loop_of
from hpcdist.executor.chains import parts_of
from hpcdist.graph.registry import Call
from hpcdist.ops.common import in_turn

MOST_ELEMENTS = 4096  # of an array: a longer loop takes longer than its call
MOST_PRODUCTS = 1 << 15  # of a product of matrices
MOST_ROWS = 64  # of a table for one call
_COLUMNS = 20  # loop_kernels.COLUMNS: that module takes numba's 0.3 s to import

_OF_ALL_KINDS = (np.positive, np.negative, np.add, np.subtract, np.multiply)

Row = list[int]
Rows = list[Row]
Operands = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Known:
    """A call whose loops are known: ``rows(arrays)`` are its table, ``call(arrays)`` makes it.

    ``arrays`` are its operands, the one it writes last; ``key`` tells it from other calls.
    """

    key: object
    arrays: Operands
    rows: Callable[[Operands], Rows | None]
    call: Callable[[Operands], object]


def join_loops(steps: Sequence[Call]) -> tuple[list[Call], list[int]]:
    """Return the calls of steps, small ones joined, and for each the index of its (last) step.

    No call stands there twice, so that one is known by itself.
    """
    joined: list[Call] = []
    owners: list[int] = []
    rows: Rows = []
    kept: list[object] = []

    def end() -> None:
        if rows:
            joined.append(_walker(rows, kept))
            owners.append(last)
        rows.clear()
        kept.clear()

    last = 0
    for i, call in ((i, call) for i, step in enumerate(steps) for call in in_turn(step)):
        found = _table(call)
        if found is None:
            end()
            joined.append(functools.partial(call) if call in joined else call)
            owners.append(i)
        else:
            rows += found[0]
            kept += found[1]
            last = i
    end()
    return joined, owners


def _table(call: Call) -> tuple[Rows, list[object]] | None:
    """Return the rows of a call's loops and what they need alive; None if it makes other calls."""
    rows: Rows = []
    kept: list[object] = [call]
    for part in parts_of(call):
        known = _known(part)
        found = None if known is None or not _fits(known.arrays) else known.rows(known.arrays)
        if known is None or found is None or len(found) > MOST_ROWS or not _agrees(known):
            return None
        rows += found
        kept.append(known.arrays)
    return rows, kept


def _walker(rows: Rows, kept: Iterable[object]) -> Call:
    from hpcdist.base.jit import bound
    from hpcdist.executor.loop_kernels import walk

    run = bound(walk, np.array(rows, np.int64))
    run.kept = list(kept)  # type: ignore[attr-defined]
    return run


# -- what calls do ---------------------------------------------------------------------------------
def _known(call: Call) -> Known | None:
    """Return the table's entry for a call; None if it has none."""
    if not isinstance(call, functools.partial):
        return None
    function, args, named = call.func, call.args, dict(call.keywords)
    owner = getattr(function, "__self__", None)
    if isinstance(owner, np.ndarray) and function.__name__ == "fill" and not named:
        return _ufunc(np.positive, (np.full((), args[0], owner.dtype), owner))
    if isinstance(owner, np.ufunc) and function.__name__ == "reduce" and not named:
        return _sum(*args) if owner is np.add else None
    if function is np.copyto and not named and len(args) == 2:
        return _ufunc(np.positive, args[::-1])
    out = named.pop("out", None)
    operands = args if out is None else (*args, out)
    if named:
        return None
    if function is np.dot or function is np.matmul:
        return _product(function, operands)
    return _ufunc(function, operands) if isinstance(function, np.ufunc) else None


def _ufunc(function: np.ufunc, operands: Sequence[Any]) -> Known | None:
    """Return an element-wise call: arrays, or numbers that become ones of the arrays' type."""
    if function.signature is not None or len(operands) != function.nargs or function.nout != 1:
        return None
    first = next((o for o in operands if isinstance(o, np.ndarray)), None)
    if first is None:
        return None
    arrays = []
    for operand in operands:
        kinds = {float: "f", int: "fi"}.get(type(operand), "")
        if not isinstance(operand, np.ndarray):
            if first.dtype.kind not in kinds:
                return None
            operand = np.full((), operand, first.dtype)
        arrays.append(operand)

    def call(arrays: Operands) -> object:
        return function(*arrays[:-1], out=arrays[-1])

    return Known(function, tuple(arrays), functools.partial(_element_wise, function), call)


def _sum(array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, keep: bool = False) -> Any:
    if dtype is not None or not isinstance(out, np.ndarray):
        return None
    axes = (axis,) if isinstance(axis, int) else axis
    if axes is None or not (axes in ((0,), tuple(range(array.ndim))) and array.ndim <= 2):
        return None

    def call(arrays: Operands) -> object:
        return np.add.reduce(arrays[0], axis, None, out=arrays[1], keepdims=keep)

    rows = functools.partial(_sum_rows, axes)
    return Known((np.add.reduce, axis, keep), (array, out), rows, call)


def _product(function: Any, operands: Sequence[Any]) -> Known | None:
    if len(operands) != 3 or not all(isinstance(o, np.ndarray) for o in operands):
        return None

    def call(arrays: Operands) -> object:
        return function(arrays[0], arrays[1], out=arrays[2])

    return Known(function, tuple(operands), _product_rows, call)


# -- tables ----------------------------------------------------------------------------------------
def _row(loop: tuple[int, int], arrays: Sequence[int], extents: Row, strides: Row) -> Row:
    """Return one row, as `loop_kernels` reads it."""
    parts = [*loop], [*arrays], [*extents], [*strides]
    widths = (2, 4, 4, _COLUMNS - 10)
    return [n for part, width in zip(parts, widths) for n in part + [0] * (width - len(part))]


def _element_wise(function: np.ufunc, arrays: Operands) -> Rows | None:
    out = arrays[-1]
    loop = loop_of(function, _types(arrays))
    if loop is None or not _cannot_raise(function, arrays):
        return None
    if any(np.broadcast_shapes(a.shape, out.shape) != out.shape for a in arrays):
        return None
    shape, strides = coalesced([np.broadcast_to(a, out.shape) for a in arrays])
    places = [_address(a) for a in arrays]
    if len(shape) < 2:
        return [_row(loop, places, shape or [1], [s[0] if s else 0 for s in strides])]
    if len(shape) > 2:
        return None
    steps = [s[1] for s in strides]
    begins = ([p + i * s[0] for p, s in zip(places, strides)] for i in range(shape[0]))
    return [_row(loop, begin, shape[1:], steps) for begin in begins]


def _cannot_raise(function: np.ufunc, arrays: Operands) -> bool:
    """Return whether a loop never raises: of whole numbers, power and quotients may."""
    return function in _OF_ALL_KINDS or all(a.dtype.kind in "fb" for a in arrays)


def _sum_rows(axes: tuple[int, ...], arrays: Operands) -> Rows | None:
    """Return the start at zero, and what is added to it: all at once, or row by row."""
    array, out = arrays
    loop = loop_of(np.add, _types((array, array, out)))
    copy = loop_of(np.positive, _types((array, out)))
    start = _zero(array.dtype)
    if loop is None or copy is None or start is None or not array.flags.c_contiguous:
        return None
    width = array.itemsize
    count = 1 if len(axes) == array.ndim else array.shape[1]
    if out.size != count or not out.flags.c_contiguous:
        return None
    places, total = (_address(array), _address(out)), array.size // count
    begin = _row(copy, [_address(start), places[1]], [count], [0, width])
    if count == 1:
        return [begin, _row(loop, [places[1], places[0], places[1]], [total], [0, width, 0])]
    steps = [
        _row(loop, [places[1], places[0] + i * count * width, places[1]], [count], [width] * 3)
        for i in range(total)
    ]
    return [begin, *steps]


def _product_rows(arrays: Operands) -> Rows | None:
    """Return the one loop of matmul, in which dot calls the same functions of BLAS."""
    x, y, out = arrays
    loop = loop_of(np.matmul, _types(arrays))
    if loop is None or (x.ndim, y.ndim, out.ndim) not in ((2, 2, 2), (1, 1, 0)):
        return None
    x, y = (x.reshape(1, -1), y.reshape(-1, 1)) if x.ndim == 1 else (x, y)
    out = out.reshape(x.shape[0], y.shape[1]) if out.ndim == 0 else out
    (m, n), p = x.shape, y.shape[1]
    if y.shape[0] != n or out.shape != (m, p) or m * n * p > MOST_PRODUCTS:
        return None
    strides = [0, 0, 0, *x.strides, *y.strides, *out.strides]
    return [_row(loop, [_address(a) for a in (x, y, out)], [1, m, n, p], strides)]


def _types(arrays: Sequence[np.ndarray]) -> str:
    return "".join(a.dtype.char for a in arrays[:-1]) + "->" + arrays[-1].dtype.char


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


@functools.cache
def _zero(dtype: np.dtype[Any]) -> np.ndarray | None:
    """Return numpy's start of a sum: 0 or -0, which differ if all that is added is -0."""
    if dtype.kind != "f":
        return None
    return np.add.reduce(np.full((1,), -0.0, dtype), 0, keepdims=True)


# -- trials ----------------------------------------------------------------------------------------
tried: dict[object, bool] = {}


def _fits(arrays: Operands) -> bool:
    """Return whether arrays are few elements, lie as loops need them, and do not half overlap."""
    *inputs, out = arrays
    plain = all(
        0 < a.size <= MOST_ELEMENTS
        and a.flags.aligned
        and a.dtype.isnative
        and all(s >= 0 for s in a.strides)
        for a in arrays
    )
    return (
        plain
        and out.flags.writeable
        and not any(_layout(a) != _layout(out) and np.may_share_memory(a, out) for a in inputs)
    )


def _layout(array: np.ndarray) -> tuple[object, ...]:
    return _address(array), array.shape, array.strides, array.dtype.char


def _agrees(known: Known) -> bool:
    """Return whether a table computes what its call does: tried once for operands of a kind."""
    places = [_address(a) for a in known.arrays]
    kinds = [(a.shape, a.strides, a.dtype.char) for a in known.arrays]
    key = known.key, tuple(kinds), tuple(places.index(p) for p in places)
    if key not in tried:
        random = np.random.RandomState(0)
        tried[key] = all(_trial(known, random, special) for special in (False, False, True))
    return tried[key]


def _trial(known: Known, random: np.random.RandomState, special: bool) -> bool:
    """Return whether a table and its call agree on random operands, or on zeros and infinities."""
    by_table, by_call = (_replicas(known.arrays) for _ in range(2))
    for one, other in zip(by_table, by_call):
        values = random.standard_normal(one.shape) * 4
        if special:
            values = random.choice([0.0, -0.0, 1.5, -2.0, np.inf, -np.inf, np.nan], one.shape)
        with np.errstate(all="ignore"):
            one[...] = other[...] = np.asarray(values).astype(one.dtype)
    rows = known.rows(by_table)
    if rows is None:
        return False
    with np.errstate(all="ignore"):
        _walker(rows, ())()
        known.call(by_call)
    return _same_bits(by_table[-1], by_call[-1])


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether arrays are equal, signs of zeros included; one NaN is as good as another."""
    same = (a == b) & (np.signbit(a) == np.signbit(b)) if a.dtype.kind == "f" else a == b
    return bool((same | (a != a) & (b != b)).all())


def _replicas(arrays: Operands) -> Operands:
    """Return arrays that lie as these do, of which those at one place are one."""
    made: dict[tuple[object, ...], np.ndarray] = {}
    for array in arrays:
        span = sum((n - 1) * s for n, s in zip(array.shape, array.strides)) + array.itemsize
        memory = np.zeros(span // array.itemsize, array.dtype)
        made.setdefault(
            _layout(array), np.ndarray(array.shape, array.dtype, memory, 0, array.strides)
        )
    return tuple(made[_layout(array)] for array in arrays)
