"""The sum of a long vector over the ranks of one host, pipelined through memory that they share.

Each rank sums a share of every piece of the vector, in rank order. In step i it takes the others'
sums of piece i - 2d, sums its share of piece i - d, and gives the others what they sum of piece i;
d is the depth of the pipeline. It does so once all have done step i - d. By then they have given
piece i - d, summed their shares of piece i - 2d, and taken piece i - 3d, in whose slot this rank
now gives. So 3d slots do, and a rank that is late stops the others when it is d steps behind.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, types

from hpcdist.base.jit import jit
from hpcdist.comm.base import Array
from hpcdist.comm.futex import EVERYONE, WAIT, WAKE
from hpcdist.comm.ordered_sum import CHUNK, add_row, copy_row

DEPTH = 4
SLOTS = 3 * DEPTH
LINE_BYTES = 64  # of the cache

_intrinsic: Any = extending.intrinsic  # untyped, and what it returns is called by kernels only
_INT64 = ir.IntType(64)


@_intrinsic
def _read(typing: Any, address: Any) -> Any:
    """Read an int64 that another process writes, before anything that is read after it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], ir.PointerType(_INT64))
        return builder.load_atomic(place, "seq_cst", 8)

    return types.int64(types.int64), generate


@_intrinsic
def _write(typing: Any, address: Any, value: Any) -> Any:
    """Write an int64 that another process reads, after all that was written before it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], ir.PointerType(_INT64))
        builder.store_atomic(arguments[1], place, "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@_intrinsic
def _sleep_or_wake(typing: Any, futex: Any, place: Any, what: Any, value: Any, span: Any) -> Any:
    """Call futex(2) for the count at ``place``; ``span`` is the address of a struct timespec."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        syscall, number, low = (builder.extract_value(arguments[0], k) for k in range(3))
        kind = ir.FunctionType(_INT64, [_INT64], var_arg=True)
        function = builder.inttoptr(syscall, ir.PointerType(kind))
        half = builder.add(arguments[1], low)
        return builder.call(function, [number, half, *arguments[2:]])

    return types.int64(futex, *[types.int64] * 4), generate


@jit
def last_step(length: int, piece: int) -> int:
    """Return the number of the last step, for pieces of ``piece`` elements."""
    return (length + piece - 1) // piece + 2 * DEPTH


@jit
def steps_before(step: int, last: int) -> int:
    """Return how many steps all ranks must have done before one does ``step``.

    The last one is to wait until nobody reads the slots any more.
    """
    return step - DEPTH + 1 if step < last else last


@jit
def _have_come(
    needed: int, rank: int, counts: Array, sleepers: Array, futex: Any, spins: int, sleep_ns: int
) -> bool:
    """Return whether all ranks' counts are ``needed``, after a wait for as long as they come."""
    span = np.array([0, sleep_ns])
    for peer in range(len(counts)):
        count = _read(counts[peer])
        polls = 0
        while count < needed:
            if sleep_ns == 0:
                return False
            seen = count
            if polls == spins:
                _write(sleepers[rank], needed)  # before the last look: who comes sees it, or we do
            count = _read(counts[peer])
            polls += 1
            if polls > spins and count == seen:
                _sleep_or_wake(futex, counts[peer], WAIT, seen, span.ctypes.data)
                count = _read(counts[peer])
                if count == seen:  # so long, or until a signal
                    return False
    return True


@jit
def advance(
    vector: Array,
    rows: Array,
    first: int,
    share: int,
    rank: int,
    counts: Array,
    sleepers: Array,
    begin: int,
    futex: Any,
    spins: int,
    sleep_ns: int,
    step: int,
) -> int:
    """Do the steps that can be done from ``step`` on; return the next one.

    vector [n]; rows [ranks, ...] of its dtype, shared by the ranks: in each, elements
    first:first + SLOTS * ranks * share. counts, sleepers: int64[ranks], where each rank's count of
    steps lies, which is ``begin`` before the first one, and the count that it sleeps for. futex:
    `hpcdist.comm.futex.FOR_KERNELS`. A wait polls ``spins`` times, then sleeps, ``sleep_ns`` at
    most; 0: no wait at all.
    """
    ranks = len(rows)
    piece = share * ranks
    last = last_step(len(vector), piece)
    pieces = last - 2 * DEPTH
    scratch = np.empty(CHUNK, vector.dtype)
    while step <= last:
        needed = begin + steps_before(step, last)
        if not _have_come(needed, rank, counts, sleepers, futex, spins, sleep_ns):
            return step
        taken, summed, given = step - 2 * DEPTH, step - DEPTH, step
        step += 1
        if taken == pieces:
            return step
        for peer in range(ranks):
            if peer == rank:
                continue
            if taken >= 0:
                begins = taken * piece + peer * share
                part = vector[begins : begins + share]
                slot = first + taken % SLOTS * piece + peer * share
                copy_row(rows[peer, slot : slot + len(part)], part)
            if given < pieces:
                begins = given * piece + peer * share
                part = vector[begins : begins + share]
                slot = first + given % SLOTS * piece + peer * share
                copy_row(part, rows[rank, slot : slot + len(part)])
        if 0 <= summed < pieces:
            begins = summed * piece + rank * share
            part = vector[begins : begins + share]
            slot = first + summed % SLOTS * piece + rank * share
            for block in range(0, len(part), CHUNK):
                own = part[block : block + CHUNK]
                at, end = slot + block, slot + block + len(own)
                total = scratch[: len(own)]
                copy_row(own if rank == 0 else rows[0, at:end], total)
                for peer in range(1, ranks):
                    add_row(own if rank == peer else rows[peer, at:end], total)
                copy_row(total, own)
                copy_row(total, rows[rank, at:end])
        _write(counts[rank], begin + step)
        for peer in range(ranks):
            if _read(sleepers[peer]) == begin + step:
                _sleep_or_wake(futex, counts[rank], WAKE, EVERYONE, 0)
                break
    return step


def share_of(length: int, itemsize: int, ranks: int, nbytes: int) -> int:
    """Return how many elements of a piece a rank sums, so that SLOTS pieces have ``nbytes``.

    Pieces are as equal as whole lines of the cache allow.
    """
    line = max(1, LINE_BYTES // itemsize)
    most = nbytes // SLOTS // ranks // LINE_BYTES * line
    pieces = -(-length // (most * ranks))
    return -(-length // (pieces * ranks * line)) * line
